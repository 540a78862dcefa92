"""Who was refused lately, and how often? Whoever guesses at a secret has to wait."""

from collections import OrderedDict
from dataclasses import dataclass, field

from lattice.clock import Clock
from lattice.errors import TooMany

GUESSES = 5  # refused within
WINDOW = 60.0  # seconds
REMEMBERED = 4096  # addresses


@dataclass
class Guesses:
    """By the address that they came from."""

    clock: Clock
    of: str = "join tokens"
    _refused: OrderedDict[str, list[float]] = field(default_factory=OrderedDict)

    def admit(self, address: str) -> None:
        now = self.clock.monotonic()
        recent = [at for at in self._refused.get(address, ()) if now - at < WINDOW]
        if recent:
            self._refused[address] = recent
        else:
            self._refused.pop(address, None)
        if len(recent) >= GUESSES:
            raise TooMany(
                f"{GUESSES} {self.of} were refused within a minute", fix="wait a minute, then use a good one"
            )

    def count(self, address: str) -> None:
        self._refused.setdefault(address, []).append(self.clock.monotonic())
        self._refused.move_to_end(address)
        if len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)
