"""Who leads: campaigning for a role, keeping it, knowing in time that it is lost, and handing it over."""

import contextlib
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from lattice.clock import Clock, with_timeout
from lattice.errors import LatticeError
from lattice.store.protocol import Store, Term

LEASE_TTL_S = 15.0
CAMPAIGN_INTERVAL_S = (
    0.6  # seconds at most between a standby's looks: a resigned role is taken within one second
)
RESIGN_TIMEOUT_S = 1.0  # seconds that resigning may take

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
    ttl: float = LEASE_TTL_S
    on_started_leading: Callable[[Term], None] = field(default=_ignore)
    on_stopped_leading: Callable[[Term], None] = field(default=_ignore)

    def __post_init__(self) -> None:
        self._term: Term | None = None
        self._lease_until = 0.0

    @property
    def term(self) -> Term | None:
        """The term we lead in, by our own clock: None once a renewal is overdue, whether or not the store has said so."""
        return self._term if self.clock.monotonic() < self._lease_until else None

    def end_term(self, term: Term) -> None:
        """Somebody was told so by the store, which refused a write: no need to wait until a renewal is."""
        if self._term == term:
            self._lease_until = 0.0
            self._stop_leading()

    async def run(self) -> None:
        """Until cancelled. Whatever goes wrong, it campaigns again: a server that silently never leads is worse than one that ends."""
        try:
            while True:
                try:
                    self._stop_leading()
                    await self._lead_once()
                except Exception:
                    log.exception("election failed, campaigning again", role=self.role)
                    self._lease_until = 0.0
                    await self._wait_to_campaign()
        finally:
            await self._resign()

    async def _lead_once(self) -> None:
        sent = self.clock.monotonic()
        term = await self._campaign()
        if term is None or self.clock.monotonic() >= sent + self.ttl:
            await self._wait_to_campaign()
            return
        self._start_leading(term, sent)
        await self._keep_renewing(term)

    async def _wait_to_campaign(self) -> None:
        await self.clock.sleep(min(CAMPAIGN_INTERVAL_S, self.ttl / 3) * (0.5 + self.rng.random() / 2))

    async def _campaign(self) -> Term | None:
        try:
            return await self.store.campaign(self.role, self.holder, self.ttl)
        except LatticeError:
            return None

    def _start_leading(self, term: Term, sent: float) -> None:
        self._term, self._lease_until = term, sent + self.ttl
        self.on_started_leading(term)

    def _stop_leading(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            self.on_stopped_leading(term)

    async def _keep_renewing(self, term: Term) -> None:
        """Renew until that fails. Counted from when a renewal was sent: the store cannot have counted from earlier."""
        pause = self.ttl / 3
        while await self._sleep_while_leading(pause) and self._term == term:
            sent = self.clock.monotonic()
            renewed = await self._with_timeout(self._renew(term), self._lease_until - sent)
            if renewed is False:
                return
            if renewed:
                self._lease_until = sent + self.ttl
            pause = self.ttl / 3 if renewed else self.ttl / 15

    async def _sleep_while_leading(self, pause: float) -> bool:
        """False if we no longer lead afterwards."""
        left = self._lease_until - self.clock.monotonic()
        await self.clock.sleep(max(0.0, min(pause * (0.9 + self.rng.random() / 10), left)))
        return self.clock.monotonic() < self._lease_until

    async def _renew(self, term: Term) -> bool | None:
        """None: no answer, which says nothing yet."""
        try:
            return await self.store.renew(term)
        except LatticeError:
            return None

    async def _with_timeout(self, asked: Coroutine[Any, Any, T], seconds: float) -> T | None:
        """None if it takes longer by the clock we are given."""
        try:
            return await with_timeout(self.clock, seconds, asked)
        except TimeoutError:
            return None

    async def _resign(self) -> None:
        term = self._term
        self._stop_leading()
        if term is not None:
            with contextlib.suppress(LatticeError):
                await self._with_timeout(self.store.resign(term), RESIGN_TIMEOUT_S)
