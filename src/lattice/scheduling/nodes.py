"""The nodes as a table: what is on each, what is assumed to be soon, and how that changes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lattice.engine.table import Table, tie_rank
from lattice.errors import Conflict, NotFound
from lattice.kinds.constraint import WorkloadTerm
from lattice.kinds.selector import LabelSelector
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.ask import PORTS, SLOTS, Demands, Labels, WorkloadAsk, demands_of, fixed_part
from lattice.scheduling.facts import NodeFacts
from lattice.scheduling.gpus import Gpus
from lattice.scheduling.tally import Tally

Codes = NDArray[np.int32]
NO_LIMIT = 1 << 62  # a node that does not say how much of a countable thing it takes
ALL_PORTS = (30000, 32767)  # given out where a node names no range
EVERYTHING = LabelSelector()
KINDS_KEPT = 100_000  # kinds of workloads remembered beyond those that are placed


def port_column(port: tuple[int, str]) -> str:
    """The column that says on which nodes a host port is in use."""
    return f"port {port[0]}/{port[1]}"


@dataclass(frozen=True, slots=True)
class Placement:
    """A workload on a node: assumed until its binding is durable."""

    ask: WorkloadAsk
    row: int
    state: Literal["assumed", "bound"]
    gpus: tuple[int, ...] = ()  # which ones
    ports: tuple[int, ...] = ()


class NodeTable(Table):
    def __init__(self, seed: int = 0) -> None:
        super().__init__(("cpu", "memory", SLOTS, PORTS), seed)
        self.facts: list[NodeFacts | None] = []
        self.placements: dict[str, Placement] = {}
        self.on_row: list[dict[str, Placement]] = []
        self.members: Counter[str] = Counter()  # of each group, how many have their place
        self.gpus = Gpus(self)
        for name in ("unready", "cordoned", "draining"):
            self.add_column(name, np.bool_)
        self.add_column("price", np.int64)
        self._host_ports: list[dict[tuple[int, str], int]] = []
        self._journals: list[dict[str, Placement | None]] = []  # of each what_if under way: who was where before
        self._tallies: dict[object, Tally] = {}
        self._tallies_by: dict[tuple[str, str], list[Tally]] = {}  # by namespace and service
        # By namespace and service, then labels, of placed workloads: which tallies count them.
        self._concerned: dict[tuple[str, str], dict[Labels, tuple[Tally, ...]]] = {}
        self._kinds = 0  # how many there are of those
        self._repulsed: dict[tuple[str, WorkloadTerm], Tally] = {}  # terms of placed workloads that keep others away, by term
        self._repelled: dict[object, list[tuple[WorkloadTerm, Tally]]] = {}  # by what a workload is, which of those mean it
        self._shapes: dict[Demands, int] = {}  # a number for each kind of demand, cheaper to look up than the demand itself
        self._fixed_shapes: dict[object, int] = {}
        self._codes: dict[str, tuple[int, Codes, list[str]]] = {}

    # --- nodes ---

    def load(self, nodes: Iterable[NodeFacts]) -> None:
        """Many at once, in tie order, which makes deciding faster than adding them one by one as they come."""
        for facts in sorted(nodes, key=lambda each: tie_rank(self.seed, each.name)):
            self.put(facts)

    def put(self, facts: NodeFacts) -> int:
        """Add a node, or change it; what is on it stays."""
        known = self.row_of.get(facts.name)
        if known is not None and self.facts[known] == facts:
            return known
        totals = {SLOTS: NO_LIMIT, **facts.totals}
        first, last = facts.ports or ALL_PORTS
        totals.setdefault(PORTS, last - first + 1)
        row = self.row_of.get(facts.name)
        if row is None:
            row = self.add(facts.name, totals)
            if row == len(self.facts):
                self.facts.append(None)
                self.on_row.append({})
                self._host_ports.append({})
        else:
            self.resize(facts.name, totals)
        self.facts[row] = facts
        for column, value in (
            ("unready", not facts.ready),
            ("cordoned", facts.cordoned),
            ("draining", facts.draining),
            ("price", facts.price),
        ):
            self.set(row, column, value)
        self.gpus.put(row, facts.gpus)
        return row

    def drop(self, name: str) -> list[Placement]:
        """The node is gone; so is what was on it, which is returned."""
        if name not in self.row_of:
            raise NotFound(f"no node {name}")
        row = self.row_of[name]
        lost = list(self.on_row[row].values())
        for placement in lost:
            self.forget(placement.ask.name)
        self.gpus.put(row, ())
        self.facts[row] = None
        self.remove(name)
        return lost

    def codes(self, key: str) -> Codes:
        """For each row the number of its domain under a topology key (`node`, `zone`, any label key); -1: it has none."""
        return self._coded(key)[1]

    def domain_count(self, key: str) -> int:
        return len(self._coded(key)[2])

    def domain_names(self, key: str) -> list[str]:
        return self._coded(key)[2]

    def _coded(self, key: str) -> tuple[int, Codes, list[str]]:
        kept = self._codes.get(key)
        if kept is None or kept[0] != self.fixed_version:
            numbers: dict[str, int] = {}
            codes = np.full(self.count, -1, np.int32)
            for row, facts in enumerate(self.facts):
                value = facts.labels.get(key) if facts else None
                if value is not None:
                    codes[row] = numbers.setdefault(value, len(numbers))
            kept = self._codes[key] = (self.fixed_version, codes, list(numbers))
        return kept

    # --- workloads ---

    def ask(self, workload: LatticeWorkload) -> WorkloadAsk:
        group = workload.spec.group
        name = f"{workload.metadata.namespace or 'default'}/{workload.metadata.name}"
        asked = self.asked(name, demands_of(workload), workload.spec.priority)
        return replace(asked, group=f"{asked.demands.namespace}/{group.name}", min_member=group.min_member) if group else asked

    def asked(self, name: str, demands: Demands, priority: int = 0) -> WorkloadAsk:
        counted = Counter(dict(demands.requests))
        counted[SLOTS] += 1
        if demands.ports:
            counted[PORTS] += demands.ports
        needs = tuple((self.add_resource(resource), amount) for resource, amount in counted.items())
        for port in demands.host_ports:
            self._watch_port(port)
        shape = self._shapes.setdefault(demands, len(self._shapes))
        fixed = self._fixed_shapes.setdefault(fixed_part(demands), len(self._fixed_shapes))
        return WorkloadAsk(name, demands, shape, needs, priority, labels=dict(demands.labels), fixed_shape=fixed)

    def _watch_port(self, port: tuple[int, str]) -> None:
        """From now on a column says where this port is in use."""
        if port_column(port) in self._columns:
            return
        self.add_column(port_column(port), np.bool_)
        for row, used in enumerate(self._host_ports):
            if port in used:
                self.set(row, port_column(port), True, fixed=False)

    def assume(self, ask: WorkloadAsk, row: int, ports: tuple[int, ...] = ()) -> Placement:
        """It will be there; deciding goes on as if it were. `ports`: those it was given already, else the lowest free ones."""
        if ask.name in self.placements:
            where = self.names[self.placements[ask.name].row]
            raise Conflict(f"is on node {where} already", where=ask.name, fix="forget it first")
        gpus = self.gpus.take(row, ask.demands.gpu) if ask.demands.gpu else ()
        placement = Placement(ask, row, "assumed", gpus, ports or self._free_ports(row, ask.demands.ports))
        self._settle_in(placement)
        return placement

    def _settle_in(self, placement: Placement) -> None:
        row, ask = placement.row, placement.ask
        for port in self._ports_of(placement):
            self._host_ports[row][port] = self._host_ports[row].get(port, 0) + 1
            self._show_port(row, port, True)
        self._enter(placement)
        self.take(row, self._needs_on(ask, row))

    def _needs_on(self, ask: WorkloadAsk, row: int) -> tuple[tuple[int, int], ...]:
        """A fixed port inside the range that ports are chosen from is one fewer to choose."""
        facts = self.facts[row]
        first, last = (facts.ports if facts else None) or ALL_PORTS
        inside = sum(first <= number <= last for number, _ in ask.demands.host_ports)
        return (*ask.needs, (self.index[PORTS], inside)) if inside else ask.needs

    def _free_ports(self, row: int, count: int) -> tuple[int, ...]:
        if not count:
            return ()
        facts, busy = self.facts[row], {number for number, _ in self._host_ports[row]}
        first, last = (facts.ports if facts else None) or ALL_PORTS
        free = (number for number in range(first, last + 1) if number not in busy)
        return tuple(number for number, _ in zip(free, range(count), strict=False))

    def _ports_of(self, placement: Placement) -> Iterator[tuple[int, str]]:
        """Fixed ones with their protocol; a chosen one is kept for both."""
        yield from placement.ask.demands.host_ports
        for number in placement.ports:
            yield number, "TCP"
            yield number, "UDP"

    def _show_port(self, row: int, port: tuple[int, str], used: bool) -> None:
        """Only ports that somebody has asked for by number have a column."""
        if port_column(port) in self._columns:
            self.set(row, port_column(port), used, fixed=False)

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
        for port in self._ports_of(placement):
            left = self._host_ports[row][port] - 1
            if left:
                self._host_ports[row][port] = left
            else:
                del self._host_ports[row][port]
                self._show_port(row, port, False)
        self._leave(placement)
        self.take(row, [(resource, -amount) for resource, amount in self._needs_on(ask, row)])
        return placement

    def _placed(self, name: str) -> Placement:
        placement = self.placements.get(name)
        if placement is None:
            raise NotFound(f"no workload {name} on any node")
        return placement

    def host_ports_in_use(self, row: int) -> Mapping[tuple[int, str], int]:
        return self._host_ports[row]

    @contextmanager
    def what_if(self) -> Iterator[None]:
        """Place and forget freely inside: on the way out everything placed is as it was. Costs what was done inside, nothing is copied."""
        before: dict[str, Placement | None] = {}
        self._journals.append(before)
        try:
            yield
        finally:
            self._journals.pop()
            for name, placement in before.items():
                if name in self.placements and self.placements[name] is not placement:
                    self.forget(name)
            for name, placement in before.items():
                if placement is not None and name not in self.placements:
                    self.restore(placement)

    def _note(self, name: str) -> None:
        for journal in self._journals:
            journal.setdefault(name, self.placements.get(name))

    def restore(self, placement: Placement) -> None:
        """What was forgotten is there again, as it was, GPUs included; these must be free."""
        if placement.ask.name in self.placements:
            raise Conflict("is there again already", where=placement.ask.name, fix="restore what was forgotten, once")
        if placement.ask.demands.gpu:
            self.gpus.take_these(placement.row, placement.ask.demands.gpu, placement.gpus)
        self._settle_in(placement)

    # --- who is near whom ---

    def tally(self, namespace: str, selector: LabelSelector, service: str = "") -> Tally:
        """Counts of the matching workloads, from now on kept up to date."""
        key = (namespace, selector, service)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally(namespace, selector, service)
            self._tallies_by.setdefault((namespace, service), []).append(tally)
            self._count_placed(tally)
        return tally

    def _count_placed(self, tally: Tally) -> None:
        """Looks at the kinds of workloads first: most new tallies concern none that is placed."""
        services = [(tally.namespace, tally.service)] if tally.service else [each for each in self._concerned if each[0] == tally.namespace]
        found = False
        for each in services:
            kinds = self._concerned.get(each, {})
            for labels in [labels for labels in kinds if tally.selector.matches(dict(labels))]:
                kinds[labels] = (*kinds[labels], tally)
                found = True
        for placement in self.placements.values() if found else ():
            demands = placement.ask.demands
            if tally.matches(demands.namespace, demands.service, placement.ask.labels):
                tally.add(self, placement.row, 1)

    def repulsed_by(self, ask: WorkloadAsk) -> list[tuple[WorkloadTerm, Tally]]:
        """Terms of placed workloads that keep this one away, each with where its carriers are."""
        if not self._repulsed:
            return []
        what = (ask.demands.namespace, ask.demands.labels)
        known = self._repelled.get(what)
        if known is None:
            if len(self._repelled) > 100_000:
                self._repelled.clear()
            known = self._repelled[what] = [
                (term, tally)
                for (namespace, term), tally in self._repulsed.items()
                if namespace == what[0] and term.selector.matches(ask.labels)
            ]
        return known

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
        demands = placement.ask.demands
        if group := placement.ask.group:
            self.members[group] += change
            if not self.members[group]:
                del self.members[group]
        for tally in self._tallies_for(placement.ask):
            tally.add(self, placement.row, change)
        for term in demands.far:
            carriers = self._repulsed.get((demands.namespace, term))
            if carriers is None:
                carriers = self._repulsed[demands.namespace, term] = Tally(demands.namespace, EVERYTHING)
                self._repelled.clear()
            carriers.add(self, placement.row, change)
            if change < 0 and not carriers.nodes.any():
                del self._repulsed[demands.namespace, term]
                self._repelled.clear()

    def _tallies_for(self, ask: WorkloadAsk) -> tuple[Tally, ...]:
        demands = ask.demands
        what = (demands.namespace, demands.service)
        kinds = self._concerned.get(what)
        if kinds is None:
            kinds = self._concerned[what] = {}
        known = kinds.get(demands.labels)
        if known is None:
            self._forget_kinds()
            likely = self._tallies_by.get(what, []) + (self._tallies_by.get((what[0], ""), []) if what[1] else [])
            known = kinds[demands.labels] = tuple(each for each in likely if each.selector.matches(ask.labels))
            self._kinds += 1
        return known

    def _forget_kinds(self) -> None:
        """Of workloads that are no longer placed, once they are many."""
        if self._kinds <= KINDS_KEPT + 2 * len(self.placements):
            return
        placed = {(each.namespace, each.service, each.labels) for each in (p.ask.demands for p in self.placements.values())}
        for what, kinds in self._concerned.items():
            for labels in [labels for labels in kinds if (*what, labels) not in placed]:
                del kinds[labels]
        self._kinds = sum(map(len, self._concerned.values()))
