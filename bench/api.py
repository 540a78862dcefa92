"""Measures requests per second of the API over TLS, by store."""

import asyncio
from pathlib import Path

from build.etcd_server import running_etcd
from build.servers import Server, running_server

from bench import objects
from bench.load import Result, drive, target
from bench.machine import etcd_version
from bench.report import Report
from bench.scale import Scale

CLIENTS = 16
AIMS = {"SQLite": (800, 2_500), "etcd": (500, 1_500)}


def measure(report: Report, scale: Scale, folder: Path) -> None:
    with running_server(folder / "sqlite") as server:
        _measure_store(report, scale, server, "SQLite")
    if not etcd_version():
        report.add("API on etcd", None, note="no etcd on the PATH")
        return
    folder.joinpath("etcd").mkdir()
    with (
        running_etcd(folder / "etcd") as etcd,
        running_server(folder / "on-etcd", "--store", etcd.url("bench")) as server,
    ):
        _measure_store(report, scale, server, "etcd")


def _measure_store(report: Report, scale: Scale, server: Server, store: str) -> None:
    at, (fewest_creates, fewest_gets) = target(server.kubeconfig), AIMS[store]
    asyncio.run(drive(at, objects.creates("warm", 50), CLIENTS))
    created = asyncio.run(drive(at, objects.creates("bench", scale.creates), CLIENTS))
    _add_figure(report, f"creates on {store}", created, fewest_creates)
    read = asyncio.run(drive(at, objects.gets("bench", scale.creates, scale.gets), CLIENTS))
    _add_figure(report, f"gets on {store}", read, fewest_gets)


def _add_figure(report: Report, name: str, result: Result, fewest: int) -> None:
    assert not result.refused, result.refused
    delays = f"p50 {result.quantile(0.5):.1f} ms, p99 {result.quantile(0.99):.1f} ms"
    report.add(f"{name}, {CLIENTS} clients over TLS", result.rate, "/s", at_least=fewest, note=delays)
