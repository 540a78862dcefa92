"""The whole control plane under faults drawn from seeds keeps its promises, and the same seed is the same run."""

import os
import subprocess
import sys

import pytest

from lattice.sim.planted import PLANTED
from lattice.sim.report import run_many, shown

SEEDS = 52  # of the test command; `make sim` runs more
CHUNK = 13
SOON = 8  # seeds: a planted bug of those below is found by one of the first; the rest is in docs/reliability.md
FOUND_SOON = ("no-fence", "float-money", "started-twice", "lost-write")
# Each was a bug that a seed found. What it was is told in docs/reliability.md; other code draws other runs, so these are kept as they are.
KEPT = {
    "a status that was written every two seconds": 1,
    "a relief that was refused and tried without end": 4,
    "a new leader that made needed replicas give way": 10,
    "an update without room that stopped what ran": 11,
    "an update that waited for room in one place and left another empty": 24,
    "a locked node that was cordoned before it was bound to": 26,
    "a node that shrank while somebody waited for room on it": 30,
    "a node that was cordoned while somebody waited for room on it": 35,
    "a machine that ended while its node was leaving": 47,
    "a month that ended while a clock was behind": 52,
    "a machine that was begun while its cluster shrank": 82,
    "a drain and an update that counted on the same replica": 91,
    "a replica that was not heard of when its node was drained, and then was": 325,
    "a machine that had joined and was not judged yet": 338,
    "a service that was to have fewer replicas, one of which made room": 515,
}


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_promise_is_broken(first: int) -> None:
    wrong = [line for each in run_many(range(first, first + CHUNK), workers=1) if not each.is_sound for line in shown(each)]
    assert wrong == []


LATER = {what: seed for what, seed in KEPT.items() if seed >= SEEDS}  # the others are run with the rest


@pytest.mark.parametrize("seed", LATER.values(), ids=LATER)
def test_what_was_found_once_stays_mended(seed: int) -> None:
    wrong = [line for each in run_many([seed], workers=1) if not each.is_sound for line in shown(each)]
    assert wrong == []


@pytest.mark.parametrize("name", FOUND_SOON)
def test_a_planted_bug_is_found(name: str) -> None:
    runs = (run for seed in range(SOON) for run in run_many([seed], 1, name))
    assert any({each[0] for each in run.violations} & set(PLANTED[name].finds) for run in runs)


def test_the_same_seed_is_the_same_history_whatever_strings_hash_to() -> None:
    words = ["sim", "run", "--first", "3", "--seeds", "3", "--workers", "1", "--digests", "--twice"]
    said = subprocess.run(
        [sys.executable, "-m", "lattice", *words], env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len({line.split()[1] for line in said[:3]}) == 3
    assert said[-1] == "3 run twice, 0 with another history"
