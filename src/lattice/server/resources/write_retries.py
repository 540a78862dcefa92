"""Repeat a write that lost a race against another write, until the deadline of the request.

A write without resourceVersion states a change, not a revision: it never fails because other clients write the
same object. Writes of one server to one object run one after the other, so that only writes of other servers and of
controllers make an attempt fail.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from lattice.clock import Clock
from lattice.errors import LatticeError
from lattice.store.protocol import Key, RevisionConflict

# Clients of Kubernetes wait 34 seconds for a patch; the reply arrives before that.
WRITE_DEADLINE_S = 30.0
# The second attempt follows at once: the other write is complete. Later pauses double up to the maximum, so
# that writers of several servers do not collide in lockstep.
FIRST_PAUSE_S = 0.002
MAX_PAUSE_S = 0.2

T = TypeVar("T")


@dataclass
class _ObjectLock:
    """The lock of one object, and the number of requests that hold the lock or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    requests: int = 0


@dataclass
class WriteLocks:
    """One lock for every object that requests write at present; an idle object has no lock."""

    clock: Clock
    # 0 to 1; spreads the pauses of several servers.
    jitter: Callable[[], float] = lambda: 1.0
    _locks: dict[Key, _ObjectLock] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def hold(self, key: Key) -> AsyncIterator[None]:
        """Wait until no other request of this server writes the object."""
        object_lock = self._locks.setdefault(key, _ObjectLock())
        object_lock.requests += 1
        try:
            async with object_lock.lock:
                yield
        finally:
            object_lock.requests -= 1
            if not object_lock.requests:
                del self._locks[key]

    async def write(
        self,
        key: Key,
        attempt: Callable[[], Awaitable[T]],
        exhausted: Callable[[], LatticeError],
        *,
        conflicts: tuple[type[LatticeError], ...] = (RevisionConflict,),
    ) -> T:
        """Lock the object and run `attempt`, which reads the object and commits the write, until the commit
        wins."""
        deadline = self.clock.monotonic() + WRITE_DEADLINE_S
        async with self.hold(key):
            return await self.retry(attempt, exhausted, conflicts=conflicts, deadline=deadline)

    async def retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        exhausted: Callable[[], LatticeError],
        *,
        conflicts: tuple[type[LatticeError], ...] = (RevisionConflict,),
        deadline: float | None = None,
    ) -> T:
        """Run `attempt` until it wins; raise `exhausted()` when the deadline has passed and the last attempt
        lost too."""
        if deadline is None:
            deadline = self.clock.monotonic() + WRITE_DEADLINE_S
        pause = 0.0
        while True:
            try:
                return await attempt()
            except conflicts as conflict:
                if self.clock.monotonic() >= deadline:
                    raise exhausted() from conflict
            if pause:
                await self.clock.sleep(pause * (1 + self.jitter()) / 2)
            pause = min(2 * pause or FIRST_PAUSE_S, MAX_PAUSE_S)
