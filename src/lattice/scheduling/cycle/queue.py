"""Who is next, who waits how long, and who sleeps until what happens?"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.plugins.cluster_events import Change

FIRST_WAIT = 1.0  # seconds after the first failure; doubles with each
LONGEST_WAIT = 30.0
PROMPT: frozenset[Hashable] = frozenset(
    {Change.NODE_READY}
)  # cuts a wait short: a machine may have come for it
PROMPT_WAIT = 5.0  # seconds after a failure, however often it has failed: less than its cluster waits before it grows once more
SLACK = 64
SAFETY_WAKE = 300.0  # a sleeper is tried again after this even if nothing seems to have changed


@dataclass(slots=True)
class _Entry:
    ask: WorkloadAsk
    arrived: int  # kept over failures: who came first stays first among equals
    failures: int = 0
    failed_at: float = 0.0
    not_before: float = 0.0
    state: str = "ready"  # ready, waiting (until not_before), asleep, out (being worked on)
    stamp: int = 0  # tells the valid mention in a heap from outdated ones
    wakes_on: frozenset[Hashable] = frozenset()
    missed: set[Hashable] = field(default_factory=set)  # changes while it was out
    renewed: WorkloadAsk | None = None  # came again while it was out
    removed: bool = False  # while it was out


class Queue:
    """Priority first, first come first served inside. A workload is worked on once at a time: between `pop` and `done` or `failed`."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._ready: list[tuple[int, int, int, str]] = []  # -priority, arrived, stamp, name
        self._waiting: list[tuple[float, int, str]] = []  # when, stamp, name
        self._sleepers: dict[Hashable, dict[str, None]] = {}  # by what wakes them
        self._out: dict[str, None] = {}
        self._groups: dict[str, dict[str, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries) - sum(self._entries[name].removed for name in self._out)

    def __contains__(self, name: str) -> bool:
        return name in self._entries and not self._entries[name].removed

    def asked(self, name: str) -> WorkloadAsk | None:
        """What it asks for, as it was last told; None: it does not wait."""
        entry = self._entries.get(name)
        return None if entry is None or entry.removed else entry.renewed or entry.ask

    def add(self, ask: WorkloadAsk) -> None:
        """New, or changed: what it failed of before may not hold any more, so it is ready at once."""
        entry = self._entries.get(ask.name)
        if entry is None:
            self._count += 1
            entry = self._entries[ask.name] = _Entry(ask, self._count)
        elif entry.state == "out":
            entry.renewed, entry.removed = ask, False
            return
        self._rouse(entry)
        self._renew(entry, ask)

    def _renew(self, entry: _Entry, ask: WorkloadAsk) -> None:
        self._leave_group(entry.ask)
        entry.ask, entry.renewed, entry.failures = ask, None, 0
        if ask.group:
            self._groups.setdefault(ask.group, {})[ask.name] = None
        self._make_ready(entry)

    def remove(self, name: str) -> bool:
        """One that is being worked on leaves when that is over."""
        if name not in self:
            return False
        if name in self._out:
            self._entries[name].removed, self._entries[name].renewed = True, None
        else:
            self._drop(name)
        return True

    def pop(self, now: float) -> WorkloadAsk | None:
        entry = self._next(now)
        return self._take_out(entry) if entry else None

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
            gang = [self._entries[name] for name in self._groups.get(ask.group, ()) if name not in self._out]
            yield ask
            for entry in sorted(gang, key=lambda each: each.arrived):
                self._rouse(entry)
                yield self._take_out(entry)
            popped += 1 + len(gang)

    def done(self, name: str) -> None:
        """It has its place, or is gone; if it came again meanwhile it is next in line as a new one."""
        entry = self._drop(name)
        if entry is not None and entry.renewed:
            self.add(entry.renewed)

    def failed(self, name: str, now: float) -> None:
        """It did not work out, though it might have: again after a while that doubles each time."""
        if entry := self._back(name, now):
            self._wait(entry, entry.not_before)

    def unschedulable(self, name: str, wakes_on: Iterable[Hashable], now: float) -> None:
        """It fits nowhere: it sleeps until one of these changes, and is not woken before its wait is over, except by a node that is new."""
        entry = self._back(name, now)
        if entry is None:
            return
        self._sleep(entry, frozenset(wakes_on))
        if missed := entry.wakes_on & entry.missed:
            self._woken(entry, missed, now)
            return
        self._wait(entry, now + SAFETY_WAKE)
        entry.state = "asleep"

    def wake(self, change: Hashable, now: float) -> int:
        """Something changed. How many sleepers it woke."""
        for name in self._out:
            self._entries[name].missed.add(change)
        names = list(self._sleepers.get(change, ()))
        for name in names:
            self._woken(self._entries[name], frozenset({change}), now)
        return len(names)

    def _woken(self, entry: _Entry, changes: frozenset[Hashable], now: float) -> None:
        """Who goes on waiting can still be woken by what cuts that short."""
        prompt = entry.wakes_on & PROMPT
        self._rouse(entry)
        if changes & PROMPT:
            self._wait(entry, max(now, min(entry.not_before, entry.failed_at + PROMPT_WAIT)))
        else:
            self._wait(entry, max(now, entry.not_before))
            self._sleep(entry, prompt)

    def is_awaited(self, change: Hashable) -> bool:
        """Does anybody sleep until that happens?"""
        return bool(self._sleepers.get(change))

    def next_at(self) -> float | None:
        """When somebody is next ready: 0 at once, None never."""
        while self._ready and not self._is_current(self._ready[0][3], self._ready[0][2]):
            heappop(self._ready)
        while self._waiting and not self._is_current(self._waiting[0][2], self._waiting[0][1]):
            heappop(self._waiting)
        if self._ready:
            return 0.0
        return self._waiting[0][0] if self._waiting else None

    def _drop(self, name: str) -> _Entry | None:
        entry = self._entries.pop(name, None)
        self._out.pop(name, None)
        if entry is not None:
            self._rouse(entry)
            self._leave_group(entry.ask)
        return entry

    def _leave_group(self, ask: WorkloadAsk) -> None:
        if members := self._groups.get(ask.group):
            members.pop(ask.name, None)
            if not members:
                del self._groups[ask.group]

    def _next(self, now: float) -> _Entry | None:
        while self._waiting and self._waiting[0][0] <= now:
            _, stamp, name = heappop(self._waiting)
            if self._is_current(name, stamp):
                self._rouse(self._entries[name])
                self._make_ready(self._entries[name])
        while self._ready:
            _, _, stamp, name = heappop(self._ready)
            if self._is_current(name, stamp):
                return self._entries[name]
        return None

    def _is_current(self, name: str, stamp: int) -> bool:
        entry = self._entries.get(name)
        return entry is not None and entry.stamp == stamp

    def _take_out(self, entry: _Entry) -> WorkloadAsk:
        self._restamp(entry, "out")
        entry.missed.clear()
        return entry.ask

    def _back(self, name: str, now: float) -> _Entry | None:
        """Out no more after a failure; None if it is gone, or came again meanwhile and so is ready."""
        entry = self._entries.get(name)
        if entry is None or entry.state != "out":
            return None
        if entry.removed:
            self._drop(name)
            return None
        if entry.renewed:
            self._renew(entry, entry.renewed)
            return None
        entry.failures += 1
        entry.failed_at, entry.not_before = now, now + wait_after(entry.failures)
        return entry

    def _make_ready(self, entry: _Entry) -> None:
        self._restamp(entry, "ready")
        heappush(self._ready, (-entry.ask.priority, entry.arrived, entry.stamp, entry.ask.name))

    def _wait(self, entry: _Entry, until: float) -> None:
        self._restamp(entry, "waiting")
        heappush(self._waiting, (until, entry.stamp, entry.ask.name))
        if len(self._waiting) > 2 * len(self._entries) + SLACK:  # most of them are outdated
            self._waiting = [each for each in self._waiting if self._is_current(each[2], each[1])]
            heapify(self._waiting)

    def _sleep(self, entry: _Entry, wakes_on: frozenset[Hashable]) -> None:
        entry.wakes_on = wakes_on
        for change in wakes_on:
            self._sleepers.setdefault(change, {})[entry.ask.name] = None

    def _rouse(self, entry: _Entry) -> None:
        for change in entry.wakes_on:
            self._sleepers.get(change, {}).pop(entry.ask.name, None)
        entry.wakes_on = frozenset()

    def _restamp(self, entry: _Entry, state: str) -> None:
        self._count += 1
        entry.stamp, entry.state = self._count, state
        if state == "out":
            self._out[entry.ask.name] = None
        else:
            self._out.pop(entry.ask.name, None)


def wait_after(failures: int) -> float:
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures - 1, 16))
