"""`python -m bench.control_bind [--store memory|sqlite|etcd] [--nodes N] [--workloads M]`: measures bindings
by the scheduling controller alone.

Nodes and workloads are objects in a store; only the scheduling controller runs, over caches. Throughput: from
the first reconcile until every workload is durably bound, with all workloads present at the start. Latency:
workloads are created at a steady rate, from the store's acknowledgement until a cache shows the binding.
"""

import argparse
import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from build.etcd_server import running_etcd

from bench.machine import etcd_version
from bench.report import Report
from lattice.clock import SystemClock
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import run_all
from lattice.controllers.runtime.object_writes import put_new
from lattice.controllers.scheduler.scheduler import SchedulingController
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.presence import Presence
from lattice.scheduling.cycle.profile import preset
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Change, Put, Store
from lattice.store.sqlite.store import SqliteStore

HEAD = {"apiVersion": "lattice.dev/v1alpha1"}
_uids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int = 5000
    workloads: int = 10_000
    # Empty: workloads without a service.
    service: str = "web"
    # Workloads created per second, for the latency.
    rate: float = 30.0
    seconds: float = 10.0
    profile: str = "balanced"


def a_node(number: int) -> Put:
    status = {
        "allocatable": {"cpu": 32_000, "memory": 1 << 38, "workloads": 110},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    body = {
        **HEAD,
        "kind": "LatticeNode",
        "metadata": {"name": f"node-{number}"},
        "spec": {"zone": f"z{number % 3}"},
        "status": status,
    }
    return _put(msgspec.convert(body, LatticeNode))


def a_workload(number: int, service: str) -> Put:
    container = {
        "command": ["serve"],
        "ports": [{"name": "http"}],
        "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}},
    }
    metadata = {
        "name": f"{service or 'bare'}-{number}",
        "namespace": "default",
        "labels": {"app": service or "bare"},
    }
    spec = {"containers": {"main": container}, "service": service, "slot": number}
    return _put(
        msgspec.convert(
            {**HEAD, "kind": "LatticeWorkload", "metadata": metadata, "spec": spec}, LatticeWorkload
        )
    )


def _put(obj: LatticeNode | LatticeWorkload) -> Put:
    return put_new(
        obj, uid=f"00000000-0000-0000-0000-{next(_uids):012d}", now=format_timestamp(SystemClock().now())
    )


@dataclass
class Run:
    store: Store
    size: Size

    async def fill(self, puts: list[Put]) -> None:
        parts = [puts[start : start + 100] for start in range(0, len(puts), 100)]
        for start in range(0, len(parts), 8):
            await asyncio.gather(*(self.store.commit(part) for part in parts[start : start + 8]))

    @asynccontextmanager
    async def acting(self) -> AsyncIterator[ControllerContext]:
        """A controller context with filled caches; the controller has not started."""
        clock = SystemClock()
        term = await self.store.campaign("leader", "bench", 60.0)
        assert term is not None
        self.context = ControllerContext(self.store, clock, term, random.Random(1), Presence(clock))
        self.controller = SchedulingController(self.context, preset(self.size.profile))
        feeds = [asyncio.create_task(cache.run()) for cache in self.context.caches]
        for cache in self.context.caches:
            await cache.wait_for()
        try:
            yield self.context
        finally:
            for feed in feeds:
                feed.cancel()
            await asyncio.gather(*feeds, return_exceptions=True)

    async def throughput(self) -> tuple[float, float]:
        """Durable bindings per second, and per second of the process's own CPU time."""
        await self.fill([a_node(number) for number in range(self.size.nodes)])
        await self.fill([a_workload(number, self.size.service) for number in range(self.size.workloads)])
        async with self.acting() as context:
            bound: set[str] = set()
            done = asyncio.Event()

            def on_change(change: Change) -> None:
                workload = context.cache(LatticeWorkload).get(change.key.path)
                if workload and workload.status.binding:
                    bound.add(change.key.path)
                    if len(bound) == self.size.workloads:
                        done.set()

            context.cache(LatticeWorkload).on_change(on_change)
            began, own = time.perf_counter(), time.process_time()
            acting = asyncio.create_task(run_all([self.controller.loop()]))
            await asyncio.wait_for(done.wait(), 120)
            seconds, own = time.perf_counter() - began, time.process_time() - own
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)
        return self.size.workloads / seconds, self.size.workloads / own

    async def latency(self) -> list[float]:
        """Milliseconds from creation to binding, sorted."""
        latencies: list[float] = []
        created_at: dict[str, float] = {}
        async with self.acting() as context:

            def on_change(change: Change) -> None:
                workload = context.cache(LatticeWorkload).get(change.key.path)
                if workload and workload.status.binding and change.key.path in created_at:
                    latencies.append(1000 * (time.perf_counter() - created_at.pop(change.key.path)))

            context.cache(LatticeWorkload).on_change(on_change)
            acting = asyncio.create_task(run_all([self.controller.loop()]))
            await asyncio.sleep(1)
            for number in range(int(self.size.rate * self.size.seconds)):
                put = a_workload(1_000_000 + number, self.size.service)
                created_at[put.key.path] = time.perf_counter()
                await self.store.commit([put])
                await asyncio.sleep(1 / self.size.rate)
            await asyncio.sleep(0.5)
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)
        return sorted(latencies)


