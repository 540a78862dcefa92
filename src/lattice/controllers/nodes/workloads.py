"""Reconcile workloads: compare the stored state with the agent's report, decide the next action, and store
the action before an agent receives the assignment."""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from msgspec.structs import replace

from lattice import metrics
from lattice.clock import Clock
from lattice.controllers.nodes.node_health import NodeHealthController, NodeState
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import with_status
from lattice.kinds.meta.base import path_of
from lattice.kinds.meta.conditions import READY_CONDITION, find_condition, merge_conditions
from lattice.kinds.meta.timestamps import format_timestamp, parse_time
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import (
    RETRY_REQUESTED_ANNOTATION,
    WORKLOAD_FINALIZER,
    LatticeWorkload,
    WorkloadStatus,
)
from lattice.lifecycle.eviction import DecidedEvictions
from lattice.lifecycle.retry import PORT_TAKEN
from lattice.lifecycle.workload import (
    AWAIT_ACTIONS,
    Action,
    Decision,
    GracePeriods,
    Report,
    decide,
    decide_manual_retry,
    desired_run,
)
from lattice.lifecycle.workload_status import (
    UNBINDING_ACTIONS,
    WorkloadObservation,
    awaits_node,
    build_input,
    is_settled,
    next_status,
    parse_actual_state,
    workload_conditions,
)
from lattice.presence import PresenceChange
from lattice.store.protocol import Change, Delete, Entry, Write

WARNINGS = frozenset({Action.MARK_FAILED, Action.BACKOFF_WAIT})
RETRIES = frozenset({Action.RECREATE, Action.RETRY})
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _StampAge:
    """A stored timestamp with its age when this server observed the timestamp first."""

    stamp: str
    # Monotonic time of the first observation.
    observed_at: float
    initial_age_s: float


@dataclass
class StampAges:
    """Ages of stored timestamps by name, measured on the monotonic clock, so that jumps of the wall clock do
    not matter."""

    clock: Clock
    _observed: dict[str, _StampAge] = field(default_factory=dict)

    def age(self, name: str, stamp: str | None, now: datetime) -> float | None:
        """The age of a stored timestamp in seconds; None without a timestamp.

        The first timestamp of a name may be old: its age is measured by the wall clock. Every later timestamp
        of the name has age zero when this server observes it first.
        """
        if not stamp:
            self._observed.pop(name, None)
            return None
        observed, monotonic = self._observed.get(name), self.clock.monotonic()
        if observed is None or observed.stamp != stamp:
            stored_at = parse_time(stamp) if observed is None else None
            observed = self._observed[name] = _StampAge(
                stamp, monotonic, max(0.0, (now - stored_at).total_seconds()) if stored_at else 0.0
            )
        return observed.initial_age_s + monotonic - observed.observed_at

    def forget(self, name: str) -> None:
        self._observed.pop(name, None)


