"""Tests of orphaned replicas: replicas in deleted supply are counted by `cost`, `why` and `fit`, as by a
plan."""

import pytest
from build.worlds import a_pool, a_service, a_world

from lattice.placement.model.world import ObjectKey, World
from lattice.placement.plan.plan import converge, plan
from lattice.placement.queries.dispatch import answer_query

P1: ObjectKey = ("LatticePool", "", "p1")
FULL = {"maxNodes": 1}
RATES = {"p1": 200_000, "p2": 200_000}


def world_with_orphans() -> World:
    """One replica in each of two full pools, of which the first is deleted."""
    pools = a_pool("p1", capacity=FULL), a_pool("p2", capacity=FULL)
    running = converge(a_world(*pools, a_service(cores=3, replicas=2))).resulting_world()
    after = plan(running, [], [P1]).state_after
    assert after is not None
    return after.resulting_world()


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        pytest.param({"by": "pool"}, RATES, id="by pool"),
        pytest.param({"by": "service"}, {"default/api": 400_000}, id="by service"),
        pytest.param({"by": "pool", "inNamespace": "default"}, RATES, id="by pool in a namespace"),
        pytest.param(
            {"by": "service", "inNamespace": "default"},
            {"default/api": 400_000},
            id="by service in a namespace",
        ),
        pytest.param({"by": "label:team"}, {"(no label team)": 400_000}, id="by label"),
    ],
)
def test_cost_counts_orphaned_machines(asked: dict[str, str], rows: dict[str, int]) -> None:
    found = answer_query({"ask": "cost", **asked}, world_with_orphans())
    assert {each["name"]: each["hourlyMicros"] for each in found["rows"]} == rows
    assert found["total"]["hourlyMicros"] == 400_000
    assert (found["unplaced"], found["partlyPlaced"]) == ([], [])


def test_cost_lists_empty_orphaned_machines() -> None:
    """An orphaned cluster keeps its machines while a replica is in it: here two machines, and one replica is
    scaled away."""
    running = converge(a_world(a_pool("p1"), a_service(cores=3, replicas=2))).resulting_world()
    left = plan(running, [], [P1]).state_after
    assert left is not None
    found = answer_query(
        {"ask": "cost", "by": "service"},
        left.resulting_world().with_objects([a_service(cores=3, replicas=1)]),
    )
    assert found["total"]["hourlyMicros"] == sum(each["hourlyMicros"] for each in found["rows"]) == 400_000


def test_why_and_fit_count_orphaned_replicas_as_placed() -> None:
    """A new placement would find capacity for one of the two only; none is requested."""
    found = answer_query({"ask": "why", "service": "default/api"}, world_with_orphans())
    assert (found["verdict"], found["isPlaced"], found["placed"]) == ("Placed", True, 2)
    assert {each["pool"]: each["replicas"] for each in found["now"]} == {"p1": 1, "p2": 1}
    assert found["cost"]["hourlyMicros"] == 400_000
    has = answer_query({"ask": "fit", "service": "default/api"}, world_with_orphans())
    assert (has["placed"], has["suggestions"]) == (2, [])


def test_why_explains_unplaced_replicas_only() -> None:
    found = answer_query(
        {"ask": "why", "service": "default/api"},
        world_with_orphans().with_objects([a_service(cores=3, replicas=3)]),
    )
    assert (found["isPlaced"], found["placed"], found["replicas"]) == (False, 2, 3)
    made = answer_query({"ask": "plan"}, world_with_orphans().with_objects([a_service(cores=3, replicas=3)]))
    assert [(each["replicas"], each["missing"]) for each in made["unplaced"]] == [(3, 1)]


def test_plan_prices_removed_orphaned_clusters() -> None:
    found = answer_query(
        {"ask": "plan"}, world_with_orphans(), deleted=[("LatticeService", "default", "api")]
    )
    changes = {each["name"]: each["cost"]["change"]["hourlyMicros"] for each in found["clusters"]}
    assert changes == {"p1-001": -200_000, "p2-001": -200_000}
    assert found["total"]["change"]["hourlyMicros"] == -400_000
