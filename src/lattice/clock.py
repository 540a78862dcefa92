"""What time it is, and waiting: injected, so that tests and the simulator own time."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


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
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
