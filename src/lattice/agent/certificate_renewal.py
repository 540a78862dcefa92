"""Keeps a node's certificate alive: a new one when a third of its life is left, and a new connection to use it."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from lattice.agent.identity import Identity
from lattice.agent.session import REJOIN_FIX, Agent, NodeRemoved
from lattice.clock import Clock
from lattice.errors import LatticeError, NotFound

MAX_RENEWAL_WAIT_S = 600.0  # seconds: the wall clock may be set while we wait
RENEWAL_RETRY_S = 60.0
log = structlog.get_logger()


@dataclass
class CertificateRenewal:
    identity: Identity
    agent: Agent
    clock: Clock
    rng: random.Random
    renew_expired: Callable[[], Awaitable[bytes]] | None = (
        None  # how to get one when the last has ended, and opens no door any more
    )

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            left = self.identity.time_until_renewal(self.clock.now()).total_seconds()
            if left <= 0:
                left = 0.0 if await self.renew() else RENEWAL_RETRY_S
            await self.clock.sleep(max(1.0, min(left, MAX_RENEWAL_WAIT_S) * (0.9 + self.rng.random() / 10)))

    async def renew(self) -> bool:
        address = self.agent.addresses[0]
        is_over = self.identity.expires_at <= self.clock.now()
        try:
            if is_over and self.renew_expired is not None:
                certificate = await self.renew_expired()
            else:
                certificate = await self.agent.transport.renew_certificate(
                    address, self.identity.signing_request()
                )
            self.identity.save_certificate(certificate)
        except (LatticeError, OSError) as error:
            log.warning(
                "certificate not renewed",
                address=address,
                ends=self.identity.expires_at.isoformat(),
                reason=str(error),
            )
            if (
                is_over
                and isinstance(error, NotFound)
                and error.message.startswith(f"there is no node {self.identity.name}")
            ):
                self.agent.removal = NodeRemoved(
                    error.message, fix=REJOIN_FIX
                )  # without a certificate, nobody else can tell us
            return False
        log.info("certificate renewed", ends=self.identity.expires_at.isoformat())
        self.agent.certificate_renewed.set()
        return True
