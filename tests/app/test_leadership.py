"""A stopping server finishes its running work, even if its term ends meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from build.virtual import VirtualClock

from lattice.app.leadership import Leadership


class Busy:
    """A loop with one running item, which ends when the test says so; by then the term is over."""

    def __init__(self, lead: Any) -> None:
        self.lead, self.looks = lead, 0

    @property
    def in_flight(self) -> int:
        self.lead.controller_set = None
        self.looks += 1
        return int(self.looks == 1)


async def test_lost_term_does_not_delay_shutdown() -> None:
    clock, told = VirtualClock(), []
    lead = SimpleNamespace(clock=clock, _term_tasks={})
    busy = Busy(lead)
    lead.controller_set = SimpleNamespace(loops=[busy], stop=lambda: told.append("stop"))
    stopping = asyncio.create_task(Leadership.stop(cast("Leadership", lead)))
    await clock.advance(1)
    await stopping
    assert (told, busy.looks) == (["stop"], 2)
