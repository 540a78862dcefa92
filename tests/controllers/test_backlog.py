"""What is looked at next."""

import asyncio
import random

from garbage_world import Hands

from lattice.controllers.runtime.backlog import LONGEST_PAUSE, Backlog
from lattice.store.protocol import Key


def test_what_keeps_failing_comes_round_in_bounded_time() -> None:
    async def scenario() -> None:
        clock, key = Hands(), Key("secrets", "a", "x")
        backlog = Backlog(clock, random.Random(1))  # noqa: S311
        for _ in range(2000):
            backlog.failed(key)
        assert len(backlog) == 1
        taking = asyncio.ensure_future(backlog.take(10))
        await clock.move(LONGEST_PAUSE)
        assert await taking == [key]
        assert len(backlog) == 0

    asyncio.run(scenario())
