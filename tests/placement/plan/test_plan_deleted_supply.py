"""Tests of deleted supply: replicas in a deleted pool, region or data center keep running, and the plan lists
where they would move."""

from dataclasses import replace

import pytest
from build.placed_worlds import a_placed_world
from build.worlds import a_class, a_cloud, a_pool, a_service, a_static

from lattice.kinds.meta.base import Kind
from lattice.placement.model.world import ObjectKey, World
from lattice.placement.plan.plan import FleetState, converge, plan
from lattice.placement.plan.whatif import WhatIfEvent, plan_event

P1: ObjectKey = ("LatticePool", "", "p1")
API = "default/api"


def after_losing(world: World, *gone: ObjectKey) -> FleetState:
    found = plan(world, [], gone).state_after
    assert found is not None
    return found


GONE = [
    pytest.param([a_pool("p1")], P1, {("p1", "p1-001", "m"): 2}, 200_000, id="a pool"),
    pytest.param([a_cloud(regions=["r1"])], ("CloudInfrastructure", "", "cloud"), {("cloud/r1", "cloud-r1-001", "m"): 2}, 200_000, id="a cloud"),
    pytest.param([a_static("dc", region="us")], ("StaticInfrastructure", "", "dc"), {("dc", "dc-001", "static"): 2}, 0, id="a data center"),
]  # fmt: skip


@pytest.mark.parametrize(("supply", "gone", "where", "rate"), GONE)
def test_replicas_of_deleted_supply_stay_and_would_move(
    supply: list[Kind], gone: ObjectKey, where: dict[tuple[str, str, str], int], rate: int
) -> None:
    before = a_placed_world(*supply, a_service(replicas=2))
    made = plan(before, [a_pool("p2", classes=["l"]), a_class("l", 8, 32, 0.4)], [gone])
    assert made.services == made.clusters == made.unplaced == ()
    assert made.total == (rate, rate)
    (moving,) = made.would_move
    (place,) = where
    assert moving.reasons == (f"{place[0]} is no longer offered",)
    assert moving.destination == {("p2", "p2-001", "l"): 2}
    assert made.state_after is not None
    assert made.state_after.replica_counts == {API: where}


def test_plan_is_infeasible_without_alternative_supply() -> None:
    made = plan(a_placed_world(a_pool("p1"), a_service()), [], [P1])
    assert [each.destination for each in made.would_move] == [None]
    assert not made.is_feasible


def test_orphaned_replicas_are_no_change_in_next_plan() -> None:
    left = after_losing(a_placed_world(a_pool("p1"), a_pool("p2"), a_service()), P1).resulting_world()
    made = plan(left, [a_pool("p3")])
    assert replace(made, manifest_changes=()).is_empty


def test_only_missing_replicas_are_placed_elsewhere() -> None:
    left = after_losing(a_placed_world(a_pool("p1"), a_service(cores=4, replicas=2)), P1).resulting_world()
    made = plan(left, [a_pool("p2"), a_service(cores=4, replicas=3)])
    assert made.state_after is not None
    assert made.state_after.replica_counts[API] == {("p1", "p1-001", "m"): 2, ("p2", "p2-001", "m"): 1}


def test_scale_down_keeps_orphaned_replicas() -> None:
    left = after_losing(a_placed_world(a_pool("p1"), a_service(cores=4, replicas=3)), P1).resulting_world()
    made = plan(left, [a_service(cores=4, replicas=1)])
    assert made.state_after is not None
    assert made.state_after.replica_counts[API] == {("p1", "p1-001", "m"): 1}


def test_orphaned_cluster_is_removed_with_last_replica() -> None:
    made = plan(a_placed_world(a_pool("p1"), a_service()), [], [P1, ("LatticeService", "default", "api")])
    assert ([each.mark for each in made.services], [each.mark for each in made.clusters]) == (["-"], ["-"])
    assert made.total == (200_000, 0)


def test_lost_offer_is_not_a_deletion() -> None:
    """`whatif` models supply that is gone, so its replicas do not stay; replicas orphaned earlier do."""
    settled = converge(a_placed_world(a_pool("p1"), a_pool("p2"), a_service()))
    lost = plan_event(settled, WhatIfEvent(lost_offers=("p1",))).state_after
    assert lost is not None
    assert lost.replica_counts == {API: {("p2", "p2-001", "m"): 1}}
    left = converge(after_losing(settled.resulting_world(), P1).resulting_world())
    lost = plan_event(left, WhatIfEvent(lost_offers=("p2",))).state_after
    assert lost is not None
    assert lost.replica_counts == {API: {("p1", "p1-001", "m"): 1}}


def test_recreated_pool_readopts_its_replicas() -> None:
    left = after_losing(a_placed_world(a_pool("p1"), a_pool("p2"), a_service()), P1).resulting_world()
    made = plan(left, [a_pool("p1")])
    assert (made.services, made.clusters, made.would_move) == ((), (), ())


def test_withdrawn_region_counts_against_its_cloud() -> None:
    """The ledger of the cloud goes on paying for them; a plan without them would be refused when it is applied."""
    budget = {"monthly": 300, "hardLimit": True}  # two machines of class m for 30 days: 288
    before = a_placed_world(
        a_cloud(regions=["r1", "r2"], budget=budget),
        a_service(cores=4, replicas=1, requiredRegions=["r2"]),
    )
    left = after_losing_region(before)
    assert left.bill.ledger_rates["cloud.cloud"] == 200_000
    made = plan(left.resulting_world(), [a_service("web", cores=4, replicas=2)])
    assert made.state_after is not None
    assert made.state_after.placed_replicas("default/web") == 1
    (change,) = [change for change in made.budgets if change.ledger == "cloud.cloud"]
    assert (change.used_before, change.used_after) == (144_000_000, 288_000_000)
    # Once the last replica is gone, so are its machine and its rate.
    freed = plan(
        left.resulting_world(),
        [a_service("web", cores=4, replicas=2)],
        [("LatticeService", "default", "api")],
    )
    assert freed.state_after is not None
    assert freed.state_after.placed_replicas("default/web") == 2


def after_losing_region(world: World) -> FleetState:
    cloud = a_cloud(regions=["r1"], budget={"monthly": 300, "hardLimit": True})
    after = plan(world, [cloud]).state_after
    assert after is not None
    return after
