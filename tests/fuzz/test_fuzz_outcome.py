"""The table at the end of a fuzz run shows the outcome of each parser, and a run that ended badly is never
shown as clean."""

import pytest
from fuzz.outcome import outcome_of, table

DONE = (
    "#2\tINITED cov: 2 ft: 2\n#528223\tDONE   cov: 41 ft: 4 corp: 2/105b\nDone 528223 runs in 600 second(s)\n"
)
CRASHED = (
    "#2\tINITED cov: 2 ft: 2\n#700\tNEW    cov: 9 ft: 3\n === Uncaught Python exception: ===\nKeyError: 'x'\n"
)


@pytest.mark.parametrize(
    ("code", "said", "row"),
    [
        pytest.param(0, DONE, "| token | 528,223 | 600 | 41 | nothing found |", id="to the end"),
        pytest.param(77, CRASHED, "| token | 700 | 0 | 9 | FOUND |", id="an exception"),
        pytest.param(0, "", "| token | 0 | 0 | 0 | FOUND |", id="without a word"),
        pytest.param(-9, DONE, "| token | 528,223 | 0 | 41 | FOUND |", id="killed after it was done"),
    ],
)
def test_outcome_row(code: int, said: str, row: str) -> None:
    assert outcome_of("token", code, said).row == row


def test_outcome_table_ends_with_sum_and_crashes() -> None:
    lines = table([outcome_of("body", 0, DONE), outcome_of("token", 77, CRASHED)]).splitlines()
    assert lines[5] == "2 parsers, 528,923 inputs; 1 found something"
    assert lines[6].startswith("token: ")
    assert lines[-1] == "KeyError: 'x'"
