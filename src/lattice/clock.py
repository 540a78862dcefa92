"""The clock protocol: time and waiting are injected, so that tests and the simulator control time."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Timer(Protocol):
    def cancel(self) -> object:
        """Cancel the timer; after the timer has fired, the call does nothing."""
        ...


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall-clock time in UTC: for users and timestamps, never for leases."""
        ...

    def monotonic(self) -> float:
        """Seconds that never decrease: for leases, timeouts and back-off."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` after the given seconds, without a task that sleeps."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


async def with_timeout(clock: Clock, seconds: float, operation: Coroutine[Any, Any, T]) -> T:
    """Await the operation; raise TimeoutError and cancel the operation after the given seconds of the given
    clock."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("only a task can wait")
    cancelled, has_expired = task.cancelling(), False

    def expire() -> None:
        nonlocal has_expired
        has_expired = True
        task.cancel()

    timer = clock.call_later(max(0.0, seconds), expire)
    try:
        return await operation
    except asyncio.CancelledError:
        # A cancellation from outside may coincide with the timeout: the outside cancellation wins and stays
        # in force.
        if has_expired and task.uncancel() <= cancelled:
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
