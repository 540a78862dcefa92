"""Write to each workload why it is unschedulable, or that it is preempted, and record events about failed
bindings at a limited rate.

An unschedulable workload is written again only when the kinds of its reasons change.
"""

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lattice import metrics
from lattice.controllers.scheduler.binding_records import BindingRecords
from lattice.engine.decide import decide
from lattice.engine.plugin import Profile
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.eviction import EvictionCause, derive_eviction
from lattice.scheduling.cycle.cycle import CompositeScheduler, CycleResult
from lattice.scheduling.cycle.decision_record import DecisionRecord, rejected_record
from lattice.scheduling.cycle.profile import ProfileSpec
from lattice.scheduling.cycle.scheduling_queue import SchedulingQueue
from lattice.store.commit_packing import cost_of_writes, pack_commits
from lattice.store.protocol import MAX_COMMIT_OPERATIONS, Put, RevisionConflict

# Seconds that a workload waits for a node before an event reports it: on a healthy start, replicas wait for
# machines that are about to be ready.
WAITING_GRACE_S = 10.0
# The shortest time between two events about one workload; the later event counts the failures in between.
EVENT_INTERVAL_S = 60.0
# The shortest time between two commits of such events.
EVENT_COMMIT_INTERVAL_S = 1.0
# Limit of workloads that wait for an event; failures of further workloads are only counted.
MAX_PENDING_EVENTS = 1000


class PendingReport(NamedTuple):
    """The reason, the kinds of reasons (without counts and amounts) and the decision record to write to an
    unschedulable workload."""

    message: str
    reason_kinds: tuple[str, ...]
    decision_record: DecisionRecord


@dataclass
class UnschedulableReporter:
    """Write why workloads are unschedulable, and mark the victims of preemption."""

    records: BindingRecords
    scheduler: CompositeScheduler
    profiles: Mapping[Profile, ProfileSpec]
    pending_reports: dict[str, PendingReport] = field(default_factory=dict)
    # Waiting workloads without an event about their present reason: the monotonic time at which it is due.
    _events_due: dict[str, float] = field(default_factory=dict)
    # Workloads that this term has observed as unschedulable.
    _observed: set[str] = field(default_factory=set)

    @property
    def next_event_at(self) -> float | None:
        """The monotonic time of the next event; None if no workload waits for one."""
        # In the order of time: all events wait equally long.
        return next(iter(self._events_due.values()), None)

    def record_cycle(self, cycle: CycleResult, queue: SchedulingQueue, now: float, revision: int) -> None:
        """Put each unschedulable workload of a cycle back into the queue, where it waits for an event that
        may let it fit, and keep a pending report for it."""
        # Workloads of equal shape (their asks are equal for a decision) and equal reasons share one decision
        # record.
        decision_records: dict[object, DecisionRecord] = {}
        for unschedulable in cycle.unschedulable:
            key = (unschedulable.ask.shape, unschedulable.reason_kinds)
            if key not in decision_records:
                ask = unschedulable.ask
                decision = decide(ask, self.scheduler.table, self.scheduler.profile_of(ask))
                # The table may have changed since the cycle: a workload that fits now has no rejections.
                decision_records[key] = (
                    {}
                    if decision.fits
                    else rejected_record(decision, self.profiles[decision.profile], revision)
                )
            if unschedulable.ask.name in self.scheduler.table.placements:
                queue.done(unschedulable.ask.name)
                continue
            metrics.SCHEDULING_FAILURES.inc()
            metrics.ATTEMPT_UNPLACED.inc()
            queue.requeue_unschedulable(unschedulable.ask.name, unschedulable.wakes_on, now)
            self.pending_reports[unschedulable.ask.name] = PendingReport(
                unschedulable.reason, unschedulable.reason_kinds, decision_records[key]
            )

    async def report(self, queue: SchedulingQueue) -> None:
        """Write the pending reports of workloads that are still queued; a report that conflicts stays
        pending."""
        cache, puts = self.records.context.cache(LatticeWorkload), {}
        for name, report in list(self.pending_reports.items()):
            entry = cache.entry(name) if name in queue else None
            writes = (
                self.records.mark_unschedulable(
                    entry, report.message, report.reason_kinds, report.decision_record
                )
                if entry
                else []
            )
            if entry and (writes or name not in self._observed):
                self._observed.add(name)
                due_at = self.records.context.clock.monotonic() + WAITING_GRACE_S
                self._events_due.setdefault(name, due_at)
            if writes:
                puts[name] = writes
            else:
                del self.pending_reports[name]
        for name in await self._write(puts):
            self.pending_reports.pop(name, None)
        await self._write_due_events(queue)

    async def _write_due_events(self, queue: SchedulingQueue) -> None:
        """Write an event about every workload that still waits for a node after the grace period."""
        now, cache = self.records.context.clock.monotonic(), self.records.context.cache(LatticeWorkload)
        due = list(itertools.takewhile(lambda name: self._events_due[name] <= now, self._events_due))
        if len(self._observed) > 2 * len(queue) + MAX_PENDING_EVENTS:
            self._observed = {name for name in self._observed if name in queue}
        events: list[Put] = []
        for name in due[:MAX_COMMIT_OPERATIONS]:
            workload = cache.get(name) if name in queue else None
            event = self.records.unschedulable_event(workload) if workload else None
            if event is not None:
                events.append(event)
        if events:
            await self.records.context.commit(events)
        for name in due[:MAX_COMMIT_OPERATIONS]:
            del self._events_due[name]

    def spared_victims(self, queue: SchedulingQueue, awaited: Container[str]) -> Iterator[str]:
        """Victims that are not marked yet and need not leave any more.

        The preemptor of such a victim is gone, and no other preemptor waits for the victim.
        """
        cache, placements = self.records.context.cache(LatticeWorkload), self.scheduler.table.placements
        for _, name, preemptor in list(self.scheduler.evictions.victims()):
            victim = cache.get(name)
            if (
                preemptor
                and name not in awaited
                and preemptor not in queue
                and preemptor not in placements
                and not (victim and derive_eviction(victim).cause is EvictionCause.PREEMPTION)
            ):
                yield name

    async def mark_evicted(self, victims: Mapping[str, str]) -> None:
        """Mark victims as evicted; `victims` maps the victim to the node that it must leave. A deleted
        workload needs no mark."""
        cache, puts = self.records.context.cache(LatticeWorkload), {}
        preemptors = {path: preemptor for _, path, preemptor in self.scheduler.evictions.victims()}
        for name, node in victims.items():
            workload, entry = cache.get(name), cache.entry(name)
            binding = workload.status.binding if workload else None
            is_bound_there = binding is not None and binding.node == node
            if (
                workload
                and entry
                and is_bound_there
                and derive_eviction(workload).cause is not EvictionCause.PREEMPTION
                # A workload that is being deleted frees its capacity without an eviction (I-18).
                and not workload.metadata.deletion_timestamp
            ):
                preemptor = preemptors.get(name) or "another workload"
                puts[name] = self.records.mark_evicted(entry, f"Preempted on node {node} by {preemptor}")
        for name in await self._write(puts):
            self.scheduler.evictions.mark_stored(name)

    async def _write(self, puts: Mapping[str, Sequence[Put]]) -> list[str]:
        """Commit the writes of workloads that are unchanged since the read, and return the names of these
        workloads.

        After a conflict the method waits until the cache holds the write of the other writer, so that the
        next attempt can succeed.
        """
        context = self.records.context
        written: list[str] = []
        for remaining in pack_commits(puts, lambda name: cost_of_writes(puts[name])):
            while remaining:
                writes: list[Put] = []
                for name in remaining:
                    writes += puts[name]
                try:
                    await context.commit(writes)
                except RevisionConflict as conflict:
                    remaining = [name for name in remaining if conflict.key.path != name]
                    await context.cache(LatticeWorkload).wait_for(
                        conflict.actual or await context.store.revision()
                    )
                    continue
                written += remaining
                break
        return written


