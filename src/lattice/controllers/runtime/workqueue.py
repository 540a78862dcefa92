"""Which key of a controller is next, which waits until when, and which is in hand?"""

import heapq
import math
import random
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from lattice.clock import Clock

PROMPT = 1.0  # seconds at least between two looks at a troubled key that changes: its own writes must not make it spin
LEAST = 0.001  # seconds between two looks at a key: a rest of 1e-14 of them does not move a clock, and would make it spin
LOWER_TURN = 8  # every so many turns the lowest lane goes first, so that no lane starves


class Lane(IntEnum):
    URGENT = 0  # a person asks for it: goes before the others, and does not wait for a back-off to end
    ORDINARY = 1  # something changed
    BACKGROUND = 2  # a look at everything


class Pause(NamedTuple):
    """How long to wait after trouble, in seconds: doubles from `first`, never above `longest`."""

    first: float
    longest: float

    def after(self, count: int, rng: random.Random) -> float:
        return min(self.longest, self.first * 2.0 ** min(count - 1, 30)) * (0.5 + rng.random() / 2)


TROUBLE = Pause(0.1, 30.0)
RIVALRY = Pause(0.02, 1.0)  # somebody else was first: their change is on its way to us


@dataclass(frozen=True, slots=True)
class Again:
    """Look at it once more after so many seconds; a wake-up before that takes its place."""

    after: float


class Turns:
    """Which key is next? Each is in hand at most once; woken while it is, it has another turn afterwards."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._ready: tuple[dict[str, None], ...] = tuple({} for _ in Lane)
        self._later: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}  # the one mention of a key in _later that counts
        self._in_hand: dict[str, Lane | None] = {}  # and how it was woken meanwhile
        self._troubles: dict[str, int] = {}  # failures in a row
        self._taken = 0

    @property
    def ready(self) -> int:
        return sum(map(len, self._ready))

    @property
    def pending(self) -> int:
        """Ready, in hand, or backing off; not those that only look again some time."""
        return len({*self._in_hand, *self._troubles}.union(*self._ready))

    def wake(self, key: str, lane: Lane = Lane.ORDINARY) -> None:
        if key in self._ready[lane]:
            return
        if key in self._in_hand:
            before = self._in_hand[key]
            self._in_hand[key] = lane if before is None else min(lane, before)
        elif key in self._due and key in self._troubles and lane is not Lane.URGENT:
            if lane is Lane.ORDINARY:
                self._put_off(key, PROMPT)
        else:
            self._make_ready(key, lane)

    def take(self) -> str | None:
        self._promote()
        lanes = [keys for keys in self._ready if keys]
        if not lanes:
            return None
        self._taken += 1
        keys = lanes[-1 if self._taken % LOWER_TURN == 0 else 0]
        key = next(iter(keys))
        del keys[key]
        self._due.pop(key, None)
        self._in_hand[key] = None
        return key

    def done(self, key: str, again: Again | None = None) -> None:
        self._troubles.pop(key, None)
        lane = self._in_hand.pop(key)
        if lane is not None:
            self._make_ready(key, lane)
        elif again is not None:
            self._put_off(key, max(again.after, LEAST))

    def failed(self, key: str, pause: Pause) -> float:
        """Again later, and later each time; returns how many seconds."""
        count = self._troubles[key] = self._troubles.get(key, 0) + 1
        lane = self._in_hand.pop(key)
        seconds = pause.after(count, self._rng)
        if lane is Lane.ORDINARY:
            seconds = min(seconds, PROMPT)
        if lane is Lane.URGENT:
            self._make_ready(key, lane)
            return 0.0
        self._put_off(key, seconds)
        return seconds

    def failures(self, key: str) -> int:
        return self._troubles.get(key, 0)

    def next_due(self) -> float:
        """When the first of those for later is ready."""
        while self._later and self._due.get(self._later[0][1]) != self._later[0][0]:
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else math.inf

    def _promote(self) -> None:
        now = self._clock.monotonic()
        while self.next_due() <= now:
            _, key = heapq.heappop(self._later)
            del self._due[key]
            self._make_ready(key, Lane.ORDINARY)

    def _make_ready(self, key: str, lane: Lane) -> None:
        """In the better lane, if it is in one already."""
        for found, keys in enumerate(self._ready):
            if key in keys:
                if found <= lane:
                    return
                del keys[key]
        self._ready[lane][key] = None

    def _put_off(self, key: str, seconds: float) -> None:
        """Unless it comes round earlier anyway."""
        due = self._clock.monotonic() + seconds
        if due >= self._due.get(key, math.inf):
            return
        self._due[key] = due
        if len(self._later) > 2 * len(self._due) + 64:
            self._later = [
                (when, each) for when, each in self._later if self._due.get(each) == when and each != key
            ]
            heapq.heapify(self._later)
        heapq.heappush(self._later, (due, key))
