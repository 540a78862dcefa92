"""Time as one host sees it: its wall clock is off and jumps, its monotonic clock runs a little fast or slow, and neither is the truth."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from lattice.sim.world.event_loop import SimLoop


@dataclass
class SimClock:
    loop: SimLoop
    epoch: datetime
    rate: float = 1.0
    offset: float = 0.0  # seconds that the wall clock is ahead
    uptime: float = 0.0  # of the monotonic clock when the run begins

    def now(self) -> datetime:
        return self.epoch + timedelta(seconds=self.loop.time() * self.rate + self.offset)

    def monotonic(self) -> float:
        return self.uptime + self.loop.time() * self.rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.rate)

    def call_later(self, seconds: float, ring: Callable[[], object]) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds / self.rate, ring)

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self.offset += seconds

    def to_sim_time(self, monotonic: float) -> float:
        """When this clock showed that, in the time of the simulation."""
        return (monotonic - self.uptime) / self.rate
