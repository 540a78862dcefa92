"""`python -m bench.control [--quick] [--only PART ...]`: measures the control plane at rest, and the time
until work is durably placed.

Parts: `rest` (agents in separate processes: CPU, memory, writes, and a restart of the server), `bare`
(workloads without a service through the API: latency and throughput), `service` (a service of many replicas),
these two on SQLite and etcd at each number of nodes, and `bind` (the scheduling controller alone, on the same
stores). Every placement is read back and added up at the end of a measurement.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench import control_bind as bind
from bench import control_place as place
from bench import control_rest as rest
from bench import machine
from bench.report import Report

Part = Callable[[Report, rest.Size, place.Size, Path], None]
PARTS: dict[str, Part] = {
    "rest": lambda report, agents, _, folder: rest.measure(report, agents, folder),
    "bare": lambda report, _, work, folder: place.measure_bare(report, work, folder),
    "service": lambda report, _, work, folder: place.measure_service(report, work, folder),
    "bind": lambda report, _, work, folder: bind.measure_all(
        report, work.stores, (max(work.nodes), work.workloads), folder
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    agents, work = rest.Size(), place.Size()
    if options.quick:
        agents, work = rest.Size(50, rest=20.0), place.Size((200,), 1000, seconds=5.0)
    if options.agents:
        agents = replace(agents, agents=options.agents)
    work = replace(
        work,
        nodes=options.nodes or work.nodes,
        workloads=options.workloads or work.workloads,
        stores=tuple(options.store or work.stores),
    )
    report = Report(machine.facts())
    print("; ".join(f"{fact} {value}" for fact, value in report.machine.items()), flush=True)
    for name in options.only or PARTS:
        # The system's temporary folder may be memory, where no write is durable and every write is fast.
        with tempfile.TemporaryDirectory(prefix=".lattice-bench-", dir=Path.cwd()) as folder:
            PARTS[name](report, agents, work, Path(folder))
    is_whole = (agents, work) == (rest.Size(), place.Size()) and not options.only
    if is_whole and not report.unmeasured:
        report.save("control")
    # A figure that could not be measured is no reached aim.
    for figure in report.unmeasured:
        print(f"not measured: {figure.subject}: {figure.what}: {figure.note}")
    verdict = "every aim that was measured is reached" if report.unmeasured else "every aim reached"
    print(f"\n{len(report.missed)} aims missed" if report.missed else f"\n{verdict}")
    return 1 if report.missed or report.unmeasured else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.control", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="one part of it; repeatable, and nothing is kept"
    )
    parser.add_argument(
        "--quick", action="store_true", help="everything small, to see that it runs; nothing is kept"
    )
    parser.add_argument("--agents", type=int, metavar="N", help="agents of the part rest")
    parser.add_argument(
        "--nodes", type=_numbers, metavar="N[,N]", help="nodes on paper of the parts bare and service"
    )
    parser.add_argument(
        "--workloads", type=int, metavar="N", help="workloads of the part bare, replicas of the part service"
    )
    parser.add_argument("--store", action="append", choices=place.STORES, help="one store only; repeatable")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
