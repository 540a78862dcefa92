"""Is every demand of the specification met where the page says, and would its test notice if it were not?"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from docs.spec003 import ROWS, SPECIFICATION, Row

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "lattice"
SAMPLE = ROWS[9 :: len(ROWS) // 6]  # a few of them each time, from all over; the rest with `make prove`
# How many demands each section of the specification makes, counted in its own text and not in our rows, so that a row that goes
# missing is noticed: the lines of its table plus its list of what is missing; in the gaps and recommendations the numbered points.
# A line that names two things counts twice: pod_affinity and pod_anti_affinity in 2, the events of success and failure in 5.
COUNTS = {
    "Overview": 7,
    "1. scheduling.resources": 15,  # 10 in the table, 5 missing
    "2. scheduling.filter": 13,  # 10 and 3
    "3. scheduling.score": 13,  # 11 and 2
    "4. scheduling.select": 13,  # 11 and 2
    "5. scheduling.bind": 13,  # 9 and 4
    "6. scheduling.feasibility": 10,
    "7. scheduling.scheduler": 11,
    "Gaps: fully missing": 10,
    "Gaps: partial": 4,
    "Recommendations: immediate": 2,
    "Recommendations: short-term": 4,
    "Recommendations: long-term": 5,
}
TESTS_FAILED = 1  # pytest's exit code; others mean that the tests could not even be run


def row_ids(rows: Iterable[Row]) -> list[str]:
    titles = {id(row): section.title for section in SPECIFICATION for row in section.rows}
    return [f"{titles[id(row)]} - {row.item}" for row in rows]


def test_no_demand_is_left_out_or_listed_twice() -> None:
    assert {section.title: len({row.item for row in section.rows}) for section in SPECIFICATION} == COUNTS


@pytest.mark.parametrize("row", ROWS, ids=row_ids(ROWS))
def test_the_place_exists_and_the_slip_is_possible_there(row: Row) -> None:
    found: object = import_module(row.module)
    for name in row.symbol.split("."):
        found = getattr(found, name)
    assert row.slip.old != row.slip.new
    assert "\n" not in row.slip.old + row.slip.new
    assert (SOURCE / row.slip.file).read_text().count(row.slip.old) == 1, f"{row.slip.old} must stand once in {row.slip.file}"


def test_no_slip_serves_two_demands() -> None:
    assert len({row.slip for row in ROWS}) == len(ROWS)


class Copy:
    """The package in another folder, where one line at a time may be wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(SOURCE, folder / "lattice", ignore=shutil.ignore_patterns("__pycache__"))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        ours = ("PYTEST_", "PYTHON", "HYPOTHESIS_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environment |= {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder)}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def test(self, *ids: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "pytest", "-x", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", *ids)

    def test_with_slip(self, row: Row) -> subprocess.CompletedProcess[str]:
        path = self.folder / "lattice" / row.slip.file
        right = path.read_text()
        path.write_text(right.replace(row.slip.old, row.slip.new))
        try:
            return self.test(row.test_id)
        finally:
            path.write_text(right)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    made = Copy(tmp_path_factory.mktemp("package"))
    assert made.run("-c", "import lattice; print(lattice.__file__)").stdout.startswith(str(made.folder)), "another package is tested"
    yield made
    shutil.rmtree(made.folder)


def assert_noticed(package: Copy, row: Row) -> None:
    done = package.test_with_slip(row)
    assert done.returncode == TESTS_FAILED, f"{row.test_id} says nothing about {row.slip}:\n{done.stdout}{done.stderr}"


@pytest.mark.xdist_group("spec003")
def test_the_tests_named_exist_and_pass(package: Copy) -> None:
    """Without a slip, in the same copy: so it is the slip that they fail for."""
    ids = sorted({row.test_id for row in ROWS})
    done = package.test(*ids)
    assert done.returncode == 0, done.stdout + done.stderr
    count = re.search(r"(\d+) passed", done.stdout)
    assert count
    assert int(count[1]) >= len(ids)


@pytest.mark.xdist_group("spec003")
@pytest.mark.parametrize("row", SAMPLE, ids=row_ids(SAMPLE))
def test_a_slip_is_noticed(package: Copy, row: Row) -> None:
    assert_noticed(package, row)


@pytest.mark.prove
@pytest.mark.parametrize("row", ROWS, ids=row_ids(ROWS))
def test_every_slip_is_noticed(package: Copy, row: Row) -> None:
    assert_noticed(package, row)
