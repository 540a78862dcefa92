"""Which servers are there? Those that share a store write down where they answer, so that an agent that lost one of them finds another."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from lattice.clock import Clock, format_timestamp, with_timeout
from lattice.errors import LatticeError
from lattice.kinds.core import Lease
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack, unpack
from lattice.store.cache import Cache
from lattice.store.protocol import ABSENT, Key, Put, Store

SERVERS_LEASE_KEY = Key(Lease.resource.id, "lattice-system", "servers")
SERVERS_ANNOTATION = "lattice.dev/servers"  # annotation: https://HOST:PORT of each, separated by commas, the last to start first
MAX_LISTED_SERVERS = 8  # a server that was killed stays listed until so many others have started
REGISTER_RETRY_INTERVAL_S = 1.0  # seconds
MAX_DEREGISTER_ATTEMPTS = 3  # to be struck off: others may be faster
DEREGISTER_TIMEOUT_S = 0.5  # seconds
log = structlog.get_logger()


@dataclass
class ServerDirectory:
    """One for each server: `own` is where its API answers. One that shares its store with nobody never enrols."""

    store: Store
    clock: Clock
    new_uid: Callable[[], str]
    own_url: Callable[[], str]
    leases: Cache[Lease] | None = None

    def urls(self) -> list[str]:
        """This one first."""
        lease = self.leases.get(SERVERS_LEASE_KEY.path) if self.leases is not None else None
        return list(
            dict.fromkeys([self.own_url(), *listed_servers(lease.metadata.annotations if lease else {})])
        )

    async def register(self) -> None:
        """Until it is written down."""
        while True:
            try:
                return await self._write([self.own_url()])
            except LatticeError as error:
                log.debug("not enrolled yet", reason=str(error))
                await self.clock.sleep(REGISTER_RETRY_INTERVAL_S)

    async def deregister(self) -> None:
        """The store may be away, and nobody waits for that: one that stays listed costs agents a knock at its door."""
        for _ in range(MAX_DEREGISTER_ATTEMPTS):
            with suppress(LatticeError, TimeoutError):
                await with_timeout(self.clock, DEREGISTER_TIMEOUT_S, self._write([]))
                break

    async def _write(self, first: list[str]) -> None:
        entry = await self.store.get(SERVERS_LEASE_KEY)
        found = unpack(entry.value, entry.revision) if entry else None
        before = listed_servers(found["metadata"].get("annotations", {})) if found else []
        after = [*first, *(each for each in before if each != self.own_url())][:MAX_LISTED_SERVERS]
        if after == before:
            return
        metadata = {
            **(
                found["metadata"]
                if found
                else {"name": SERVERS_LEASE_KEY.name, "namespace": SERVERS_LEASE_KEY.namespace}
            )
        }
        metadata["annotations"] = {**metadata.get("annotations", {}), SERVERS_ANNOTATION: ",".join(after)}
        lease = {
            **(found or {"apiVersion": Lease.resource.api_version, "kind": Lease.resource.kind, "spec": {}}),
            "metadata": metadata,
        }
        made = (
            lease if found else new_object(lease, uid=self.new_uid(), now=format_timestamp(self.clock.now()))
        )
        await self.store.commit(
            [Put(SERVERS_LEASE_KEY, pack(Lease.resource, made), entry.revision if entry else ABSENT)]
        )


def listed_servers(annotations: dict[str, str]) -> list[str]:
    return [each for each in annotations.get(SERVERS_ANNOTATION, "").split(",") if each]
