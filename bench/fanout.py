"""Measures the delivery of changes to many watchers."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

from build.servers import Server, running_server

from bench import objects
from bench.load import drive, target
from bench.report import Report
from bench.scale import Scale
from bench.wire import Line


def measure(report: Report, scale: Scale, folder: Path) -> None:
    with running_server(folder / "data") as server:
        child = _watchers(server, scale)
        assert child.stdout is not None
        began = time.time()
        written = asyncio.run(drive(target(server.kubeconfig), objects.creates("fan", scale.changes)))
        ended = time.time()
        assert written.count == scale.changes, written.refused
        output, _ = child.communicate(timeout=120)
    summary = json.loads(output)
    assert summary["received"] == [scale.changes] * scale.watchers
    delivered = sum(summary["received"])
    name = f"{scale.watchers} watchers x {scale.changes} changes: events delivered, none missing"
    report.add(name, delivered / (summary["last"] - began), "/s", note=f"{delivered:,} events")
    report.add(
        "from the answer to the last write to the last delivery (0: before it)",
        max(0.0, summary["last"] - ended) * 1000,
        "ms",
    )
    report.add("writes meanwhile", written.rate, "/s", note=f"p99 {written.quantile(0.99):.0f} ms")


def _watchers(server: Server, scale: Scale) -> "subprocess.Popen[str]":
    line = Line(target(server.kubeconfig))
    revision = json.loads(line.ask(objects.SERVICES))["metadata"]["resourceVersion"]
    line.close()
    command = [
        sys.executable,
        "-m",
        "bench.watchers",
        str(server.kubeconfig),
        revision,
        str(scale.watchers),
        str(scale.changes),
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "ready"
    return child
