"""What is done about each workload: its record against what its node says, decided by the lifecycle, stored before it is ordered."""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from msgspec.structs import replace

from lattice import metrics
from lattice.clock import Clock, format_timestamp
from lattice.controllers.nodes.eviction import EvictionController
from lattice.controllers.nodes.node_health import NodeHealthController, NodeState
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import merge_conditions, path_of, with_status
from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.timestamps import parse_time
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import (
    RETRY_REQUESTED_ANNOTATION,
    WORKLOAD_FINALIZER,
    LatticeWorkload,
    WorkloadStatus,
)
from lattice.lifecycle.workload import (
    AWAIT_ACTIONS,
    PORT_TAKEN,
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
    Observation,
    awaits_node,
    build_input,
    is_settled,
    next_status,
    parse_actual_state,
)
from lattice.presence import PresenceChange, WorkloadReport
from lattice.store.protocol import Change, Delete, Entry, Put, Write

WARNINGS = frozenset({Action.MARK_FAILED, Action.BACKOFF_WAIT})
RETRIES = frozenset({Action.RECREATE, Action.RETRY})
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _StampAge:
    stamp: str
    observed_at: float  # monotonic: when it was seen first
    initial_age_s: float  # seconds that it was old then


@dataclass
class StampAges:
    """By name: the time that is stored now, and since when it has been that one."""

    clock: Clock
    _observed: dict[str, _StampAge] = field(default_factory=dict)

    def age(self, name: str, stamp: str | None, now: datetime) -> float | None:
        """Seconds; None if nothing is stored. Only of what was stored before this server knew the name the wall clock is asked."""
        if not stamp:
            self._observed.pop(name, None)
            return None
        known, at = self._observed.get(name), self.clock.monotonic()
        if known is None or known.stamp != stamp:
            when = parse_time(stamp) if known is None else None
            known = self._observed[name] = _StampAge(
                stamp, at, max(0.0, (now - when).total_seconds()) if when else 0.0
            )
        return known.initial_age_s + at - known.observed_at

    def forget(self, name: str) -> None:
        self._observed.pop(name, None)


