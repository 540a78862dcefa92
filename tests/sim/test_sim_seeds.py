"""The control plane violates no invariant under faults drawn from seeds, and a seed always gives the same
run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from build.property_settings import LONG

from lattice.sim.planted_bugs.catalog import PLANTED_BUGS
from lattice.sim.seed_runner import run_in_subprocess, run_seeds, violation_lines
from lattice.sim.world import faults
from lattice.sim.world.faults import FaultPlan

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "reliability.md"

SEEDS = 52  # divided into chunks, each a test
CHUNK = 13
SEEDS_OF_CHUNK = CHUNK if LONG else 3  # `make prove` runs whole chunks, `make sim` 500 seeds
SOON = (
    8  # seeds: a planted bug of those below is found by one of the first; the rest is in docs/reliability.md
)
MOST = 500  # seeds in which each planted bug is found
FOUND_SOON = ("no-fence", "float-money", "started-twice", "lost-write")


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_violate_no_invariant(first: int) -> None:
    wrong = [
        line
        for run in run_seeds(range(first, first + SEEDS_OF_CHUNK), workers=1)
        if not run.is_sound
        for line in violation_lines(run)
    ]
    assert wrong == []


@pytest.mark.parametrize("name", FOUND_SOON)
def test_a_planted_bug_is_found(name: str) -> None:
    runs = (run for seed in range(SOON) for run in run_seeds([seed], 1, name))
    assert any({each[0] for each in run.violations} & set(PLANTED_BUGS[name].violates) for run in runs)


@pytest.mark.parametrize("name", PLANTED_BUGS)
def test_a_bug_can_still_be_planted(name: str) -> None:
    """The names that it changes are there, in the code as it is today."""

    def plant() -> str:
        PLANTED_BUGS[name].plant()
        return "planted"

    assert run_in_subprocess(plant, str) == "planted"


@pytest.mark.prove
@pytest.mark.parametrize("name", PLANTED_BUGS)
def test_every_planted_bug_is_found(name: str) -> None:
    runs = (run for seed in range(MOST) for run in run_seeds([seed], 1, name))
    after = next(
        (
            run.seed + 1
            for run in runs
            if {each[0] for each in run.violations} & set(PLANTED_BUGS[name].violates)
        ),
        0,
    )
    print(f"{name} is found after {after} seeds")
    assert after, f"{name} was not found by {MOST} seeds"


def test_new_fault_kind_leaves_other_plans_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {seed: FaultPlan.from_seed(seed) for seed in range(50)}
    monkeypatch.setattr(
        faults, "FAULT_KINDS", (*faults.FAULT_KINDS[:5], "something new", *faults.FAULT_KINDS[5:])
    )
    after = {seed: FaultPlan.from_seed(seed) for seed in range(50)}
    spared = [seed for seed in before if "something new" not in after[seed].kinds]
    assert 10 < len(spared) < 50
    assert all(after[seed] == before[seed] for seed in spared)


def test_every_found_bug_has_a_regression_test() -> None:
    """Seeds draw other runs when anything changes: what keeps a bug from coming back is a test of its own."""
    rows = (DOCS.read_text().partition("### Bugs that it found")[2]).splitlines()
    named = [
        re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", row)
        for row in rows
        if row.startswith("| ") and not row.startswith(("| what", "|--"))
    ]
    assert len(named) >= 17
    for row in named:
        assert row, "a row names no test"
        for path, test in row:
            assert (ROOT / path).exists(), path
            assert f"def {test}(" in (ROOT / path).read_text() or not test, f"{path}::{test}"


def test_seed_gives_one_history_for_any_hash_seed() -> None:
    words = ["sim", "run", "--first", "3", "--seeds", "3", "--workers", "1", "--digests", "--twice"]
    said = subprocess.run(
        [sys.executable, "-m", "lattice", *words],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len({line.split()[1] for line in said[:3]}) == 3
    assert said[-1] == "3 seeds run twice, 0 with a different history"
