"""Tests of `place_all`: priority order, latency groups, and misplaced or stale replicas."""

from typing import Any

import pytest
from build.worlds import a_class, a_policy, a_pool, a_service, a_static, a_world

from lattice.kinds.meta.base import Kind
from lattice.placement.greedy.place_all import (
    find_stale_placement,
    misplaced_assignments,
    outgrown_assignments,
)
from lattice.placement.greedy.placement_order import ordered_demands, placement_order
from lattice.placement.plan.plan import FleetState, converge

EAST, WEST = "us-east-1", "us-west-2"


def near(**limits: int) -> dict[str, Any]:
    return {"latency": {name: {"maxMs": most} for name, most in limits.items()}}


def offers(settled: FleetState) -> dict[str, list[str]]:
    """The offers of each service, without the namespace."""
    return {
        name.partition("/")[2]: sorted({offer for offer, _, _ in counts})
        for name, counts in settled.replica_counts.items()
    }


def services_by_offer(*objects: Kind) -> dict[str, list[str]]:
    return offers(converge(a_world(*objects)))


def one(name: str, region: str, price: str = "m") -> Kind:
    """A pool with one machine."""
    return a_pool(name, region=region, capacity={"maxNodes": 1}, classes=[price])


def test_services_are_ordered_by_priority_then_name() -> None:
    world = a_world(a_service("b"), a_service("a"), a_service("z", priority=5))
    assert [each.name for each in ordered_demands(world.demands.values())] == [
        "default/z",
        "default/a",
        "default/b",
    ]


def test_higher_priority_gets_last_machine() -> None:
    assert services_by_offer(
        one("p1", EAST), a_service("a", cores=4), a_service("z", cores=4, priority=5)
    ) == {"z": ["p1"]}


def test_latency_groups_list_dependencies_first() -> None:
    world = a_world(
        a_service("a", **near(c=5)),
        a_service("b"),
        a_service("c", **near(d=5)),
        a_service("d"),
        a_service("e", **near(ghost=5)),
    )
    groups = [[demand.name for demand in group] for group in placement_order(world.demands)]
    assert sorted(groups) == [["default/b"], ["default/d", "default/c", "default/a"], ["default/e"]]


def test_dependency_is_placed_before_its_dependent() -> None:
    pools = [
        a_pool("p1", region=EAST, classes=["dear"]),
        a_pool("p2", region=WEST),
        a_class(),
        a_class("dear", price=0.9),
    ]
    assert services_by_offer(
        *pools, a_service("api", **near(db=5)), a_service("db", requiredRegions=[EAST])
    ) == {
        "api": ["p1"],
        "db": ["p1"],
    }


def test_latency_cycle_is_placed_together() -> None:
    pools = [one("p1", EAST), one("p2", WEST), one("p3", WEST)]
    found = services_by_offer(
        *pools, a_service("a", cores=4, **near(b=5)), a_service("b", cores=4, **near(a=5))
    )
    assert sorted([*found["a"], *found["b"]]) == ["p2", "p3"]


def test_latency_cycle_of_three_is_placed_together() -> None:
    pools = [
        a_pool("p1", region=EAST, capacity={"maxNodes": 2}),
        a_pool("p2", region=WEST, capacity={"maxNodes": 3}),
    ]
    services = (
        a_service("a", cores=4, **near(b=5)),
        a_service("b", cores=4, **near(c=5)),
        a_service("c", cores=4, **near(a=5)),
    )
    assert services_by_offer(*pools, *services) == {"a": ["p2"], "b": ["p2"], "c": ["p2"]}


def test_infeasible_latency_cycle_is_unplaced() -> None:
    settled = converge(
        a_world(
            one("p1", EAST),
            one("p2", WEST),
            a_service("a", cores=4, **near(b=5)),
            a_service("b", cores=4, **near(a=5)),
        )
    )
    assert not settled.replica_counts
    assert sorted(settled.unplaced) == ["default/a", "default/b"]


def test_group_gives_up_cheapest_pool_to_fit_together() -> None:
    """db alone would be placed in p1, the cheapest pool, where api has no capacity within its latency limit."""
    pools = [
        a_class(),
        a_class("dear", price=0.9),
        one("p1", EAST),
        a_pool("p2", region=WEST, classes=["dear"]),
    ]
    assert services_by_offer(*pools, a_service("db", cores=4), a_service("api", cores=4, **near(db=5))) == {
        "db": ["p2"],
        "api": ["p2"],
    }


