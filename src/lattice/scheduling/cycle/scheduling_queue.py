"""Who is next, who waits how long, and who sleeps until what happens?"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.table.ask import WorkloadAsk

INITIAL_BACKOFF_S = 1.0  # seconds after the first failure; doubles with each
MAX_BACKOFF_S = 30.0
BACKOFF_CUTTING_EVENTS: frozenset[Hashable] = frozenset(
    {ClusterEvent.NODE_READY}
)  # cuts a wait short: a machine may have come for it
SHORTENED_BACKOFF_S = 5.0  # seconds after a failure, however often it has failed: less than its cluster waits before it grows once more
HEAP_COMPACTION_SLACK = 64
UNSCHEDULABLE_RETRY_S = 300.0  # a sleeper is tried again after this even if nothing seems to have changed


@dataclass(slots=True)
class _QueuedWorkload:
    ask: WorkloadAsk
    arrival_number: int  # kept over failures: who came first stays first among equals
    failures: int = 0
    failed_at: float = 0.0
    backoff_until: float = 0.0
    state: str = "ready"  # ready, waiting (until not_before), asleep, out (being worked on)
    heap_version: int = 0  # tells the valid mention in a heap from outdated ones
    wakes_on: frozenset[Hashable] = frozenset()
    missed_events: set[Hashable] = field(default_factory=set)  # changes while it was out
    updated_ask: WorkloadAsk | None = None  # came again while it was out
    is_removed: bool = False  # while it was out


class SchedulingQueue:
    """Priority first, first come first served inside. A workload is worked on once at a time: between `pop` and `done` or `failed`."""

    def __init__(self) -> None:
        self._entries: dict[str, _QueuedWorkload] = {}
        self._ready: list[tuple[int, int, int, str]] = []  # -priority, arrived, stamp, name
        self._backoff_heap: list[tuple[float, int, str]] = []  # when, stamp, name
        self._unschedulable_by_event: dict[Hashable, dict[str, None]] = {}  # by what wakes them
        self._in_flight: dict[str, None] = {}
        self._groups: dict[str, dict[str, None]] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._entries) - sum(self._entries[name].is_removed for name in self._in_flight)

    def __contains__(self, name: str) -> bool:
        return name in self._entries and not self._entries[name].is_removed

    def current_ask(self, name: str) -> WorkloadAsk | None:
        """What it asks for, as it was last told; None: it does not wait."""
        entry = self._entries.get(name)
        return None if entry is None or entry.is_removed else entry.updated_ask or entry.ask

    def add(self, ask: WorkloadAsk) -> None:
        """New, or changed: what it failed of before may not hold any more, so it is ready at once."""
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
        """One that is being worked on leaves when that is over."""
        if name not in self:
            return False
        if name in self._in_flight:
            self._entries[name].is_removed, self._entries[name].updated_ask = True, None
        else:
            self._drop(name)
        return True

    def pop(self, now: float) -> WorkloadAsk | None:
        entry = self._pop_ready(now)
        return self._mark_in_flight(entry) if entry else None

    def pop_batch(self, now: float, most: int) -> list[list[WorkloadAsk]]:
        """The next ones in order, neighbours of equal priority and shape together; a gang comes whole, even beyond `most`."""
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
            for entry in sorted(gang, key=lambda each: each.arrival_number):
                self._unsubscribe(entry)
                yield self._mark_in_flight(entry)
            popped += 1 + len(gang)

    def done(self, name: str) -> None:
        """It has its place, or is gone; if it came again meanwhile it is next in line as a new one."""
        entry = self._drop(name)
        if entry is not None and entry.updated_ask:
            self.add(entry.updated_ask)

    def requeue_failed(self, name: str, now: float) -> None:
        """It did not work out, though it might have: again after a while that doubles each time."""
        if entry := self._record_failure(name, now):
            self._back_off(entry, entry.backoff_until)

    def requeue_unschedulable(self, name: str, wakes_on: Iterable[Hashable], now: float) -> None:
        """It fits nowhere: it sleeps until one of these changes, and is not woken before its wait is over, except by a node that is new."""
        entry = self._record_failure(name, now)
        if entry is None:
            return
        self._subscribe(entry, frozenset(wakes_on))
        if missed := entry.wakes_on & entry.missed_events:
            self._wake_entry(entry, missed, now)
            return
        self._back_off(entry, now + UNSCHEDULABLE_RETRY_S)
        entry.state = "asleep"

    def wake(self, change: Hashable, now: float) -> int:
        """Something changed. How many sleepers it woke."""
        for name in self._in_flight:
            self._entries[name].missed_events.add(change)
        names = list(self._unschedulable_by_event.get(change, ()))
        for name in names:
            self._wake_entry(self._entries[name], frozenset({change}), now)
        return len(names)

    def _wake_entry(self, entry: _QueuedWorkload, changes: frozenset[Hashable], now: float) -> None:
        """Who goes on waiting can still be woken by what cuts that short."""
        prompt = entry.wakes_on & BACKOFF_CUTTING_EVENTS
        self._unsubscribe(entry)
        if changes & BACKOFF_CUTTING_EVENTS:
            self._back_off(entry, max(now, min(entry.backoff_until, entry.failed_at + SHORTENED_BACKOFF_S)))
        else:
            self._back_off(entry, max(now, entry.backoff_until))
            self._subscribe(entry, prompt)

    def is_awaited(self, change: Hashable) -> bool:
        """Does anybody sleep until that happens?"""
        return bool(self._unschedulable_by_event.get(change))

    def next_ready_at(self) -> float | None:
        """When somebody is next ready: 0 at once, None never."""
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

    def _pop_ready(self, now: float) -> _QueuedWorkload | None:
        while self._backoff_heap and self._backoff_heap[0][0] <= now:
            _, stamp, name = heappop(self._backoff_heap)
            if self._is_current(name, stamp):
                self._unsubscribe(self._entries[name])
                self._make_ready(self._entries[name])
        while self._ready:
            _, _, stamp, name = heappop(self._ready)
            if self._is_current(name, stamp):
                return self._entries[name]
        return None

    def _is_current(self, name: str, stamp: int) -> bool:
        entry = self._entries.get(name)
        return entry is not None and entry.heap_version == stamp

    def _mark_in_flight(self, entry: _QueuedWorkload) -> WorkloadAsk:
        self._set_state(entry, "out")
        entry.missed_events.clear()
        return entry.ask

    def _record_failure(self, name: str, now: float) -> _QueuedWorkload | None:
        """Out no more after a failure; None if it is gone, or came again meanwhile and so is ready."""
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
        entry.failed_at, entry.backoff_until = now, now + backoff_after(entry.failures)
        return entry

    def _make_ready(self, entry: _QueuedWorkload) -> None:
        self._set_state(entry, "ready")
        heappush(self._ready, (-entry.ask.priority, entry.arrival_number, entry.heap_version, entry.ask.name))

    def _back_off(self, entry: _QueuedWorkload, until: float) -> None:
        self._set_state(entry, "waiting")
        heappush(self._backoff_heap, (until, entry.heap_version, entry.ask.name))
        if (
            len(self._backoff_heap) > 2 * len(self._entries) + HEAP_COMPACTION_SLACK
        ):  # most of them are outdated
            self._backoff_heap = [each for each in self._backoff_heap if self._is_current(each[2], each[1])]
            heapify(self._backoff_heap)

    def _subscribe(self, entry: _QueuedWorkload, wakes_on: frozenset[Hashable]) -> None:
        entry.wakes_on = wakes_on
        for change in wakes_on:
            self._unschedulable_by_event.setdefault(change, {})[entry.ask.name] = None

    def _unsubscribe(self, entry: _QueuedWorkload) -> None:
        for change in entry.wakes_on:
            self._unschedulable_by_event.get(change, {}).pop(entry.ask.name, None)
        entry.wakes_on = frozenset()

    def _set_state(self, entry: _QueuedWorkload, state: str) -> None:
        self._sequence += 1
        entry.heap_version, entry.state = self._sequence, state
        if state == "out":
            self._in_flight[entry.ask.name] = None
        else:
            self._in_flight.pop(entry.ask.name, None)


def backoff_after(failures: int) -> float:
    return min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2.0 ** min(failures - 1, 16))
