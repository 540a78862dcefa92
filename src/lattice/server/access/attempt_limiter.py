"""The attempt limiter rejects requests from an address with too many failed credentials, against guessing of
secrets."""

from collections import OrderedDict
from dataclasses import dataclass, field

from lattice.clock import Clock
from lattice.errors import TooManyRequests

# This many failed attempts within the window block an address.
MAX_FAILED_ATTEMPTS = 5
WINDOW_S = 60.0
# The limiter forgets the least recently failed address beyond this count, so memory stays bounded.
MAX_TRACKED_ADDRESSES = 4096


@dataclass
class AttemptLimiter:
    """Failed attempts of the last `WINDOW_S` seconds, per client address. `credential` names the secret in
    messages."""

    clock: Clock
    credential: str = "join tokens"
    _failures: OrderedDict[str, list[float]] = field(default_factory=OrderedDict)

    def check(self, address: str) -> None:
        """Raise `TooManyRequests` if the address failed `MAX_FAILED_ATTEMPTS` times within the window."""
        now = self.clock.monotonic()
        recent = [at for at in self._failures.get(address, ()) if now - at < WINDOW_S]
        if recent:
            self._failures[address] = recent
        else:
            self._failures.pop(address, None)
        if len(recent) >= MAX_FAILED_ATTEMPTS:
            raise TooManyRequests(
                f"{MAX_FAILED_ATTEMPTS} {self.credential} were rejected within 60 s",
                fix="wait 60 s, then use valid credentials",
            )

    def record_failure(self, address: str) -> None:
        self._failures.setdefault(address, []).append(self.clock.monotonic())
        # Addresses stay ordered by their last failure.
        self._failures.move_to_end(address)
        if len(self._failures) > MAX_TRACKED_ADDRESSES:
            self._failures.popitem(last=False)
