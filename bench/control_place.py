"""Measures the time until workloads are durably bound through the API: many at once, at a steady rate, and a
service of many replicas.

Nodes are in the store as if their agents had registered, without agents, as in the peer's benchmark. The
server waits a day for silent nodes; everything else has the default settings.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import control_objects as objects
from bench.control_check import check
from bench.control_rest import calm
from bench.control_site import NODES, WORKLOADS, Object, Site, a_site, until
from bench.control_watch import Bindings
from bench.load import Result, Target, drive, request
from bench.machine import etcd_version
from bench.report import Report

CLIENTS = 16
# Connections of the steady client that are open at the start.
SPARE_CONNECTIONS = 8
DAY_S, TWO_DAYS_S = "86400", "172800"
PATIENT = ("--node-lost-after", DAY_S, "--replace-after", TWO_DAYS_S)
TIMEOUT_S = 600.0
# Kubernetes on two such cores, quiet: placements a second, and create → bound at 30/s, p50 and p99 in milliseconds.
PEER_RATES = {1000: (164, 180), 5000: (90, 118)}
PEER_DELAYS = {1000: (15, 36), 5000: (28, 88)}
STORES = {"sqlite": "SQLite", "etcd": "etcd"}


@dataclass(frozen=True, slots=True)
class Size:
    nodes: tuple[int, ...] = (1000, 5000)
    workloads: int = 10_000
    # Workloads created per second, for the latency.
    rate: float = 30.0
    seconds: float = 30.0
    stores: tuple[str, ...] = tuple(STORES)


def measure_bare(report: Report, size: Size, folder: Path) -> None:
    for store, nodes in _worlds(report, size, "bare workloads"):
        puts = [objects.paper_node(number) for number in range(nodes)]
        with a_site(folder / f"bare-{store}-{nodes}", store, PATIENT, puts) as site:
            calm(site)
            asyncio.run(_latency(report, site, size, nodes))
            asyncio.run(_throughput(report, site, size, nodes))


def measure_service(report: Report, size: Size, folder: Path) -> None:
    for store, nodes in _worlds(report, size, "one service"):
        flags = (*PATIENT, "--providers", f"{objects.PROVIDER}=fake")
        with a_site(folder / f"service-{store}-{nodes}", store, flags) as site:
            _supply(site, nodes)
            asyncio.run(_service(report, site, size))


def _worlds(report: Report, size: Size, subject: str) -> Iterator[tuple[str, int]]:
    for store in size.stores:
        for nodes in size.nodes:
            report.begin(f"{STORES[store]}, {nodes:,} nodes on paper, {subject}")
            if store == "etcd" and not etcd_version():
                report.add("all of it", None, note="no etcd on the PATH")
                continue
            yield store, nodes


async def _latency(report: Report, site: Site, size: Size, nodes: int) -> None:
    """Send every request at its time, whether or not earlier requests are answered."""
    count = int(size.rate * size.seconds)
    names = [f"steady-{number:06d}" for number in range(count)]
    async with Bindings(site.at, site.revision()) as bindings:
        sent, result = await _steadily(site, names, size.rate)
        await bindings.wait_for(count, TIMEOUT_S)
        latencies = sorted(1000 * (bindings.seen[name][0] - sent[name]) for name in names)
        p50, p99, peer = latencies[count // 2], latencies[count * 99 // 100], PEER_DELAYS.get(nodes)
        peer_notes = (
            [
                f"; the peer's {peer_delay} ms: {peer_delay / own:.1f} times as long"
                for peer_delay, own in zip(peer, (p50, p99), strict=True)
            ]
            if peer
            else ["", ""]
        )
        note = (
            f"{count} created, one every {1000 / size.rate:.0f} ms;"
            f" answered p50 {result.quantile(0.5):.1f} ms"
        )
        report.add(
            f"create → bound at {size.rate:g}/s, p50", p50, "ms", at_most=15, note=note + peer_notes[0]
        )
        report.add(
            f"create → bound at {size.rate:g}/s, p99",
            p99,
            "ms",
            at_most=40,
            note=f"longest {latencies[-1]:.1f} ms{peer_notes[1]}",
        )
        check(site, names, bindings)


async def _steadily(site: Site, names: list[str], rate: float) -> tuple[dict[str, float], Result]:
    """Due times by name, and latencies counted from the due time: a request that is late because of earlier
    requests counts as late."""
    result, line = Result(), Line(site.at)
    await line.open(SPARE_CONNECTIONS)
    began = time.perf_counter()
    due = {name: began + number / rate for number, name in enumerate(names)}
    async with asyncio.TaskGroup() as sending:
        for name, when in due.items():
            await asyncio.sleep(max(0.0, when - time.perf_counter()))
            sending.create_task(_create(line, name, when, result))
    line.close()
    return due, result


async def _create(line: "Line", name: str, due: float, result: Result) -> None:
    head = await line.ask(request("POST", WORKLOADS, objects.workload(name)))
    result.latencies.append(time.perf_counter() - due)
    assert head[9:10] == b"2", head


@dataclass
class Line:
    """Connections to a server for parallel requests; opens a connection whenever no idle connection is left."""

    at: Target
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def open(self, count: int) -> None:
        self._idle += await asyncio.gather(*(self._connected() for _ in range(count)))

    async def ask(self, request: bytes) -> bytes:
        """The head of the response in lower case."""
        reader, writer = self._idle.pop() if self._idle else await self._connected()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        self._idle.append((reader, writer))
        return head

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            self.at.host, self.at.port, ssl=self.at.tls, server_hostname="localhost"
        )


async def _throughput(report: Report, site: Site, size: Size, nodes: int) -> None:
    count = size.workloads
    async with Bindings(site.at, site.revision()) as bindings:
        server, store, began = site.cpu(), site.store_cpu(), time.perf_counter()
        created = await drive(site.at, objects.creates("bare", count), CLIENTS)
        assert created.count == count, created.refused
        last = await bindings.wait_for(count, TIMEOUT_S)
        seconds = last - began
        used = f"server {1000 * (site.cpu() - server) / count:.2f} ms of CPU each" + _store_share(
            site, store, count
        )
        low, high = PEER_RATES.get(nodes, (0, 0))
        peer = f"; {count / seconds / high:.1f} times the peer's {low} to {high}/s" if high else ""
        note = f"acknowledged at {created.rate:,.0f}/s, p50 {created.quantile(0.5):.0f} ms; {used}{peer}"
        report.add(
            f"{count:,} created by {CLIENTS} clients over TLS → all bound",
            count / seconds,
            "/s",
            at_least=500,
            note=note,
        )
        checked = check(site, [f"bare-{number:06d}" for number in range(count)], bindings)
    report.add(
        f"server's memory with {nodes:,} nodes and {checked:,} workloads", _megabytes(site), "MB", at_most=400
    )


def _supply(site: Site, nodes: int) -> None:
    """A cluster of `nodes` machines, created by the controllers for a service of a single replica, whose
    nodes then register on paper."""
    objects.offer(site, nodes)
    objects.apply_service(site, "first", 1)
    until(lambda: len(site.everything(NODES)) == nodes, f"{nodes} nodes are made", TIMEOUT_S, 1.0)
    calm(site)
    site.stop()
    asyncio.run(objects.register_all(site))
    site.start()
    until(
        lambda: all(map(_is_bound, site.everything(WORKLOADS))), "the first service is bound", TIMEOUT_S, 0.5
    )
    calm(site)


def _is_bound(workload: Object) -> bool:
    return bool(workload.get("status", {}).get("binding"))


async def _service(report: Report, site: Site, size: Size) -> None:
    count = size.workloads
    async with Bindings(site.at, site.revision()) as bindings:
        server, store, began = site.cpu(), site.store_cpu(), time.perf_counter()
        await asyncio.to_thread(objects.apply_service, site, "many", count)
        first = await bindings.wait_for(1, TIMEOUT_S) - began
        last = await bindings.wait_for(count, TIMEOUT_S)
        seconds = last - began
        used = f"server {1000 * (site.cpu() - server) / count:.2f} ms of CPU each" + _store_share(
            site, store, count
        )
        note = f"the first after {first:.1f} s; {used}"
        report.add(
            f"a service of {count:,} replicas applied → all bound",
            count / seconds,
            "/s",
            at_least=2000,
            note=note,
        )
        await asyncio.to_thread(calm, site)
        checked = check(site, [f"many-{number}" for number in range(count)], bindings)
    report.add(f"server's memory with {checked:,} workloads", _megabytes(site), "MB")


def _store_share(site: Site, cpu_before: float, count: int) -> str:
    return f", etcd {1000 * (site.store_cpu() - cpu_before) / count:.2f} ms" if site.etcd else ""


def _megabytes(site: Site) -> float:
    return site.resident_mib() * 2**20 / 1e6
