"""What is done about each workload: its record against what its node says, decided by the lifecycle, stored before it is ordered."""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from msgspec.structs import replace

from lattice import metrics
from lattice.clock import stamp
from lattice.controllers.nodes.ages import Ages
from lattice.controllers.nodes.eviction import Departures
from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.nodes.node_health import Footing, Nodes
from lattice.controllers.runtime.context import Office
from lattice.controllers.runtime.object_writes import conditioned, path_of, with_status
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import FINALIZER, RETRY_REQUESTED, LatticeWorkload, WorkloadStatus
from lattice.presence import Spoken, Told
from lattice.lifecycle.workload import (
    AWAITS,
    PORT_TAKEN,
    Action,
    Decision,
    Graces,
    Report,
    decide,
    retry_by_hand,
)
from lattice.lifecycle.workload_status import (
    HOMELESS,
    Sight,
    after,
    awaits_node,
    is_settled,
    reported,
    situation,
)
from lattice.lifecycle.orders import wanted
from lattice.store.protocol import Change, Delete, Entry, Put, Write

WARNINGS = frozenset({Action.MARK_FAILED, Action.BACKOFF_WAIT})
RETRIES = frozenset({Action.RECREATE, Action.RETRY})

log = structlog.get_logger()


@dataclass
class Workloads:
    """LatticeWorkload -> its next action and its status."""

    office: Office
    nodes: Nodes
    departures: Departures
    graces: Graces = field(default_factory=Graces)
    interval: float = 5.0  # seconds at most until the next look at one that something is awaited of
    pace: Pace = field(default_factory=Pace)
    name: str = "workloads"

    def __post_init__(self) -> None:
        self._copy = self.office.copy(LatticeWorkload)
        self._teller = self.office.teller(self.name)
        self._acted, self._changed = (
            Ages(self.office.clock),
            Ages(self.office.clock),
        )  # by path: the last action, the present state
        self._wake: Callable[[Iterable[str]], None] = lambda _: None

    def loop(self) -> Loop:
        loop = Loop(
            self,
            self.office.clock,
            self.office.rng,
            self._everything,
            (Source(self._copy, self._concerned),),
            self.pace,
        )
        self._wake = loop.wake
        self.office.presence.on_change(self._hear)
        self.nodes.on_change(loop.wake)
        self.departures.on_change(loop.wake)
        return loop

    async def reconcile(self, key: str) -> Again | None:
        entry, workload = self._copy.entry(key), self._copy.get(key)
        if entry is None or workload is None or _is_finished(workload):
            self._acted.forget(key)
            self._changed.forget(key)
            return None
        footing = await self._footing(entry, workload)
        if not footing.is_heard and _metadata(workload) is None:
            return None  # its node has not told this server all yet: nothing follows before it has
        now = self.office.clock.now()
        sight = self._timed(key, workload, self._sight(workload, footing), now)
        found = situation(workload, sight, now)
        is_asked = RETRY_REQUESTED in workload.metadata.annotations
        decision = retry_by_hand(found, self.graces) if is_asked else decide(found, self.graces)
        status = after(workload, sight, decision, now)
        if decision.action in AWAITS and footing.is_heard:
            status = self._shown(status, decision)
        writes = self._writes(entry, workload, decision, status)
        if decision.failure == PORT_TAKEN:
            writes += self.nodes.taking(workload)
        if writes:
            await self.office.commit(writes)
            _count(key, decision)
            if decision.action in HOMELESS and workload.status.binding is not None:
                self.nodes.left(workload.status.binding.node)
        waits = [seconds for seconds in (decision.again, footing.again) if seconds is not None]
        return Again(min(*waits, self.interval)) if waits else None

    def _timed(self, key: str, workload: LatticeWorkload, sight: Sight, now: datetime) -> Sight:
        """What runs as it should waits for nothing, and needs no watch."""
        if is_settled(workload):
            self._acted.forget(key)
            self._changed.forget(key)
            return sight
        status = workload.status
        acted = self._acted.age(key, status.last_action_at, now)
        return dataclasses.replace(
            sight, acted_for=acted, state_for=self._changed.age(key, status.state_since, now)
        )

    def _everything(self) -> list[str]:
        return [path_of(workload) for workload in self._copy.all()]

    def _concerned(self, change: Change) -> Iterable[str]:
        """Not those that wait for their first node: whoever finds one knows of them."""
        found = self._copy.get(change.key.path)
        return () if found is not None and awaits_node(found) else (change.key.path,)

    def _hear(self, told: Told) -> None:
        """A node says something: also about those of which it only says that it has its orders."""
        waiting = (path_of(each) for each in self._copy.by("node", told.node) if not is_settled(each))
        self._wake(dict.fromkeys((*told.workloads, *waiting)))

    async def _footing(self, entry: Entry, workload: LatticeWorkload) -> Footing:
        footing = self.nodes.footing(workload)
        if footing.node == "Gone":  # or the copy of the nodes is older than that of the workloads
            await self.office.copy(LatticeNode).wait_for(entry.revision)
            footing = self.nodes.footing(workload)
        return footing

    def _sight(self, workload: LatticeWorkload, footing: Footing) -> Sight:
        binding, presence = workload.status.binding, self.office.presence
        heard = presence.get(binding.node) if binding else None
        if binding is None or heard is None or footing.node != "Ready":
            return Sight(footing.node, footing.is_heard, why=footing.reason)
        path = path_of(workload)
        spoken = heard.workloads.get(path)
        knows = presence.knows(binding.node, path, wanted(workload))
        told_for = self.office.clock.monotonic() - heard.since
        if spoken is None or spoken.uid != workload.metadata.uid:
            leaving = self.departures.why_leave(workload)
            return Sight("Ready", report=Report(knows_order=knows), told_for=told_for, leaving=leaving)
        leaving = self.departures.why_leave(workload, is_up=spoken.ready)
        return Sight("Ready", True, _report(spoken, knows), spoken.ready, spoken.log, told_for, leaving)

    def _writes(
        self, entry: Entry, workload: LatticeWorkload, decision: Decision, status: WorkloadStatus
    ) -> list[Write]:
        events: list[Write] = []
        if decision.event:
            events.append(
                self._teller.event(
                    workload, decision.event, decision.reason, warning=decision.action in WARNINGS
                )
            )
        if decision.action is Action.FINALIZE_DELETE:
            return [self._removal(entry, workload, status), *events]
        metadata = _metadata(workload)
        if status == workload.status and metadata is None:
            return []
        if status != workload.status:
            status = self._shown(status, decision)
        return [_put(entry, metadata, status), *events]

    def _shown(self, status: WorkloadStatus, decision: Decision) -> WorkloadStatus:
        return replace(
            status, conditions=conditioned(status.conditions, [_ready(status, decision)], self.office.now)
        )

    def _removal(self, entry: Entry, workload: LatticeWorkload, status: WorkloadStatus) -> Write:
        """The record goes, unless somebody else holds it."""
        others = [each for each in workload.metadata.finalizers if each != FINALIZER]
        if not others:
            return Delete(entry.key, entry.revision)
        since = workload.metadata.deletion_timestamp or stamp(self.office.clock.now())
        return _put(
            entry, lambda metadata: metadata | {"finalizers": others, "deletionTimestamp": since}, status
        )


