"""The nodes as a table: what is on each, what is assumed to be soon, and how that changes."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import numpy as np

from lattice.engine.derived_columns import drop_oldest_half
from lattice.engine.table import Table
from lattice.engine.tie_order import tie_rank
from lattice.errors import Conflict, Invalid, NotFound
from lattice.kinds.constraint import Taint, WorkloadTerm
from lattice.kinds.meta.selector import LabelSelector
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.table.ask import (
    PORTS,
    WORKLOAD_SLOTS,
    Demands,
    WorkloadAsk,
    demands_of,
    fixed_shape_of,
)
from lattice.scheduling.table.gpu_allocator import GpuAllocator
from lattice.scheduling.table.gpu_demand import GpuDemandLearner
from lattice.scheduling.table.label_codes import CodeArray, LabelCodes
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.port_allocator import PortAllocator, assignable_port_count
from lattice.scheduling.table.resource_fit import overflow_reason, unfit_reason, validate_amounts
from lattice.scheduling.table.workload_index import TopologyCounts, WorkloadIndex

NO_LIMIT = 1 << 62  # a node that does not say how much of a countable thing it takes
MAX_CODED_KEYS = 256  # label keys whose values are numbered
MAX_NUMBERED_SHAPES = 1 << 14  # kinds of demands whose numbers are remembered


@dataclass(frozen=True, slots=True)
class Placement:
    """A workload on a node: assumed until its binding is durable."""

    ask: WorkloadAsk
    row: int
    state: Literal["assumed", "bound"]
    gpus: tuple[int, ...] = ()  # which ones
    ports: tuple[int, ...] = ()


def needs_with_ports(ask: WorkloadAsk, ports: int, more: int) -> tuple[tuple[int, int], ...]:
    """Its needs, each resource once, with so many more ports."""
    if not more:
        return ask.needs
    needs = dict(ask.needs)
    return tuple({**needs, ports: needs.get(ports, 0) + more}.items())


def _has_same_capacity(one: NodeInfo, other: NodeInfo) -> bool:
    """Of everything that workloads take a part of."""
    return (one.allocatable, one.gpus, one.port_range, one.taken_ports) == (
        other.allocatable,
        other.gpus,
        other.port_range,
        other.taken_ports,
    )


class NodeTable(Table):
    """Which nodes there are and who is where; what is decided is decided by this alone.

    One exception: beyond a few dozen placements GpuFragmentation goes by a lesson that it learned some changes ago, so that a table told
    of the same placements may score otherwise until it learns the next one; `lessons.carry_over` hands the lesson on (see Lessons).
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(("cpu", "memory", WORKLOAD_SLOTS, PORTS), seed)
        self.node_infos: list[NodeInfo | None] = []
        self.placements: dict[str, Placement] = {}
        self.placements_by_row: list[dict[str, Placement]] = []
        self.gang_sizes: Counter[str] = Counter()  # of each group, how many have their place
        self.gang_members: dict[str, dict[str, None]] = {}  # and who they are, in order of arrival
        self.gpus = GpuAllocator(self)
        self.gpu_demand = GpuDemandLearner(self)
        self.ports = PortAllocator(self)
        self.evicting: dict[
            str, dict[str, None]
        ] = {}  # by node: who was told to go, has no place there any more, and may still run
        for name in ("unready", "cordoned", "draining"):
            self.add_column(name, np.bool_)
        self.add_column("price", np.int64)
        self._journals: list[
            dict[str, Placement | None]
        ] = []  # of each what_if under way: who was where before
        self._workload_index = WorkloadIndex(self)
        self._shapes: dict[
            Demands, int
        ] = {}  # a number for each kind of demand, cheaper to look up than the demand itself
        self._fixed_shapes: dict[Hashable, int] = {}
        self._next_shape_number = count()  # of those; none is given twice
        self._label_codes: dict[str, LabelCodes] = {}
        self._taints: Counter[Taint] = Counter()  # which ones nodes have, and how many do

    def load(self, nodes: Iterable[NodeInfo]) -> None:
        """Many at once, in tie order, which makes deciding faster than adding them one by one as they come."""
        for facts in sorted(nodes, key=lambda each: tie_rank(self.seed, each.name)):
            self.put_node(facts)

    def put_node(self, facts: NodeInfo) -> int:
        """Add a node, or change it; what is on it stays."""
        known = self.row_of.get(facts.name)
        before = self.node_infos[known] if known is not None else None
        if known is not None and before == facts:
            return known
        self._forbid_in_what_if(facts.name)
        row = (
            known
            if known is not None and before and _has_same_capacity(before, facts)
            else self._set_capacity(facts)
        )
        self._set_node_info(row, facts)
        for column, value in (
            ("unready", not facts.is_ready),
            ("cordoned", facts.is_cordoned),
            ("draining", facts.is_draining),
            ("price", facts.price),
        ):
            self._columns[column][row] = value
        self.touch_fixed(row)
        self.gpu_demand.note_change()
        return row

    def _set_capacity(self, facts: NodeInfo) -> int:
        """Its row, with as much of everything as the node has."""
        validate_amounts(f"node {facts.name}", facts.allocatable.items())
        row = self._row_for(facts)
        if moved := self.ports.set_node(row, facts):
            self.allocate(row, [(self.resource_index[PORTS], moved)])
        self.gpus.set_node(row, facts.gpus)
        return row

    def _row_for(self, facts: NodeInfo) -> int:
        """No more ports can be given out than the range has, whatever the node says."""
        ports = assignable_port_count(facts)
        totals = {
            WORKLOAD_SLOTS: NO_LIMIT,
            **facts.allocatable,
            PORTS: min(ports, facts.allocatable.get(PORTS, ports)),
        }
        row = self.row_of.get(facts.name)
        if row is not None:
            self.resize(facts.name, totals)
            return row
        row = self.add(facts.name, totals)
        if row == len(self.node_infos):
            self.node_infos.append(None)
            self.placements_by_row.append({})
        return row

    def remove_node(self, name: str) -> list[Placement]:
        """The node is gone; so is what was on it, which is returned."""
        if name not in self.row_of:
            raise NotFound(f"no node {name}")
        self._forbid_in_what_if(name)
        row = self.row_of[name]
        lost = sorted(
            self.placements_by_row[row].values(), key=lambda each: each.ask.name
        )  # whatever order they came or were restored in
        for placement in lost:
            self.forget(placement.ask.name)
        self.gpus.set_node(row, ())
        self.set(row, "price", 0)  # or it might still be the highest
        self._set_node_info(row, None)
        self.remove(name)
        self.evicting.pop(name, None)
        self.gpu_demand.note_change()
        return lost

    def _forbid_in_what_if(self, node: str) -> None:
        if self._journals:
            raise Conflict(
                "nodes cannot change inside what_if: only placements are undone",
                where=f"node {node}",
                fix="change it before",
            )

    def domain_codes(self, key: str) -> CodeArray:
        """For each row the number of its domain under a topology key (`node`, `zone`, any label key); -1: it has none."""
        return self.label_codes(key).codes

    def domain_count(self, key: str) -> int:
        """How many values of it nodes have."""
        return len(self.label_codes(key).code_by_value)

    def domain_names(self, key: str) -> list[str]:
        """By number; numbers that no node has now are among them."""
        return self.label_codes(key).values

    def label_codes(self, key: str) -> LabelCodes:
        coded = self._label_codes.get(key)
        if coded is None:
            drop_oldest_half(self._label_codes, MAX_CODED_KEYS)
            coded = self._label_codes[key] = LabelCodes(key)
        if coded.version != self.fixed_version:
            changed = self.fixed_since(coded.version)
            coded.update(self.node_infos, range(self.count) if changed is None else changed)
            coded.version = self.fixed_version
        return coded

    @property
    def taints(self) -> Collection[Taint]:
        """Those that any node has."""
        return self._taints.keys()

    def _set_node_info(self, row: int, facts: NodeInfo | None) -> None:
        before = self.node_infos[row]
        self._taints.subtract(before.taints if before else ())
        self._taints.update(facts.taints if facts else ())
        for taint in before.taints if before else ():
            if not self._taints[taint]:
                del self._taints[taint]
        self.node_infos[row] = facts

    def ask_of(self, workload: LatticeWorkload) -> WorkloadAsk:
        group = workload.spec.group
        name = f"{workload.metadata.namespace or 'default'}/{workload.metadata.name}"
        asked = self.make_ask(name, demands_of(workload), workload.spec.priority)
        return (
            replace(asked, group=f"{asked.demands.namespace}/{group.name}", min_member=group.min_member)
            if group
            else asked
        )

    def make_ask(self, name: str, demands: Demands, priority: int = 0) -> WorkloadAsk:
        counted = Counter(dict(demands.requests))
        counted[WORKLOAD_SLOTS] += 1
        if demands.ports:
            counted[PORTS] += demands.ports
        validate_amounts(f"workload {name}", counted.items())
        needs = tuple((self.add_resource(resource), amount) for resource, amount in counted.items())
        for port in demands.host_ports:
            self.ports.track(port)
        shape, fixed = (
            self._shape_number(self._shapes, demands),
            self._shape_number(self._fixed_shapes, fixed_shape_of(demands)),
        )
        return WorkloadAsk(
            name, demands, shape, needs, priority, labels=dict(demands.labels), fixed_shape=fixed
        )

    def _shape_number(self, numbers: dict[Any, int], what: Hashable) -> int:
        """Its own, for as long as it is remembered, and never another's."""
        number = numbers.get(what)
        if number is None:
            drop_oldest_half(numbers, MAX_NUMBERED_SHAPES)
            number = numbers[what] = next(self._next_shape_number)
        return number

    def has_column(self, name: str) -> bool:
        return name in self._columns

    def assume(self, ask: WorkloadAsk, row: int) -> Placement:
        """It will be there; deciding goes on as if it were. What there is no room for is refused."""
        if why := unfit_reason(ask, self, row):
            raise Conflict(
                why,
                where=ask.name,
                fix="decide anew: the node is not as it was, or its filters were not asked",
            )
        return self._place(ask, row)

    def admit(self, ask: WorkloadAsk, row: int, ports: tuple[int, ...] | None = None) -> Placement:
        """It is there, whether or not there was room: for what runs already, with the ports that it has, if these are known.

        A GPU that it needs must be free all the same.
        """
        self._reject_overflow(ask, row)
        return self._place(ask, row, ports)

    def _place(self, ask: WorkloadAsk, row: int, ports: tuple[int, ...] | None = None) -> Placement:
        if ask.name in self.placements:
            where = self.names[self.placements[ask.name].row]
            raise Conflict(f"is on node {where} already", where=ask.name, fix="forget it first")
        gpus = self.gpus.allocate(row, ask.demands.gpu) if ask.demands.gpu else ()
        placement = Placement(
            ask, row, "assumed", gpus, self.ports.choose(row, ask.demands) if ports is None else ports
        )
        self._account_for(placement)
        return placement

    def _reject_overflow(self, ask: WorkloadAsk, row: int) -> None:
        if why := overflow_reason(ask, self, row):
            raise Invalid(why, where=ask.name, fix="correct what it, or others on the node, ask for")

    def _account_for(self, placement: Placement) -> None:
        """Nothing here may fail: what could is checked before."""
        row, ask = placement.row, placement.ask
        self.allocate(row, ask.needs)
        if (ask.demands.host_ports or placement.ports) and (fixed := self.ports.allocate(placement)):
            self.allocate(row, [(self.resource_index[PORTS], fixed)])
        self._add_placement(placement)
        self.gpu_demand.record(ask, 1)

    def needs_on(self, ask: WorkloadAsk, row: int) -> tuple[tuple[int, int], ...]:
        """A fixed port inside the range that ports are chosen from, unless its number is in use already, is one fewer to choose."""
        fixed = self.ports.new_in_range(row, ask.demands) if ask.demands.host_ports else 0
        return needs_with_ports(ask, self.resource_index[PORTS], fixed)

    def commit(self, name: str) -> Placement:
        """Its binding is durable."""
        placement = self._placement_of(name)
        if placement.state != "bound":
            self._journal(name)
            placement = replace(placement, state="bound")
            self.placements[name] = self.placements_by_row[placement.row][name] = placement
        return placement

    def forget(self, name: str) -> Placement:
        """It is not, or no longer, there. Forgetting twice is an error; see `rollback` in bind.py for the forgiving form."""
        placement = self._placement_of(name)
        row, ask = placement.row, placement.ask
        if ask.demands.gpu:
            self.gpus.release(row, ask.demands.gpu, placement.gpus)
        self._remove_placement(placement)
        self.allocate(row, [(resource, -amount) for resource, amount in ask.needs])
        if (ask.demands.host_ports or placement.ports) and (fixed := self.ports.release(placement)):
            self.allocate(row, [(self.resource_index[PORTS], -fixed)])
        self.gpu_demand.record(ask, -1)
        return placement

    def _placement_of(self, name: str) -> Placement:
        placement = self.placements.get(name)
        if placement is None:
            raise NotFound(f"no workload {name} on any node")
        return placement

    @contextmanager
    def what_if(self) -> Iterator[None]:
        """Place and forget freely inside: on the way out everything placed is as it was. Nodes cannot change meanwhile.

        Costs what was done inside, nothing is copied.
        """
        before: dict[str, Placement | None] = {}
        self._journals.append(before)
        learned = self.gpu_demand.checkpoint()
        try:
            yield
        finally:
            self._journals.pop()
            for name, placement in before.items():
                if name in self.placements and self.placements[name] is not placement:
                    self.forget(name)
            for name, placement in before.items():
                if placement is not None and name not in self.placements:
                    self._restore_unchecked(placement)
            self.gpu_demand.restore(learned)

    def _journal(self, name: str) -> None:
        for journal in self._journals:
            journal.setdefault(name, self.placements.get(name))

    def restore(self, placement: Placement) -> None:
        """What was forgotten is there again, as it was, GPUs and ports included; also what is known to be there from elsewhere."""
        if placement.ask.name in self.placements:
            raise Conflict(
                "is there again already", where=placement.ask.name, fix="restore what was forgotten, once"
            )
        self._reject_overflow(placement.ask, placement.row)
        self._restore_unchecked(placement)

    def _restore_unchecked(self, placement: Placement) -> None:
        if placement.ask.demands.gpu:
            self.gpus.allocate_exactly(placement.row, placement.ask.demands.gpu, placement.gpus)
        self._account_for(placement)

    def topology_counts(self, namespace: str, selector: LabelSelector, service: str = "") -> TopologyCounts:
        """Counts of the matching workloads, kept up to date while it is in use: ask for it each time."""
        return self._workload_index.topology_counts(namespace, selector, service)

    def anti_affinity_against(self, ask: WorkloadAsk) -> list[tuple[WorkloadTerm, TopologyCounts]]:
        """Terms of placed workloads that keep this one away, each with where its carriers are."""
        return self._workload_index.anti_affinity_against(ask)

    def _add_placement(self, placement: Placement) -> None:
        name = placement.ask.name
        self._journal(name)
        self.placements[name] = self.placements_by_row[placement.row][name] = placement
        self._update_counts(placement, 1)

    def _remove_placement(self, placement: Placement) -> None:
        name = placement.ask.name
        self._journal(name)
        del self.placements[name], self.placements_by_row[placement.row][name]
        self._update_counts(placement, -1)

    def _update_counts(self, placement: Placement, change: int) -> None:
        if group := placement.ask.group:
            self.gang_sizes[group] += change
            self._update_gang(group, placement.ask.name, change)
            if not self.gang_sizes[group]:
                del self.gang_sizes[group], self.gang_members[group]
        self._workload_index.update(placement.ask, placement.row, change)

    def _update_gang(self, group: str, name: str, change: int) -> None:
        mates = self.gang_members.setdefault(group, {})
        if change > 0:
            mates[name] = None
        else:
            del mates[name]
