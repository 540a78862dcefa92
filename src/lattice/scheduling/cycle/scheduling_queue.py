"""The scheduling queue: ready workloads by priority, workloads in back-off, and unschedulable workloads that
wait for a cluster event.

Not the work queue of controllers (`controllers/runtime/workqueue`): workloads are ordered by their priority and
arrival, a gang is popped as a whole, and only the events that a rejection names wake an unschedulable workload.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.table.workload_ask import WorkloadAsk

INITIAL_BACKOFF_S = 1.0  # after the first failure; doubles with every failure
MAX_BACKOFF_S = 30.0
# A node that becomes ready cuts the back-off short, because the node may have been created for the workload.
BACKOFF_CUTTING_EVENTS: frozenset[Hashable] = frozenset({ClusterEvent.NODE_READY})
# Longest back-off after such an event, whatever the number of failures; shorter than the time after which a
# cluster adds one more node.
SHORTENED_BACKOFF_S = 5.0
HEAP_COMPACTION_SLACK = 64
UNSCHEDULABLE_RETRY_S = 300.0  # an unschedulable workload is retried after this time without any event


# Memory that weighs as much as one core in the size of a replica, as in placement.
BYTES_PER_CORE = 4 << 30


def largest_first(batch: Iterable[list[WorkloadAsk]]) -> list[list[WorkloadAsk]]:
    """The runs of a batch with large replicas of services before small ones of the same priority, as placement
    orders them: machines were bought for this order, and a small replica on every machine would leave no
    machine for a large one. Workloads without a service keep their order of arrival, after the replicas."""
    return sorted(batch, key=_run_order)


def _run_order(run: list[WorkloadAsk]) -> tuple[int, int, int, int]:
    demands, priority = run[0].demands, run[0].priority
    if not demands.service:
        return (-priority, 1, 0, 0)
    amounts = dict(demands.requests)
    size = amounts.get("cpu", 0) * BYTES_PER_CORE // 1000 + amounts.get("memory", 0)
    return (-priority, 0, -demands.gpu.total_milli if demands.gpu else 0, -size)


@dataclass(slots=True)
class _QueuedWorkload:
    ask: WorkloadAsk
    arrival_number: int  # does not change with failures: equal workloads keep their order of arrival
    failures: int = 0
    failed_at: float = 0.0
    backoff_until: float = 0.0
    state: str = "ready"  # ready, waiting (back-off), asleep (unschedulable), out (in flight)
    heap_version: int = 0  # a heap item with a different version is outdated
    wakes_on: frozenset[Hashable] = frozenset()
    missed_events: set[Hashable] = field(default_factory=set)  # events while in flight
    updated_ask: WorkloadAsk | None = None  # added again while in flight
    is_removed: bool = False  # removed while in flight


class SchedulingQueue:
    """Workloads by priority, then by arrival. A workload is in flight from `pop` until `done` or a requeue;
    until then, `pop` does not return the workload again."""

    def __init__(self) -> None:
        self._entries: dict[str, _QueuedWorkload] = {}
        self._ready: list[tuple[int, int, int, str]] = []  # -priority, arrival number, version, name
        self._backoff_heap: list[tuple[float, int, str]] = []  # time, version, name
        self._unschedulable_by_event: dict[Hashable, dict[str, None]] = {}
        self._in_flight: dict[str, None] = {}
        self._groups: dict[str, dict[str, None]] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._entries) - sum(self._entries[name].is_removed for name in self._in_flight)

    def __contains__(self, name: str) -> bool:
        return name in self._entries and not self._entries[name].is_removed

    def current_ask(self, name: str) -> WorkloadAsk | None:
        """The latest ask of a queued workload; None if the queue does not have the workload."""
        entry = self._entries.get(name)
        return None if entry is None or entry.is_removed else entry.updated_ask or entry.ask

    def add(self, ask: WorkloadAsk) -> None:
        """Add a new or changed workload. A changed workload is ready at once: its last rejection may no
        longer hold."""
        entry = self._entries.get(ask.name)
        if entry is None:
            self._sequence += 1
            entry = self._entries[ask.name] = _QueuedWorkload(ask, self._sequence)
        elif entry.state == "out":
            entry.updated_ask, entry.is_removed = ask, False
            return
        self._unsubscribe(entry)
        self._replace_ask(entry, ask)

    def _replace_ask(self, entry: _QueuedWorkload, ask: WorkloadAsk) -> None:
        self._remove_from_gang(entry.ask)
        entry.ask, entry.updated_ask, entry.failures = ask, None, 0
        if ask.group:
            self._groups.setdefault(ask.group, {})[ask.name] = None
        self._make_ready(entry)

    def remove(self, name: str) -> bool:
        """Remove a workload; a workload in flight leaves the queue at its next `done` or requeue. False if
        the queue does not have the workload."""
        if name not in self:
            return False
        if name in self._in_flight:
            self._entries[name].is_removed, self._entries[name].updated_ask = True, None
        else:
            self._drop(name)
        return True

    def pop(self, now: float) -> WorkloadAsk | None:
        while self._backoff_heap and self._backoff_heap[0][0] <= now:
            _, version, name = heappop(self._backoff_heap)
            if self._is_current(name, version):
                self._unsubscribe(self._entries[name])
                self._make_ready(self._entries[name])
        while self._ready:
            _, _, version, name = heappop(self._ready)
            if self._is_current(name, version):
                return self._mark_in_flight(self._entries[name])
        return None

    def pop_batch(self, now: float, most: int) -> list[list[WorkloadAsk]]:
        """The next workloads in order, in runs of equal priority, shape and gang. A gang comes as a whole,
        even beyond `most`."""
        batch: list[list[WorkloadAsk]] = []
        for ask in self._pop_up_to(now, most):
            last = batch[-1][-1] if batch else None
            if last and (last.priority, last.shape, last.group) == (ask.priority, ask.shape, ask.group):
                batch[-1].append(ask)
            else:
                batch.append([ask])
        return batch

    def _pop_up_to(self, now: float, most: int) -> Iterator[WorkloadAsk]:
        popped = 0
        while popped < most and (ask := self.pop(now)):
            gang = [
                self._entries[name] for name in self._groups.get(ask.group, ()) if name not in self._in_flight
            ]
            yield ask
            for entry in sorted(gang, key=lambda entry: entry.arrival_number):
                self._unsubscribe(entry)
                yield self._mark_in_flight(entry)
            popped += 1 + len(gang)

    def done(self, name: str) -> None:
        """Finish a workload that got its node or is gone. A workload that was added again meanwhile is queued
        as new."""
        entry = self._drop(name)
        if entry is not None and entry.updated_ask:
            self.add(entry.updated_ask)

    def requeue_failed(self, name: str, now: float) -> None:
        """Requeue a workload whose attempt failed, with a back-off that doubles with every failure."""
        if entry := self._record_failure(name, now):
            self._back_off(entry, entry.backoff_until)

    def requeue_unschedulable(self, name: str, wakes_on: Iterable[Hashable], now: float) -> None:
        """Requeue a workload that fits on no node; it is tried again after one of the events, at the latest
        after UNSCHEDULABLE_RETRY_S.

        After an event, the workload still waits for the end of its back-off; a node that becomes ready
        shortens the back-off.
        """
        entry = self._record_failure(name, now)
        if entry is None:
            return
        self._subscribe(entry, frozenset(wakes_on))
        # An event may have come between decision and requeue. Without this check, the workload would miss the
        # event.
        if missed := entry.wakes_on & entry.missed_events:
            self._wake_entry(entry, missed, now)
            return
        self._back_off(entry, now + UNSCHEDULABLE_RETRY_S)
        entry.state = "asleep"

    def wake(self, event: Hashable, now: float) -> int:
        """Wake the unschedulable workloads that wait for the event, and return their number."""
        # The decision about a workload in flight may be based on the table before this change.
        for name in self._in_flight:
            self._entries[name].missed_events.add(event)
        names = list(self._unschedulable_by_event.get(event, ()))
        for name in names:
            self._wake_entry(self._entries[name], frozenset({event}), now)
        return len(names)

    def _wake_entry(self, entry: _QueuedWorkload, events: frozenset[Hashable], now: float) -> None:
        """End the sleep of a workload. During its back-off, only events that cut the back-off short can still
        wake the workload."""
        cutting_events = entry.wakes_on & BACKOFF_CUTTING_EVENTS
        self._unsubscribe(entry)
        if events & BACKOFF_CUTTING_EVENTS:
            self._back_off(entry, max(now, min(entry.backoff_until, entry.failed_at + SHORTENED_BACKOFF_S)))
        else:
            self._back_off(entry, max(now, entry.backoff_until))
            self._subscribe(entry, cutting_events)

    def is_awaited(self, event: Hashable) -> bool:
        """Whether an unschedulable workload waits for the event."""
        return bool(self._unschedulable_by_event.get(event))

    def next_ready_at(self) -> float | None:
        """The time of the next ready workload: 0 at once, None never."""
        while self._ready and not self._is_current(self._ready[0][3], self._ready[0][2]):
            heappop(self._ready)
        while self._backoff_heap and not self._is_current(self._backoff_heap[0][2], self._backoff_heap[0][1]):
            heappop(self._backoff_heap)
        if self._ready:
            return 0.0
        return self._backoff_heap[0][0] if self._backoff_heap else None

    def _drop(self, name: str) -> _QueuedWorkload | None:
        entry = self._entries.pop(name, None)
        self._in_flight.pop(name, None)
        if entry is not None:
            self._unsubscribe(entry)
            self._remove_from_gang(entry.ask)
        return entry

    def _remove_from_gang(self, ask: WorkloadAsk) -> None:
        if members := self._groups.get(ask.group):
            members.pop(ask.name, None)
            if not members:
                del self._groups[ask.group]

    def _is_current(self, name: str, version: int) -> bool:
        entry = self._entries.get(name)
        return entry is not None and entry.heap_version == version

    def _mark_in_flight(self, entry: _QueuedWorkload) -> WorkloadAsk:
        self._set_state(entry, "out")
        # Only events during this attempt count, because the decision includes all earlier changes.
        entry.missed_events.clear()
        return entry.ask

    def _record_failure(self, name: str, now: float) -> _QueuedWorkload | None:
        """The entry of a workload in flight, with one more failure.

        None if the workload is gone, or was added again meanwhile and is ready.
        """
        entry = self._entries.get(name)
        if entry is None or entry.state != "out":
            return None
        if entry.is_removed:
            self._drop(name)
            return None
        if entry.updated_ask:
            self._replace_ask(entry, entry.updated_ask)
            return None
        entry.failures += 1
        # The exponent is capped, since a float power overflows.
        backoff = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2.0 ** min(entry.failures - 1, 16))
        entry.failed_at, entry.backoff_until = now, now + backoff
        return entry

    def _make_ready(self, entry: _QueuedWorkload) -> None:
        self._set_state(entry, "ready")
        heappush(self._ready, (-entry.ask.priority, entry.arrival_number, entry.heap_version, entry.ask.name))

    def _back_off(self, entry: _QueuedWorkload, until: float) -> None:
        self._set_state(entry, "waiting")
        heappush(self._backoff_heap, (until, entry.heap_version, entry.ask.name))
        # Most items of a long heap are outdated.
        if len(self._backoff_heap) > 2 * len(self._entries) + HEAP_COMPACTION_SLACK:
            self._backoff_heap = [item for item in self._backoff_heap if self._is_current(item[2], item[1])]
            heapify(self._backoff_heap)

    def _subscribe(self, entry: _QueuedWorkload, wakes_on: frozenset[Hashable]) -> None:
        entry.wakes_on = wakes_on
        for event in wakes_on:
            self._unschedulable_by_event.setdefault(event, {})[entry.ask.name] = None

    def _unsubscribe(self, entry: _QueuedWorkload) -> None:
        for event in entry.wakes_on:
            self._unschedulable_by_event.get(event, {}).pop(entry.ask.name, None)
        entry.wakes_on = frozenset()

    def _set_state(self, entry: _QueuedWorkload, state: str) -> None:
        self._sequence += 1
        entry.heap_version, entry.state = self._sequence, state
        if state == "out":
            self._in_flight[entry.ask.name] = None
        else:
            self._in_flight.pop(entry.ask.name, None)
