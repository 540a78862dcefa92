"""Keeps a node's certificate alive: a new one when a third of its life is left, and a new connection to use it."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from lattice.agent.identity import Identity
from lattice.agent.session import JOIN_AGAIN, Agent, Removed
from lattice.clock import Clock
from lattice.errors import LatticeError, NotFound

LOOK_EVERY = 600.0  # seconds: the wall clock may be set while we wait
AGAIN = 60.0
log = structlog.get_logger()


@dataclass
class Renewal:
    identity: Identity
    agent: Agent
    clock: Clock
    rng: random.Random
    come_back: Callable[[], Awaitable[bytes]] | None = (
        None  # how to get one when the last has ended, and opens no door any more
    )

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            left = self.identity.renew_in(self.clock.now()).total_seconds()
            if left <= 0:
                left = 0.0 if await self.renew() else AGAIN
            await self.clock.sleep(max(1.0, min(left, LOOK_EVERY) * (0.9 + self.rng.random() / 10)))

    async def renew(self) -> bool:
        address = self.agent.addresses[0]
        is_over = self.identity.ends <= self.clock.now()
        try:
            if is_over and self.come_back is not None:
                certificate = await self.come_back()
            else:
                certificate = await self.agent.link.renew(address, self.identity.signing_request())
            self.identity.renewed(certificate)
        except (LatticeError, OSError) as error:
            log.warning(
                "certificate not renewed",
                address=address,
                ends=self.identity.ends.isoformat(),
                reason=str(error),
            )
            if (
                is_over
                and isinstance(error, NotFound)
                and error.what.startswith(f"there is no node {self.identity.name}")
            ):
                self.agent.removed = Removed(
                    error.what, fix=JOIN_AGAIN
                )  # without a certificate, nobody else can tell us
            return False
        log.info("certificate renewed", ends=self.identity.ends.isoformat())
        self.agent.renewed.set()
        return True
