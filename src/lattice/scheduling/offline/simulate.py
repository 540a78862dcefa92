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
from lattice.scheduling.cycle.cycle import CycleResult, ScheduledWorkload, compose
from lattice.scheduling.cycle.decision_record import permanent_reasons_first, rejection_summary
from lattice.scheduling.cycle.gang import Assignment, assume_assignment
from lattice.scheduling.cycle.input_checks import (
    InputWarning,
    cyclic_affinity_warnings,
    node_warnings,
    overcommit_warnings,
    taint_eviction_warnings,
    unfit_gpus_message,
)
from lattice.scheduling.cycle.profile import ProfileSpec
from lattice.scheduling.cycle.scheduling_queue import SchedulingQueue
from lattice.scheduling.cycle.tie_break import RandomSource
from lattice.scheduling.offline.oversized import oversized_warnings
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.table.ask import MILLI_PER_GPU, PORTS, WORKLOAD_SLOTS, WorkloadAsk
from lattice.scheduling.table.node_info import node_info_of
from lattice.scheduling.table.node_table import NO_LIMIT, NodeTable
from lattice.scheduling.table.qos import Qos, qos_of, utilisation
from lattice.scheduling.table.resource_fit import has_gpus, overflow_reason

FROZEN_CLOCK_S = 0.0  # the clock stands still: nothing expires, nothing waits
BATCH_SIZE = 1000  # workloads decided before progress is told again
MAX_SHOWN_CANDIDATES = 5  # of the candidates, shown with what their score is made of


@dataclass(frozen=True, slots=True)
class Usage:
    """One resource over all nodes; shares from 0 to 1, over the nodes that have any of it."""

    resource: str
    total: int
    used_before: int
    used_after: int
    mean: float
    highest: float

    @property
    def share_before(self) -> float:
        return self.used_before / self.total if self.total else 0.0

    @property
    def share_after(self) -> float:
        return self.used_after / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class UnschedulableGroup:
    """Workloads that were refused for the same reason, in the order in which they were given."""

    names: tuple[str, ...]
    reason: str
    reason_kinds: tuple[str, ...] = ()  # of reasons, without counts and amounts


@dataclass(frozen=True, slots=True)
class PreemptedWorkload:
    """It had to go from a node to make room for another."""

    node: str
    preempted_by: str


@dataclass(frozen=True, slots=True)
class SimulationReport:
    node_count: int
    bound_count: int  # workloads that were on a node already
    stopped_count: int  # workloads that are not meant to run
    placements: Mapping[str, str]  # workload -> node, of those decided here
    unschedulable: tuple[UnschedulableGroup, ...]
    preempted: Mapping[str, PreemptedWorkload]  # by workload
    usage: tuple[Usage, ...]
    decide_seconds: float  # spent deciding
    explanation: Mapping[str, Any] | None = None
    warnings: tuple[InputWarning, ...] = ()
    qos: Mapping[str, Qos] = field(default_factory=dict)  # by workload, of those meant to run
    node_utilisation: Mapping[str, float] = field(
        default_factory=dict
    )  # by node: the share of its fullest resource, 0 to 1

    @property
    def decided_count(self) -> int:
        return len(self.placements) + sum(len(each.names) for each in self.unschedulable)


