"""The work queue under constant failures."""

import asyncio
import random

from build.garbage_world import ManualClock

from lattice.controllers.runtime.workqueue import MAX_BACKOFF_S, BatchWorkQueue
from lattice.store.protocol import Key


async def test_failing_key_is_retried_in_bounded_time() -> None:
    clock, key = ManualClock(), Key("secrets", "a", "x")
    backlog = BatchWorkQueue(clock, random.Random(1))
    for _ in range(2000):
        backlog.failed(key)
    assert len(backlog) == 1
    taking = asyncio.ensure_future(backlog.take(10))
    await clock.advance(MAX_BACKOFF_S)
    assert await taking == [key]
    assert len(backlog) == 0
