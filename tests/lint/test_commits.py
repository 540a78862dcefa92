"""Commit subjects are accepted, or rejected with a reason."""

import pytest

from lint.commits import Commit, main, problems

BODY = "Every finished replica woke the whole queue."


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        pytest.param("scheduling: wake on freed GPUs only", "", id="area and verb"),
        pytest.param("docs, tests: follow the modules", "", id="two areas"),
        pytest.param("placement/fit: try fewer candidates", "", id="a folder below a folder"),
        pytest.param("tests/build: name the builder of nodes", "", id="a folder beside the code"),
        pytest.param("clock: add a timer", "", id="a module"),
        pytest.param("tree: nicer words", "'tree' is no folder", id="an area that does not exist"),
        pytest.param("scheduling: who waits for room hears of it", "begin with a verb", id="no verb"),
        pytest.param("wake on freed GPUs only", "area: verb", id="no area"),
        pytest.param("Scheduling: Wake on freed GPUs", "area: verb", id="upper case"),
        pytest.param("scheduling: wake " + "x" * 60, "77 characters", id="too long"),
    ],
)
def test_subject(subject: str, problem: str) -> None:
    found = list(problems(Commit("abc", subject, BODY, ("src/lattice/clock.py",))))
    assert (problem in found[0] if found else "") == (bool(problem) or "")


@pytest.mark.parametrize(
    ("body", "files", "is_refused"),
    [
        pytest.param(BODY, ("src/lattice/clock.py",), False, id="src with a body"),
        pytest.param("", ("src/lattice/clock.py", "tests/test_clock.py"), True, id="src without a body"),
        pytest.param("", ("docs/tutorial.md",), False, id="docs need none"),
    ],
)
def test_a_change_of_src_needs_a_body(body: str, files: tuple[str, ...], is_refused: bool) -> None:
    assert bool(list(problems(Commit("abc", "clock: add a timer", body, files)))) is is_refused


def test_unknown_commit_range_is_reported_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-commit..HEAD"]) == 2
    assert "not checked" in capsys.readouterr().out
