"""The lint of names and docstrings finds its targets and accepts good code."""

from pathlib import Path

import pytest

from lint.language import lint, main, measure

GOOD = '''"""Evict replicas from draining nodes."""


def evict(nodes: list[str]) -> list[str]:
    """Return the nodes whose replicas were evicted."""
    return list(filter(None, nodes))  # an empty name is a deleted node
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
        pytest.param('"""Evict replicas."""\nself.found = 1\n', "'found'", id="a vague attribute"),
        pytest.param('"""Evict replicas."""\ndef told(): ...\n', "'told'", id="a vague function"),
        pytest.param('"""Evict replicas."""\nmyTurns = 1\n', "'turns'", id="a metaphor in a variable"),
        pytest.param('"""Evict replicas."""\nimport os as thing\n', "'thing'", id="a vague alias"),
        pytest.param(
            '"""Evict replicas."""\ntry: ...\nexcept OSError as what: ...\n', "'what'", id="a vague exception"
        ),
        pytest.param(
            '"""Evict replicas."""\nmatch 1:\n    case found: ...\n', "'found'", id="a vague capture"
        ),
        pytest.param('"""Which leave? The evicted."""\n', "does not ask", id="a question before a statement"),
        pytest.param(
            '"""Evict replicas."""\nx = "ask someone who knows"\n', "'someone'", id="a person in a message"
        ),
    ],
)
def test_lint_finds(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "module.py"
    findings = list(lint(path, text, tmp_path))
    assert findings
    assert problem in findings[0].problem


def test_good_code_has_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(GOOD)
    assert list(lint(path, GOOD, tmp_path)) == []
    assert main([str(tmp_path)]) == 0


def test_missed_goal_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = GOOD.replace("list(", "list(" + " " * 200)
    (tmp_path / "module.py").write_text(wide)
    assert main([str(tmp_path)]) == 1
    assert "missed  lines over 110 characters" in capsys.readouterr().out


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
    ) == (0, 0, 1, 1)
    assert figures.names == {"nodes": 1, "evict": 1}