def _is_finished(workload: LatticeWorkload) -> bool:
    """Others hold the record; we do not."""
    return bool(workload.metadata.deletion_timestamp) and FINALIZER not in workload.metadata.finalizers


def _report(spoken: Spoken, knows: bool) -> Report:
    return Report(reported(spoken.state), spoken.revision, spoken.run, spoken.failure, knows, spoken.how)


def _metadata(workload: LatticeWorkload) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """A request to retry is answered once; what is bound is held until its node has let go of it."""
    metadata = workload.metadata
    must_hold = (
        workload.status.binding is not None
        and FINALIZER not in metadata.finalizers
        and not metadata.deletion_timestamp
    )
    if not must_hold and RETRY_REQUESTED not in metadata.annotations:
        return None
    finalizers = [*metadata.finalizers, *([FINALIZER] if must_hold else [])]
    annotations = {name: value for name, value in metadata.annotations.items() if name != RETRY_REQUESTED}
    return lambda stored: stored | {"annotations": annotations, "finalizers": finalizers}


def _put(
    entry: Entry, metadata: Callable[[dict[str, Any]], dict[str, Any]] | None, status: WorkloadStatus
) -> Put:
    return with_status(entry, status, metadata)


def _ready(status: WorkloadStatus, decision: Decision) -> Condition:
    reason = status.failure_reason or status.actual_state
    return Condition(
        type="Ready", status="True" if status.ready else "False", reason=reason, message=decision.reason
    )


def _count(key: str, decision: Decision) -> None:
    if not decision.is_stored:
        return
    metrics.RECONCILIATION_ACTIONS.labels(decision.action).inc()
    if decision.action in RETRIES:
        metrics.RETRIES.inc()
    log.info("workload", workload=key, action=str(decision.action), why=decision.reason)