@dataclass(frozen=True, slots=True)
class UnschedulableReason:
    reason: str
    wakes_on: frozenset[Hashable]  # changes that might help
    reason_kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How to simulate: by which profile and seed, with whose clock, and who wants to know how far it is."""

    profile: ProfileSpec
    seed: int = 0
    rng: RandomSource | None = None
    clock: Callable[[], float] = lambda: 0.0
    on_progress: Callable[[int], None] = lambda done: None
    explained_workload: str = ""  # namespace/name of a workload


def simulate(
    nodes: Iterable[LatticeNode], workloads: Iterable[LatticeWorkload], run: SimulationOptions
) -> SimulationReport:
    nodes = list(nodes)
    table = NodeTable(run.seed)
    table.load(
        node_info_of(node, default_ready="True") for node in nodes
    )  # a manifest that somebody wrote need not say it
    simulation = _Simulation(table, run)
    simulation.warnings += [odd for node in nodes for odd in node_warnings(node)]
    simulation.add_workloads(workloads)
    return simulation.report()


class _Simulation:
    """The running scheduler's own queue and cycle on a clock that stands still: what is placed is bound at once."""

    def __init__(self, table: NodeTable, run: SimulationOptions) -> None:
        self.table, self.options = table, run
        self.queue = SchedulingQueue()
        self.scheduler = compose(run.profile, table, run.rng)
        self.scheduler.preemptor = Preemptor(table, self.scheduler.profile)
        self.asks: dict[str, WorkloadAsk] = {}
        self.placements: dict[str, str] = {}
        self.rejected: dict[str, UnschedulableReason] = {}
        self.bound: dict[str, str] = {}
        self.preempted: dict[str, PreemptedWorkload] = {}
        self.warnings: list[InputWarning] = []
        self.qos: dict[str, Qos] = {}
        self.explanation: dict[str, Any] | None = None
        self.stopped_count = 0
        self._ask_by_spec: dict[Hashable, tuple[WorkloadSpec, WorkloadAsk, Qos]] = {}

    def add_workloads(self, workloads: Iterable[LatticeWorkload]) -> None:
        """Those that are on a node go there first; the others wait for their turn."""
        bound: list[tuple[WorkloadAsk, str]] = []
        for workload in workloads:
            if workload.spec.desired_state != "Running":
                self.stopped_count += 1
                continue
            ask = self._ask_of(workload)
            self.asks[ask.name] = ask
            if workload.status.binding:
                bound.append((ask, workload.status.binding.node))
            else:
                self.queue.add(ask)
        for ask, node in sorted(
            bound, key=lambda pair: -_gpu_milli(pair[0])
        ):  # small shares fit beside large ones, not the other way
            self._add_bound(ask, node)
        self.warnings += [*overcommit_warnings(self.table, self.qos), *taint_eviction_warnings(self.table)]
        if self.options.explained_workload and self.options.explained_workload not in self.asks:
            raise self._no_explanation_error()

    def _ask_of(self, workload: LatticeWorkload) -> WorkloadAsk:
        """Most of many workloads share their spec and labels with others: those are read once."""
        metadata, spec = workload.metadata, workload.spec
        key = (id(spec), metadata.namespace, *metadata.labels.items())
        like = self._ask_by_spec.get(key)
        if like is None or like[0] is not spec:
            like = self._ask_by_spec[key] = (spec, self.table.ask_of(workload), qos_of(spec))
        ask = replace(like[1], name=f"{like[1].demands.namespace}/{metadata.name}")
        self.qos[ask.name] = like[2]
        return ask

    def _add_bound(self, ask: WorkloadAsk, node: str) -> None:
        row = self.table.row_of.get(node)
        if row is None:
            fix = "give its LatticeNode too, or leave status.binding out"
            raise NotFound(
                f"is bound to node {node}, which is not among those given", where=ask.name, fix=fix
            )
        if why := _binding_problem(ask, self.table, row):
            self.warnings.append(
                InputWarning("workload", ask.name, f"is bound to node {node}{why}: it is left out")
            )
            del self.asks[ask.name]
            return
        self.table.admit(ask, row)
        self.table.commit(ask.name)
        self.bound[ask.name] = node

    def _no_explanation_error(self) -> NotFound:
        name = self.options.explained_workload
        if name in self.bound:
            fix = "leave its status.binding out to decide it anew"
            return NotFound(f"is on node {self.bound[name]} already: nothing is decided", where=name, fix=fix)
        alike = [other for other in self.asks if other.rpartition("/")[2] == name.rpartition("/")[2]]
        fix = (
            f"did you mean {' or '.join(sorted(alike)[:MAX_SHOWN_CANDIDATES])}?"
            if alike
            else "write it as namespace/name"
        )
        return NotFound("there is no such workload to decide", where=name, fix=fix)

    def report(self) -> SimulationReport:
        before = _used_amounts(self.table)
        began = self.options.clock()
        self._decide_all()
        seconds = self.options.clock() - began
        if self.options.explained_workload and self.explanation is None:
            raise self._no_explanation_error()
        refused = [self.asks[name] for name in self.rejected]
        return SimulationReport(
            node_count=len(self.table.row_of),
            bound_count=len(self.bound),
            stopped_count=self.stopped_count,
            placements=self.placements,
            unschedulable=tuple(
                _grouped({name: self.rejected[name] for name in self.asks if name in self.rejected})
            ),
            preempted=self.preempted,
            usage=tuple(_usage(self.table, before)),
            decide_seconds=seconds,
            explanation=self._explanation_with_preemption(),
            warnings=(
                *self.warnings,
                *oversized_warnings(refused, self.table),
                *cyclic_affinity_warnings(refused, self.table),
            ),
            qos=self.qos,
            node_utilisation=_node_utilisation(self.table),
        )

    def _decide_all(self) -> None:
        """Who is refused is asked again when others have come or gone that might have been the reason."""
        while True:
            placed, displaced = len(self.placements), len(self.preempted)
            self._drain_queue()
            changes = {ClusterEvent.WORKLOAD_ADDED} if len(self.placements) > placed else set()
            changes |= {ClusterEvent.WORKLOAD_GONE} if len(self.preempted) > displaced else set()
            again = [name for name, each in self.rejected.items() if each.wakes_on & changes]
            if not again:
                return
            self._requeue(again)

    def _drain_queue(self) -> None:
        while batch := self.queue.pop_batch(FROZEN_CLOCK_S, BATCH_SIZE):
            for _, runs in groupby(
                _split_out(batch, self.options.explained_workload), key=lambda each: each[0].group or id(each)
            ):
                self._decide(list(runs))
            self.options.on_progress(len(self.placements) + len(self.rejected))

    def _decide(self, runs: Sequence[Sequence[WorkloadAsk]]) -> None:
        """One run of equals, or all of a gang."""
        for ask in (ask for each in runs for ask in each if ask.name == self.options.explained_workload):
            self.explanation = _explanation(decide(ask, self.table, self.scheduler.profile))
        cycle = self.scheduler.cycle(runs, FROZEN_CLOCK_S)
        if self.explanation is not None:
            self._explain_outcome(cycle, [ask for each in runs for ask in each])
        for each in runs:
            for ask in each:
                self.queue.done(ask.name)
        for refused in cycle.unschedulable:
            self.rejected[refused.ask.name] = UnschedulableReason(
                refused.reason, refused.wakes_on, refused.reason_kinds
            )
        for placed in cycle.scheduled:
            self.scheduler.reservations.confirm(placed.reservation.id, FROZEN_CLOCK_S)
            self.placements[placed.ask.name] = placed.node
        for victim, by in cycle.evictions:
            self.scheduler.finish_eviction(victim)
            self._requeue_victim(victim, by)

    def _requeue_victim(self, name: str, by: str) -> None:
        """It was there before, or came in this run; either way it needs another place."""
        self.preempted[name] = PreemptedWorkload(self.placements.pop(name, "") or self.bound[name], by)
        self.queue.add(self.asks[name])
        if gang := self.asks[name].group:
            self._requeue([mate for mate in self.rejected if self.asks[mate].group == gang])

    def _requeue(self, names: Iterable[str]) -> None:
        """They are decided again, a gang with all of its members."""
        for name in names:
            del self.rejected[name]
            self.queue.add(self.asks[name])

    def _explain_outcome(self, cycle: CycleResult, asks: Sequence[WorkloadAsk]) -> None:
        """What came of it, where that is not what it alone would have got: others made way, or its gang had a say."""
        told = self.explanation or {}
        for placed in cycle.scheduled:
            if placed.ask.name == told["ask"] and (placed.victims or placed.node != told["chosen"]):
                told["summary"] = (
                    self._preemption_summary(placed, told["summary"])
                    if placed.victims
                    else f"{placed.node}; {told['summary']}"
                )
                told.update(chosen=placed.node, displaced=list(placed.victims))
        for refused in cycle.unschedulable:
            if refused.ask.name == told["ask"] and told["chosen"]:
                beside = self._explain_beside_gang(refused.ask, asks) if refused.ask.group else {}
                told.update(beside, chosen=None, summary=refused.reason + beside.get("summary", ""))

    def _explain_beside_gang(self, ask: WorkloadAsk, asks: Iterable[WorkloadAsk]) -> dict[str, Any]:
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
                    mates += (
                        decision.fits
                        and assume_assignment(Assignment(mate, decision.chosen), self.table) is None
                    )
            told = _explanation(decide(ask, self.table, self.scheduler.profile))
        others = (
            f"the {mates} others of its group that fit" if mates > 1 else "the other of its group that fits"
        )
        return {**told, "summary": f"; nodes are shown with {others} in place" if mates else ""}

    def _explanation_with_preemption(self) -> dict[str, Any] | None:
        """Whoever was displaced was decided again: that is what is explained."""
        told = self.explanation
        gone = self.preempted.get(told["ask"]) if told else None
        return (
            {**told, "summary": f"{told['summary']}; {gone.preempted_by} displaced it from {gone.node}"}
            if told and gone
            else told
        )

    def _preemption_summary(self, placed: ScheduledWorkload, otherwise: str) -> str:
        gone = ", ".join(
            f"{name} (priority {self.asks[name].priority} < {placed.ask.priority})" for name in placed.victims
        )
        return f"{placed.node}, by displacing {gone}; else {otherwise}"


