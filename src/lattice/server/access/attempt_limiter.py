"""Who was refused lately, and how often? Whoever guesses at a secret has to wait."""

from collections import OrderedDict
from dataclasses import dataclass, field

from lattice.clock import Clock
from lattice.errors import TooManyRequests

MAX_FAILED_ATTEMPTS = 5  # refused within
WINDOW_S = 60.0  # seconds
MAX_TRACKED_ADDRESSES = 4096  # addresses


@dataclass
class AttemptLimiter:
    """By the address that they came from."""

    clock: Clock
    credential: str = "join tokens"
    _failures: OrderedDict[str, list[float]] = field(default_factory=OrderedDict)

    def check(self, address: str) -> None:
        now = self.clock.monotonic()
        recent = [at for at in self._failures.get(address, ()) if now - at < WINDOW_S]
        if recent:
            self._failures[address] = recent
        else:
            self._failures.pop(address, None)
        if len(recent) >= MAX_FAILED_ATTEMPTS:
            raise TooManyRequests(
                f"{MAX_FAILED_ATTEMPTS} {self.credential} were refused within a minute",
                fix="wait a minute, then use a good one",
            )

    def record_failure(self, address: str) -> None:
        self._failures.setdefault(address, []).append(self.clock.monotonic())
        self._failures.move_to_end(address)
        if len(self._failures) > MAX_TRACKED_ADDRESSES:
            self._failures.popitem(last=False)
