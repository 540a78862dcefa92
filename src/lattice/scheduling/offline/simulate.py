"""What would happen, offline: these workloads decided on these nodes in their order, and what the nodes look like afterwards."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from lattice.engine.decide import Decision, decide
from lattice.engine.explain import as_json
from lattice.errors import NotFound
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload, WorkloadSpec
from lattice.scheduling.table.ask import PORTS, SLOTS, WHOLE_GPU, WorkloadAsk
from lattice.scheduling.plugins.cluster_events import Change
from lattice.scheduling.table.node_info import facts_of
from lattice.scheduling.cycle.gang import Seat, take
from lattice.scheduling.table.node_table import NO_LIMIT, NodeTable
from lattice.scheduling.offline.oversized import too_large
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.cycle.profile import ProfileSpec
from lattice.scheduling.cycle.queue import Queue
from lattice.scheduling.cycle.refusal import lasting_first, refusal
from lattice.scheduling.table.qos import Qos, qos_of, utilisation
from lattice.scheduling.table.resource_fit import has_gpus, uncountable
from lattice.scheduling.cycle.input_checks import (
    Odd,
    hard_to_hold,
    leaving,
    node_oddities,
    overfull,
    waiting_in_circles,
)
from lattice.scheduling.cycle.cycle import Cycle, Placed, compose
from lattice.scheduling.cycle.tie_break import Dice

NOW = 0.0  # the clock stands still: nothing expires, nothing waits
BATCH = 1000  # workloads decided before progress is told again
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
    """Workloads that were refused for the same reason, in the order in which they were given."""

    names: tuple[str, ...]
    reason: str
    kinds: tuple[str, ...] = ()  # of reasons, without counts and amounts


@dataclass(frozen=True, slots=True)
class Displaced:
    """It had to go from a node to make room for another."""

    node: str
    by: str


@dataclass(frozen=True, slots=True)
class Report:
    nodes: int
    bound: int  # workloads that were on a node already
    stopped: int  # workloads that are not meant to run
    placements: Mapping[str, str]  # workload -> node, of those decided here
    unplaced: tuple[Unplaced, ...]
    displaced: Mapping[str, Displaced]  # by workload
    usage: tuple[Usage, ...]
    seconds: float  # spent deciding
    explained: Mapping[str, Any] | None = None
    odd: tuple[Odd, ...] = ()
    qos: Mapping[str, Qos] = field(default_factory=dict)  # by workload, of those meant to run
    fullness: Mapping[str, float] = field(
        default_factory=dict
    )  # by node: the share of its fullest resource, 0 to 1

    @property
    def decided(self) -> int:
        return len(self.placements) + sum(len(each.names) for each in self.unplaced)


@dataclass(frozen=True, slots=True)
class Refusal:
    why: str
    wakes_on: frozenset[Hashable]  # changes that might help
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """How to simulate: by which profile and seed, with whose clock, and who wants to know how far it is."""

    profile: ProfileSpec
    seed: int = 0
    dice: Dice | None = None
    clock: Callable[[], float] = lambda: 0.0
    tell: Callable[[int], None] = lambda done: None
    explain: str = ""  # namespace/name of a workload


def simulate(nodes: Iterable[LatticeNode], workloads: Iterable[LatticeWorkload], run: Run) -> Report:
    nodes = list(nodes)
    table = NodeTable(run.seed)
    table.load(
        facts_of(node, unsaid="True") for node in nodes
    )  # a manifest that somebody wrote need not say it
    simulation = _Simulation(table, run)
    simulation.odd += [odd for node in nodes for odd in node_oddities(node)]
    simulation.enter(workloads)
    return simulation.report()


class _Simulation:
    """The running scheduler's own queue and cycle on a clock that stands still: what is placed is bound at once."""

    def __init__(self, table: NodeTable, run: Run) -> None:
        self.table, self.run = table, run
        self.queue = Queue()
        self.scheduler = compose(run.profile, table, run.dice)
        self.scheduler.preemptor = Preemptor(table, self.scheduler.profile)
        self.asks: dict[str, WorkloadAsk] = {}
        self.placements: dict[str, str] = {}
        self.refused: dict[str, Refusal] = {}
        self.bound: dict[str, str] = {}
        self.displaced: dict[str, Displaced] = {}
        self.odd: list[Odd] = []
        self.qos: dict[str, Qos] = {}
        self.explained: dict[str, Any] | None = None
        self.stopped = 0
        self._alike: dict[Hashable, tuple[WorkloadSpec, WorkloadAsk, Qos]] = {}

    def enter(self, workloads: Iterable[LatticeWorkload]) -> None:
        """Those that are on a node go there first; the others wait for their turn."""
        bound: list[tuple[WorkloadAsk, str]] = []
        for workload in workloads:
            if workload.spec.desired_state != "Running":
                self.stopped += 1
                continue
            ask = self._asked(workload)
            self.asks[ask.name] = ask
            if workload.status.binding:
                bound.append((ask, workload.status.binding.node))
            else:
                self.queue.add(ask)
        for ask, node in sorted(
            bound, key=lambda pair: -_gpu_share(pair[0])
        ):  # small shares fit beside large ones, not the other way
            self._bind(ask, node)
        self.odd += [*overfull(self.table, self.qos), *leaving(self.table)]
        if self.run.explain and self.run.explain not in self.asks:
            raise self._not_explained()

    def _asked(self, workload: LatticeWorkload) -> WorkloadAsk:
        """Most of many workloads share their spec and labels with others: those are read once."""
        metadata, spec = workload.metadata, workload.spec
        key = (id(spec), metadata.namespace, *metadata.labels.items())
        like = self._alike.get(key)
        if like is None or like[0] is not spec:
            like = self._alike[key] = (spec, self.table.ask(workload), qos_of(spec))
        ask = replace(like[1], name=f"{like[1].demands.namespace}/{metadata.name}")
        self.qos[ask.name] = like[2]
        return ask

    def _bind(self, ask: WorkloadAsk, node: str) -> None:
        row = self.table.row_of.get(node)
        if row is None:
            fix = "give its LatticeNode too, or leave status.binding out"
            raise NotFound(
                f"is bound to node {node}, which is not among those given", where=ask.name, fix=fix
            )
        if why := _out_of_place(ask, self.table, row):
            self.odd.append(Odd("workload", ask.name, f"is bound to node {node}{why}: it is left out"))
            del self.asks[ask.name]
            return
        self.table.admit(ask, row)
        self.table.commit(ask.name)
        self.bound[ask.name] = node

    def _not_explained(self) -> NotFound:
        name = self.run.explain
        if name in self.bound:
            fix = "leave its status.binding out to decide it anew"
            return NotFound(f"is on node {self.bound[name]} already: nothing is decided", where=name, fix=fix)
        alike = [other for other in self.asks if other.rpartition("/")[2] == name.rpartition("/")[2]]
        fix = f"did you mean {' or '.join(sorted(alike)[:TOP])}?" if alike else "write it as namespace/name"
        return NotFound("there is no such workload to decide", where=name, fix=fix)

    def report(self) -> Report:
        before = _taken(self.table)
        began = self.run.clock()
        self._decide_all()
        seconds = self.run.clock() - began
        if self.run.explain and self.explained is None:
            raise self._not_explained()
        refused = [self.asks[name] for name in self.refused]
        return Report(
            nodes=len(self.table.row_of),
            bound=len(self.bound),
            stopped=self.stopped,
            placements=self.placements,
            unplaced=tuple(
                _grouped({name: self.refused[name] for name in self.asks if name in self.refused})
            ),
            displaced=self.displaced,
            usage=tuple(_usage(self.table, before)),
            seconds=seconds,
            explained=self._told_of_displacement(),
            odd=(*self.odd, *too_large(refused, self.table), *waiting_in_circles(refused, self.table)),
            qos=self.qos,
            fullness=_fullness(self.table),
        )

    def _decide_all(self) -> None:
        """Who is refused is asked again when others have come or gone that might have been the reason."""
        while True:
            placed, displaced = len(self.placements), len(self.displaced)
            self._work_off()
            changes = {Change.WORKLOAD_ADDED} if len(self.placements) > placed else set()
            changes |= {Change.WORKLOAD_GONE} if len(self.displaced) > displaced else set()
            again = [name for name, each in self.refused.items() if each.wakes_on & changes]
            if not again:
                return
            self._call_back(again)

    def _work_off(self) -> None:
        while batch := self.queue.pop_batch(NOW, BATCH):
            for _, runs in groupby(
                _alone(batch, self.run.explain), key=lambda each: each[0].group or id(each)
            ):
                self._decide(list(runs))
            self.run.tell(len(self.placements) + len(self.refused))

    def _decide(self, runs: Sequence[Sequence[WorkloadAsk]]) -> None:
        """One run of equals, or all of a gang."""
        for ask in (ask for each in runs for ask in each if ask.name == self.run.explain):
            self.explained = _explanation(decide(ask, self.table, self.scheduler.profile))
        cycle = self.scheduler.cycle(runs, NOW)
        if self.explained is not None:
            self._explain_outcome(cycle, [ask for each in runs for ask in each])
        for each in runs:
            for ask in each:
                self.queue.done(ask.name)
        for refused in cycle.unplaced:
            self.refused[refused.ask.name] = Refusal(refused.why, refused.wakes_on, refused.kinds)
        for placed in cycle.placed:
            self.scheduler.reservations.confirm(placed.reservation.id, NOW)
            self.placements[placed.ask.name] = placed.node
        for victim, by in cycle.evictions:
            self.scheduler.departed(victim)
            self._displace(victim, by)

    def _displace(self, name: str, by: str) -> None:
        """It was there before, or came in this run; either way it needs another place."""
        self.displaced[name] = Displaced(self.placements.pop(name, "") or self.bound[name], by)
        self.queue.add(self.asks[name])
        if gang := self.asks[name].group:
            self._call_back([mate for mate in self.refused if self.asks[mate].group == gang])

    def _call_back(self, names: Iterable[str]) -> None:
        """They are decided again, a gang with all of its members."""
        for name in names:
            del self.refused[name]
            self.queue.add(self.asks[name])

    def _explain_outcome(self, cycle: Cycle, asks: Sequence[WorkloadAsk]) -> None:
        """What came of it, where that is not what it alone would have got: others made way, or its gang had a say."""
        told = self.explained or {}
        for placed in cycle.placed:
            if placed.ask.name == told["ask"] and (placed.victims or placed.node != told["chosen"]):
                told["summary"] = (
                    self._by_displacing(placed, told["summary"])
                    if placed.victims
                    else f"{placed.node}; {told['summary']}"
                )
                told.update(chosen=placed.node, displaced=list(placed.victims))
        for refused in cycle.unplaced:
            if refused.ask.name == told["ask"] and told["chosen"]:
                beside = self._beside_others(refused.ask, asks) if refused.ask.group else {}
                told.update(beside, chosen=None, summary=refused.why + beside.get("summary", ""))

    def _beside_others(self, ask: WorkloadAsk, asks: Iterable[WorkloadAsk]) -> dict[str, Any]:
        """What keeps a member out whom alone nothing would: the nodes, once as many of its gang as fit have taken their room."""
        mates = 0
        with self.table.what_if():
            for mate in asks:
                if (
                    mate.group == ask.group
                    and mate.name != ask.name
                    and mate.name not in self.table.placements
                ):
                    decision = decide(mate, self.table, self.scheduler.profile)
                    mates += decision.fits and take(Seat(mate, decision.chosen), self.table) is None
            told = _explanation(decide(ask, self.table, self.scheduler.profile))
        others = (
            f"the {mates} others of its group that fit" if mates > 1 else "the other of its group that fits"
        )
        return {**told, "summary": f"; nodes are shown with {others} in place" if mates else ""}

    def _told_of_displacement(self) -> dict[str, Any] | None:
        """Whoever was displaced was decided again: that is what is explained."""
        told = self.explained
        gone = self.displaced.get(told["ask"]) if told else None
        return (
            {**told, "summary": f"{told['summary']}; {gone.by} displaced it from {gone.node}"}
            if told and gone
            else told
        )

    def _by_displacing(self, placed: Placed, otherwise: str) -> str:
        gone = ", ".join(
            f"{name} (priority {self.asks[name].priority} < {placed.ask.priority})" for name in placed.victims
        )
        return f"{placed.node}, by displacing {gone}; else {otherwise}"


