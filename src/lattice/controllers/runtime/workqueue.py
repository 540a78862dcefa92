"""The work queue of a controller: keys that are ready, delayed or being reconciled, with priorities and
back-off."""

import heapq
import math
import random
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from lattice.clock import Clock

# A key that backs off is retried at most this long after its object changed. It is not retried at once: the
# controller's own writes are changes too, and would make the controller spin.
CHANGED_KEY_RETRY_S = 1.0
# A requeue after 1e-14 s does not move the clock and would make the controller spin.
MIN_REQUEUE_S = 0.001
# Every eighth key is taken from the lowest non-empty priority, so that no priority starves.
LOW_PRIORITY_EVERY = 8


class Priority(IntEnum):
    """The priority of a wake-up: lower values are reconciled first."""

    # A user waits: the key goes first and skips a running back-off.
    URGENT = 0
    # An object changed.
    NORMAL = 1
    # The periodic resync of every key.
    BACKGROUND = 2


class Backoff(NamedTuple):
    """An exponential back-off in seconds with jitter: the delay doubles from `initial_s` up to `max_s`."""

    initial_s: float
    max_s: float

    def delay(self, count: int, rng: random.Random) -> float:
        """The delay in seconds after `count` failures in a row: 50 to 100 % of the exponential value."""
        # The exponent is limited, because 2.0 ** count overflows after many failures.
        return min(self.max_s, self.initial_s * 2.0 ** min(count - 1, 30)) * (0.5 + rng.random() / 2)


ERROR_BACKOFF = Backoff(0.1, 30.0)
# Another writer was first, and its change is on the way to the cache: a short delay is enough.
CONFLICT_BACKOFF = Backoff(0.02, 1.0)


@dataclass(frozen=True, slots=True)
class Requeue:
    """Ask the loop to reconcile the key again after `after` seconds; an earlier wake-up replaces the
    delay."""

    after: float


class WorkQueue:
    """The keys of one controller, with priorities and back-off.

    A key is reconciled at most once at a time. A key that is woken during its reconcile becomes ready when
    the reconcile has succeeded; after a failure the key backs off first, unless the wake-up is urgent.
    """

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._ready: tuple[dict[str, None], ...] = tuple({} for _ in Priority)
        self._delayed: list[tuple[float, str]] = []
        # The due time of a key. Entries of `_delayed` with another time are stale.
        self._due: dict[str, float] = {}
        # Keys being reconciled, with the priority of a wake-up during the reconcile.
        self._processing: dict[str, Priority | None] = {}
        # Failures in a row.
        self._failure_counts: dict[str, int] = {}
        self._take_count = 0

    @property
    def ready(self) -> int:
        return sum(map(len, self._ready))

    @property
    def pending(self) -> int:
        """The number of keys that are ready, in progress or backing off; delayed requeues do not count."""
        return len({*self._processing, *self._failure_counts}.union(*self._ready))

    def wake(self, key: str, priority: Priority = Priority.NORMAL) -> None:
        """Make a key ready, or shorten its back-off; an urgent wake-up ends the back-off."""
        if key in self._ready[priority]:
            return
        if key in self._processing:
            earlier = self._processing[key]
            self._processing[key] = priority if earlier is None else min(priority, earlier)
        # A key that backs off stays delayed: a change only shortens the delay, a resync does not.
        elif key in self._due and key in self._failure_counts and priority is not Priority.URGENT:
            if priority is Priority.NORMAL:
                self._delay(key, CHANGED_KEY_RETRY_S)
        else:
            self._make_ready(key, priority)

    def take(self) -> str | None:
        """Take the next key for a reconcile; None if no key is ready."""
        now = self._clock.monotonic()
        while self.next_due() <= now:
            _, key = heapq.heappop(self._delayed)
            del self._due[key]
            self._make_ready(key, Priority.NORMAL)
        ready_queues = [keys for keys in self._ready if keys]
        if not ready_queues:
            return None
        self._take_count += 1
        keys = ready_queues[-1 if self._take_count % LOW_PRIORITY_EVERY == 0 else 0]
        key = next(iter(keys))
        del keys[key]
        # The wake-up replaces a delayed requeue of the key.
        self._due.pop(key, None)
        self._processing[key] = None
        return key

    def take_batch(self, limit: int) -> tuple[str, ...]:
        """Take up to `limit` keys for a reconcile, in the order of `take`."""
        keys: list[str] = []
        while len(keys) < limit and (key := self.take()) is not None:
            keys.append(key)
        return tuple(keys)

    def done(self, key: str, requeue: Requeue | None = None) -> None:
        """End a successful reconcile of the key: reset the failure count, then requeue the key if `requeue`
        is set."""
        self._failure_counts.pop(key, None)
        priority = self._processing.pop(key)
        # Something changed during the reconcile: the requested delay was computed from older state.
        if priority is not None:
            self._make_ready(key, priority)
        elif requeue is not None:
            self._delay(key, max(requeue.after, MIN_REQUEUE_S))

    def failed(self, key: str, backoff: Backoff) -> float:
        """End a failed reconcile: requeue the key after a growing back-off and return the delay in
        seconds."""
        count = self._failure_counts[key] = self._failure_counts.get(key, 0) + 1
        priority = self._processing.pop(key)
        seconds = backoff.delay(count, self._rng)
        # The object changed during the failed reconcile, so the next attempt may succeed.
        if priority is Priority.NORMAL:
            seconds = min(seconds, CHANGED_KEY_RETRY_S)
        if priority is Priority.URGENT:
            self._make_ready(key, priority)
            return 0.0
        self._delay(key, seconds)
        return seconds

    def failures(self, key: str) -> int:
        return self._failure_counts.get(key, 0)

    def next_due(self) -> float:
        """The monotonic time at which the first delayed key becomes ready; infinity if no key is delayed."""
        while self._delayed and self._due.get(self._delayed[0][1]) != self._delayed[0][0]:
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else math.inf

    def _make_ready(self, key: str, priority: Priority) -> None:
        """Make the key ready, or raise its priority if the key is ready with a lower priority."""
        for current_priority, keys in enumerate(self._ready):
            if key in keys:
                if current_priority <= priority:
                    return
                del keys[key]
        self._ready[priority][key] = None

    def _delay(self, key: str, seconds: float) -> None:
        """Make the key ready after `seconds`, unless the key is due earlier."""
        due = self._clock.monotonic() + seconds
        if due >= self._due.get(key, math.inf):
            return
        self._due[key] = due
        # Stale heap entries are dropped when they outnumber the delayed keys.
        if len(self._delayed) > 2 * len(self._due) + 64:
            self._delayed = [
                (when, delayed_key)
                for when, delayed_key in self._delayed
                if self._due.get(delayed_key) == when and delayed_key != key
            ]
            heapq.heapify(self._delayed)
        heapq.heappush(self._delayed, (due, key))
