"""Leader election: campaign for a role, renew the lease, detect a lost lease in time, and resign."""

import contextlib
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from lattice.clock import Clock, with_timeout
from lattice.errors import LatticeError
from lattice.store.protocol import Store, Term

# The store lets another server lead after this time without a renewal, in seconds.
LEASE_TTL_S = 15.0
# Longest wait of a follower between campaigns, so that a follower takes over a resigned role within one
# second.
CAMPAIGN_INTERVAL_S = 0.6
# Time limit of a resignation, so that an unreachable store does not delay the shutdown; the lease then
# expires by itself.
RESIGN_TIMEOUT_S = 1.0

T = TypeVar("T")
log = structlog.get_logger()


def _ignore(_: Term) -> None:
    return None


@dataclass
class Election:
    """The election of one server for one role. Run the election as a task; cancelling the task resigns.

    For every term, `on_started_leading` and later `on_stopped_leading` are called with the term. The lease
    only decides when another server may lead; the term, as a fence on every write, protects the store from an
    old leader (I-08, I-09).
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
        """The term in which this server leads; None once the lease has expired by the clock of this server,
        whatever the store says."""
        return self._term if self.clock.monotonic() < self._lease_until else None

    def end_term(self, term: Term) -> None:
        """Stop leading at once, because the store fenced a write of the term; no need to wait for a failed
        renewal."""
        # A late rejection of a write of an older term must not end the newer term that this server now holds.
        if self._term == term:
            self._lease_until = 0.0
            self._stop_leading()

    async def run(self) -> None:
        """Campaign and lead until cancelled.

        An exception does not end the task: otherwise the server would run on and never lead.
        """
        try:
            while True:
                try:
                    self._stop_leading()
                    await self._lead_once()
                except Exception:
                    log.exception("election failed, retrying", role=self.role)
                    self._lease_until = 0.0
                    await self._wait_to_campaign()
        finally:
            term = self._term
            # Leading ends before the lease is released, because the next leader may then begin at once.
            self._stop_leading()
            if term is not None:
                with contextlib.suppress(LatticeError):
                    await self._with_timeout(self.store.resign(term), RESIGN_TIMEOUT_S)

    async def _lead_once(self) -> None:
        sent_at = self.clock.monotonic()
        try:
            term = await self.store.campaign(self.role, self.holder, self.ttl)
        # A campaign without an answer may still have won; the next campaign of the same holder then succeeds
        # with a higher term.
        except LatticeError:
            term = None
        # If the campaign took longer than the lease lasts, the lease may already be over.
        if term is None or self.clock.monotonic() >= sent_at + self.ttl:
            await self._wait_to_campaign()
            return
        self._term, self._lease_until = term, sent_at + self.ttl
        self.on_started_leading(term)
        await self._keep_renewing(term)

    async def _wait_to_campaign(self) -> None:
        await self.clock.sleep(min(CAMPAIGN_INTERVAL_S, self.ttl / 3) * (0.5 + self.rng.random() / 2))

    def _stop_leading(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            self.on_stopped_leading(term)

    async def _keep_renewing(self, term: Term) -> None:
        """Renew the lease until a renewal fails or the lease expires.

        The lease counts from the time at which the renewal was sent, because the store cannot have begun to
        count earlier.
        """
        pause_s = self.ttl / 3
        while await self._sleep_while_leading(pause_s) and self._term == term:
            sent_at = self.clock.monotonic()
            renewed = await self._with_timeout(self._renew(term), self._lease_until - sent_at)
            if renewed is False:
                return
            if renewed:
                self._lease_until = sent_at + self.ttl
            # A renewal without an answer is repeated soon, while the lease still lasts.
            pause_s = self.ttl / 3 if renewed else self.ttl / 15

    async def _sleep_while_leading(self, pause_s: float) -> bool:
        """Sleep, at most until the lease expires; return False if the lease has expired."""
        remaining_s = self._lease_until - self.clock.monotonic()
        await self.clock.sleep(max(0.0, min(pause_s * (0.9 + self.rng.random() / 10), remaining_s)))
        return self.clock.monotonic() < self._lease_until

    async def _renew(self, term: Term) -> bool | None:
        """Renew the lease; None means that the store did not answer, which decides nothing yet."""
        try:
            return await self.store.renew(term)
        except LatticeError:
            return None

    async def _with_timeout(self, request: Coroutine[Any, Any, T], seconds: float) -> T | None:
        """Return the result of the request, or None after `seconds` by the injected clock."""
        try:
            return await with_timeout(self.clock, seconds, request)
        except TimeoutError:
            return None
