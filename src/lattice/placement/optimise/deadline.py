"""How much time is left for looking for something better?"""

from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]  # seconds that only grow
SOLVER_SHARE = 0.6  # of what is left: the rest is for carrying out what it found


def stopped() -> float:
    """The clock of who has none: only the solver's own limit holds then."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """Asked between steps: what has begun is finished."""

    at: float
    clock: Clock

    @staticmethod
    def within(seconds: float, clock: Clock) -> "Deadline":
        return Deadline(clock() + seconds, clock)

    @property
    def left(self) -> float:
        return max(0.0, self.at - self.clock())

    @property
    def is_over(self) -> bool:
        return self.left <= 0

    def part(self, share: float) -> "Deadline":
        """So much of what is left."""
        now = self.clock()
        return Deadline(now + share * max(0.0, self.at - now), self.clock)
