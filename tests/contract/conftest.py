"""The stores that the contract suite runs on."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from build.etcd_server import EtcdServer, running_etcd

from lattice.clock import SystemClock
from lattice.sim.world.event_loop import Process, SimLoop
from lattice.sim.world.network import Network
from lattice.sim.world.store import HistoryStore, StoreClient
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Store
from lattice.store.sqlite.store import SqliteStore

OpenStore = Callable[[], AbstractAsyncContextManager[Store]]
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@asynccontextmanager
async def opened(name: str, folder: Path, server: EtcdServer | None) -> AsyncIterator[Store]:
    """An empty store of one kind."""
    store: Store
    if name == "memory":
        store = MemoryStore(SystemClock())
    elif name == "simulated":
        store = simulated()
    elif name == "sqlite":
        store = await SqliteStore.open(folder / f"state-{next(_numbers)}.db", SystemClock())
    else:
        from lattice.store.etcd.store import EtcdStore

        assert server is not None
        store = await EtcdStore.open(server.url(f"test-{next(_numbers)}"), SystemClock())
    try:
        yield store
    finally:
        await store.close()


class RealTime:
    """What the simulated network asks of its loop, of one in which time passes."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.time, self.call_at, self.create_future = (
            self._loop.time,
            self._loop.call_at,
            self._loop.create_future,
        )

    def schedule_external(self, when: float, deliver: Callable[..., object], *args: object) -> None:
        self._loop.call_at(when, deliver, *args)


def simulated() -> Store:
    """The store of the simulation, as one of its servers reaches it."""
    loop = RealTime()
    net = Network(cast("SimLoop", loop), random.Random(1), delay=1e-6)
    return StoreClient(HistoryStore(SystemClock(), loop.time), net, Process("s1#1", "s1"), lambda: 0.0)


@pytest.fixture(params=["memory", "simulated", "sqlite", "etcd"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    server: EtcdServer | None = request.getfixturevalue("etcd") if request.param == "etcd" else None
    if server is not None:
        server.revoke_leases()
    return lambda: opened(request.param, tmp_path, server)