def test_infeasible_group_is_placed_partially() -> None:
    settled = converge(
        a_world(one("p1", EAST), a_service("db", cores=4), a_service("api", cores=4, **near(db=5)))
    )
    assert offers(settled) == {"db": ["p1"]}
    assert sorted(settled.unplaced) == ["default/api"]


def test_undefined_dependency_does_not_block_its_group() -> None:
    settled = converge(
        a_world(
            a_pool(), a_service("db"), a_service("api", **near(db=5, ghost=5)), a_service("web", **near(db=5))
        )
    )
    assert offers(settled) == {"db": ["p1"], "web": ["p1"]}


def test_service_may_have_latency_to_itself() -> None:
    assert services_by_offer(a_pool(), a_service("api", replicas=2, **near(api=5))) == {"api": ["p1"]}


def test_misplaced_replicas_are_reported_and_stay() -> None:
    world = converge(
        a_world(a_pool(labels={"compliance": ["gdpr"]}), a_service(compliance=["gdpr"]))
    ).resulting_world()
    changed = converge(world.with_objects([a_pool()]))
    demand = changed.world.demands["default/api"]
    assert offers(changed) == {"api": ["p1"]}
    assert len(misplaced_assignments(demand, changed.fleet)) == 1
    found = find_stale_placement(demand, changed.fleet)
    assert found is not None
    assert found.reasons == ("p1: compliance: need gdpr, have none",)


@pytest.mark.parametrize(("policy", "reason"), [
    pytest.param(a_policy(minRegions=2), "replicas in 2 regions, not 1", id="too few regions"),
    pytest.param(a_policy(compliance=["soc2"]), "p1: compliance: need soc2, have none", id="a compliance standard that was not asked for before"),
])  # fmt: skip
def test_new_policy_makes_placement_stale(policy: Kind, reason: str) -> None:
    world = converge(a_world(a_pool(), a_service(replicas=2))).resulting_world()
    changed = converge(world.with_objects([policy]))
    found = find_stale_placement(changed.world.demands["default/api"], changed.fleet)
    assert found is not None
    assert found.reasons == (reason,)


def test_new_region_does_not_make_spread_stale() -> None:
    rule = a_policy(spreadConstraint={"topologyKey": "region", "maxSkew": 1})
    world = converge(a_world(a_pool("p1"), a_pool("p2"), rule, a_service(replicas=6))).resulting_world()
    changed = converge(world.with_objects([a_pool("p3")]))
    assert find_stale_placement(changed.world.demands["default/api"], changed.fleet) is None


def test_valid_placement_is_not_stale() -> None:
    settled = converge(a_world(a_pool(), a_static(), a_service(replicas=9)))
    assert find_stale_placement(settled.world.demands["default/api"], settled.fleet) is None


@pytest.mark.parametrize(("service", "leaving"), [
    pytest.param(a_service(replicas=4), 0, id="unchanged requests"),
    pytest.param(a_service(cores=2, replicas=4), 2, id="twice as large: half of them"),
    pytest.param(a_service(cores=9, replicas=4), 4, id="too large for any"),
    pytest.param(a_service(replicas=4, nodeSelector={"disk": "ssd"}), 4, id="on other machines"),
    pytest.param(a_service(replicas=4, spread=[{"topologyKey": "node", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]), 3, id="one to a machine"),
])  # fmt: skip
def test_outgrown_assignments(service: Kind, leaving: int) -> None:
    world = (
        converge(a_world(a_pool(capacity={"maxNodes": 1}), a_service(replicas=4)))
        .resulting_world()
        .with_objects([service])
    )
    assert len(outgrown_assignments(world.demands["default/api"], world.build_fleet())) == leaving


def test_outgrown_assignments_by_data_center_gpus() -> None:
    dc = a_static(nodes=2, cores=8, memory="32Gi", accelerators=[{"type": "t4", "count": 3}])
    world = (
        converge(a_world(dc, a_service(replicas=4)))
        .resulting_world()
        .with_objects([a_service(replicas=4, gpu=1)])
    )
    assert len(outgrown_assignments(world.demands["default/api"], world.build_fleet())) == 1


def test_new_spread_makes_single_region_placement_stale() -> None:
    world = a_world(a_class(), a_pool("p1", region="r1"), a_service("api", replicas=4))
    there = (
        converge(world)
        .resulting_world()
        .with_objects(
            [a_pool("p2", region="r2"), a_policy(spreadConstraint={"topologyKey": "region", "maxSkew": 1})]
        )
    )
    settled = converge(there)
    found = find_stale_placement(there.demands["default/api"], settled.fleet)
    assert found is not None
    assert found.reasons == ("spread over region with skew at most 1",)
