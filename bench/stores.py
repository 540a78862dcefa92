"""Measures durable puts per second, by store."""

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path

from build.etcd_server import running_etcd

from bench.machine import etcd_version
from bench.report import Report
from bench.scale import Scale
from lattice.clock import SystemClock
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Key, Put, Store
from lattice.store.sqlite.store import SqliteStore

VALUE = b"v" * 1024
COMMITTERS = 64
BULK = 100
_numbers = itertools.count(1)


def measure(report: Report, scale: Scale, folder: Path) -> None:
    asyncio.run(_sqlite(report, scale, folder / "state.db"))
    if not etcd_version():
        report.add("etcd", None, note="no etcd on the PATH")
    else:
        folder.joinpath("etcd").mkdir()
        with running_etcd(folder / "etcd") as server:
            asyncio.run(_etcd(report, scale, server.url("bench")))
    asyncio.run(_memory(report, scale))


async def _sqlite(report: Report, scale: Scale, path: Path) -> None:
    store = await SqliteStore.open(path, SystemClock())
    many = await _rate(store, scale.puts, COMMITTERS)
    report.add("SQLite, 64 committers, synchronous=FULL", many, "puts/s", at_least=8_000)
    report.add("SQLite, one committer", await _rate(store, scale.single_puts, 1), "puts/s")
    await store.close()


async def _etcd(report: Report, scale: Scale, url: str) -> None:
    from lattice.store.etcd.store import EtcdStore

    store = await EtcdStore.open(url, SystemClock())
    report.add("etcd, 64 in flight, one put each", await _rate(store, scale.etcd_puts, COMMITTERS), "puts/s")
    bulk = await _rate(store, scale.etcd_bulk_puts, 4, BULK)
    report.add("etcd, commits of 100 puts, 4 in flight", bulk, "puts/s", at_least=10_000)
    await store.close()


async def _memory(report: Report, scale: Scale) -> None:
    report.add(
        "memory, 64 committers",
        await _rate(MemoryStore(SystemClock()), scale.memory_puts, COMMITTERS),
        "puts/s",
    )


async def _rate(store: Store, puts: int, committers: int, per_commit: int = 1) -> float:
    """Puts per second of 1 KiB values to new keys."""

    async def work(share: int, put: Callable[[], Put]) -> None:
        for _ in range(share):
            await store.commit([put() for _ in range(per_commit)])

    share = max(1, puts // committers // per_commit)
    began = time.perf_counter()
    await asyncio.gather(*(work(share, _put) for _ in range(committers)))
    return share * committers * per_commit / (time.perf_counter() - began)


def _put() -> Put:
    return Put(Key("latticeservices.lattice.dev", "default", f"object-{next(_numbers):08d}"), VALUE)