@dataclass
class WorkloadController:
    """LatticeWorkload -> its next action and its status."""

    context: ControllerContext
    node_health: NodeHealthController
    eviction: EvictionController
    grace_periods: GracePeriods = field(default_factory=GracePeriods)
    recheck_interval_s: float = 5.0  # seconds at most until the next look at one that something is awaited of
    concurrency: Concurrency = field(default_factory=Concurrency)
    name: str = "workloads"

    def __post_init__(self) -> None:
        self._workloads = self.context.cache(LatticeWorkload)
        self._recorder = self.context.recorder(self.name)
        self._action_ages, self._state_ages = (
            StampAges(self.context.clock),
            StampAges(self.context.clock),
        )  # by path: the last action, the present state
        self._wake: Callable[[Iterable[str]], None] = lambda _: None

    def loop(self) -> Loop:
        loop = Loop(
            self,
            self.context.clock,
            self.context.rng,
            self._list_keys,
            (Source(self._workloads, self._keys_for_change),),
            self.concurrency,
        )
        self._wake = loop.wake
        self.context.presence.on_change(self._on_presence_change)
        self.node_health.on_change(loop.wake)
        self.eviction.on_change(loop.wake)
        return loop

    async def reconcile(self, key: str) -> Requeue | None:
        entry, workload = self._workloads.entry(key), self._workloads.get(key)
        if entry is None or workload is None or _is_finalized(workload):
            self._action_ages.forget(key)
            self._state_ages.forget(key)
            return None
        footing = await self._node_state(entry, workload)
        if not footing.is_fully_reported and _metadata_change(workload) is None:
            return None  # its node has not told this server all yet: nothing follows before it has
        now = self.context.clock.now()
        sight = self._with_ages(key, workload, self._observe(workload, footing), now)
        found = build_input(workload, sight, now)
        is_asked = RETRY_REQUESTED_ANNOTATION in workload.metadata.annotations
        decision = (
            decide_manual_retry(found, self.grace_periods) if is_asked else decide(found, self.grace_periods)
        )
        status = next_status(workload, sight, decision, now)
        if decision.action in AWAIT_ACTIONS and footing.is_fully_reported:
            status = self._with_ready_condition(status, decision)
        writes = self._writes(entry, workload, decision, status)
        if decision.failure_reason == PORT_TAKEN:
            writes += self.node_health.taken_port_writes(workload)
        if writes:
            await self.context.commit(writes)
            _record_metrics(key, decision)
            if decision.action in UNBINDING_ACTIONS and workload.status.binding is not None:
                self.node_health.note_workload_left(workload.status.binding.node)
        waits = [
            seconds for seconds in (decision.requeue_after, footing.recheck_after_s) if seconds is not None
        ]
        return Requeue(min(*waits, self.recheck_interval_s)) if waits else None

    def _with_ages(
        self, key: str, workload: LatticeWorkload, sight: Observation, now: datetime
    ) -> Observation:
        """What runs as it should waits for nothing, and needs no watch."""
        if is_settled(workload):
            self._action_ages.forget(key)
            self._state_ages.forget(key)
            return sight
        status = workload.status
        acted = self._action_ages.age(key, status.last_action_at, now)
        return dataclasses.replace(
            sight,
            since_last_action=acted,
            since_state_change=self._state_ages.age(key, status.state_since, now),
        )

    def _list_keys(self) -> list[str]:
        return [path_of(workload) for workload in self._workloads.objects()]

    def _keys_for_change(self, change: Change) -> Iterable[str]:
        """Not those that wait for their first node: whoever finds one knows of them."""
        found = self._workloads.get(change.key.path)
        return () if found is not None and awaits_node(found) else (change.key.path,)

    def _on_presence_change(self, told: PresenceChange) -> None:
        """A node says something: also about those of which it only says that it has its orders."""
        waiting = (
            path_of(each) for each in self._workloads.by_index("node", told.node) if not is_settled(each)
        )
        self._wake(dict.fromkeys((*told.workloads, *waiting)))

    async def _node_state(self, entry: Entry, workload: LatticeWorkload) -> NodeState:
        footing = self.node_health.node_state(workload)
        if footing.state == "Gone":  # or the copy of the nodes is older than that of the workloads
            await self.context.cache(LatticeNode).wait_for(entry.revision)
            footing = self.node_health.node_state(workload)
        return footing

    def _observe(self, workload: LatticeWorkload, footing: NodeState) -> Observation:
        binding, presence = workload.status.binding, self.context.presence
        heard = presence.get(binding.node) if binding else None
        if binding is None or heard is None or footing.state != "Ready":
            return Observation(footing.state, footing.is_fully_reported, node_reason=footing.reason)
        path = path_of(workload)
        spoken = heard.workloads.get(path)
        knows = presence.has_applied(binding.node, path, desired_run(workload))
        told_for = self.context.clock.monotonic() - heard.connected_at
        if spoken is None or spoken.uid != workload.metadata.uid:
            leaving = self.eviction.eviction_reason(workload)
            return Observation(
                "Ready",
                report=Report(includes_last_order=knows),
                connected_for=told_for,
                eviction_reason=leaving,
            )
        leaving = self.eviction.eviction_reason(workload, is_up=spoken.ready)
        return Observation("Ready", True, _report(spoken, knows), spoken.ready, spoken.log, told_for, leaving)

    def _writes(
        self, entry: Entry, workload: LatticeWorkload, decision: Decision, status: WorkloadStatus
    ) -> list[Write]:
        events: list[Write] = []
        if decision.event:
            events.append(
                self._recorder.event(
                    workload, decision.event, decision.reason, warning=decision.action in WARNINGS
                )
            )
        if decision.action is Action.FINALIZE_DELETE:
            return [self._removal(entry, workload, status), *events]
        metadata = _metadata_change(workload)
        if status == workload.status and metadata is None:
            return []
        if status != workload.status:
            status = self._with_ready_condition(status, decision)
        return [_put(entry, metadata, status), *events]

    def _with_ready_condition(self, status: WorkloadStatus, decision: Decision) -> WorkloadStatus:
        return replace(
            status,
            conditions=merge_conditions(
                status.conditions, [_ready_condition(status, decision)], self.context.timestamp
            ),
        )

    def _removal(self, entry: Entry, workload: LatticeWorkload, status: WorkloadStatus) -> Write:
        """The record goes, unless somebody else holds it."""
        others = [each for each in workload.metadata.finalizers if each != WORKLOAD_FINALIZER]
        if not others:
            return Delete(entry.key, entry.revision)
        since = workload.metadata.deletion_timestamp or format_timestamp(self.context.clock.now())
        return _put(
            entry, lambda metadata: metadata | {"finalizers": others, "deletionTimestamp": since}, status
        )


def _is_finalized(workload: LatticeWorkload) -> bool:
    """Others hold the record; we do not."""
    return (
        bool(workload.metadata.deletion_timestamp) and WORKLOAD_FINALIZER not in workload.metadata.finalizers
    )


def _report(spoken: WorkloadReport, knows: bool) -> Report:
    return Report(
        parse_actual_state(spoken.state),
        spoken.revision,
        spoken.run,
        spoken.failure_reason,
        knows,
        spoken.failure_message,
    )


def _metadata_change(workload: LatticeWorkload) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """A request to retry is answered once; what is bound is held until its node has let go of it."""
    metadata = workload.metadata
    must_hold = (
        workload.status.binding is not None
        and WORKLOAD_FINALIZER not in metadata.finalizers
        and not metadata.deletion_timestamp
    )
    if not must_hold and RETRY_REQUESTED_ANNOTATION not in metadata.annotations:
        return None
    finalizers = [*metadata.finalizers, *([WORKLOAD_FINALIZER] if must_hold else [])]
    annotations = {
        name: value for name, value in metadata.annotations.items() if name != RETRY_REQUESTED_ANNOTATION
    }
    return lambda stored: stored | {"annotations": annotations, "finalizers": finalizers}


def _put(
    entry: Entry, metadata: Callable[[dict[str, Any]], dict[str, Any]] | None, status: WorkloadStatus
) -> Put:
    return with_status(entry, status, metadata)


def _ready_condition(status: WorkloadStatus, decision: Decision) -> Condition:
    reason = status.failure_reason or status.actual_state
    return Condition(
        type="Ready", status="True" if status.ready else "False", reason=reason, message=decision.reason
    )


def _record_metrics(key: str, decision: Decision) -> None:
    if not decision.is_stored:
        return
    metrics.RECONCILIATION_ACTIONS.labels(decision.action).inc()
    if decision.action in RETRIES:
        metrics.WORKLOAD_RETRIES.inc()
    log.info("workload", workload=key, action=str(decision.action), why=decision.reason)
