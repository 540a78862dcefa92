"""The stores that the contract suite runs on."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from contract.etcd_server import EtcdServer, running_etcd
from lattice.clock import SystemClock
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Store
from lattice.store.sqlite import SqliteStore

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
    elif name == "sqlite":
        store = await SqliteStore.open(folder / f"state-{next(_numbers)}.db", SystemClock())
    else:
        from lattice.store.etcd import EtcdStore

        assert server is not None
        store = await EtcdStore.open(server.url(f"test-{next(_numbers)}"), SystemClock())
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(params=["memory", "sqlite", "etcd"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    server = request.getfixturevalue("etcd") if request.param == "etcd" else None
    return lambda: opened(request.param, tmp_path, server)
