"""`lattice sim` refuses what would prove nothing, says how far it has come, and notices a history that differs."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from lattice.cli.main import cli
from lattice.sim import report
from lattice.sim.report import Summary


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["run", "--seeds", "0"], id="no seeds"),
        pytest.param(["run", "--seeds", "-3"], id="fewer than none"),
        pytest.param(["run", "--workers", "0"], id="nobody to run them"),
        pytest.param(["run", "--planted", "nonsense"], id="a bug that nobody planted"),
        pytest.param(["replay", "banana"], id="a seed that is no number"),
    ],
)
def test_what_would_prove_nothing_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(cli, ["sim", *words])
    assert done.exit_code != 0
    assert "violations" not in done.output


def pretended(seeds: range, workers: int = 2, planted: str = "") -> Iterator[Summary]:
    for seed in seeds:
        yield Summary(seed, f"history-{seed}", "", 0.5, {"revisions": 10}, {"crash": 2, "lag": 0})


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "run_many", pretended)


def test_every_hundred_seeds_a_line_says_how_far_it_has_come_and_the_end_is_two_lines() -> None:
    done = CliRunner().invoke(cli, ["sim", "run", "--seeds", "250"])
    assert [line.split(",")[0] for line in done.stderr.splitlines()] == [
        "100 of 250 seeds",
        "200 of 250 seeds",
    ]
    assert done.stderr.splitlines()[1].endswith("a second, 400 faults, 0 violations")
    assert done.stdout.splitlines() == [
        "250 runs, 0 violations, 2,500 revisions; 0.50 seconds of a processor each",
        "faults: crash 500",
    ]


@pytest.mark.parametrize(
    ("other", "said", "code"),
    [
        pytest.param("history-1", "2 run twice, 0 with another history", 0, id="equal"),
        pytest.param("another", "2 run twice, 1 with another history: 1", 1, id="one differs"),
    ],
)
def test_a_history_that_differs_the_second_time_is_named(
    monkeypatch: pytest.MonkeyPatch, other: str, said: str, code: int
) -> None:
    monkeypatch.setattr(report, "digests_elsewhere", lambda *_: {0: "history-0", 1: other})
    done = CliRunner().invoke(cli, ["sim", "run", "--seeds", "2", "--twice"])
    assert done.output.splitlines()[-1] == said
    assert done.exit_code == code