@dataclass(slots=True)
class _BindFailure:
    message: str = ""
    # Failures since the last event.
    count: int = 0
    # Monotonic time of the last event.
    reported_at: float = float("-inf")


@dataclass
class BindFailureReporter:
    """Record events about bindings that were decided and not written, at a limited rate."""

    records: BindingRecords
    _failures: dict[str, _BindFailure] = field(default_factory=dict)
    _queued: dict[str, None] = field(default_factory=dict)
    # Monotonic time of the last commit of events.
    _last_report_at: float = float("-inf")

    def record_failure(self, workload: str, node: str, reason: str) -> None:
        """Count a failed binding and queue an event, unless a recent event or a full queue forbids the
        event."""
        failure = self._failures.setdefault(workload, _BindFailure())
        failure.message, failure.count = f"Binding to node {node} failed: {reason}", failure.count + 1
        if (
            failure.reported_at + EVENT_INTERVAL_S <= self.records.context.clock.monotonic()
            and len(self._queued) < MAX_PENDING_EVENTS
        ):
            self._queued[workload] = None

    @property
    def queued_count(self) -> int:
        """The number of workloads that wait for an event."""
        return len(self._queued)

    @property
    def next_report_at(self) -> float | None:
        """The monotonic time of the next report; None if no event is queued."""
        if not self._queued:
            return None
        return max(self._last_report_at + EVENT_COMMIT_INTERVAL_S, self.records.context.clock.monotonic())

    async def report(self) -> None:
        """Commit queued events, at most one commit a second; further events wait for the next commit."""
        context, now = self.records.context, self.records.context.clock.monotonic()
        if not self._queued or now < self._last_report_at + EVENT_COMMIT_INTERVAL_S:
            return
        self._last_report_at = now
        names = list(self._queued)[:MAX_COMMIT_OPERATIONS]
        cache = context.cache(LatticeWorkload)
        events = []
        for name in names:
            failure = self._failures[name]
            if (workload := cache.get(name)) is not None:
                events.append(self.records.binding_failed_event(workload, failure.message, failure.count))
        if events:
            await context.commit(events)
        for name in names:
            del self._queued[name]
            self._failures[name].count, self._failures[name].reported_at = 0, now
        if not self._queued:
            # Failures without a recent event are forgotten, so that the dictionary does not grow without end.
            self._failures = {
                name: failure
                for name, failure in self._failures.items()
                if failure.reported_at + EVENT_INTERVAL_S > now
            }
