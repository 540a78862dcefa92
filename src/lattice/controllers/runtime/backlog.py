"""Which objects to look at next: each once however often it is named, and again after a growing pause when that failed."""

import asyncio
import heapq
import math
import random
from collections.abc import Iterable
from contextlib import suppress

from lattice.clock import Clock, within
from lattice.store.protocol import Key

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0  # seconds


class Backlog:
    """For one reader. Nothing is given up: what keeps failing comes round every LONGEST_PAUSE."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._ready: dict[Key, None] = {}
        self._later: list[tuple[float, Key]] = []
        self._due: dict[Key, float] = {}  # the one entry of a key in _later that counts
        self._failures: dict[Key, int] = {}
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
            heapq.heappush(self._later, (due, key))
            self._woken.set()

    def failed(self, key: Key) -> None:
        """Try it again, later each time."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(count - 1, 20))
        self.add_after(pause * (0.5 + self._rng.random() / 2), key)

    def done(self, key: Key) -> None:
        self._failures.pop(key, None)

    async def take(self, limit: int) -> list[Key]:
        """The next few, oldest first; waits for one."""
        while not self._fill():
            self._woken.clear()
            await self._wait()
        taken = [key for key, _ in zip(self._ready, range(limit), strict=False)]
        for key in taken:
            del self._ready[key]
        return taken

    def _fill(self) -> bool:
        now = self._clock.monotonic()
        while self._later and self._later[0][0] <= now:
            due, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self._ready[key] = None
        return bool(self._ready)

    async def _wait(self) -> None:
        """Until something is added, or the first of those for later is due."""
        if not self._later:
            await self._woken.wait()
            return
        with suppress(TimeoutError):
            await within(self._clock, self._later[0][0] - self._clock.monotonic(), self._woken.wait())
