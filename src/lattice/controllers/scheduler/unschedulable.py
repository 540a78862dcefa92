"""Who finds no node, and who must make room: told on the record of each, once per change of reason."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lattice import metrics
from lattice.controllers.scheduler.binding_records import BindingRecords
from lattice.engine.decide import decide
from lattice.engine.plugin import Profile
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.cycle import CompositeScheduler, CycleResult, UnschedulableWorkload
from lattice.scheduling.cycle.decision_record import DecisionRecord, rejected_record
from lattice.scheduling.cycle.profile import ProfileSpec
from lattice.scheduling.cycle.scheduler_cache import is_evicted
from lattice.scheduling.cycle.scheduling_queue import SchedulingQueue
from lattice.store.protocol import MAX_COMMIT_OPERATIONS, Put, RevisionConflict

EVENT_INTERVAL_S = (
    60.0  # seconds between two events about one workload; the second says how often it failed meanwhile
)
EVENT_COMMIT_INTERVAL_S = 1.0  # seconds between two commits of such events
MAX_PENDING_EVENTS = 1000  # workloads that wait to be told of; those beyond are only counted


class PendingReport(NamedTuple):
    message: str
    reason_kinds: tuple[str, ...]
    decision_record: DecisionRecord


@dataclass
class UnschedulableReporter:
    records: BindingRecords
    scheduler: CompositeScheduler
    profiles: Mapping[Profile, ProfileSpec]
    pending_reports: dict[str, PendingReport] = field(default_factory=dict)
    _preemptors: dict[str, str] = field(default_factory=dict)  # by victim

    def record_cycle(self, cycle: CycleResult, queue: SchedulingQueue, now: float, revision: int) -> None:
        """They sleep until something changes that could help them."""
        self._preemptors.update(cycle.evictions)
        for each, grounds in self._with_decision_records(cycle.unschedulable, revision):
            if each.ask.name in self.scheduler.table.placements:
                queue.done(each.ask.name)
                continue
            metrics.SCHEDULING_FAILURES.inc()
            metrics.ATTEMPT_UNPLACED.inc()
            queue.requeue_unschedulable(each.ask.name, each.wakes_on, now)
            self.pending_reports[each.ask.name] = PendingReport(each.reason, each.reason_kinds, grounds)

    def _with_decision_records(
        self, unplaced: Iterable[UnschedulableWorkload], revision: int
    ) -> Iterator[tuple[UnschedulableWorkload, DecisionRecord]]:
        """Those that ask for the same and are refused for the same reason are explained once."""
        known: dict[object, DecisionRecord] = {}
        for each in unplaced:
            key = (each.ask.shape, each.reason_kinds)
            if key not in known:
                decision = decide(each.ask, self.scheduler.table, self.scheduler.profile_of(each.ask))
                known[key] = (
                    rejected_record(decision, self.profiles[decision.profile], revision)
                    if not decision.fits
                    else {}
                )
            yield each, known[key]

    async def report(self, queue: SchedulingQueue) -> None:
        copy, puts = self.records.context.cache(LatticeWorkload), {}
        for name, each in list(self.pending_reports.items()):
            entry = copy.entry(name) if name in queue else None
            made = (
                self.records.mark_unschedulable(entry, each.message, each.reason_kinds, each.decision_record)
                if entry
                else []
            )
            if made:
                puts[name] = made
            else:
                del self.pending_reports[name]
        for name in await self._write(puts):
            self.pending_reports.pop(name, None)

    def spared_victims(self, queue: SchedulingQueue, awaited: Container[str]) -> Iterator[str]:
        """Who was to make room, was not told so yet, and needs not any more: whoever it was for is gone, and nobody else waits for it."""
        copy, placements = self.records.context.cache(LatticeWorkload), self.scheduler.table.placements
        for name, whom in list(self._preemptors.items()):
            found = copy.get(name)
            if (
                name not in awaited
                and whom not in queue
                and whom not in placements
                and not (found and is_evicted(found))
            ):
                del self._preemptors[name]
                yield name

    async def mark_evicted(self, leaving: Mapping[str, str]) -> None:
        """By workload, the node that it must leave. Who is being deleted leaves it anyway."""
        copy, puts = self.records.context.cache(LatticeWorkload), {}
        for name, node in leaving.items():
            found, entry = copy.get(name), copy.entry(name)
            binding = found.status.binding if found else None
            is_there = binding is not None and binding.node == node
            if (
                found
                and entry
                and is_there
                and not is_evicted(found)
                and not found.metadata.deletion_timestamp
            ):
                puts[name] = self.records.mark_evicted(
                    entry, f"makes room on node {node} for {self._preemptors.get(name, 'another')}"
                )
        for name in await self._write(puts):
            self._preemptors.pop(name, None)

    async def _write(self, puts: Mapping[str, Sequence[Put]]) -> list[str]:
        """Those whose record is still as it was read; the others are tried again, once the copy knows what a rival wrote."""
        office = self.records.context
        done: list[str] = []
        names = list(puts)
        most = MAX_COMMIT_OPERATIONS // 2
        for part in (names[start : start + most] for start in range(0, len(names), most)):
            left = part
            while left:
                try:
                    await office.commit([put for name in left for put in puts[name]])
                except RevisionConflict as clash:
                    left = [name for name in left if clash.key.path != name]
                    await office.cache(LatticeWorkload).wait_for(
                        clash.actual or await office.store.revision()
                    )
                    continue
                done += left
                break
        return done


@dataclass(slots=True)
class _BindFailure:
    message: str = ""
    count: int = 0  # since it was told of
    reported_at: float = float("-inf")  # monotonic


@dataclass
class BindFailureReporter:
    records: BindingRecords
    _failures: dict[str, _BindFailure] = field(default_factory=dict)
    _queued: dict[str, None] = field(default_factory=dict)
    _last_report_at: float = float("-inf")  # when something was told, monotonic

    def record_failure(self, workload: str, node: str, why: str) -> None:
        lost = self._failures.setdefault(workload, _BindFailure())
        lost.message, lost.count = f"not bound to node {node}: {why}", lost.count + 1
        if (
            lost.reported_at + EVENT_INTERVAL_S <= self.records.context.clock.monotonic()
            and len(self._queued) < MAX_PENDING_EVENTS
        ):
            self._queued[workload] = None

    @property
    def queued_count(self) -> int:
        """Workloads that are still to be told of."""
        return len(self._queued)

    @property
    def next_report_at(self) -> float | None:
        """When there is something to tell, on the monotonic clock; None: there is nothing."""
        return (
            max(self._last_report_at + EVENT_COMMIT_INTERVAL_S, self.records.context.clock.monotonic())
            if self._queued
            else None
        )

    async def report(self) -> None:
        """As many as one commit takes, once a second; the others the next time."""
        office, now = self.records.context, self.records.context.clock.monotonic()
        if not self._queued or now < self._last_report_at + EVENT_COMMIT_INTERVAL_S:
            return
        self._last_report_at = now
        names = list(self._queued)[:MAX_COMMIT_OPERATIONS]
        copy = office.cache(LatticeWorkload)
        found = {name: workload for name in names if (workload := copy.get(name)) is not None}
        if found:
            await office.commit(
                [
                    self.records.binding_failed_event(
                        each, self._failures[name].message, self._failures[name].count
                    )
                    for name, each in found.items()
                ]
            )
        for name in names:
            del self._queued[name]
            self._failures[name].count, self._failures[name].reported_at = 0, now
        if not self._queued:
            self._failures = {
                name: lost
                for name, lost in self._failures.items()
                if lost.reported_at + EVENT_INTERVAL_S > now
            }