def _binding_problem(ask: WorkloadAsk, table: NodeTable, row: int) -> str:
    """Why one that is bound there cannot be told of among the others; room need not be left for it."""
    gpu = ask.demands.gpu
    if gpu and not has_gpus(gpu, table, row):
        return f", which cannot hold {unfit_gpus_message(gpu, table, row)}"
    why = overflow_reason(ask, table, row)
    return f"; {why}" if why else ""


def _explanation(decision: Decision) -> dict[str, Any]:
    told = as_json(permanent_reasons_first(decision), MAX_SHOWN_CANDIDATES, with_rejections=True)
    return told if decision.fits else {**told, "summary": rejection_summary(decision).reason}


def _gpu_milli(ask: WorkloadAsk) -> int:
    return ask.demands.gpu.milli if ask.demands.gpu else 0


def _split_out(batch: Iterable[Sequence[WorkloadAsk]], name: str) -> Iterator[Sequence[WorkloadAsk]]:
    """The one to be explained is decided by itself, so that it is its own turn that is explained."""
    for run in batch:
        places = [place for place, ask in enumerate(run) if ask.name == name] if name else []
        cuts = [0, *(cut for place in places for cut in (place, place + 1)), len(run)]
        yield from (run[start:end] for start, end in pairwise(cuts) if start < end)


