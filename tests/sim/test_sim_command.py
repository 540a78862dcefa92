"""`lattice sim` refuses vacuous runs, reports progress, and detects a nondeterministic history."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from lattice.cli.main import cli
from lattice.sim import seed_runner
from lattice.sim.seed_runner import SeedSummary
from lattice.sim.world.run import without_texts


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["run", "--seeds", "0"], id="no seeds"),
        pytest.param(["run", "--seeds", "-3"], id="fewer than none"),
        pytest.param(["run", "--workers", "0"], id="no workers"),
        pytest.param(["run", "--planted", "nonsense"], id="an unknown planted bug"),
        pytest.param(["replay", "banana"], id="a seed that is no number"),
    ],
)
def test_vacuous_runs_are_refused(words: list[str]) -> None:
    done = CliRunner().invoke(cli, ["sim", *words])
    assert done.exit_code != 0
    assert "violations" not in done.output


def pretended(
    seeds: range, workers: int = 2, planted: str = "", *, with_decisions: bool = False
) -> Iterator[SeedSummary]:
    for seed in seeds:
        decisions = f"decisions-{seed}" if with_decisions else ""
        yield SeedSummary(
            seed,
            f"history-{seed}",
            "",
            0.5,
            {"revisions": 10},
            {"crash": 2, "lag": 0},
            decisions_digest=decisions,
        )


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_runner, "run_seeds", pretended)


def test_run_reports_progress_and_a_summary() -> None:
    done = CliRunner().invoke(cli, ["sim", "run", "--seeds", "250"])
    assert [line.split(",")[0] for line in done.stderr.splitlines()] == [
        "100 of 250 seeds",
        "200 of 250 seeds",
    ]
    assert done.stderr.splitlines()[1].endswith("a second, 400 faults, 0 violations")
    assert done.stdout.splitlines() == [
        "250 runs, 0 violations, 2,500 revisions; 0.50 CPU seconds each",
        "faults: crash 500",
    ]


@pytest.mark.parametrize(
    ("other", "said", "code"),
    [
        pytest.param("history-1", "2 seeds run twice, 0 with a different history", 0, id="equal"),
        pytest.param("another", "2 seeds run twice, 1 with a different history: 1", 1, id="one differs"),
    ],
)
def test_nondeterministic_history_is_reported(
    monkeypatch: pytest.MonkeyPatch, other: str, said: str, code: int
) -> None:
    monkeypatch.setattr(seed_runner, "digests_in_new_process", lambda *_: {0: "history-0", 1: other})
    done = CliRunner().invoke(cli, ["sim", "run", "--seeds", "2", "--twice"])
    assert done.output.splitlines()[-1] == said
    assert done.exit_code == code


@pytest.mark.parametrize(
    ("flag", "digest"),
    [
        pytest.param("--digests", "history-0", id="the whole history by default"),
        pytest.param("--digests=full", "history-0", id="the whole history by name"),
        pytest.param("--digests=decisions", "decisions-0", id="without messages and explanations"),
    ],
)
def test_digests_are_printed_per_seed(flag: str, digest: str) -> None:
    done = CliRunner().invoke(cli, ["sim", "run", "--seeds", "1", flag])
    assert done.stdout.splitlines()[0] == f"0 {digest}"


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        pytest.param(
            b'{"status":{"node":"a","conditions":[{"type":"Ready","message":"other words"}],"decision":{}}}',
            True,
            id="words",
        ),
        pytest.param(
            b'{"status":{"conditions":[{"message":"","type":"Ready"}],"node":"a"}}', True, id="order of keys"
        ),
        pytest.param(
            b'{"status":{"node":"b","conditions":[{"type":"Ready","message":"one"}]}}',
            False,
            id="another node",
        ),
        pytest.param(
            b'{"status":{"node":"a","conditions":[{"type":"Placed","message":"one"}]}}',
            False,
            id="another condition",
        ),
    ],
)
def test_decision_digests_ignore_messages(other: bytes, is_equal: bool) -> None:
    stored = b'{"status":{"node":"a","conditions":[{"type":"Ready","message":"one"}]}}'
    assert (without_texts(stored) == without_texts(other)) is is_equal
