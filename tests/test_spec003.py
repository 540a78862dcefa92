"""Is every demand of the specification met where the page says, and would its test notice if it were not?"""

from collections.abc import Iterator

import pytest
from slips import Copy, a_copy, assert_possible

from docs.spec003 import SPEC003
from docs.specification import Row

ROWS = SPEC003.rows
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


def test_no_demand_is_left_out_or_listed_twice() -> None:
    assert {section.title: len(set(section.items)) for section in SPEC003.sections} == COUNTS


@pytest.mark.parametrize("row", ROWS, ids=SPEC003.ids(ROWS))
def test_the_place_exists_and_the_slip_is_possible_there(row: Row) -> None:
    assert_possible(row)


def test_no_slip_serves_two_demands() -> None:
    assert len({row.slip for row in ROWS}) == len(ROWS)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    with a_copy(tmp_path_factory.mktemp("package")) as made:
        yield made


@pytest.mark.xdist_group("spec003")
def test_the_tests_named_exist_and_pass(package: Copy) -> None:
    package.assert_all_pass(SPEC003)


@pytest.mark.xdist_group("spec003")
@pytest.mark.parametrize("row", SAMPLE, ids=SPEC003.ids(SAMPLE))
def test_a_slip_is_noticed(package: Copy, row: Row) -> None:
    package.assert_noticed(row)


@pytest.mark.prove
@pytest.mark.parametrize("row", ROWS, ids=SPEC003.ids(ROWS))
def test_every_slip_is_noticed(package: Copy, row: Row) -> None:
    package.assert_noticed(row)
