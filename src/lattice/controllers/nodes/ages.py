"""How long ago was it? Stored times are wall time, which may be set; whatever happens while this server looks on is timed by itself."""

from dataclasses import dataclass, field
from datetime import datetime

from lattice.clock import Clock
from lattice.lifecycle.retry import read


@dataclass(frozen=True, slots=True)
class _Seen:
    stamp: str
    at: float  # monotonic: when it was seen first
    age: float  # seconds that it was old then


@dataclass
class Ages:
    """By name: the time that is stored now, and since when it has been that one."""

    clock: Clock
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def age(self, name: str, stamp: str | None, now: datetime) -> float | None:
        """Seconds; None if nothing is stored. Only of what was stored before this server knew the name the wall clock is asked."""
        if not stamp:
            self._seen.pop(name, None)
            return None
        known, at = self._seen.get(name), self.clock.monotonic()
        if known is None or known.stamp != stamp:
            when = read(stamp) if known is None else None
            known = self._seen[name] = _Seen(
                stamp, at, max(0.0, (now - when).total_seconds()) if when else 0.0
            )
        return known.age + at - known.at

    def forget(self, name: str) -> None:
        self._seen.pop(name, None)
