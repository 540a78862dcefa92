"""Certificate renewal of a node: the agent requests a new certificate when a third of the lifetime remains,
then reconnects with the certificate."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from lattice.agent.identity import Identity
from lattice.agent.session import REJOIN_FIX, Agent, NodeRemoved
from lattice.clock import Clock
from lattice.errors import LatticeError, NotFound

# The wall clock may be set during a wait, so the expiry is checked again after at most this time.
MAX_RENEWAL_WAIT_S = 600.0
RENEWAL_RETRY_S = 60.0
log = structlog.get_logger()


@dataclass
class CertificateRenewal:
    """The renewal loop of the certificate of one agent."""

    identity: Identity
    agent: Agent
    clock: Clock
    rng: random.Random
    # Requests a certificate without a client certificate, for a node whose certificate has expired.
    renew_expired: Callable[[], Awaitable[bytes]] | None = None

    async def run(self) -> None:
        """Renew the certificate before its expiry, until cancelled."""
        while True:
            wait = self.identity.time_until_renewal(self.clock.now()).total_seconds()
            if wait <= 0:
                wait = 0.0 if await self.renew() else RENEWAL_RETRY_S
            # The random factor spreads the renewals of many agents.
            await self.clock.sleep(max(1.0, min(wait, MAX_RENEWAL_WAIT_S) * (0.9 + self.rng.random() / 10)))

    async def renew(self) -> bool:
        """Request and save a new certificate. If the request or the save fails, log the reason and return
        False."""
        address = self.agent.addresses[0]
        is_expired = self.identity.expires_at <= self.clock.now()
        try:
            if is_expired and self.renew_expired is not None:
                certificate = await self.renew_expired()
            else:
                certificate = await self.agent.transport.renew_certificate(
                    address, self.identity.signing_request()
                )
            self.identity.save_certificate(certificate)
        except (LatticeError, OSError) as error:
            log.warning(
                "certificate renewal failed",
                address=address,
                ends=self.identity.expires_at.isoformat(),
                reason=str(error),
            )
            if (
                is_expired
                and isinstance(error, NotFound)
                and error.message.startswith(f"there is no node {self.identity.name}")
            ):
                # Without a valid certificate no session can report the removal of the node.
                self.agent.removal = NodeRemoved(error.message, fix=REJOIN_FIX)
            return False
        log.info("certificate renewed", ends=self.identity.expires_at.isoformat())
        self.agent.certificate_renewed.set()
        return True
