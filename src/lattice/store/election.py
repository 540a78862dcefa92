"""Who leads: campaigning for a role, keeping it, knowing in time that it is lost, and handing it over."""

import contextlib
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from lattice.clock import Clock, within
from lattice.errors import LatticeError
from lattice.store.protocol import Store, Term

TTL = 15.0
ASK_AGAIN = 0.6  # seconds at most between a standby's looks: a resigned role is taken within one second
GOODBYE = 1.0  # seconds that resigning may take

T = TypeVar("T")
log = structlog.get_logger()


def _ignore(_: Term) -> None:
    return None


@dataclass
class Election:
    """Run it as a task; cancelling that task resigns. `won` and `lost` are called with each term, in turn.

    A lease is for liveness only: what protects the store is the term as a fence on every write.
    """

    store: Store
    clock: Clock
    role: str
    holder: str
    rng: random.Random
    ttl: float = TTL
    won: Callable[[Term], None] = field(default=_ignore)
    lost: Callable[[Term], None] = field(default=_ignore)

    def __post_init__(self) -> None:
        self._term: Term | None = None
        self._until = 0.0

    @property
    def term(self) -> Term | None:
        """The term we lead in, by our own clock: None once a renewal is overdue, whether or not the store has said so."""
        return self._term if self.clock.monotonic() < self._until else None

    def over(self, term: Term) -> None:
        """Somebody was told so by the store, which refused a write: no need to wait until a renewal is."""
        if self._term == term:
            self._until = 0.0
            self._end()

    async def run(self) -> None:
        """Until cancelled. Whatever goes wrong, it campaigns again: a server that silently never leads is worse than one that ends."""
        try:
            while True:
                try:
                    self._end()
                    await self._lead_once()
                except Exception:
                    log.exception("election failed, campaigning again", role=self.role)
                    self._until = 0.0
                    await self._pause()
        finally:
            await self._resign()

    async def _lead_once(self) -> None:
        sent = self.clock.monotonic()
        term = await self._campaign()
        if term is None or self.clock.monotonic() >= sent + self.ttl:
            await self._pause()
            return
        self._begin(term, sent)
        await self._hold(term)

    async def _pause(self) -> None:
        await self.clock.sleep(min(ASK_AGAIN, self.ttl / 3) * (0.5 + self.rng.random() / 2))

    async def _campaign(self) -> Term | None:
        try:
            return await self.store.campaign(self.role, self.holder, self.ttl)
        except LatticeError:
            return None

    def _begin(self, term: Term, sent: float) -> None:
        self._term, self._until = term, sent + self.ttl
        self.won(term)

    def _end(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            self.lost(term)

    async def _hold(self, term: Term) -> None:
        """Renew until that fails. Counted from when a renewal was sent: the store cannot have counted from earlier."""
        pause = self.ttl / 3
        while await self._sleep_within(pause) and self._term == term:
            sent = self.clock.monotonic()
            renewed = await self._within(self._renew(term), self._until - sent)
            if renewed is False:
                return
            if renewed:
                self._until = sent + self.ttl
            pause = self.ttl / 3 if renewed else self.ttl / 15

    async def _sleep_within(self, pause: float) -> bool:
        """False if we no longer lead afterwards."""
        left = self._until - self.clock.monotonic()
        await self.clock.sleep(max(0.0, min(pause * (0.9 + self.rng.random() / 10), left)))
        return self.clock.monotonic() < self._until

    async def _renew(self, term: Term) -> bool | None:
        """None: no answer, which says nothing yet."""
        try:
            return await self.store.renew(term)
        except LatticeError:
            return None

    async def _within(self, asked: Coroutine[Any, Any, T], seconds: float) -> T | None:
        """None if it takes longer by the clock we are given."""
        try:
            return await within(self.clock, seconds, asked)
        except TimeoutError:
            return None

    async def _resign(self) -> None:
        term = self._term
        self._end()
        if term is not None:
            with contextlib.suppress(LatticeError):
                await self._within(self.store.resign(term), GOODBYE)
