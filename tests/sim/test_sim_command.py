"""`lattice sim` refuses what would prove nothing."""

import pytest
from click.testing import CliRunner

from lattice.cli.main import cli


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
