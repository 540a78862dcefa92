"""Servers that share a store list one another: each registers once and deregisters when it stops."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from build.agent_world import a_rng
from build.virtual import VirtualClock

from lattice.errors import Unavailable
from lattice.kinds.core import Lease
from lattice.server.agents.server_directory import MAX_LISTED_SERVERS, SERVERS_LEASE_KEY, ServerDirectory
from lattice.store.cache import Cache
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Entry


def _lease(entry: Entry) -> Lease:
    return msgspec.json.decode(entry.value, type=Lease)


@asynccontextmanager
async def shared_store() -> AsyncIterator[tuple[MemoryStore, VirtualClock, Cache[Lease]]]:
    clock = VirtualClock()
    store = MemoryStore(clock)
    leases: Cache[Lease] = Cache(store, Lease.resource.id, _lease, clock, a_rng(), freeze=False)
    task = asyncio.create_task(leases.run())
    yield store, clock, leases
    task.cancel()


def a_directory(store: MemoryStore, clock: VirtualClock, leases: Cache[Lease], name: str) -> ServerDirectory:
    return ServerDirectory(store, clock, lambda: "uid", lambda: f"https://{name}:7443", leases)


async def test_directory_lists_registered_servers() -> None:
    async with shared_store() as (store, clock, leases):
        a, b, c = (a_directory(store, clock, leases, name) for name in "abc")
        assert a.urls() == ["https://a:7443"], "itself, registered or not"
        await asyncio.gather(
            *(asyncio.wait_for(asyncio.shield(server.register()), 10) for server in (a, b, c)),
            clock.advance(10),
        )
        assert (sorted(a.urls()), a.urls()[0]) == (
            ["https://a:7443", "https://b:7443", "https://c:7443"],
            "https://a:7443",
        )
        before = await store.revision()
        await b.register()
        again = await store.revision()
        assert sorted(c.urls()) == sorted(a.urls())
        assert again - before <= 1, "a restart at the same address is not listed twice"
        await b.deregister()
        await clock.advance(1)
        assert sorted(a.urls()) == ["https://a:7443", "https://c:7443"]


async def test_directory_drops_oldest_beyond_limit() -> None:
    async with shared_store() as (store, clock, leases):
        for number in range(MAX_LISTED_SERVERS + 3):
            await a_directory(store, clock, leases, f"s{number}").register()
        await clock.advance(1)
        last = a_directory(store, clock, leases, f"s{MAX_LISTED_SERVERS + 2}")
        assert last.urls() == [f"https://s{number}:7443" for number in range(MAX_LISTED_SERVERS + 2, 2, -1)]


async def test_register_retries_but_deregister_does_not_wait() -> None:
    async with shared_store() as (store, clock, leases):
        server, commit, tries = a_directory(store, clock, leases, "a"), store.commit, []

        async def away(*_: object, **__: object) -> int:
            tries.append(clock.monotonic())
            raise Unavailable("the store is away")

        store.commit = away  # type: ignore[method-assign]
        enrolling = asyncio.create_task(server.register())
        await clock.advance(5)
        assert len(tries) > 3
        store.commit = commit  # type: ignore[method-assign]
        await clock.advance(2)
        assert enrolling.done()
        store.commit = away  # type: ignore[method-assign]
        await asyncio.wait_for(server.deregister(), 10)
        assert await store.get(SERVERS_LEASE_KEY) is not None
