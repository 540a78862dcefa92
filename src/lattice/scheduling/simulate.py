"""What would happen, offline: these workloads decided on these nodes in their order, and what the nodes look like afterwards."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import groupby
from typing import Any

import numpy as np

from lattice.engine.decide import Decision, decide
from lattice.engine.explain import as_json, sentence
from lattice.engine.group import decide_many, groupable
from lattice.engine.plugin import Profile
from lattice.errors import Cause, Invalid, NotFound
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.ask import PORTS, SLOTS, WHOLE_GPU, WorkloadAsk
from lattice.scheduling.facts import PRICE_LABEL, facts_of
from lattice.scheduling.nodes import NO_LIMIT, NodeTable

MOST = 1 << 60  # of any resource: an exbibyte, 10^15 cores. More is a slip of the hand, and sums of it would not fit into int64
BATCH = 1000  # equal workloads decided together before progress is told again
TOP = 5  # of the candidates, shown with what their score is made of


@dataclass(frozen=True, slots=True)
class Usage:
    """One resource over all nodes; shares from 0 to 1, over the nodes that have any of it."""

    resource: str
    total: int
    before: int
    after: int
    mean: float
    highest: float

    @property
    def share_before(self) -> float:
        return self.before / self.total if self.total else 0.0

    @property
    def share_after(self) -> float:
        return self.after / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Workloads that ask for the same and were refused for the same reason."""

    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    nodes: int
    bound: int  # workloads that were on a node already
    stopped: int  # workloads that are not meant to run
    placements: Mapping[str, str]  # workload -> node, of those decided here
    unplaced: tuple[Unplaced, ...]
    displaced: Mapping[str, str]  # workload that had to go -> the node it was on
    usage: tuple[Usage, ...]
    seconds: float  # spent deciding
    explained: Mapping[str, Any] | None = None

    @property
    def decided(self) -> int:
        return len(self.placements) + sum(len(each.names) for each in self.unplaced)


@dataclass(frozen=True, slots=True)
class Run:
    """How to simulate: by which profile and seed, with whose clock, and who wants to know how far it is."""

    profile: Profile
    seed: int = 0
    clock: Callable[[], float] = lambda: 0.0
    tell: Callable[[int], None] = lambda done: None
    explain: str = ""  # namespace/name of a workload


def node_problems(node: LatticeNode) -> Iterator[Cause]:
    """What nobody can decide with: room below nothing or beyond all measure, a price that is no number."""
    for part in ("capacity", "reserved", "allocatable"):
        for name, amount in getattr(node.status, part).items():
            if not 0 <= amount <= MOST:
                yield Cause(f"status.{part}.{name}", f"must be from 0 to 2^60, got {amount}")
    price = node.metadata.labels.get(PRICE_LABEL)
    if price is not None and not _is_price(price):
        yield Cause(f"metadata.labels.{PRICE_LABEL}", f'must be dollars an hour such as 0.192, got "{price}"')


def _is_price(text: str) -> bool:
    try:
        price = Decimal(text)
    except InvalidOperation:
        return False
    return price.is_finite() and 0 <= price <= 10**9


def workload_problems(workload: LatticeWorkload) -> Iterator[Cause]:
    """Its containers may each ask for something sane and all together not."""
    for name, amount in workload.spec.request_amounts.items():
        if amount > MOST:
            yield Cause("spec", f"asks for {amount} of {name} all together, more than any node has; at most 2^60")


def simulate(nodes: Iterable[LatticeNode], workloads: Iterable[LatticeWorkload], run: Run) -> Report:
    table = NodeTable(run.seed)
    table.load(facts_of(node) for node in nodes)
    simulation = _Simulation(table, run)
    simulation.enter(workloads)
    return simulation.report()