def _out_of_place(ask: WorkloadAsk, table: NodeTable, row: int) -> str:
    """Why one that is bound there cannot be told of among the others; room need not be left for it."""
    gpu = ask.demands.gpu
    if gpu and not has_gpus(gpu, table, row):
        return f", which cannot hold {hard_to_hold(gpu, table, row)}"
    why = uncountable(ask, table, row)
    return f"; {why}" if why else ""


def _explanation(decision: Decision) -> dict[str, Any]:
    told = as_json(lasting_first(decision), TOP, everything=True)
    return told if decision.fits else {**told, "summary": refusal(decision).why}


def _gpu_share(ask: WorkloadAsk) -> int:
    return ask.demands.gpu.milli if ask.demands.gpu else 0


def _alone(batch: Iterable[Sequence[WorkloadAsk]], name: str) -> Iterator[Sequence[WorkloadAsk]]:
    """The one to be explained is decided by itself, so that it is its own turn that is explained."""
    for run in batch:
        places = [place for place, ask in enumerate(run) if ask.name == name] if name else []
        cuts = [0, *(cut for place in places for cut in (place, place + 1)), len(run)]
        yield from (run[start:end] for start, end in pairwise(cuts) if start < end)


def _grouped(refused: Mapping[str, Refusal]) -> Iterator[Unplaced]:
    """What is refused for the same reason is told once."""
    groups: dict[str, list[str]] = {}
    for name, each in refused.items():
        groups.setdefault(each.why, []).append(name)
    for why, names in groups.items():
        yield Unplaced(tuple(names), why, refused[names[0]].kinds)


