"""Measures the memory of a server, idle and under load."""

import asyncio
import time
from pathlib import Path

from build.servers import running_server

from bench import objects
from bench.load import drive, target
from bench.machine import resident_mib
from bench.report import Report
from bench.scale import Scale

# Seconds until the server has started completely.
SETTLE_S = 1.0


def measure(report: Report, scale: Scale, folder: Path) -> None:
    with running_server(folder / "data") as server:
        pid, at = server.process.pid, target(server.kubeconfig)
        time.sleep(SETTLE_S)
        report.add("idle", resident_mib(pid), "MiB", at_most=100)
        asyncio.run(drive(at, objects.creates("memory", scale.objects)))
        report.add(f"with {scale.objects:,} objects of 1 KB", resident_mib(pid), "MiB")
        asyncio.run(drive(at, objects.gets("memory", scale.objects, scale.gets)))
        report.add(f"after {scale.gets:,} gets", resident_mib(pid), "MiB")
