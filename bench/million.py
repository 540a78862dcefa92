"""A million placements in a separate process: time, memory, and the rate of the last tenth."""

import argparse
import gc
import json
import resource
import sys
import time
from itertools import pairwise

from bench import cases
from bench.verify import Placed, verify
from lattice.engine.decide_batch import can_batch, decide_batch
from lattice.scheduling.cycle.profile import PRESETS, compile_profile

SIZE = cases.Size(cpu=32_000, memory=64 * cases.GIB, slots=1000)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.million", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=1000)
    print(json.dumps(measured(parser.parse_args())))
    return 0


def measured(options: argparse.Namespace) -> dict[str, float]:
    table, profile = cases.node_table(options.nodes, SIZE), compile_profile(PRESETS["balanced"])
    nodes = [info for info in table.node_infos if info is not None]
    marks = [time.process_time()]
    deciding = 0.0
    gc.freeze()
    for number, asks in enumerate(cases.jobs(table, options.jobs, options.tasks), 1):
        started = time.process_time()
        assert can_batch(asks[0], profile, table)
        picks = decide_batch(asks[0], table, profile, len(asks))
        rejections = list(picks.rejection_counts())
        deciding += time.process_time() - started
        assert len(rejections) == len(asks)
        for ask, row in zip(asks, picks.rows, strict=True):
            table.assume(ask, row)
        if number % (options.jobs // 10) == 0:
            marks.append(time.process_time())
    # Before the verification, which needs memory too.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    placed: list[Placed] = [
        (placement.ask, table.names[placement.row]) for placement in table.placements.values()
    ]
    assert verify(nodes, placed) == options.jobs * options.tasks
    tenths = [end - start for start, end in pairwise(marks)]
    return {
        "seconds": marks[-1] - marks[0],
        "deciding": deciding,
        "last_to_first": tenths[0] / tenths[-1],
        "peak": peak,
        "placed": len(placed),
    }


if __name__ == "__main__":
    sys.exit(main())
