"""Which key of a controller is next, which waits until when, and which is in hand?"""

import asyncio
import heapq
import math
import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from lattice.clock import Clock, with_timeout
from lattice.store.protocol import Key

CHANGED_KEY_RETRY_S = 1.0  # seconds at least between two looks at a troubled key that changes: its own writes must not make it spin
MIN_REQUEUE_S = 0.001  # seconds between two looks at a key: a rest of 1e-14 of them does not move a clock, and would make it spin
LOW_PRIORITY_EVERY = 8  # every so many turns the lowest lane goes first, so that no lane starves


MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 30.0  # seconds


class Priority(IntEnum):
    URGENT = 0  # a person asks for it: goes before the others, and does not wait for a back-off to end
    NORMAL = 1  # something changed
    BACKGROUND = 2  # a look at everything


class Backoff(NamedTuple):
    """How long to wait after trouble, in seconds: doubles from `first`, never above `longest`."""

    initial_s: float
    max_s: float

    def delay(self, count: int, rng: random.Random) -> float:
        return min(self.max_s, self.initial_s * 2.0 ** min(count - 1, 30)) * (0.5 + rng.random() / 2)


ERROR_BACKOFF = Backoff(0.1, 30.0)
CONFLICT_BACKOFF = Backoff(0.02, 1.0)  # somebody else was first: their change is on its way to us


@dataclass(frozen=True, slots=True)
class Requeue:
    """Look at it once more after so many seconds; a wake-up before that takes its place."""

    after: float


class WorkQueue:
    """Which key is next? Each is in hand at most once; woken while it is, it has another turn afterwards."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._ready: tuple[dict[str, None], ...] = tuple({} for _ in Priority)
        self._delayed: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}  # the one mention of a key in _later that counts
        self._processing: dict[str, Priority | None] = {}  # and how it was woken meanwhile
        self._failure_counts: dict[str, int] = {}  # failures in a row
        self._take_count = 0

    @property
    def ready(self) -> int:
        return sum(map(len, self._ready))

    @property
    def pending(self) -> int:
        """Ready, in hand, or backing off; not those that only look again some time."""
        return len({*self._processing, *self._failure_counts}.union(*self._ready))

    def wake(self, key: str, lane: Priority = Priority.NORMAL) -> None:
        if key in self._ready[lane]:
            return
        if key in self._processing:
            before = self._processing[key]
            self._processing[key] = lane if before is None else min(lane, before)
        elif key in self._due and key in self._failure_counts and lane is not Priority.URGENT:
            if lane is Priority.NORMAL:
                self._delay(key, CHANGED_KEY_RETRY_S)
        else:
            self._make_ready(key, lane)

    def take(self) -> str | None:
        self._promote()
        lanes = [keys for keys in self._ready if keys]
        if not lanes:
            return None
        self._take_count += 1
        keys = lanes[-1 if self._take_count % LOW_PRIORITY_EVERY == 0 else 0]
        key = next(iter(keys))
        del keys[key]
        self._due.pop(key, None)
        self._processing[key] = None
        return key

    def done(self, key: str, again: Requeue | None = None) -> None:
        self._failure_counts.pop(key, None)
        lane = self._processing.pop(key)
        if lane is not None:
            self._make_ready(key, lane)
        elif again is not None:
            self._delay(key, max(again.after, MIN_REQUEUE_S))

    def failed(self, key: str, pause: Backoff) -> float:
        """Again later, and later each time; returns how many seconds."""
        count = self._failure_counts[key] = self._failure_counts.get(key, 0) + 1
        lane = self._processing.pop(key)
        seconds = pause.delay(count, self._rng)
        if lane is Priority.NORMAL:
            seconds = min(seconds, CHANGED_KEY_RETRY_S)
        if lane is Priority.URGENT:
            self._make_ready(key, lane)
            return 0.0
        self._delay(key, seconds)
        return seconds

    def failures(self, key: str) -> int:
        return self._failure_counts.get(key, 0)

    def next_due(self) -> float:
        """When the first of those for later is ready."""
        while self._delayed and self._due.get(self._delayed[0][1]) != self._delayed[0][0]:
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else math.inf

    def _promote(self) -> None:
        now = self._clock.monotonic()
        while self.next_due() <= now:
            _, key = heapq.heappop(self._delayed)
            del self._due[key]
            self._make_ready(key, Priority.NORMAL)

    def _make_ready(self, key: str, lane: Priority) -> None:
        """In the better lane, if it is in one already."""
        for found, keys in enumerate(self._ready):
            if key in keys:
                if found <= lane:
                    return
                del keys[key]
        self._ready[lane][key] = None

    def _delay(self, key: str, seconds: float) -> None:
        """Unless it comes round earlier anyway."""
        due = self._clock.monotonic() + seconds
        if due >= self._due.get(key, math.inf):
            return
        self._due[key] = due
        if len(self._delayed) > 2 * len(self._due) + 64:
            self._delayed = [
                (when, each) for when, each in self._delayed if self._due.get(each) == when and each != key
            ]
            heapq.heapify(self._delayed)
        heapq.heappush(self._delayed, (due, key))


class BatchWorkQueue:
    """For one reader. Nothing is given up: what keeps failing comes round every LONGEST_PAUSE."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._ready: dict[Key, None] = {}
        self._delayed: list[tuple[float, Key]] = []
        self._due: dict[Key, float] = {}  # the one entry of a key in _later that counts
        self._failure_counts: dict[Key, int] = {}
        self._woken = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready.keys() | self._due.keys())

    def add(self, keys: Iterable[Key]) -> None:
        before = len(self._ready)
        self._ready.update(dict.fromkeys(keys))
        if len(self._ready) > before:
            self._woken.set()

    def add_after(self, seconds: float, key: Key) -> None:
        """Unless it comes round earlier anyway."""
        due = self._clock.monotonic() + seconds
        if due < self._due.get(key, math.inf):
            self._due[key] = due
            heapq.heappush(self._delayed, (due, key))
            self._woken.set()

    def failed(self, key: Key) -> None:
        """Try it again, later each time."""
        count = self._failure_counts[key] = self._failure_counts.get(key, 0) + 1
        pause = min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2 ** min(count - 1, 20))
        self.add_after(pause * (0.5 + self._rng.random() / 2), key)

    def done(self, key: Key) -> None:
        self._failure_counts.pop(key, None)

    async def take(self, limit: int) -> list[Key]:
        """The next few, oldest first; waits for one."""
        while not self._promote():
            self._woken.clear()
            await self._wait()
        taken = [key for key, _ in zip(self._ready, range(limit), strict=False)]
        for key in taken:
            del self._ready[key]
        return taken

    def _promote(self) -> bool:
        now = self._clock.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            due, key = heapq.heappop(self._delayed)
            if self._due.get(key) == due:
                del self._due[key]
                self._ready[key] = None
        return bool(self._ready)

    async def _wait(self) -> None:
        """Until something is added, or the first of those for later is due."""
        if not self._delayed:
            await self._woken.wait()
            return
        with suppress(TimeoutError):
            await with_timeout(self._clock, self._delayed[0][0] - self._clock.monotonic(), self._woken.wait())
