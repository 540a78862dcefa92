"""The lint of names and docstrings finds its targets and accepts good code."""

from pathlib import Path

import pytest

from lint.language import lint, main, measure

GOOD = '''"""Evict replicas from nodes that are draining."""


def evict(nodes: list[str]) -> list[str]:
    """Return the nodes whose replicas were evicted."""
    return [node for node in nodes if node]  # an empty name is a node that was deleted meanwhile
'''


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param('"""Which replicas leave a node?"""\n', "does not ask", id="a question"),
        pytest.param('"""Evicts whoever runs there."""\n', "'whoever'", id="a person in a docstring"),
        pytest.param(
            '"""Evict replicas."""\nx = 1  # for somebody else\n', "'somebody'", id="a person in a comment"
        ),
        pytest.param('"""Evict replicas."""\nfor each in ():\n    pass\n', "'each'", id="a vague variable"),
        pytest.param('"""Evict replicas."""\ndef evict(found): ...\n', "'found'", id="a vague parameter"),
        pytest.param('"""Evict replicas."""\nclass Office: ...\n', "'office'", id="a metaphor"),
    ],
)
def test_lint_finds(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "module.py"
    findings = list(lint(path, text, tmp_path))
    assert len(findings) == 1
    assert problem in findings[0].problem


def test_good_code_has_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(GOOD)
    assert list(lint(path, GOOD, tmp_path)) == []
    assert main([str(tmp_path)]) == 0


def test_folder_without_modules_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "there is no Python module here" in capsys.readouterr().out


def test_figures_count_correctly(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(GOOD)
    figures = measure(tmp_path)
    assert (
        figures.comprehensions,
        figures.nested_comprehensions,
        figures.functions,
        figures.comment_lines,
    ) == (1, 0, 1, 1)
    assert figures.names == {"nodes": 1, "node": 1}