@dataclass
class WorkloadController:
    """Decide and store the next action and the status of a workload; the key is `namespace/name`."""

    context: ControllerContext
    node_health: NodeHealthController
    evictions: DecidedEvictions
    grace_periods: GracePeriods = field(default_factory=GracePeriods)
    # The longest delay until the next reconcile of a workload that awaits a report or a timeout.
    recheck_interval_s: float = 5.0
    concurrency: Concurrency = field(default_factory=Concurrency)
    name: str = "workloads"

    def __post_init__(self) -> None:
        self._workloads = self.context.cache(LatticeWorkload)
        self._recorder = self.context.recorder(self.name)
        # By path of the workload: the age of the last action and of its readiness.
        self._action_ages = StampAges(self.context.clock)
        self._ready_ages = StampAges(self.context.clock)
        self._wake: Callable[[Iterable[str]], None] = lambda _: None

    def loop(self) -> Loop:
        loop = Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: [path_of(workload) for workload in self._workloads.objects()],
            (Source(self._workloads, self.keys_for_change),),
            self.concurrency,
        )
        self._wake = loop.wake
        self.context.presence.on_change(self.on_presence_change)
        self.node_health.on_change(loop.wake)
        self.evictions.on_change(loop.wake)
        return loop

    async def reconcile(self, key: str) -> Requeue | None:
        entry, workload = self._workloads.entry(key), self._workloads.get(key)
        if (
            entry is None
            or workload is None
            # Deleted without our finalizer: only other finalizers hold the object.
            or (
                workload.metadata.deletion_timestamp
                and WORKLOAD_FINALIZER not in workload.metadata.finalizers
            )
        ):
            self._action_ages.forget(key)
            self._ready_ages.forget(key)
            return None
        node_state = self.node_health.node_state(workload)
        # The node may be missing only because the node cache is older than the workload cache.
        if node_state.state == "Gone":
            await self.context.cache(LatticeNode).wait_for(entry.revision)
            node_state = self.node_health.node_state(workload)
        if not node_state.is_fully_reported and _metadata_change(workload) is None:
            # The agent has not sent its full report to this server yet: no decision before the report.
            return None
        now, status = self.context.clock.now(), workload.status
        # A settled workload waits for no timeout and needs no ages.
        action_at, ready_at = (None, None) if is_settled(workload) else _stamps(status)
        observation = dataclasses.replace(
            self._observe(workload, node_state),
            since_last_action=self._action_ages.age(key, action_at, now),
            since_ready=self._ready_ages.age(key, ready_at, now),
        )
        lifecycle_input = build_input(workload, observation, now)
        is_retry_requested = RETRY_REQUESTED_ANNOTATION in workload.metadata.annotations
        decision = (
            decide_manual_retry(lifecycle_input, self.grace_periods)
            if is_retry_requested
            else decide(lifecycle_input, self.grace_periods)
        )
        status = next_status(workload, observation, decision, now)
        # Only workloads that a user created state the observed generation: of a service, clients wait for the
        # service, and ten thousand replicas need no write each.
        # A workload that awaits its first node stays as it is: a write would conflict with its binding.
        if workload.status.observed_generation is not None and not awaits_node(workload):
            status = replace(status, observed_generation=workload.metadata.generation)
        if decision.action in AWAIT_ACTIONS and node_state.is_fully_reported:
            status = self._with_conditions(status, decision)
        writes = self._writes(entry, workload, decision, status)
        # In the same commit, so that the scheduler cannot allocate the ports again in between.
        if decision.failure_reason == PORT_TAKEN:
            writes += self.node_health.taken_port_writes(workload)
        if writes:
            await self.context.commit(writes)
            if decision.is_stored:
                metrics.RECONCILIATION_ACTIONS.labels(decision.action).inc()
                log.info("workload", workload=key, action=str(decision.action), why=decision.reason)
                if decision.action in RETRIES:
                    metrics.WORKLOAD_RETRIES.inc()
            # The node controller counts the remaining workloads.
            if decision.action in UNBINDING_ACTIONS and workload.status.binding is not None:
                self.node_health.note_workload_left(workload.status.binding.node)
        waits = [
            seconds for seconds in (decision.requeue_after, node_state.recheck_after_s) if seconds is not None
        ]
        return Requeue(min(*waits, self.recheck_interval_s)) if waits else None

    def keys_for_change(self, change: Change) -> Iterable[str]:
        """Wake the workload, unless the workload waits for its first node: the scheduler handles unbound
        workloads."""
        workload = self._workloads.get(change.key.path)
        return () if workload is not None and awaits_node(workload) else (change.key.path,)

    def on_presence_change(self, change: PresenceChange) -> None:
        """Wake the workloads of a report, and the unsettled workloads of its node, because the agent may have
        confirmed their assignments."""
        unsettled = (
            path_of(workload)
            for workload in self._workloads.by_index("node", change.node)
            if not is_settled(workload)
        )
        self._wake(dict.fromkeys((*change.workloads, *unsettled)))

    def _observe(self, workload: LatticeWorkload, node_state: NodeState) -> WorkloadObservation:
        binding, presence = workload.status.binding, self.context.presence
        heartbeat = presence.get(binding.node) if binding else None
        if binding is None or heartbeat is None or node_state.state != "Ready":
            return WorkloadObservation(
                node_state.state,
                node_state.is_fully_reported,
                node_reason=node_state.reason,
                eviction=self.evictions.eviction_of(workload, node_state.failover),
            )
        path = path_of(workload)
        report = heartbeat.workloads.get(path)
        has_applied = presence.has_applied(binding.node, path, desired_run(workload))
        connected_for = self.context.clock.monotonic() - heartbeat.connected_at
        # A report with another uid is about a deleted workload of the same name.
        if report is None or report.uid != workload.metadata.uid:
            return WorkloadObservation(
                "Ready",
                report=Report(includes_last_order=has_applied),
                connected_for=connected_for,
                eviction=self.evictions.eviction_of(workload),
            )
        return WorkloadObservation(
            "Ready",
            True,
            Report(
                parse_actual_state(report.state),
                report.revision,
                report.run,
                report.failure_reason,
                has_applied,
                report.failure_message,
                report.exit_code,
            ),
            report.ready,
            report.log,
            connected_for,
            self.evictions.eviction_of(workload, is_reported_ready=report.ready),
        )

    def _writes(
        self, entry: Entry, workload: LatticeWorkload, decision: Decision, status: WorkloadStatus
    ) -> list[Write]:
        events: list[Write] = []
        if decision.event:
            events.append(
                self._recorder.event(
                    workload,
                    decision.event,
                    decision.reason,
                    warning=decision.action in WARNINGS or decision.is_reporting_failed,
                )
            )
        if decision.action is Action.FINALIZE_DELETE:
            finalizers = [name for name in workload.metadata.finalizers if name != WORKLOAD_FINALIZER]
            if not finalizers:
                return [Delete(entry.key, entry.revision), *events]
            # Another finalizer holds the object: only ours is removed.
            since = workload.metadata.deletion_timestamp or format_timestamp(self.context.clock.now())
            removal = {"finalizers": finalizers, "deletionTimestamp": since}
            return [with_status(entry, status, lambda metadata: metadata | removal), *events]
        metadata = _metadata_change(workload)
        # Write nothing if nothing changed: an idle fleet creates no revisions (I-33).
        if status == workload.status and metadata is None:
            return []
        if status != workload.status:
            status = self._with_conditions(status, decision)
        return [with_status(entry, status, metadata), *events]

    def _with_conditions(self, status: WorkloadStatus, decision: Decision) -> WorkloadStatus:
        conditions = workload_conditions(status, decision.reason)
        return replace(
            status, conditions=merge_conditions(status.conditions, conditions, self.context.timestamp)
        )


def _stamps(status: WorkloadStatus) -> tuple[str | None, str | None]:
    """The stored times of the last action and of the change to ready."""
    ready = find_condition(status.conditions, READY_CONDITION)
    is_ready = ready is not None and ready.status == "True"
    return status.last_action_at, ready.last_transition_time if ready and is_ready else None


def _metadata_change(workload: LatticeWorkload) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """The change of metadata that is due, or None: remove a retry request, add the finalizer to a bound
    workload.

    The finalizer keeps the object until the agent has stopped the workload.
    """
    metadata = workload.metadata
    needs_finalizer = (
        workload.status.binding is not None
        and WORKLOAD_FINALIZER not in metadata.finalizers
        and not metadata.deletion_timestamp
    )
    if not needs_finalizer and RETRY_REQUESTED_ANNOTATION not in metadata.annotations:
        return None
    finalizers = [*metadata.finalizers, *([WORKLOAD_FINALIZER] if needs_finalizer else [])]
    annotations = {
        name: value for name, value in metadata.annotations.items() if name != RETRY_REQUESTED_ANNOTATION
    }
    return lambda stored: stored | {"annotations": annotations, "finalizers": finalizers}
