"""The server directory: servers of one store list their URLs in a lease, so that an agent finds a remaining
server."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from lattice.clock import Clock, with_timeout
from lattice.errors import LatticeError
from lattice.kinds.core import Lease
from lattice.kinds.meta.base import SYSTEM_NAMESPACE
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack, unpack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.store.cache import Cache
from lattice.store.protocol import ABSENT, Key, Put, Store

SERVERS_LEASE_KEY = Key(Lease.resource.id, SYSTEM_NAMESPACE, "servers")
# Annotation with the URL (https://HOST:PORT) of every server, comma-separated, the latest start first.
SERVERS_ANNOTATION = "lattice.dev/servers"
# A server that was killed stays listed until this many servers have started after it.
MAX_LISTED_SERVERS = 8
REGISTER_RETRY_INTERVAL_S = 1.0
# Servers that stop together write the same lease, so an attempt may conflict.
MAX_DEREGISTER_ATTEMPTS = 3
DEREGISTER_TIMEOUT_S = 0.5
log = structlog.get_logger()


@dataclass
class ServerDirectory:
    """The directory as seen by one server; `own_url` is the URL of the server's API. A server without a
    shared store does not register."""

    store: Store
    clock: Clock
    new_uid: Callable[[], str]
    own_url: Callable[[], str]
    leases: Cache[Lease] | None = None

    def urls(self) -> list[str]:
        """URLs of the servers, this server's URL first."""
        lease = self.leases.get(SERVERS_LEASE_KEY.path) if self.leases is not None else None
        return list(
            dict.fromkeys([self.own_url(), *listed_servers(lease.metadata.annotations if lease else {})])
        )

    async def register(self) -> None:
        """Add this server to the lease; retry until the store accepts the write."""
        while True:
            try:
                return await self._write([self.own_url()])
            except LatticeError as error:
                log.debug("cannot register the server in the directory, retrying", reason=str(error))
                await self.clock.sleep(REGISTER_RETRY_INTERVAL_S)

    async def deregister(self) -> None:
        """Remove this server from the lease. Shutdown does not wait for an unreachable store: a stale entry
        costs agents one failed connection."""
        for _ in range(MAX_DEREGISTER_ATTEMPTS):
            with suppress(LatticeError, TimeoutError):
                await with_timeout(self.clock, DEREGISTER_TIMEOUT_S, self._write([]))
                break

    async def _write(self, own_urls: list[str]) -> None:
        entry = await self.store.get(SERVERS_LEASE_KEY)
        stored = unpack(entry.value, entry.revision) if entry else None
        previous = listed_servers(stored["metadata"].get("annotations", {})) if stored else []
        urls = [*own_urls, *(url for url in previous if url != self.own_url())][:MAX_LISTED_SERVERS]
        if urls == previous:
            return
        lease = stored or {
            "apiVersion": Lease.resource.api_version,
            "kind": Lease.resource.kind,
            "spec": {},
            "metadata": {"name": SERVERS_LEASE_KEY.name, "namespace": SERVERS_LEASE_KEY.namespace},
        }
        annotations = {**lease["metadata"].get("annotations", {}), SERVERS_ANNOTATION: ",".join(urls)}
        lease = {**lease, "metadata": {**lease["metadata"], "annotations": annotations}}
        if stored is None:
            lease = new_object(lease, uid=self.new_uid(), now=format_timestamp(self.clock.now()))
        await self.store.commit(
            [Put(SERVERS_LEASE_KEY, pack(Lease.resource, lease), entry.revision if entry else ABSENT)]
        )


def listed_servers(annotations: dict[str, str]) -> list[str]:
    """The server URLs in the annotations of the lease."""
    return [url for url in annotations.get(SERVERS_ANNOTATION, "").split(",") if url]