def _grouped(refused: Mapping[str, UnschedulableReason]) -> Iterator[UnschedulableGroup]:
    """What is refused for the same reason is told once."""
    groups: dict[str, list[str]] = {}
    for name, each in refused.items():
        groups.setdefault(each.reason, []).append(name)
    for why, names in groups.items():
        yield UnschedulableGroup(tuple(names), why, refused[names[0]].reason_kinds)


def _used_amounts(table: NodeTable) -> dict[str, int]:
    found = {
        resource: sum(table.allocated(number).tolist()) for resource, number in table.resource_index.items()
    }  # as large as they come
    return {**found, "gpu": _used_gpu_milli(table)}


def _used_gpu_milli(table: NodeTable) -> int:
    total = int(table.column("gpu_count").sum()) * MILLI_PER_GPU
    return total - int(table.column("gpu_free").sum())


def _node_utilisation(table: NodeTable) -> dict[str, float]:
    columns = {
        resource: (table.allocated(number).tolist(), table.total(number).tolist())
        for resource, number in table.resource_index.items()
    }
    counts = (table.column("gpu_count").astype(np.int64) * MILLI_PER_GPU).tolist()
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
    after = _used_amounts(table)
    for resource, number in table.resource_index.items():
        totals = table.total(number)
        some = (totals > 0) & (totals < NO_LIMIT)
        if not some.any() or (resource in (PORTS, WORKLOAD_SLOTS) and not after[resource]):
            continue
        shares = table.allocated(number)[some] / totals[some]
        yield Usage(
            resource,
            sum(totals[some].tolist()),
            before.get(resource, 0),
            after[resource],
            float(shares.mean()),
            float(shares.max()),
        )
    counts = table.column("gpu_count").astype(np.int64) * MILLI_PER_GPU
    if counts.any():
        some = counts > 0
        shares = 1 - table.column("gpu_free")[some] / counts[some]
        yield Usage(
            "gpu", int(counts.sum()), before["gpu"], after["gpu"], float(shares.mean()), float(shares.max())
        )
