"""`python -m bench [--quick] [subject...]`: measures speed and memory, prints a table, and saves the table in
bench/results."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import api, fanout, lists, machine, memory, refusals, startup, stores
from bench.report import Report
from bench.scale import FULL, QUICK, Scale

SUBJECTS: dict[str, Callable[[Report, Scale, Path], None]] = {
    "startup": startup.measure,
    "stores": stores.measure,
    "api": api.measure,
    "refusals": refusals.measure,
    "lists": lists.measure,
    "fanout": fanout.measure,
    "memory": memory.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "subjects", nargs="*", metavar="subject", help=f"some of {', '.join(SUBJECTS)}; all if none is named"
    )
    parser.add_argument(
        "--quick", action="store_true", help="everything small, to see that it runs; nothing is kept"
    )
    options = parser.parse_args()
    if unknown := [name for name in options.subjects if name not in SUBJECTS]:
        parser.error(f"no such subject: {unknown[0]}; there are {', '.join(SUBJECTS)}")
    report = Report(machine.facts())
    print("; ".join(f"{fact} {value}" for fact, value in report.machine.items()))
    for name in options.subjects or SUBJECTS:
        report.begin(name)
        # The system's temporary folder may be memory, where no write is durable and every write is fast.
        with tempfile.TemporaryDirectory(prefix=".lattice-bench-", dir=Path.cwd()) as folder:
            SUBJECTS[name](report, QUICK if options.quick else FULL, Path(folder))
    if not options.quick and not options.subjects:
        report.save("latest")
    print(f"\n{len(report.missed)} aims missed" if report.missed else "\nevery aim reached")
    return 0


if __name__ == "__main__":
    sys.exit(main())
