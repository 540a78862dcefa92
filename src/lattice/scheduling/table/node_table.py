"""The node table: nodes, their resources, the workloads bound or assumed on them, and how placements change."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from lattice.engine.derived_columns import drop_oldest_half
from lattice.engine.table import Table
from lattice.engine.tie_order import tie_rank
from lattice.errors import Conflict, Invalid, NotFound
from lattice.kinds.constraints import Taint, WorkloadTerm
from lattice.kinds.meta.base import DEFAULT_NAMESPACE
from lattice.kinds.meta.selector import LabelSelector
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.table.gpu_allocator import GpuAllocator
from lattice.scheduling.table.gpu_demand import GpuDemandLearner
from lattice.scheduling.table.label_codes import CodeArray, LabelCodes
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.port_allocator import PortAllocator, assignable_port_count
from lattice.scheduling.table.resource_fit import overflow_reason, unfit_reason, validate_amounts
from lattice.scheduling.table.workload_ask import (
    PORTS,
    WORKLOAD_SLOTS,
    Demands,
    WorkloadAsk,
    demands_of,
    fixed_shape_of,
)
from lattice.scheduling.table.workload_index import TopologyCounts, WorkloadIndex

NO_LIMIT = 1 << 62  # the amount of a countable resource on a node that states no limit
MAX_CODED_KEYS = 256  # limit of label keys whose values have codes
MAX_NUMBERED_SHAPES = 1 << 14


def needs_with_ports(ask: WorkloadAsk, ports: int, extra_ports: int) -> tuple[tuple[int, int], ...]:
    """The needs of a workload with extra ports, one entry per resource. `ports` is the resource number of
    ports."""
    if not extra_ports:
        return ask.needs
    needs = dict(ask.needs)
    return tuple({**needs, ports: needs.get(ports, 0) + extra_ports}.items())


class NodeTable(Table):
    """The nodes and their workloads. Scheduling decisions depend on the node table alone.

    One exception: above RELEARN_EACH_CHANGE_UP_TO placements, GpuFragmentation scores by a GPU demand
    snapshot that is some changes old. A second table with the same placements may score differently until its
    next snapshot; `gpu_demand.copy_progress_from` copies the snapshot (see GpuDemandLearner).
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(("cpu", "memory", WORKLOAD_SLOTS, PORTS), seed)
        self.node_infos: list[NodeInfo | None] = []
        self.placements: dict[str, Placement] = {}
        self.placements_by_row: list[dict[str, Placement]] = []
        self.gang_sizes: Counter[str] = Counter()  # number of placed members, by gang
        self.gang_members: dict[str, dict[str, None]] = {}  # names of placed members, in order of arrival
        self.gpus = GpuAllocator(self)
        self.gpu_demand = GpuDemandLearner(self)
        self.ports = PortAllocator(self)
        for name in ("unready", "cordoned", "draining", "pressured"):
            self.add_column(name, np.bool_)
        self.add_column("price", np.int64)
        # One journal per active what_if: the placement of every changed workload before the change.
        self._journals: list[dict[str, Placement | None]] = []
        self._workload_index = WorkloadIndex(self)
        # A number for every distinct value of demands, because a number is cheaper to hash. A number is never
        # used twice.
        self._shapes: dict[Demands, int] = {}
        self._fixed_shapes: dict[Hashable, int] = {}
        self._next_shape_number = count()
        self._label_codes: dict[str, LabelCodes] = {}
        self._taints: Counter[Taint] = Counter()  # number of nodes by taint

    def load(self, nodes: Iterable[NodeInfo]) -> None:
        """Add many nodes in tie order, because decisions on a table in tie order are faster than on a table
        in order of arrival."""
        for node_info in sorted(nodes, key=lambda node_info: tie_rank(self.seed, node_info.name)):
            self.put_node(node_info)

    def put_node(self, node_info: NodeInfo) -> int:
        """Add a node or change it, and return its row. The placements on the node stay."""
        row = self.row_of.get(node_info.name)
        previous = self.node_infos[row] if row is not None else None
        if row is not None and previous == node_info:
            return row
        self._forbid_in_what_if(node_info.name)
        has_same_capacity = previous is not None and (
            previous.allocatable,
            previous.gpus,
            previous.port_range,
            previous.taken_ports,
        ) == (node_info.allocatable, node_info.gpus, node_info.port_range, node_info.taken_ports)
        if row is None or not has_same_capacity:
            row = self._set_capacity(node_info)
        self._set_node_info(row, node_info)
        for column, value in (
            ("unready", not node_info.is_ready),
            ("cordoned", node_info.is_cordoned),
            ("draining", node_info.is_draining),
            ("pressured", node_info.is_under_pressure),
            ("price", node_info.price),
        ):
            self._columns[column][row] = value
        self.touch_fixed(row)
        self.gpu_demand.note_change()
        return row

    def _set_capacity(self, node_info: NodeInfo) -> int:
        """Set the capacity of a new or known node, and return its row."""
        validate_amounts(f"node {node_info.name}", node_info.allocatable.items())
        # The port range limits the ports, whatever amount the node reports.
        ports = assignable_port_count(node_info)
        totals = {
            WORKLOAD_SLOTS: NO_LIMIT,
            **node_info.allocatable,
            PORTS: min(ports, node_info.allocatable.get(PORTS, ports)),
        }
        row = self.row_of.get(node_info.name)
        if row is not None:
            self.resize(node_info.name, totals)
        else:
            row = self.add(node_info.name, totals)
            if row == len(self.node_infos):
                self.node_infos.append(None)
                self.placements_by_row.append({})
        if moved := self.ports.set_node(row, node_info):
            self.allocate(row, [(self.resource_index[PORTS], moved)])
        self.gpus.set_node(row, node_info.gpus)
        return row

    def remove_node(self, name: str) -> list[Placement]:
        """Remove a node and its placements, and return these placements by name."""
        if name not in self.row_of:
            raise NotFound(f"no node {name}")
        self._forbid_in_what_if(name)
        row = self.row_of[name]
        # Sorted by name, because the order of arrival differs in a table that was restored.
        lost = sorted(self.placements_by_row[row].values(), key=lambda placement: placement.ask.name)
        for placement in lost:
            self.forget(placement.ask.name)
        self.gpus.set_node(row, ())
        # The highest price of the table must not be that of a removed node.
        self.set(row, "price", 0)
        self._set_node_info(row, None)
        self.remove(name)
        self.gpu_demand.note_change()
        return lost

    def _forbid_in_what_if(self, node: str) -> None:
        if self._journals:
            raise Conflict(
                "nodes cannot change inside what_if, which undoes only placements",
                where=f"node {node}",
                fix="change the node before what_if",
            )

    def domain_codes(self, key: str) -> CodeArray:
        """The domain code of each row under a topology key (`node`, `zone`, any label key); -1 for a node
        without the key."""
        return self.label_codes(key).codes

    def domain_count(self, key: str) -> int:
        """The number of distinct values that nodes have under the topology key."""
        return len(self.label_codes(key).code_by_value)

    def domain_names(self, key: str) -> list[str]:
        """Domain names by code, including names of codes that no node has now."""
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
        """The distinct taints of the nodes."""
        return self._taints.keys()

    def _set_node_info(self, row: int, node_info: NodeInfo | None) -> None:
        previous = self.node_infos[row]
        previous_taints = previous.taints if previous else ()
        self._taints.subtract(previous_taints)
        self._taints.update(node_info.taints if node_info else ())
        for taint in previous_taints:
            if not self._taints[taint]:
                del self._taints[taint]
        self.node_infos[row] = node_info

    def ask_of(self, workload: LatticeWorkload) -> WorkloadAsk:
        group = workload.spec.group
        name = f"{workload.metadata.namespace or DEFAULT_NAMESPACE}/{workload.metadata.name}"
        ask = self.make_ask(name, demands_of(workload), workload.spec.priority)
        if not group:
            return ask
        return replace(ask, group=f"{ask.demands.namespace}/{group.name}", min_member=group.min_member)

    def make_ask(self, name: str, demands: Demands, priority: int = 0) -> WorkloadAsk:
        amounts = Counter(dict(demands.requests))
        amounts[WORKLOAD_SLOTS] += 1
        if demands.ports:
            amounts[PORTS] += demands.ports
        validate_amounts(f"workload {name}", amounts.items())
        needs = tuple((self.add_resource(resource), amount) for resource, amount in amounts.items())
        for port in demands.host_ports:
            self.ports.track(port)
        shape = self._shape_number(self._shapes, demands)
        fixed_shape = self._shape_number(self._fixed_shapes, fixed_shape_of(demands))
        return WorkloadAsk(
            name, demands, shape, needs, priority, labels=dict(demands.labels), fixed_shape=fixed_shape
        )

    def _shape_number(self, numbers: dict[Any, int], shape: Hashable) -> int:
        """The number of a shape. A shape keeps its number while the table remembers the shape; no number is
        used twice."""
        number = numbers.get(shape)
        if number is None:
            drop_oldest_half(numbers, MAX_NUMBERED_SHAPES)
            number = numbers[shape] = next(self._next_shape_number)
        return number

    def assume(self, ask: WorkloadAsk, row: int) -> Placement:
        """Place a workload on a node before its binding is durable; raise Conflict if the workload does not
        fit."""
        if reason := unfit_reason(ask, self, row):
            raise Conflict(
                reason,
                where=ask.name,
                fix="decide again: the node has changed, or its filters did not run",
            )
        return self._place(ask, row)

    def admit(self, ask: WorkloadAsk, row: int, ports: tuple[int, ...] | None = None) -> Placement:
        """Place a workload that runs on the node already, whether or not it fits, with its ports if these are
        known.

        The GPUs that the workload needs must be free nevertheless.
        """
        self._reject_overflow(ask, row)
        return self._place(ask, row, ports)

    def _place(self, ask: WorkloadAsk, row: int, ports: tuple[int, ...] | None = None) -> Placement:
        if ask.name in self.placements:
            where = self.names[self.placements[ask.name].row]
            raise Conflict(
                f"is already on node {where}", where=ask.name, fix="remove the workload from that node first"
            )
        gpus = self.gpus.allocate(row, ask.demands.gpu) if ask.demands.gpu else ()
        placement = Placement(
            ask, row, "assumed", gpus, self.ports.choose(row, ask.demands) if ports is None else ports
        )
        self._account_for(placement)
        return placement

    def _reject_overflow(self, ask: WorkloadAsk, row: int) -> None:
        if reason := overflow_reason(ask, self, row):
            raise Invalid(
                reason,
                where=ask.name,
                fix="correct the requests of this workload, or of other workloads on the node",
            )

    def _account_for(self, placement: Placement) -> None:
        """Count a placement. The callers check everything that could fail."""
        row, ask = placement.row, placement.ask
        self.allocate(row, ask.needs)
        if (ask.demands.host_ports or placement.ports) and (fixed := self.ports.allocate(placement)):
            self.allocate(row, [(self.resource_index[PORTS], fixed)])
        self._journal(ask.name)
        self.placements[ask.name] = self.placements_by_row[row][ask.name] = placement
        self._update_counts(placement, 1)
        self.gpu_demand.record(ask, 1)

    def needs_on(self, ask: WorkloadAsk, row: int) -> tuple[tuple[int, int], ...]:
        """The needs of a workload on one node.

        A host port inside the node's port range, unless its number is in use already, takes one port of the
        range.
        """
        fixed = self.ports.new_in_range(row, ask.demands) if ask.demands.host_ports else 0
        return needs_with_ports(ask, self.resource_index[PORTS], fixed)

    def commit(self, name: str) -> Placement:
        """Mark a placement as bound: its binding is durable."""
        placement = self._placement_of(name)
        if placement.state != "bound":
            self._journal(name)
            placement = replace(placement, state="bound")
            self.placements[name] = self.placements_by_row[placement.row][name] = placement
        return placement

    def forget(self, name: str) -> Placement:
        """Remove a placement and release its resources; raise NotFound if the workload has no placement.

        To undo a reservation without an error, call `Binder.rollback`.
        """
        placement = self._placement_of(name)
        row, ask = placement.row, placement.ask
        if ask.demands.gpu:
            self.gpus.release(row, ask.demands.gpu, placement.gpus)
        self._journal(name)
        del self.placements[name], self.placements_by_row[row][name]
        self._update_counts(placement, -1)
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
        """Undo every placement change of the block at its end. Nodes cannot change inside the block.

        The cost is proportional to the changes inside the block: nothing is copied.
        """
        journal: dict[str, Placement | None] = {}
        self._journals.append(journal)
        gpu_demand_progress = self.gpu_demand.checkpoint()
        try:
            yield
        finally:
            self._journals.pop()
            for name, placement in journal.items():
                if name in self.placements and self.placements[name] is not placement:
                    self.forget(name)
            # All removals come first: a restored placement may need the GPUs and ports of a removed one.
            for name, placement in journal.items():
                if placement is not None and name not in self.placements:
                    self._restore_unchecked(placement)
            self.gpu_demand.restore(gpu_demand_progress)

    def _journal(self, name: str) -> None:
        for journal in self._journals:
            # Only the placement before the first change of a workload is recorded, because that is the state
            # to restore.
            journal.setdefault(name, self.placements.get(name))

    def restore(self, placement: Placement) -> None:
        """Add a placement with its own GPUs and ports: a placement that `forget` removed, or that a stored
        workload states."""
        if placement.ask.name in self.placements:
            raise Conflict(
                "is already restored", where=placement.ask.name, fix="restore a removed workload only once"
            )
        self._reject_overflow(placement.ask, placement.row)
        self._restore_unchecked(placement)

    def _restore_unchecked(self, placement: Placement) -> None:
        if placement.ask.demands.gpu:
            self.gpus.allocate_exactly(placement.row, placement.ask.demands.gpu, placement.gpus)
        self._account_for(placement)

    def topology_counts(self, namespace: str, selector: LabelSelector, service: str = "") -> TopologyCounts:
        """Counts of the workloads that match. The table drops counts that are not in use, so request the
        counts before every use."""
        return self._workload_index.topology_counts(namespace, selector, service)

    def anti_affinity_against(self, ask: WorkloadAsk) -> list[tuple[WorkloadTerm, TopologyCounts]]:
        """Anti-affinity terms of placed workloads that match the asking workload, with the counts of the
        workloads that have the term."""
        return self._workload_index.anti_affinity_against(ask)

    def _update_counts(self, placement: Placement, change: int) -> None:
        if group := placement.ask.group:
            self.gang_sizes[group] += change
            members = self.gang_members.setdefault(group, {})
            if change > 0:
                members[placement.ask.name] = None
            else:
                del members[placement.ask.name]
            if not self.gang_sizes[group]:
                del self.gang_sizes[group], self.gang_members[group]
        self._workload_index.update(placement.ask, placement.row, change)
