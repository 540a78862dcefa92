"""Tests that share an expensive fixture form one group, which must run in one process."""

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import os
from pathlib import Path

import pytest

pytestmark = [pytest.mark.xdist_group("one"), pytest.mark.timeout(60)]


@pytest.mark.parametrize("number", range(4))
def test_group_member(number: int) -> None:
    with Path("workers").open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def test_tests_of_one_group_run_in_one_process(tmp_path: Path) -> None:
    for name in ("test_first.py", "test_second.py"):
        (tmp_path / name).write_text(MODULE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
        "-n",
        "2",
        "--dist",
        "loadgroup",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    workers = (tmp_path / "workers").read_text().split()
    assert (len(workers), len({*workers})) == (8, 1), (
        f"the installed pytest {pytest.__version__} and pytest-xdist do not keep groups together"
    )
