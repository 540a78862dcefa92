"""Which servers are there? Those that share a store write down where they answer, so that an agent that lost one of them finds another."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from lattice.clock import Clock, stamp, within
from lattice.errors import LatticeError
from lattice.kinds.core import Lease
from lattice.kinds.meta.object_rules import born
from lattice.kinds.meta.stored import pack, unpack
from lattice.store.cache import Cache
from lattice.store.protocol import ABSENT, Key, Put, Store

KEY = Key(Lease.resource.id, "lattice-system", "servers")
SERVERS = "lattice.dev/servers"  # annotation: https://HOST:PORT of each, separated by commas, the last to start first
MOST = 8  # a server that was killed stays listed until so many others have started
AGAIN = 1.0  # seconds
TRIES = 3  # to be struck off: others may be faster
GOODBYE = 0.5  # seconds
log = structlog.get_logger()


@dataclass
class Servers:
    """One for each server: `own` is where its API answers. One that shares its store with nobody never enrols."""

    store: Store
    clock: Clock
    new_uid: Callable[[], str]
    own: Callable[[], str]
    leases: Cache[Lease] | None = None

    def known(self) -> list[str]:
        """This one first."""
        lease = self.leases.get(KEY.path) if self.leases is not None else None
        return list(dict.fromkeys([self.own(), *listed(lease.metadata.annotations if lease else {})]))

    async def enrol(self) -> None:
        """Until it is written down."""
        while True:
            try:
                return await self._write([self.own()])
            except LatticeError as error:
                log.debug("not enrolled yet", reason=str(error))
                await self.clock.sleep(AGAIN)

    async def leave(self) -> None:
        """The store may be away, and nobody waits for that: one that stays listed costs agents a knock at its door."""
        for _ in range(TRIES):
            with suppress(LatticeError, TimeoutError):
                await within(self.clock, GOODBYE, self._write([]))
                break

    async def _write(self, first: list[str]) -> None:
        entry = await self.store.get(KEY)
        found = unpack(entry.value, entry.revision) if entry else None
        before = listed(found["metadata"].get("annotations", {})) if found else []
        after = [*first, *(each for each in before if each != self.own())][:MOST]
        if after == before:
            return
        metadata = {**(found["metadata"] if found else {"name": KEY.name, "namespace": KEY.namespace})}
        metadata["annotations"] = {**metadata.get("annotations", {}), SERVERS: ",".join(after)}
        lease = {
            **(found or {"apiVersion": Lease.resource.api_version, "kind": Lease.resource.kind, "spec": {}}),
            "metadata": metadata,
        }
        made = lease if found else born(lease, uid=self.new_uid(), now=stamp(self.clock.now()))
        await self.store.commit([Put(KEY, pack(Lease.resource, made), entry.revision if entry else ABSENT)])


def listed(annotations: dict[str, str]) -> list[str]:
    return [each for each in annotations.get(SERVERS, "").split(",") if each]
