"""Every requirement of the specification is met at the named location, and its test detects a mutation there."""

from collections.abc import Iterator

import pytest
from build.mutations import MutablePackage, a_mutable_package, assert_mutation_applies

from docs.spec003 import SPEC003
from docs.specification import Row

ROWS = SPEC003.rows
SAMPLE = ROWS[9 :: len(ROWS) // 3]  # a few of them each time, from all over; the rest with `make prove`
# What each section of the specification demands, by the names in its own text and not by those of our rows, so that a row that goes
# missing or is about something else is noticed: the lines of its table and its list of what is missing; in the gaps and recommendations
# the numbered points. A line that names two things is two: pod_affinity and pod_anti_affinity in 2, the events of success and failure in 5.
DEMANDS = {
    "Overview": (
        "scheduling.resources",
        "scheduling.filter",
        "scheduling.score",
        "scheduling.select",
        "scheduling.bind",
        "scheduling.feasibility",
        "scheduling.scheduler",
    ),
    "1. scheduling.resources": (
        *("node.cpu_capacity", "node.memory_capacity", "node.disk_capacity", "node.gpu_capacity"),
        *("container.cpu_request/limit", "container.memory_request/limit", "allocatable resources"),
        *("QoS class derivation", "fits() check", "utilization calculation"),
        *("ephemeral_storage_capacity", "hugepages_capacity", "Extended resources"),
        *("Pod-level aggregation", "Resource compressibility markers"),
    ),
    "2. scheduling.filter": (
        *(
            "predicates",
            "node_pool",
            "eligible_nodes",
            "filtered_count",
            "node_selector",
            "node_affinity",
            "tolerations",
        ),
        *("resource_feasibility_check", "rejection_reasons", "Filter trait"),
        *("pod_affinity", "pod_anti_affinity", "topology_constraints"),
    ),
    "3. scheduling.score": (
        *(
            "scoring_functions",
            "weights",
            "ranked_nodes",
            "final_score",
            "resource_balance",
            "spreading",
            "binpacking",
        ),
        *("preferred_affinity", "normalized_value bounds", "calculate_final_score", "Scorer trait"),
        *("anti_affinity scoring", "topology_spread scoring"),
    ),
    "4. scheduling.select": (
        *("winner", "candidates", "tiebreaker", "reservation", "reservation_timeout", "selection_result"),
        *(
            "strategy: random",
            "strategy: least_loaded",
            "strategy: round_robin",
            "is_expired()",
            "Selector trait",
        ),
        *("weighted_random strategy", "affinity_based strategy"),
    ),
    "5. scheduling.bind": (
        *(
            "container",
            "target_node",
            "reservation_id",
            "binding_mode: optimistic",
            "binding_mode: pessimistic",
        ),
        *("binding_mode: two_phase", "resource_updates", "bind result (success/failure)", "Binder trait"),
        *(
            "event_emission: bind_success_event",
            "event_emission: bind_failure_event",
            "rollback_handler",
            "state_transition tracking",
        ),
    ),
    "6. scheduling.feasibility": (
        *(
            "node_capacity never exceeded",
            "node_status requires ready",
            "resource_requests bounded_by_limits",
        ),
        *(
            "anti_affinity enforcement",
            "pod_spreading topology_constraint",
            "taints/tolerations",
            "volume_affinity",
        ),
        *("pod_priority / preemption", "scheduling_decision atomic", "binding_conflict reschedule"),
    ),
    "7. scheduling.scheduler": (
        *("Scheduler trait", "schedule() method", "ScheduleRequest", "ScheduleDecision", "SimpleScheduler"),
        *("Filter phase", "Score phase", "Select phase", "Bind phase", "state.concurrency", "event.emission"),
    ),
    "Gaps: fully missing": (
        "1. Extended resources (GPU, FPGA, custom)",
        "2. Ephemeral storage and hugepages",
        "3. Pod-level resource aggregation",
        "4. Topology spread constraints",
        "5. Pod affinity/anti-affinity evaluation logic",
        "6. Volume zone affinity",
        "7. Event emission system",
        "8. Rollback handlers",
        "9. Atomic scheduling decisions",
        "10. State concurrency handling",
    ),
    "Gaps: partial": (
        "1. Integrate filter/score/select/bind modules into a production Scheduler",
        "2. Additional tiebreaker strategies (weighted_random, affinity_based)",
        "3. Anti-affinity and topology scoring functions",
        "4. Node health status checking",
    ),
    "Recommendations: immediate": (
        "1. Create a CompositeScheduler that integrates all phases",
        "2. Add convenience re-exports in lib.rs",
    ),
    "Recommendations: short-term": (
        "1. Implement topology spread constraints",
        "2. Add pod affinity/anti-affinity evaluation",
        "3. Implement event emission for observability",
        "4. Add rollback handlers for binding failures",
    ),
    "Recommendations: long-term": (
        "1. Extended resource support",
        "2. State concurrency primitives",
        "3. Atomic scheduling decisions",
        "4. Gang scheduling support",
        "5. Preemption implementation",
    ),
}


def test_every_requirement_is_listed_once_by_its_name() -> None:
    assert {section.title: tuple(section.items) for section in SPEC003.sections} == DEMANDS


@pytest.mark.parametrize("row", ROWS, ids=SPEC003.ids(ROWS))
def test_location_exists_and_mutation_applies(row: Row) -> None:
    assert_mutation_applies(row)


def test_no_mutation_serves_two_requirements() -> None:
    assert len({row.slip for row in ROWS}) == len(ROWS)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutablePackage]:
    with a_mutable_package(tmp_path_factory.mktemp("package")) as made:
        yield made


@pytest.mark.xdist_group("spec003")
def test_named_tests_exist(package: MutablePackage) -> None:
    package.assert_tests_exist(SPEC003)


@pytest.mark.prove
def test_named_tests_pass(package: MutablePackage) -> None:
    package.assert_tests_pass(SPEC003)


@pytest.mark.xdist_group("spec003")
@pytest.mark.parametrize("row", SAMPLE, ids=SPEC003.ids(SAMPLE))
def test_a_mutation_is_detected(package: MutablePackage, row: Row) -> None:
    package.assert_detected(row)


@pytest.mark.prove
@pytest.mark.parametrize("row", ROWS, ids=SPEC003.ids(ROWS))
def test_every_mutation_is_detected(package: MutablePackage, row: Row) -> None:
    package.assert_detected(row)
