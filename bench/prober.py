"""Measures the delay of a small get under load, from a separate process, so that only the server can delay
the request."""

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.load import target
from bench.wire import Line

PROBE_INTERVAL_S = 0.005


@dataclass
class Probe:
    """Delays in milliseconds, filled when the probe ends."""

    longest: float = 0.0
    median: float = 0.0
    count: int = 0


@contextlib.contextmanager
def probing(kubeconfig: Path, path: str) -> Iterator[Probe]:
    command = [sys.executable, "-m", "bench.prober", str(kubeconfig), path]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "ready"
    probe = Probe()
    try:
        yield probe
    finally:
        output, _ = child.communicate("stop\n", timeout=60)
    waits = sorted(json.loads(output))
    probe.longest, probe.median, probe.count = waits[-1] * 1000, waits[len(waits) // 2] * 1000, len(waits)


def main(kubeconfig: str, path: str) -> None:
    line = Line(target(Path(kubeconfig)))
    line.ask(path)
    print("ready", flush=True)
    waits = []
    while not select.select([sys.stdin], [], [], PROBE_INTERVAL_S)[0]:
        began = time.perf_counter()
        line.ask(path)
        waits.append(time.perf_counter() - began)
    print(json.dumps(waits))
    line.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
