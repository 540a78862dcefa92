"""Measures the start of the CLI and of a server until the first answer."""

import subprocess
import sys
import time
from pathlib import Path

from build.servers import running_server

from bench.report import Report
from bench.scale import Scale

LATTICE = Path(sys.executable).with_name("lattice")


def measure(report: Report, scale: Scale, folder: Path) -> None:
    seconds = []
    for _ in range(scale.starts):
        began = time.perf_counter()
        subprocess.run([LATTICE, "--help"], stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - began)
    report.add(f"lattice --help, best of {scale.starts}", min(seconds) * 1000, "ms", at_most=150)
    for name in ("first start of lattice up, until it answers", "second start on the same data"):
        began = time.perf_counter()
        with running_server(folder / "data"):
            report.add(name, (time.perf_counter() - began) * 1000, "ms")
