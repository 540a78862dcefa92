"""Copies of the package with one mutated line at a time, and the check that the tests named by a
specification detect the mutation."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from docs.specification import Row, Specification

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lattice"
TESTS_FAILED = 1  # pytest's exit code; others mean that the tests could not even be run


def assert_mutation_applies(row: Row) -> None:
    """The named location exists, and the mutation applies to exactly one line there."""
    result: object = import_module(row.module)
    for name in row.symbol.split("."):
        result = getattr(result, name)
    assert row.slip.old != row.slip.new
    assert "\n" not in row.slip.old + row.slip.new
    assert (SOURCE / row.slip.file).read_text().count(row.slip.old) == 1, (
        f"{row.slip.old} must stand once in {row.slip.file}"
    )


class MutablePackage:
    """A copy of the package in which one line at a time is mutated."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(SOURCE, folder / "lattice", ignore=shutil.ignore_patterns("__pycache__"))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        ours = ("PYTEST_", "PYTHON", "HYPOTHESIS_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environment |= {
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder),
        }
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
        )

    def test(self, *ids: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "pytest", "-x", "--tb=line", "--timeout", "90", "-p", "no:cacheprovider", *ids)

    def test_with_mutation(self, row: Row) -> subprocess.CompletedProcess[str]:
        path = self.folder / "lattice" / row.slip.file
        right = path.read_text()
        path.write_text(right.replace(row.slip.old, row.slip.new))
        try:
            return self.test(row.test_id)
        finally:
            path.write_text(right)

    def assert_detected(self, row: Row) -> None:
        done = self.test_with_mutation(row)
        if done.returncode == 0 and _count(done, "skipped"):
            pytest.skip(f"{row.test_id} is skipped here")
        assert done.returncode == TESTS_FAILED, (
            f"{row.test_id} says nothing about {row.slip}:\n{done.stdout}{done.stderr}"
        )

    def assert_tests_exist(self, specification: Specification) -> None:
        """The named tests are collected."""
        done = self.run("-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *specification.test_ids)
        assert done.returncode == 0, done.stdout + done.stderr

    def assert_tests_pass(self, specification: Specification) -> None:
        """The named tests pass without a mutation, so a failure is caused by the mutation."""
        ids = specification.test_ids
        done = self.test(*ids)
        assert done.returncode == 0, done.stdout + done.stderr
        assert _count(done, "passed") + _count(done, "skipped") >= len(ids)


def _count(done: subprocess.CompletedProcess[str], outcome: str) -> int:
    result = re.search(rf"(\d+) {outcome}", done.stdout)
    return int(result[1]) if result else 0


@contextmanager
def a_mutable_package(folder: Path) -> Iterator[MutablePackage]:
    made = MutablePackage(folder)
    assert made.run("-c", "import lattice; print(lattice.__file__)").stdout.startswith(str(folder)), (
        "another package is tested"
    )
    yield made
    shutil.rmtree(folder)
