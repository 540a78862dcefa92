"""The nodes as a table: what is on each, what is assumed to be soon, and how that changes."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import numpy as np

from lattice.engine.derived_columns import keep_last
from lattice.engine.tie_order import tie_rank
from lattice.engine.table import Table
from lattice.errors import Conflict, Invalid, NotFound
from lattice.kinds.constraint import Taint, WorkloadTerm
from lattice.kinds.meta.selector import LabelSelector
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.table.ask import PORTS, SLOTS, Demands, WorkloadAsk, demands_of, fixed_part
from lattice.scheduling.table.workload_index import Census
from lattice.scheduling.table.label_codes import Coded, Codes
from lattice.scheduling.table.node_info import NodeFacts
from lattice.scheduling.table.gpus import Gpus
from lattice.scheduling.table.lesson import Lessons
from lattice.scheduling.table.ports import Ports, free_in_range
from lattice.scheduling.table.resource_fit import lacks, refuse_absurd, uncountable
from lattice.scheduling.table.tally import Tally

NO_LIMIT = 1 << 62  # a node that does not say how much of a countable thing it takes
KEYS_KEPT = 256  # label keys whose values are numbered
SHAPES_KEPT = 1 << 14  # kinds of demands whose numbers are remembered


@dataclass(frozen=True, slots=True)
class Placement:
    """A workload on a node: assumed until its binding is durable."""

    ask: WorkloadAsk
    row: int
    state: Literal["assumed", "bound"]
    gpus: tuple[int, ...] = ()  # which ones
    ports: tuple[int, ...] = ()


def with_ports(ask: WorkloadAsk, ports: int, more: int) -> tuple[tuple[int, int], ...]:
    """Its needs, each resource once, with so many more ports."""
    if not more:
        return ask.needs
    needs = dict(ask.needs)
    return tuple({**needs, ports: needs.get(ports, 0) + more}.items())


def _has_the_same(one: NodeFacts, other: NodeFacts) -> bool:
    """Of everything that workloads take a part of."""
    return (one.totals, one.gpus, one.ports, one.taken) == (
        other.totals,
        other.gpus,
        other.ports,
        other.taken,
    )


class NodeTable(Table):
    """Which nodes there are and who is where; what is decided is decided by this alone.

    One exception: beyond a few dozen placements GpuFragmentation goes by a lesson that it learned some changes ago, so that a table told
    of the same placements may score otherwise until it learns the next one; `lessons.carry_over` hands the lesson on (see Lessons).
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(("cpu", "memory", SLOTS, PORTS), seed)
        self.facts: list[NodeFacts | None] = []
        self.placements: dict[str, Placement] = {}
        self.on_row: list[dict[str, Placement]] = []
        self.members: Counter[str] = Counter()  # of each group, how many have their place
        self.gangs: dict[str, dict[str, None]] = {}  # and who they are, in order of arrival
        self.gpus = Gpus(self)
        self.lessons = Lessons(self)
        self.ports = Ports(self)
        self.leaving: dict[
            str, dict[str, None]
        ] = {}  # by node: who was told to go, has no place there any more, and may still run
        for name in ("unready", "cordoned", "draining"):
            self.add_column(name, np.bool_)
        self.add_column("price", np.int64)
        self._journals: list[
            dict[str, Placement | None]
        ] = []  # of each what_if under way: who was where before
        self._census = Census(self)
        self._shapes: dict[
            Demands, int
        ] = {}  # a number for each kind of demand, cheaper to look up than the demand itself
        self._fixed_shapes: dict[Hashable, int] = {}
        self._numbered = count()  # of those; none is given twice
        self._codes: dict[str, Coded] = {}
        self._taints: Counter[Taint] = Counter()  # which ones nodes have, and how many do

    def load(self, nodes: Iterable[NodeFacts]) -> None:
        """Many at once, in tie order, which makes deciding faster than adding them one by one as they come."""
        for facts in sorted(nodes, key=lambda each: tie_rank(self.seed, each.name)):
            self.put(facts)

    def put(self, facts: NodeFacts) -> int:
        """Add a node, or change it; what is on it stays."""
        known = self.row_of.get(facts.name)
        before = self.facts[known] if known is not None else None
        if known is not None and before == facts:
            return known
        self._refuse_in_what_if(facts.name)
        row = (
            known if known is not None and before and _has_the_same(before, facts) else self._give_room(facts)
        )
        self._know(row, facts)
        for column, value in (
            ("unready", not facts.ready),
            ("cordoned", facts.cordoned),
            ("draining", facts.draining),
            ("price", facts.price),
        ):
            self._columns[column][row] = value
        self.touch_fixed(row)
        self.lessons.changed()
        return row

    def _give_room(self, facts: NodeFacts) -> int:
        """Its row, with as much of everything as the node has."""
        refuse_absurd(f"node {facts.name}", facts.totals.items())
        row = self._row_for(facts)
        if moved := self.ports.put(row, facts):
            self.take(row, [(self.index[PORTS], moved)])
        self.gpus.put(row, facts.gpus)
        return row

    def _row_for(self, facts: NodeFacts) -> int:
        """No more ports can be given out than the range has, whatever the node says."""
        ports = free_in_range(facts)
        totals = {SLOTS: NO_LIMIT, **facts.totals, PORTS: min(ports, facts.totals.get(PORTS, ports))}
        row = self.row_of.get(facts.name)
        if row is not None:
            self.resize(facts.name, totals)
            return row
        row = self.add(facts.name, totals)
        if row == len(self.facts):
            self.facts.append(None)
            self.on_row.append({})
        return row

    def drop(self, name: str) -> list[Placement]:
        """The node is gone; so is what was on it, which is returned."""
        if name not in self.row_of:
            raise NotFound(f"no node {name}")
        self._refuse_in_what_if(name)
        row = self.row_of[name]
        lost = sorted(
            self.on_row[row].values(), key=lambda each: each.ask.name
        )  # whatever order they came or were restored in
        for placement in lost:
            self.forget(placement.ask.name)
        self.gpus.put(row, ())
        self.set(row, "price", 0)  # or it might still be the highest
        self._know(row, None)
        self.remove(name)
        self.leaving.pop(name, None)
        self.lessons.changed()
        return lost

    def _refuse_in_what_if(self, node: str) -> None:
        if self._journals:
            raise Conflict(
                "nodes cannot change inside what_if: only placements are undone",
                where=f"node {node}",
                fix="change it before",
            )

    def codes(self, key: str) -> Codes:
        """For each row the number of its domain under a topology key (`node`, `zone`, any label key); -1: it has none."""
        return self.coded(key).codes

    def domain_count(self, key: str) -> int:
        """How many values of it nodes have."""
        return len(self.coded(key).numbers)

    def domain_names(self, key: str) -> list[str]:
        """By number; numbers that no node has now are among them."""
        return self.coded(key).names

    def coded(self, key: str) -> Coded:
        coded = self._codes.get(key)
        if coded is None:
            keep_last(self._codes, KEYS_KEPT)
            coded = self._codes[key] = Coded(key)
        if coded.version != self.fixed_version:
            changed = self.fixed_since(coded.version)
            coded.follow(self.facts, range(self.count) if changed is None else changed)
            coded.version = self.fixed_version
        return coded

    @property
    def taints(self) -> Collection[Taint]:
        """Those that any node has."""
        return self._taints.keys()

    def _know(self, row: int, facts: NodeFacts | None) -> None:
        before = self.facts[row]
        self._taints.subtract(before.taints if before else ())
        self._taints.update(facts.taints if facts else ())
        for taint in before.taints if before else ():
            if not self._taints[taint]:
                del self._taints[taint]
        self.facts[row] = facts

    def ask(self, workload: LatticeWorkload) -> WorkloadAsk:
        group = workload.spec.group
        name = f"{workload.metadata.namespace or 'default'}/{workload.metadata.name}"
        asked = self.asked(name, demands_of(workload), workload.spec.priority)
        return (
            replace(asked, group=f"{asked.demands.namespace}/{group.name}", min_member=group.min_member)
            if group
            else asked
        )

    def asked(self, name: str, demands: Demands, priority: int = 0) -> WorkloadAsk:
        counted = Counter(dict(demands.requests))
        counted[SLOTS] += 1
        if demands.ports:
            counted[PORTS] += demands.ports
        refuse_absurd(f"workload {name}", counted.items())
        needs = tuple((self.add_resource(resource), amount) for resource, amount in counted.items())
        for port in demands.host_ports:
            self.ports.watch(port)
        shape, fixed = (
            self._number(self._shapes, demands),
            self._number(self._fixed_shapes, fixed_part(demands)),
        )
        return WorkloadAsk(
            name, demands, shape, needs, priority, labels=dict(demands.labels), fixed_shape=fixed
        )

    def _number(self, numbers: dict[Any, int], what: Hashable) -> int:
        """Its own, for as long as it is remembered, and never another's."""
        number = numbers.get(what)
        if number is None:
            keep_last(numbers, SHAPES_KEPT)
            number = numbers[what] = next(self._numbered)
        return number

    def has_column(self, name: str) -> bool:
        return name in self._columns

    def assume(self, ask: WorkloadAsk, row: int) -> Placement:
        """It will be there; deciding goes on as if it were. What there is no room for is refused."""
        if why := lacks(ask, self, row):
            raise Conflict(
                why,
                where=ask.name,
                fix="decide anew: the node is not as it was, or its filters were not asked",
            )
        return self._come(ask, row)

    def admit(self, ask: WorkloadAsk, row: int, ports: tuple[int, ...] | None = None) -> Placement:
        """It is there, whether or not there was room: for what runs already, with the ports that it has, if these are known.

        A GPU that it needs must be free all the same.
        """
        self._refuse_uncountable(ask, row)
        return self._come(ask, row, ports)

    def _come(self, ask: WorkloadAsk, row: int, ports: tuple[int, ...] | None = None) -> Placement:
        if ask.name in self.placements:
            where = self.names[self.placements[ask.name].row]
            raise Conflict(f"is on node {where} already", where=ask.name, fix="forget it first")
        gpus = self.gpus.take(row, ask.demands.gpu) if ask.demands.gpu else ()
        placement = Placement(
            ask, row, "assumed", gpus, self.ports.choose(row, ask.demands) if ports is None else ports
        )
        self._settle_in(placement)
        return placement

    def _refuse_uncountable(self, ask: WorkloadAsk, row: int) -> None:
        if why := uncountable(ask, self, row):
            raise Invalid(why, where=ask.name, fix="correct what it, or others on the node, ask for")

    def _settle_in(self, placement: Placement) -> None:
        """Nothing here may fail: what could is checked before."""
        row, ask = placement.row, placement.ask
        self.take(row, ask.needs)
        if (ask.demands.host_ports or placement.ports) and (fixed := self.ports.hold(placement)):
            self.take(row, [(self.index[PORTS], fixed)])
        self._enter(placement)
        self.lessons.note(ask, 1)

    def needs_on(self, ask: WorkloadAsk, row: int) -> tuple[tuple[int, int], ...]:
        """A fixed port inside the range that ports are chosen from, unless its number is in use already, is one fewer to choose."""
        fixed = self.ports.more_inside(row, ask.demands) if ask.demands.host_ports else 0
        return with_ports(ask, self.index[PORTS], fixed)

    def commit(self, name: str) -> Placement:
        """Its binding is durable."""
        placement = self._placed(name)
        if placement.state != "bound":
            self._note(name)
            placement = replace(placement, state="bound")
            self.placements[name] = self.on_row[placement.row][name] = placement
        return placement

    def forget(self, name: str) -> Placement:
        """It is not, or no longer, there. Forgetting twice is an error; see `rollback` in bind.py for the forgiving form."""
        placement = self._placed(name)
        row, ask = placement.row, placement.ask
        if ask.demands.gpu:
            self.gpus.give_back(row, ask.demands.gpu, placement.gpus)
        self._leave(placement)
        self.take(row, [(resource, -amount) for resource, amount in ask.needs])
        if (ask.demands.host_ports or placement.ports) and (fixed := self.ports.give_back(placement)):
            self.take(row, [(self.index[PORTS], -fixed)])
        self.lessons.note(ask, -1)
        return placement

    def _placed(self, name: str) -> Placement:
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
        learned = self.lessons.bookmark()
        try:
            yield
        finally:
            self._journals.pop()
            for name, placement in before.items():
                if name in self.placements and self.placements[name] is not placement:
                    self.forget(name)
            for name, placement in before.items():
                if placement is not None and name not in self.placements:
                    self._bring_back(placement)
            self.lessons.go_back(learned)

    def _note(self, name: str) -> None:
        for journal in self._journals:
            journal.setdefault(name, self.placements.get(name))

    def restore(self, placement: Placement) -> None:
        """What was forgotten is there again, as it was, GPUs and ports included; also what is known to be there from elsewhere."""
        if placement.ask.name in self.placements:
            raise Conflict(
                "is there again already", where=placement.ask.name, fix="restore what was forgotten, once"
            )
        self._refuse_uncountable(placement.ask, placement.row)
        self._bring_back(placement)

    def _bring_back(self, placement: Placement) -> None:
        if placement.ask.demands.gpu:
            self.gpus.take_these(placement.row, placement.ask.demands.gpu, placement.gpus)
        self._settle_in(placement)

    def tally(self, namespace: str, selector: LabelSelector, service: str = "") -> Tally:
        """Counts of the matching workloads, kept up to date while it is in use: ask for it each time."""
        return self._census.tally(namespace, selector, service)

    def repulsed_by(self, ask: WorkloadAsk) -> list[tuple[WorkloadTerm, Tally]]:
        """Terms of placed workloads that keep this one away, each with where its carriers are."""
        return self._census.repulsed_by(ask)

    def _enter(self, placement: Placement) -> None:
        name = placement.ask.name
        self._note(name)
        self.placements[name] = self.on_row[placement.row][name] = placement
        self._count(placement, 1)

    def _leave(self, placement: Placement) -> None:
        name = placement.ask.name
        self._note(name)
        del self.placements[name], self.on_row[placement.row][name]
        self._count(placement, -1)

    def _count(self, placement: Placement, change: int) -> None:
        if group := placement.ask.group:
            self.members[group] += change
            self._keep_gang(group, placement.ask.name, change)
            if not self.members[group]:
                del self.members[group], self.gangs[group]
        self._census.count(placement.ask, placement.row, change)

    def _keep_gang(self, group: str, name: str, change: int) -> None:
        mates = self.gangs.setdefault(group, {})
        if change > 0:
            mates[name] = None
        else:
            del mates[name]
