"""Offline simulation: schedule workloads onto nodes in order, and report placements, rejections and
utilisation."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, pairwise
from typing import Any

import numpy as np

from lattice.engine.decide import Decision, decide
from lattice.engine.explain import as_json
from lattice.errors import NotFound
from lattice.kinds.node import LatticeNode
from lattice.kinds.qos import Qos, qos_of
from lattice.kinds.workload import LatticeWorkload, WorkloadSpec
from lattice.scheduling.cycle.cycle import CycleResult, compose
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
from lattice.scheduling.table.node_info import node_info_of
from lattice.scheduling.table.node_table import NO_LIMIT, NodeTable
from lattice.scheduling.table.plain_fit import utilisation
from lattice.scheduling.table.resource_fit import has_free_gpus, overflow_reason
from lattice.scheduling.table.workload_ask import MILLI_PER_GPU, PORTS, WORKLOAD_SLOTS, WorkloadAsk

FROZEN_CLOCK_S = 0.0  # the clock stands still: no reservation expires, no back-off ends
BATCH_SIZE = 1000  # workloads scheduled between two progress reports
MAX_SHOWN_CANDIDATES = 5


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one resource over all nodes. Shares are from 0 to 1, over the nodes that have the
    resource."""

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
    """Workloads rejected for the same reason, in order of input."""

    names: tuple[str, ...]
    reason: str
    reason_kinds: tuple[str, ...] = ()  # the reasons without counts and amounts


@dataclass(frozen=True, slots=True)
class PreemptedWorkload:
    """A workload that was evicted from a node for a workload of higher priority."""

    node: str
    preempted_by: str


@dataclass(frozen=True, slots=True)
class SimulationReport:
    node_count: int
    bound_count: int  # workloads with a binding in the input
    stopped_count: int  # workloads whose desired state is not Running
    placements: Mapping[str, str]  # workload -> node, of workloads scheduled by the simulation
    unschedulable: tuple[UnschedulableGroup, ...]
    preempted: Mapping[str, PreemptedWorkload]  # by workload
    usage: tuple[Usage, ...]
    decide_seconds: float
    explanation: Mapping[str, Any] | None = None
    warnings: tuple[InputWarning, ...] = ()
    qos: Mapping[str, Qos] = field(default_factory=dict)  # by workload
    node_utilisation: Mapping[str, float] = field(default_factory=dict)  # by node: 0 to 1, fullest resource

    @property
    def decided_count(self) -> int:
        return len(self.placements) + sum(len(group.names) for group in self.unschedulable)


@dataclass(frozen=True, slots=True)
class UnschedulableReason:
    reason: str
    wakes_on: frozenset[Hashable]  # events that might change the rejection
    reason_kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Options of a simulation: profile, seed, random source, clock, and progress callback."""

    profile: ProfileSpec
    seed: int = 0
    rng: RandomSource | None = None
    clock: Callable[[], float] = lambda: 0.0
    on_progress: Callable[[int], None] = lambda done: None
    explained_workload: str = ""  # namespace/name of a workload


def simulate(
    nodes: Iterable[LatticeNode], workloads: Iterable[LatticeWorkload], options: SimulationOptions
) -> SimulationReport:
    """Schedule the workloads onto the nodes with the scheduler's own queue and cycle."""
    nodes = list(nodes)
    table = NodeTable(options.seed)
    # A manifest that a user wrote need not state readiness.
    table.load(node_info_of(node, default_ready="True") for node in nodes)
    simulation = _Simulation(table, options)
    for node in nodes:
        simulation.warnings.extend(node_warnings(node))
    simulation.add_workloads(workloads)
    return simulation.report()


