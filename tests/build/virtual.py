"""A clock that a test moves by hand."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


class VirtualClock:
    """Sleepers wake when `advance` passes their time, in order."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self.wrong = 0.0  # seconds by which the wall clock is ahead, as somebody has set it

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._now + self.wrong)

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        await self._due(seconds)

    def call_later(self, seconds: float, ring: Callable[[], object]) -> "asyncio.Future[None]":
        due = self._due(seconds)
        due.add_done_callback(lambda rung: None if rung.cancelled() else ring())
        return due

    def _due(self, seconds: float) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        return future

    async def advance(self, seconds: float) -> None:
        """Let time pass, and everybody who wakes run."""
        end = self._now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            when, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                self._now = max(self._now, when)
                future.set_result(None)
                await settle()
        self._now = end
        await settle()

    def jump(self, seconds: float) -> None:
        """Time passes and nobody runs: the whole process was paused."""
        self._now += seconds


async def settle() -> None:
    """Everything that can run without time passing has run."""
    for _ in range(20):
        await asyncio.sleep(0)
