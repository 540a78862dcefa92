"""Tests of plans: an applied plan gives the planned placements and cost, and leaves nothing to do."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from build.fleet_violations import violations
from build.joined_machines import random_joined_machines
from build.property_settings import LONG
from build.random_worlds import random_change, random_service, random_world
from build.worlds import a_class, a_cloud, a_policy, a_pool, a_service, a_static, a_world, worlds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.kinds.cluster import LatticeCluster
from lattice.placement.model.current_state import EMPTY_LAYOUT
from lattice.placement.model.world import World
from lattice.placement.plan.plan import FleetState, Plan, compare, converge, plan

MANY = settings(max_examples=4000 if LONG else 40, deadline=None, suppress_health_check=list(HealthCheck))
SOME = settings(max_examples=2000 if LONG else 15, deadline=None, suppress_health_check=list(HealthCheck))
numbers = st.integers(0, 1 << 40)
ELSEWHERE = (" in ", "latency", "skew", "regions", "reserve")


def replicas_by_service(settled: FleetState) -> Mapping[str, Mapping[Any, int]]:
    return {name: dict(counts) for name, counts in settled.replica_counts.items()}


def same(one: FleetState, other: FleetState) -> bool:
    """Equal placements, machines and rates, to the micro-dollar."""
    return (replicas_by_service(one), one.offer_rates, one.clusters, dict(one.service_rates), set(one.unplaced)) == (
        replicas_by_service(other), other.offer_rates, other.clusters, dict(other.service_rates), set(other.unplaced),
    )  # fmt: skip


def ends(made: Plan) -> tuple[FleetState, FleetState]:
    assert made.state_before is not None
    assert made.state_after is not None
    return made.state_before, made.state_after


def is_kept(made: Plan) -> bool:
    """Whether the applied plan gives the planned state and the next plan is empty."""
    _, after = ends(made)
    fresh = converge(after.resulting_world())
    again = compare(after, fresh)
    return same(fresh, after) and again.is_empty and again.total == (made.total[1], made.total[1])


@MANY
@given(numbers)
def test_applied_plan_gives_planned_placements_and_cost(number: int) -> None:
    world = random_world(number)
    assert is_kept(plan(world, *random_change(number, world)))


@SOME
@given(numbers)
def test_applied_plan_holds_with_joined_machines(number: int) -> None:
    world = random_world(number)
    world = world.with_objects(random_joined_machines(Random(number), ["p1", "p2"]), with_status=True)
    assert is_kept(plan(world, *random_change(number, world)))


@SOME
@given(numbers)
def test_applied_plan_holds_after_series_of_changes(number: int) -> None:
    world = random_world(number)
    for step in range(5):
        made = plan(world, *random_change(number + step, world))
        assert is_kept(made)
        world = ends(made)[1].resulting_world()


@SOME
@given(worlds(), numbers)
def test_applied_plan_holds_in_scarce_worlds(world: World, number: int) -> None:
    assert is_kept(plan(world, [random_service(Random(number), "api")]))


@SOME
@given(numbers)
def test_placement_keeps_all_limits_and_rules(number: int) -> None:
    assert violations(converge(random_world(number))) == []


@SOME
@given(numbers)
def test_limits_hold_while_services_change(number: int) -> None:
    """Spreads, latency limits to moving services and reserves hold for new placements only; the other limits
    always hold."""
    draw, world = Random(number), random_world(number)
    for _ in range(3):
        names = draw.sample(sorted(world.services), min(2, len(world.services)))
        gone = [("LatticeService", "default", name.partition("/")[2]) for name in names[:1]]
        settled = ends(plan(world, [random_service(draw, "web"), random_service(draw, "api")], gone))[1]
        assert [each for each in violations(settled) if not any(word in each for word in ELSEWHERE)] == []
        world = settled.resulting_world()


@SOME
@given(numbers, st.randoms(use_true_random=False))
def test_placement_is_independent_of_object_order(number: int, shuffled: Any) -> None:
    world = random_world(number)
    objects = list(world.objects.values())
    shuffled.shuffle(objects)
    assert same(converge(World.of(objects, world.price_book)), converge(world))


@SOME
@given(numbers)
def test_converge_is_idempotent(number: int) -> None:
    once = converge(random_world(number))
    assert same(converge(once.world), once)
    assert compare(once, converge(once.resulting_world())).is_empty


@SOME
@given(numbers)
def test_fleet_rebuilt_from_counts_keeps_replicas_and_cost(number: int) -> None:
    """Without nodes and bindings the machine of each replica is unknown; the counts per cluster are not."""
    once = converge(random_world(number))
    rebuilt = replace(once.resulting_world(), layout=EMPTY_LAYOUT)
    fleet = rebuilt.build_fleet()
    found = FleetState(rebuilt, fleet, {})
    assert (replicas_by_service(found), found.offer_rates, found.clusters) == (
        replicas_by_service(once),
        once.offer_rates,
        once.clusters,
    )


def test_plan_lists_added_changed_and_removed() -> None:
    world = a_world(a_pool(), a_service("api", replicas=3), a_service("old", cores=3))
    start = converge(world).resulting_world()
    made = plan(
        start,
        [a_service("api", replicas=8), a_service("web", cores=4)],
        [("LatticeService", "default", "old")],
    )
    assert {each.name: each.mark for each in made.services} == {
        "default/api": "~",
        "default/web": "+",
        "default/old": "-",
    }
    assert made.total[0] < made.total[1]
    assert made.rates["p1"] == made.total
    assert made.is_feasible
    assert not made.is_empty


SOC2 = {"compliance": ["soc2"]}


@pytest.mark.parametrize(("before", "changed", "moving"), [
    pytest.param([a_pool("p1", labels=SOC2), a_pool("p2", labels=SOC2, budget=1), a_service(compliance=["soc2"])],
                 [a_pool("p1")], None,
                 id="a pool that loses its compliance, with no other to go to"),
    pytest.param([a_pool("p1", labels=SOC2), a_pool("p2", labels=SOC2, classes=["dear"]), a_class(), a_class("dear", price=0.5),
                  a_service(compliance=["soc2"])],
                 [a_pool("p1")], {("p2", "p2-001", "dear"): 1},
                 id="a pool that loses its compliance, with another one that has it"),
    pytest.param([a_pool("p1"), a_pool("p2", labels=SOC2, classes=["dear"]), a_class(), a_class("dear", price=0.5), a_service()],
                 [a_policy(compliance=["soc2"])], {("p2", "p2-001", "dear"): 1},
                 id="a policy that asks for more"),
])  # fmt: skip
def test_misplaced_replica_is_kept_and_listed_as_would_move(
    before: list[Any], changed: list[Any], moving: dict[Any, int] | None
) -> None:
    made = plan(converge(a_world(*before)).resulting_world(), changed)
    assert not made.services
    assert [each.destination for each in made.would_move] == [moving]
    assert made.would_move[0].reasons == ("p1: compliance: need soc2, have none",)
    assert plan(ends(made)[1].resulting_world(), []).is_empty


@pytest.mark.parametrize(("before", "changed", "risk"), [
    pytest.param([a_pool(budget=200), a_service(cores=4)], [], None, id="none at 72 percent"),
    pytest.param([a_pool(budget=350), a_service(cores=4)], [a_service("b", cores=4)], "budget of latticepool/p1 reaches its alert threshold: 82 % of its limit",
                 id="a budget that reaches its alert"),
    pytest.param([a_cloud(budget={"monthly": 200}), a_service(cores=4)], [a_service("b", cores=4)],
                 "budget of cloudinfrastructure/cloud is exceeded: 144 % of its limit; the limit is soft and does not stop purchases", id="a soft budget that is passed"),
    pytest.param([a_pool(capacity={"maxNodes": 5}), a_service(cores=4, replicas=3)], [a_service("b", cores=4)], "p1 uses 4 of 5 nodes",
                 id="a pool that is nearly full"),
    pytest.param([a_pool("p1"), a_pool("p2"), a_service(requiredRegions=["p1", "p2"])], [a_service(requiredRegions=["p1"])],
                 "default/api would run in one region only", id="a service that would run in one region only"),
])  # fmt: skip
def test_plan_lists_new_risks(before: list[Any], changed: list[Any], risk: str | None) -> None:
    made = plan(converge(a_world(*before)).resulting_world(), changed)
    assert list(made.risks) == ([risk] if risk else [])
    assert plan(ends(made)[1].resulting_world(), []).risks == ()


def test_plan_id_depends_on_manifests_and_result() -> None:
    world = a_world(a_pool("p1"), a_pool("p2"))
    one, same_again = plan(world, [a_service()]), plan(world, [a_service()])
    assert one.id == same_again.id
    assert plan(world, [a_service(replicas=2)]).id != one.id
    assert (
        plan(
            world.with_objects(
                [a_pool("p1", capacity={"maxNodes": 0}), a_pool("p2", capacity={"maxNodes": 0})]
            ),
            [a_service()],
        ).id
        != one.id
    )


def test_plan_excludes_previously_pending_placements() -> None:
    world = a_world(a_pool(), a_service("early"))
    found = plan(world, [a_service("late")])
    assert [each.name for each in found.services if each.placed_before != each.placed_after] == [
        "default/late"
    ]


def test_infeasible_service_is_listed_with_partial_placement() -> None:
    made = plan(a_world(a_pool(capacity={"maxNodes": 1})), [a_service(replicas=6)])
    assert made.unplaced == ("default/api",)
    assert [(each.mark, sum(each.placed_after.values()), each.is_placed) for each in made.services] == [
        ("+", 4, False)
    ]


def test_deleted_service_removes_its_machines() -> None:
    made = plan(
        converge(a_world(a_pool(), a_service(cores=4, replicas=3))).resulting_world(),
        [],
        [("LatticeService", "default", "api")],
    )
    assert [(each.mark, dict(each.nodes_before)) for each in made.clusters] == [("-", {"m": 3})]
    assert made.total == (600_000, 0)
    assert not any(
        isinstance(each, LatticeCluster) for each in ends(made)[1].resulting_world().objects.values()
    )


def test_outgrown_replicas_move_to_larger_machines() -> None:
    start = converge(
        a_world(
            a_class("s", 2, 8, 0.1), a_class(), a_pool(classes=["s", "m"]), a_service(cores=2, replicas=2)
        )
    ).resulting_world()
    made = plan(start, [a_service(cores=3, replicas=2)])
    assert [(dict(each.nodes_before), dict(each.nodes_after)) for each in made.clusters] == [
        ({"s": 2}, {"m": 2})
    ]
    assert [(each.mark, each.cost_before, each.cost_after) for each in made.services] == [
        ("~", 200_000, 400_000)
    ]
    assert is_kept(made)


def test_resized_replicas_that_fit_stay() -> None:
    start = converge(a_world(a_pool(), a_service(cores=1, replicas=4))).resulting_world()
    assert [dict(each.nodes_after) for each in plan(start, [a_service(cores=2, replicas=4)]).clusters] == [
        {"m": 2}
    ]


def test_later_service_may_open_overflow_for_earlier_one() -> None:
    """a is placed while the data center is half full, then z fills it; one `converge` suffices."""
    dc = a_static(
        nodes=2,
        cores=8,
        memory="32Gi",
        overflow={"enabled": True, "target": "cloud", "trigger": {"capacityThreshold": 80}},
    )
    world = a_world(dc, a_cloud(), a_service("a", cores=3, replicas=3), a_service("z", cores=1))
    settled = converge(world)
    assert not settled.unplaced
    assert same(converge(settled.resulting_world()), settled)


def test_changed_costs_are_listed_and_add_up() -> None:
    world = converge(a_world(a_class("m", 4, 16, 0.2), a_pool(), a_service("a"))).resulting_world()
    found = plan(world, [a_class("m", 4, 16, 0.4)])
    assert [(each.name, each.cost_before, each.cost_after) for each in found.services] == [
        ("default/a", 200_000, 400_000)
    ]
    beside = plan(world, [a_service("b")])
    assert (
        sum(each.cost_after - each.cost_before for each in beside.services)
        == beside.total[1] - beside.total[0]
        == 0
    )


def test_limit_below_usage_is_a_risk() -> None:
    world = converge(a_world(a_class(), a_pool("p1"), a_service("a", replicas=2, cores=4))).resulting_world()
    found = plan(world, [a_pool("p1", capacity={"maxNodes": 0})])
    assert not found.is_empty
    assert found.risks == (
        "p1 uses more nodes (2) than its limit (0): nothing is removed, and nothing more is created",
    )