class _Simulation:
    """The scheduler's queue and cycle on a clock that stands still. A scheduled workload is bound at once."""

    def __init__(self, table: NodeTable, options: SimulationOptions) -> None:
        self.table, self.options = table, options
        self.queue = SchedulingQueue()
        self.scheduler = compose(options.profile, table, options.rng)
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
        # The key holds the id of the spec; the value keeps the spec alive, so that the id is not reused.
        self._ask_by_spec: dict[Hashable, tuple[WorkloadSpec, WorkloadAsk, Qos]] = {}

    def add_workloads(self, workloads: Iterable[LatticeWorkload]) -> None:
        """Place the bound workloads on their nodes, and queue the remaining workloads."""
        bound: list[tuple[WorkloadAsk, str]] = []
        for workload in workloads:
            if workload.spec.desired_state != "Running":
                self.stopped_count += 1
                continue
            # Workloads with the same spec and labels share one WorkloadAsk.
            metadata, spec = workload.metadata, workload.spec
            key = (id(spec), metadata.namespace, *metadata.labels.items())
            cached = self._ask_by_spec.get(key)
            if cached is None or cached[0] is not spec:
                cached = self._ask_by_spec[key] = (spec, self.table.ask_of(workload), qos_of(spec))
            ask = replace(cached[1], name=f"{cached[1].demands.namespace}/{metadata.name}")
            self.qos[ask.name] = cached[2]
            self.asks[ask.name] = ask
            if workload.status.binding:
                bound.append((ask, workload.status.binding.node))
            else:
                self.queue.add(ask)
        # Large GPU shares come first, because small shares fit into what large shares leave free, but not the
        # reverse.
        bound.sort(key=lambda pair: pair[0].demands.gpu.milli if pair[0].demands.gpu else 0, reverse=True)
        for ask, node in bound:
            self._add_bound(ask, node)
        self.warnings += [*overcommit_warnings(self.table, self.qos), *taint_eviction_warnings(self.table)]
        if self.options.explained_workload and self.options.explained_workload not in self.asks:
            raise self._no_explanation_error()

    def _add_bound(self, ask: WorkloadAsk, node: str) -> None:
        row = self.table.row_of.get(node)
        if row is None:
            fix = "add the LatticeNode, or remove status.binding"
            raise NotFound(f"is bound to node {node}, which is not in the input", where=ask.name, fix=fix)
        # A bound workload may overcommit the node, but not in GPUs, and not beyond MAX_ALLOCATED.
        gpu, problem = ask.demands.gpu, ""
        if gpu and not has_free_gpus(gpu, self.table, row):
            problem = f", which cannot hold {unfit_gpus_message(gpu, self.table, row)}"
        elif reason := overflow_reason(ask, self.table, row):
            problem = f"; {reason}"
        if problem:
            message = f"is bound to node {node}{problem}: the workload is ignored"
            self.warnings.append(InputWarning("workload", ask.name, message))
            del self.asks[ask.name]
            return
        self.table.admit(ask, row)
        self.table.commit(ask.name)
        self.bound[ask.name] = node

    def _no_explanation_error(self) -> NotFound:
        name = self.options.explained_workload
        if name in self.bound:
            fix = "remove status.binding to schedule the workload again"
            return NotFound(
                f"is already bound to node {self.bound[name]}: there is no decision to explain",
                where=name,
                fix=fix,
            )
        similar = [path for path in self.asks if path.rpartition("/")[2] == name.rpartition("/")[2]]
        fix = "write the workload as namespace/name"
        if similar:
            fix = f"did you mean {' or '.join(sorted(similar)[:MAX_SHOWN_CANDIDATES])}?"
        return NotFound("there is no such workload to schedule", where=name, fix=fix)

    def report(self) -> SimulationReport:
        """Schedule the queued workloads, and report the result."""
        used_before = _used_amounts(self.table)
        began_at = self.options.clock()
        self._decide_all()
        seconds = self.options.clock() - began_at
        if self.options.explained_workload and self.explanation is None:
            raise self._no_explanation_error()
        rejected = [self.asks[name] for name in self.rejected]
        names_by_reason: dict[str, list[str]] = {}
        for name in self.asks:
            if name in self.rejected:
                names_by_reason.setdefault(self.rejected[name].reason, []).append(name)
        # A workload that was preempted and scheduled again is explained with its preemption.
        explanation = self.explanation
        preempted = self.preempted.get(explanation["ask"]) if explanation else None
        if explanation and preempted:
            suffix = f"{preempted.preempted_by} preempted the workload on {preempted.node}"
            explanation = {**explanation, "summary": f"{explanation['summary']}; {suffix}"}
        return SimulationReport(
            node_count=len(self.table.row_of),
            bound_count=len(self.bound),
            stopped_count=self.stopped_count,
            placements=self.placements,
            unschedulable=tuple(
                UnschedulableGroup(tuple(names), reason, self.rejected[names[0]].reason_kinds)
                for reason, names in names_by_reason.items()
            ),
            preempted=self.preempted,
            usage=tuple(_usage(self.table, used_before)),
            decide_seconds=seconds,
            explanation=explanation,
            warnings=(
                *self.warnings,
                *oversized_warnings(rejected, self.table),
                *cyclic_affinity_warnings(rejected, self.table),
            ),
            qos=self.qos,
            node_utilisation=_node_utilisation(self.table),
        )

    def _decide_all(self) -> None:
        """Schedule until nothing changes: a rejected workload is requeued after placements or evictions that
        might change the rejection."""
        while True:
            placed, preempted = len(self.placements), len(self.preempted)
            while batch := self.queue.pop_batch(FROZEN_CLOCK_S, BATCH_SIZE):
                runs = _split_out(batch, self.options.explained_workload)
                # The runs of a gang are scheduled together, a run without gang by itself.
                for _, gang_runs in groupby(runs, key=lambda run: run[0].group or id(run)):
                    self._decide(list(gang_runs))
                self.options.on_progress(len(self.placements) + len(self.rejected))
            events = set()
            if len(self.placements) > placed:
                events.add(ClusterEvent.WORKLOAD_ADDED)
            if len(self.preempted) > preempted:
                events.add(ClusterEvent.WORKLOAD_GONE)
            woken = [name for name, rejection in self.rejected.items() if rejection.wakes_on & events]
            if not woken:
                return
            self._requeue(woken)

    def _decide(self, runs: Sequence[Sequence[WorkloadAsk]]) -> None:
        """Schedule one run of equal workloads, or all runs of a gang."""
        asks = list(chain.from_iterable(runs))
        for ask in asks:
            if ask.name == self.options.explained_workload:
                self.explanation = _explanation(decide(ask, self.table, self.scheduler.profile))
        cycle = self.scheduler.cycle(runs, FROZEN_CLOCK_S)
        if self.explanation is not None:
            self._explain_outcome(cycle, asks)
        for ask in asks:
            self.queue.done(ask.name)
        for rejected in cycle.unschedulable:
            self.rejected[rejected.ask.name] = UnschedulableReason(
                rejected.reason, rejected.wakes_on, rejected.reason_kinds
            )
        for scheduled in cycle.scheduled:
            self.scheduler.reservations.confirm(scheduled.reservation.id, FROZEN_CLOCK_S)
            self.placements[scheduled.ask.name] = scheduled.node
        for victim, preempted_by in cycle.evictions:
            self.scheduler.evictions.remove_victim(victim)
            # The victim was bound in the input, or scheduled by the simulation.
            node = self.placements.pop(victim, "") or self.bound[victim]
            self.preempted[victim] = PreemptedWorkload(node, preempted_by)
            self.queue.add(self.asks[victim])
            if gang := self.asks[victim].group:
                self._requeue([member for member in self.rejected if self.asks[member].group == gang])

    def _requeue(self, names: Iterable[str]) -> None:
        """Requeue rejected workloads; a gang is requeued with all of its members."""
        for name in names:
            del self.rejected[name]
            self.queue.add(self.asks[name])

    def _explain_outcome(self, cycle: CycleResult, asks: Sequence[WorkloadAsk]) -> None:
        """Add the outcome to the explanation if preemption or the gang led to another outcome than the
        workload's own decision."""
        explanation = self.explanation or {}
        for scheduled in cycle.scheduled:
            node, victims = scheduled.node, scheduled.victims
            if scheduled.ask.name == explanation["ask"] and (victims or node != explanation["chosen"]):
                summary = f"{node}; {explanation['summary']}"
                if victims:
                    priority = scheduled.ask.priority
                    victim_text = ", ".join(
                        f"{name} (priority {self.asks[name].priority} < {priority})" for name in victims
                    )
                    summary = f"{node}, by preempting {victim_text}; otherwise {explanation['summary']}"
                explanation["summary"] = summary
                explanation.update(chosen=node, displaced=list(victims))
        for rejected in cycle.unschedulable:
            if rejected.ask.name == explanation["ask"] and explanation["chosen"]:
                beside = self._explain_beside_gang(rejected.ask, asks) if rejected.ask.group else {}
                explanation.update(beside, chosen=None, summary=rejected.reason + beside.get("summary", ""))

    def _explain_beside_gang(self, ask: WorkloadAsk, asks: Iterable[WorkloadAsk]) -> dict[str, Any]:
        """The explanation of a gang member that would fit alone: it shows the nodes after as many other
        members as possible were placed."""
        member_count = 0
        with self.table.what_if():
            for member in asks:
                if member.group != ask.group or member.name == ask.name:
                    continue
                if member.name in self.table.placements:
                    continue
                decision = decide(member, self.table, self.scheduler.profile)
                if decision.fits:
                    misfit = assume_assignment(Assignment(member, decision.chosen), self.table)
                    member_count += misfit is None
            explanation = _explanation(decide(ask, self.table, self.scheduler.profile))
        members_text = "the other member of the group that fits"
        if member_count > 1:
            members_text = f"the {member_count} other members of the group that fit"
        summary = f"; nodes are shown with {members_text} in place" if member_count else ""
        return {**explanation, "summary": summary}