@asynccontextmanager
async def opened(name: str, folder: Path) -> AsyncIterator[Store]:
    store: Store
    if name == "etcd":
        from lattice.store.etcd.store import EtcdStore

        with running_etcd(folder) as server:
            store = await EtcdStore.open(server.url("bind"), SystemClock())
            yield store
            await store.close()
        return
    store = (
        MemoryStore(SystemClock())
        if name == "memory"
        else await SqliteStore.open(folder / "state.db", SystemClock())
    )
    yield store
    await store.close()


def measure_all(report: Report, stores: Sequence[str], counts: tuple[int, int], folder: Path) -> None:
    """The scheduling controller alone: its own share of the rates through the API."""
    size = Size(*counts, seconds=0.0)
    report.begin(f"The scheduling controller alone, {size.nodes:,} nodes")
    for store in stores:
        place = folder / f"bind-{store}"
        place.mkdir()
        if store == "etcd" and not etcd_version():
            report.add(f"{store}: bound durably", None, note="no etcd on the PATH")
            continue
        rate, own = asyncio.run(_throughput(store, size, place))
        report.add(
            f"{store}: {size.workloads:,} bound durably",
            rate,
            "/s",
            note=f"{own:,.0f} per second of its own time",
        )


async def _throughput(name: str, size: Size, folder: Path) -> tuple[float, float]:
    async with opened(name, folder) as store:
        return await Run(store, size).throughput()


async def measure(name: str, size: Size) -> str:
    with tempfile.TemporaryDirectory() as folder:
        async with opened(name, Path(folder)) as store:
            run = Run(store, size)
            rate, own = await run.throughput()
            latencies = await run.latency() if size.seconds else []
    owner = "one service" if size.service else "nobody"
    summary = (
        f"{name}, {size.nodes:,} nodes, {size.workloads:,} of {owner}:"
        f" {rate:,.0f} bound/s, {own:,.0f} per CPU-second"
    )
    if not latencies:
        return summary
    quantiles = [latencies[int(len(latencies) * part)] for part in (0.5, 0.99)]
    return f"{summary}; at {size.rate:g}/s p50 {quantiles[0]:.1f} ms, p99 {quantiles[1]:.1f} ms ({len(latencies)} bound)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="memory", choices=["memory", "sqlite", "etcd"])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--workloads", type=int, default=10_000)
    parser.add_argument("--bare", action="store_true", help="workloads of no service")
    parser.add_argument("--seconds", type=float, default=10.0, help="of steady creation; 0 for none")
    parser.add_argument("--profile", default="balanced")
    options = parser.parse_args()
    size = Size(
        options.nodes,
        options.workloads,
        "" if options.bare else "web",
        seconds=options.seconds,
        profile=options.profile,
    )
    print(asyncio.run(measure(options.store, size)))


if __name__ == "__main__":
    main()