@dataclass
class _Simulation:
    table: NodeTable
    run: Run
    waiting: list[WorkloadAsk] = field(default_factory=list)
    placements: dict[str, str] = field(default_factory=dict)
    refused: dict[tuple[object, str], list[str]] = field(default_factory=dict)
    displaced: dict[str, str] = field(default_factory=dict)
    explained: dict[str, Any] | None = None
    bound: int = 0
    stopped: int = 0

    def enter(self, workloads: Iterable[LatticeWorkload]) -> None:
        """Those that are on a node go there first; the others wait in order of priority, then as given."""
        for workload in workloads:
            if workload.spec.desired_state != "Running":
                self.stopped += 1
                continue
            ask = self.table.ask(workload)
            binding = workload.status.binding
            if binding is None:
                self.waiting.append(ask)
            else:
                self._bind(ask, binding.node)
        if self.run.explain and not any(ask.name == self.run.explain for ask in self.waiting):
            raise self._not_explained()
        self.waiting.sort(key=lambda ask: -ask.priority)

    def _bind(self, ask: WorkloadAsk, node: str) -> None:
        row = self.table.row_of.get(node)
        if row is None:
            fix = "give its LatticeNode too, or leave status.binding out"
            raise NotFound(f"is bound to node {node}, which is not among those given", where=ask.name, fix=fix)
        try:
            self.table.assume(ask, row)
        except (ValueError, OverflowError) as e:
            raise Invalid(f"is bound to node {node}, which cannot hold it: {e}", where=ask.name, fix="leave status.binding out") from e
        self.table.commit(ask.name)
        self.bound += 1

    def _not_explained(self) -> NotFound:
        name = self.run.explain
        placed = self.table.placements.get(name)
        if placed is not None:
            fix = "leave its status.binding out to decide it anew"
            return NotFound(f"is on node {self.table.names[placed.row]} already: nothing is decided", where=name, fix=fix)
        return NotFound("there is no such workload to decide", where=name, fix="write it as namespace/name")

    def report(self) -> Report:
        before = _taken(self.table)
        began = self.run.clock()
        self._decide_all()
        seconds = self.run.clock() - began
        return Report(
            nodes=len(self.table.row_of),
            bound=self.bound,
            stopped=self.stopped,
            placements=self.placements,
            unplaced=tuple(Unplaced(tuple(names), reason) for (_, reason), names in self.refused.items()),
            displaced=self.displaced,
            usage=tuple(_usage(self.table, before)),
            seconds=seconds,
            explained=self.explained,
        )

    def _decide_all(self) -> None:
        done = 0
        for _, equal in groupby(self.waiting, key=lambda ask: (ask.shape, ask.priority, ask.group, ask.name == self.run.explain)):
            same = list(equal)
            for start in range(0, len(same), BATCH):
                batch = same[start : start + BATCH]
                self._decide_equal(batch)
                done += len(batch)
                self.run.tell(done)

    def _decide_equal(self, asks: Sequence[WorkloadAsk]) -> None:
        profile, left = self.run.profile, asks
        if len(asks) > 1 and groupable(asks[0], profile):
            rows = decide_many(asks[0], self.table, profile, len(asks))
            for ask, row in zip(asks, rows, strict=False):
                self._place(ask, row)
            left = asks[len(rows) :]
        for position, ask in enumerate(left):
            decision = decide(ask, self.table, profile)
            if ask.name == self.run.explain:
                self.explained = as_json(decision, TOP, everything=True)
            if not decision.fits:
                self._refuse(left[position:], decision)
                return
            self._place(ask, decision.chosen)

    def _place(self, ask: WorkloadAsk, row: int) -> None:
        self.table.assume(ask, row)
        self.placements[ask.name] = self.table.names[row]

    def _refuse(self, asks: Sequence[WorkloadAsk], decision: Decision) -> None:
        """All of them at once: what does not fit changes nothing for its equals."""
        self.refused.setdefault((decision.ask.shape, sentence(decision)), []).extend(ask.name for ask in asks)


def _taken(table: NodeTable) -> dict[str, int]:
    found = {resource: int(table.taken(number).sum()) for resource, number in table.index.items()}
    return {**found, "gpu": _gpus_taken(table)}


def _gpus_taken(table: NodeTable) -> int:
    total = int(table.column("gpu_count").sum()) * WHOLE_GPU
    return total - int(table.column("gpu_free").sum())


def _usage(table: NodeTable, before: Mapping[str, int]) -> Iterator[Usage]:
    """Ports and slots only where something is counted."""
    after = _taken(table)
    for resource, number in table.index.items():
        totals = table.total(number)
        some = (totals > 0) & (totals < NO_LIMIT)
        if not some.any() or (resource in (PORTS, SLOTS) and not after[resource]):
            continue
        shares = table.taken(number)[some] / totals[some]
        yield Usage(resource, int(totals[some].sum()), before.get(resource, 0), after[resource], float(shares.mean()), float(shares.max()))
    counts = table.column("gpu_count").astype(np.int64) * WHOLE_GPU
    if counts.any():
        some = counts > 0
        shares = 1 - table.column("gpu_free")[some] / counts[some]
        yield Usage("gpu", int(counts.sum()), before["gpu"], after["gpu"], float(shares.mean()), float(shares.max()))
