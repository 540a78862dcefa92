"""What time it is, and waiting: injected, so that tests and the simulator own time."""

import asyncio
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall time, UTC: for people and timestamps, never for leases."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow: for leases, timeouts and back-off."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def stamp(when: datetime) -> str:
    """The API's timestamp form: 2026-11-15T07:40:00Z."""
    return when.isoformat(timespec="seconds")[:19] + "Z"


async def within(clock: Clock, seconds: float, asked: Coroutine[Any, Any, T]) -> T:
    """What was asked for. Raises TimeoutError, and gives it up, once so much time has passed on the given clock."""
    asking = asyncio.ensure_future(asked)
    timer = asyncio.ensure_future(clock.sleep(max(0.0, seconds)))
    try:
        await asyncio.wait({asking, timer}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise TimeoutError
        return asking.result()
    finally:
        asking.cancel()
        timer.cancel()
