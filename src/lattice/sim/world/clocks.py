"""Host clocks of the simulation: a wall clock with an offset and jumps, and a monotonic clock with a rate
error."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from lattice.sim.world.event_loop import SimLoop


@dataclass
class SimClock:
    """The clocks of a host, both derived from simulation time."""

    loop: SimLoop
    epoch: datetime
    rate: float = 1.0
    # Seconds by which the wall clock is ahead.
    offset: float = 0.0
    # Monotonic time at the start of the run.
    uptime: float = 0.0

    def now(self) -> datetime:
        return self.epoch + timedelta(seconds=self.loop.time() * self.rate + self.offset)

    def monotonic(self) -> float:
        return self.uptime + self.loop.time() * self.rate

    async def sleep(self, seconds: float) -> None:
        # A fast clock reaches the time earlier in simulation time.
        await asyncio.sleep(seconds / self.rate)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds / self.rate, callback)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward by `seconds`, or back if negative."""
        self.offset += seconds

    def to_sim_time(self, monotonic: float) -> float:
        """The simulation time at which the monotonic clock showed `monotonic`."""
        return (monotonic - self.uptime) / self.rate
