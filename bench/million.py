"""A million placements in a process of its own: how long, how much memory, and does it slow down?"""

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


def measured(asked: argparse.Namespace) -> dict[str, float]:
    table, profile = cases.node_table(asked.nodes, SIZE), compile_profile(PRESETS["balanced"])
    nodes = [facts for facts in table.node_infos if facts is not None]
    marks = [time.process_time()]
    deciding = 0.0
    gc.freeze()
    for number, asks in enumerate(cases.jobs(table, asked.jobs, asked.tasks), 1):
        began = time.process_time()
        assert can_batch(asks[0], profile, table)
        picks = decide_batch(asks[0], table, profile, len(asks))
        told = list(picks.rejection_counts())
        deciding += time.process_time() - began
        assert len(told) == len(asks)
        for ask, row in zip(asks, picks.rows, strict=True):
            table.assume(ask, row)
        if number % (asked.jobs // 10) == 0:
            marks.append(time.process_time())
    peak = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )  # before verifying, which needs memory of its own
    placed: list[Placed] = [(each.ask, table.names[each.row]) for each in table.placements.values()]
    assert verify(nodes, placed) == asked.jobs * asked.tasks
    tenths = [after - before for before, after in pairwise(marks)]
    return {
        "seconds": marks[-1] - marks[0],
        "deciding": deciding,
        "last_to_first": tenths[0] / tenths[-1],
        "peak": peak,
        "placed": len(placed),
    }


if __name__ == "__main__":
    sys.exit(main())