def _explanation(decision: Decision) -> dict[str, Any]:
    document = as_json(permanent_reasons_first(decision), MAX_SHOWN_CANDIDATES, with_rejections=True)
    return document if decision.fits else {**document, "summary": rejection_summary(decision).reason}


def _split_out(batch: Iterable[Sequence[WorkloadAsk]], name: str) -> Iterator[Sequence[WorkloadAsk]]:
    """Split runs so that the workload to explain is scheduled by itself, and its own decision is explained."""
    for run in batch:
        cuts = [0]
        for position, ask in enumerate(run):
            if name and ask.name == name:
                cuts += [position, position + 1]
        cuts.append(len(run))
        yield from (run[start:end] for start, end in pairwise(cuts) if start < end)


def _used_amounts(table: NodeTable) -> dict[str, int]:
    # Python ints: sums may exceed 64 bits.
    used = {
        resource: sum(table.allocated(number).tolist()) for resource, number in table.resource_index.items()
    }
    total_milli = int(table.column("gpu_count").sum()) * MILLI_PER_GPU
    return {**used, "gpu": total_milli - int(table.column("gpu_free").sum())}


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
    by_node = {}
    for name in sorted(table.row_of):
        row = table.row_of[name]
        used = {resource: allocated[row] for resource, (allocated, _) in columns.items()}
        totals = {resource: total[row] for resource, (_, total) in columns.items() if total[row] < NO_LIMIT}
        by_node[name] = utilisation(used, totals)
    return by_node


def _usage(table: NodeTable, used_before: Mapping[str, int]) -> Iterator[Usage]:
    """The usage of every resource; ports and slots only if a workload uses them."""
    used_after = _used_amounts(table)
    for resource, number in table.resource_index.items():
        totals = table.total(number)
        has_resource = (totals > 0) & (totals < NO_LIMIT)
        if not has_resource.any() or (resource in (PORTS, WORKLOAD_SLOTS) and not used_after[resource]):
            continue
        shares = table.allocated(number)[has_resource] / totals[has_resource]
        yield Usage(
            resource,
            sum(totals[has_resource].tolist()),
            used_before.get(resource, 0),
            used_after[resource],
            float(shares.mean()),
            float(shares.max()),
        )
    counts = table.column("gpu_count").astype(np.int64) * MILLI_PER_GPU
    if counts.any():
        has_resource = counts > 0
        shares = 1 - table.column("gpu_free")[has_resource] / counts[has_resource]
        yield Usage(
            "gpu",
            int(counts.sum()),
            used_before["gpu"],
            used_after["gpu"],
            float(shares.mean()),
            float(shares.max()),
        )
