"""Every requirement of the control plane's checklist is met at the named location, and its test detects a
mutation there."""

from collections.abc import Iterator

import pytest
from build.mutations import MutablePackage, a_mutable_package, assert_mutation_applies

from docs.spec004 import SPEC004
from docs.specification import Row

ROWS = SPEC004.rows
SAMPLE = ROWS[4 :: len(ROWS) // 3]  # a few of them each time, from all over; the rest with `make prove`
# How many demands each section of the checklist makes, counted in its own text and not in our rows, so that a row that goes missing
# is noticed. A line that names several things counts once for each. What is only partly met, and later in full, counts as both.
COUNTS = {
    "1. Purpose": 4,  # 2 lines, of which one names three things
    "2. Design Principles": 5,
    "3. Architecture": 3,  # 2 lines: the server's gRPC and the agents' in one
    "4.1 API Server": 8,  # 4 lines, of which one names five calls
    "4.2 State Store": 7,  # 2 lines, of which one names six prefixes
    "4.3 Node Manager": 6,  # 5 lines: a heartbeat is for two things
    "4.4 Placement Engine": 9,  # 4 lines, of which one names five filters, and one of those is partly later
    "4.5 Reconciliation Engine": 9,  # 5 lines: four transitions, two graces
    "4.6 Retry Engine": 4,  # 3 lines: doubling and its end
    "4.7 Event System": 7,  # 2 lines: immutable and append-only, five types
    "4.8 Automation Hooks": 4,  # 1 line: rules, and three examples
    "5. Workload Lifecycle": 3,
    "6. Failure Handling": 3,
    "7. Concurrency Model": 4,
    "8. High Availability": 2,  # 1 line: an election, and one that acts
    "9. Security": 8,  # 4 lines: mTLS on both sides, roles of two groups; of two lines a part comes later
    "10. Observability": 6,  # 2 lines: two addresses, four counters
    "11. Scale Targets": 2,  # 1 line: nodes and workloads
    "12. Out of Scope": 4,
    "13. Known Gaps": 5,
    "14. Acceptance Criteria": 6,
    "Priority Gap List": 6,
}
LATER = {  # the only ones that may be
    "VM and compose workloads",
    "certificates from an external authority",
    "RBAC beyond administrators, viewers and nodes",
    "federation",
    "quotas and rate limits of tenants",
}


def test_every_requirement_is_listed_once() -> None:
    assert {section.title: len(set(section.items)) for section in SPEC004.sections} == COUNTS


def test_only_known_gaps_are_deferred() -> None:
    assert {each.item for section in SPEC004.sections for each in section.later} == LATER


@pytest.mark.parametrize("row", ROWS, ids=SPEC004.ids(ROWS))
def test_location_exists_and_mutation_applies(row: Row) -> None:
    assert_mutation_applies(row)


def test_no_mutation_serves_two_requirements() -> None:
    assert len({row.slip for row in ROWS}) == len(ROWS)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutablePackage]:
    with a_mutable_package(tmp_path_factory.mktemp("package")) as made:
        yield made


@pytest.mark.xdist_group("spec004")
def test_named_tests_exist(package: MutablePackage) -> None:
    package.assert_tests_exist(SPEC004)


@pytest.mark.prove
def test_named_tests_pass(package: MutablePackage) -> None:
    package.assert_tests_pass(SPEC004)


@pytest.mark.xdist_group("spec004")
@pytest.mark.parametrize("row", SAMPLE, ids=SPEC004.ids(SAMPLE))
def test_a_mutation_is_detected(package: MutablePackage, row: Row) -> None:
    package.assert_detected(row)


@pytest.mark.prove
@pytest.mark.parametrize("row", ROWS, ids=SPEC004.ids(ROWS))
def test_every_mutation_is_detected(package: MutablePackage, row: Row) -> None:
    package.assert_detected(row)
