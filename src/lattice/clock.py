"""What time it is, and waiting: injected, so that tests and the simulator own time."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Timer(Protocol):
    def cancel(self) -> object:
        """It does not ring; nothing happens if it has."""
        ...


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall time, UTC: for people and timestamps, never for leases."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow: for leases, timeouts and back-off."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def call_later(self, seconds: float, ring: Callable[[], object]) -> Timer:
        """Calls `ring` once so much time has passed; nobody has to sleep for it."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, ring: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, ring)


def format_timestamp(when: datetime) -> str:
    """The API's timestamp form: 2026-11-15T07:40:00Z."""
    return when.isoformat(timespec="seconds")[:19] + "Z"


async def with_timeout(clock: Clock, seconds: float, asked: Coroutine[Any, Any, T]) -> T:
    """What was asked for. Raises TimeoutError, and gives it up, once so much time has passed on the given clock."""
    asking = asyncio.current_task()
    if asking is None:
        raise RuntimeError("only a task can wait")
    cancelled, is_late = asking.cancelling(), False

    def ring() -> None:
        nonlocal is_late
        is_late = True
        asking.cancel()

    alarm = clock.call_later(max(0.0, seconds), ring)
    try:
        return await asked
    except asyncio.CancelledError:
        if is_late and asking.uncancel() <= cancelled:
            raise TimeoutError from None
        raise
    finally:
        alarm.cancel()
