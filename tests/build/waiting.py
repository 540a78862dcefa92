"""Wait until a condition holds, in a test that runs real processes."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

Answer = TypeVar("Answer")
POLL_INTERVAL_S = 0.1
ASYNC_POLL_INTERVAL_S = 0.01


def wait_until(
    condition: Callable[[], Answer | None],
    goal: str | Callable[[], str] = "the condition",
    within: float = 60.0,
) -> Answer:
    """The first true value of the condition; the timeout names the goal, such as a log read at that time."""
    deadline = time.monotonic() + within
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within:g} s in vain: {goal() if callable(goal) else goal}")
        time.sleep(POLL_INTERVAL_S)


async def eventually(condition: Callable[[], Any], within: float = 60.0) -> Any:
    """The first true value of the condition, which may be a coroutine function."""
    deadline = time.monotonic() + within
    while True:
        answer = condition()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"the condition does not hold within {within:g} s")
        await asyncio.sleep(ASYNC_POLL_INTERVAL_S)
