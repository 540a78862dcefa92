"""`with_timeout` follows the given clock and leaves no timer behind."""

import asyncio

from build.virtual import VirtualClock, settle

from lattice.clock import with_timeout


async def never() -> str:
    await asyncio.Event().wait()
    return "never"


async def at_once() -> str:
    return "here"


async def or_late(clock: VirtualClock, seconds: float) -> str:
    try:
        return await with_timeout(clock, seconds, never())
    except TimeoutError:
        await clock.sleep(1.0)  # after the timeout the task is not cancelled any more
        return f"late at {clock.monotonic() - 1:g}"


async def test_result_within_the_timeout_is_returned() -> None:
    clock = VirtualClock()
    said = await with_timeout(clock, 5.0, at_once())
    await clock.advance(10.0)
    assert said == "here"


async def test_timeout_follows_the_given_clock() -> None:
    clock = VirtualClock()
    asking = asyncio.create_task(or_late(clock, 5.0))
    await clock.advance(20.0)
    assert asking.result() == "late at 5"


async def test_cancellation_during_the_wait_propagates() -> None:
    clock = VirtualClock()
    asking = asyncio.create_task(or_late(clock, 5.0))
    await settle()
    asking.cancel()
    await settle()
    assert asking.cancelled()


async def test_cancellation_at_the_timeout_propagates() -> None:
    clock = VirtualClock()
    asking = asyncio.create_task(or_late(clock, 5.0))
    await settle()
    clock.call_later(5.0, asking.cancel)
    await clock.advance(5.0)
    assert asking.cancelled()


async def test_nested_timeouts_end_at_the_earlier() -> None:
    clock = VirtualClock()
    asking = asyncio.create_task(with_timeout(clock, 9.0, or_late(clock, 2.0)))
    await clock.advance(20.0)
    assert asking.result() == "late at 2"
