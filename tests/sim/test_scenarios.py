"""Each scenario says what it said before. `REWRITE=1` writes what is said now, to be read like code."""

import os
from pathlib import Path

import pytest

from lattice.sim.report import apart
from lattice.sim.script import blocks, played, written

HERE = Path(__file__).parent
SCENARIOS = sorted(path.name for path in HERE.glob("*.txt"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_says_what_it_said_before(name: str) -> None:
    text = (HERE / name).read_text()
    said = apart(lambda: played(text), str)
    if os.environ.get("REWRITE"):
        (HERE / name).write_text(said)
    assert said == (text if not os.environ.get("REWRITE") else said)


def test_there_are_enough_of_them_and_each_opens_with_what_it_shows() -> None:
    assert len(SCENARIOS) >= 25
    assert [name for name in SCENARIOS if not (HERE / name).read_text().startswith("# ")] == []


def test_a_scenario_is_read_and_written_unchanged() -> None:
    text = "# A sentence.\nworld\n\nshow nodes\n----\nrack-1: Ready\n"
    assert written(blocks(text)) == text


def test_a_command_that_is_not_there_is_refused() -> None:
    with pytest.raises(RuntimeError, match="there is no command 'dance'"):
        apart(lambda: played("dance\n"), str)