def _taken(table: NodeTable) -> dict[str, int]:
    found = {
        resource: sum(table.taken(number).tolist()) for resource, number in table.index.items()
    }  # as large as they come
    return {**found, "gpu": _gpus_taken(table)}


def _gpus_taken(table: NodeTable) -> int:
    total = int(table.column("gpu_count").sum()) * WHOLE_GPU
    return total - int(table.column("gpu_free").sum())


def _fullness(table: NodeTable) -> dict[str, float]:
    columns = {
        resource: (table.taken(number).tolist(), table.total(number).tolist())
        for resource, number in table.index.items()
    }
    counts = (table.column("gpu_count").astype(np.int64) * WHOLE_GPU).tolist()
    columns["gpu"] = (
        [count - free for count, free in zip(counts, table.column("gpu_free").tolist(), strict=True)],
        counts,
    )
    found = {}
    for name in sorted(table.row_of):
        row = table.row_of[name]
        used, total = ({resource: pair[part][row] for resource, pair in columns.items()} for part in (0, 1))
        found[name] = utilisation(
            used, {resource: amount for resource, amount in total.items() if amount < NO_LIMIT}
        )
    return found


def _usage(table: NodeTable, before: Mapping[str, int]) -> Iterator[Usage]:
    """Ports and slots only where something is counted."""
    after = _taken(table)
    for resource, number in table.index.items():
        totals = table.total(number)
        some = (totals > 0) & (totals < NO_LIMIT)
        if not some.any() or (resource in (PORTS, SLOTS) and not after[resource]):
            continue
        shares = table.taken(number)[some] / totals[some]
        yield Usage(
            resource,
            sum(totals[some].tolist()),
            before.get(resource, 0),
            after[resource],
            float(shares.mean()),
            float(shares.max()),
        )
    counts = table.column("gpu_count").astype(np.int64) * WHOLE_GPU
    if counts.any():
        some = counts > 0
        shares = 1 - table.column("gpu_free")[some] / counts[some]
        yield Usage(
            "gpu", int(counts.sum()), before["gpu"], after["gpu"], float(shares.mean()), float(shares.max())
        )
