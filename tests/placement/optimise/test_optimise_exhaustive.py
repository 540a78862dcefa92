"""Tests of the optimiser against an exhaustive search: no valid fleet is cheaper than the reported bound, and
the result is valid."""

from collections.abc import Sequence
from random import Random
from typing import Any

from build.exhaustive_search import cheapest_fleet_cost, fleet_of
from build.fleet_violations import new_violations
from build.placed_worlds import a_pool_node, a_replica_on_node
from build.property_settings import LONG
from build.worlds import REGIONS, a_class, a_cloud, a_policy, a_pool, a_service, a_static, a_world
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lattice.kinds.meta.base import Kind
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.world import World
from lattice.placement.optimise.fleet_problem import useful_types
from lattice.placement.optimise.optimise import FleetPlan, OptimiserOptions, optimise
from lattice.placement.plan.plan import FleetState, converge

SOME = settings(max_examples=1500 if LONG else 25, deadline=None, suppress_health_check=list(HealthCheck))
NAMES = ("api", "batch", "cache", "web")
TIME_LIMIT_S = 5.0  # seconds; these worlds take milliseconds


def small_state(number: int) -> FleetState:
    """Services were placed while some pools were closed; now all are open."""
    draw = Random(number)
    sizes = draw.sample([(2, 4), (4, 16), (4, 8), (8, 16), (8, 32)], draw.randint(1, 3))
    classes = [a_class(f"c{at}", *size, costPerHour=_prices(draw, size[0])) for at, size in enumerate(sizes)]
    stated = [_pool(draw, f"p{at}", len(classes)) for at in range(draw.randint(2, 3))]
    policies = [_policy(draw, f"rules{at}") for at in range(draw.choice([0, 1, 1, 2]))]
    services = [_service(draw, name) for name in NAMES[: draw.randint(2, 4 if len(classes) == 1 else 3)]]
    closed = [each | {"capacity": {"maxNodes": 0}} if draw.random() < 0.6 else each for each in stated]
    before = converge(
        World.of([*classes, *policies, *services, *(a_pool(**each) for each in closed)], PriceBook({}))
    )
    return converge(before.resulting_world().with_objects([a_pool(**each) for each in stated]))


def _prices(draw: Random, cores: int) -> dict[str, float]:
    return {provider: cores * draw.choice([0.03, 0.04, 0.05, 0.1]) for provider in ("aws", "gcp")}


def _pool(draw: Random, name: str, classes: int) -> dict[str, Any]:
    return {
        "name": name,
        "provider": draw.choice(["aws", "gcp"]),
        "region": draw.choice(REGIONS),
        "zone": draw.choice(["", "a", "b"]),
        "classes": sorted(draw.sample([f"c{at}" for at in range(classes)], draw.randint(1, min(2, classes)))),
        "labels": {"compliance": draw.choice([[], ["gdpr"]])},
        "capacity": draw.choice(
            [{}, {}, {}, {"maxNodes": 2}, {"maxNodes": 3}, {"maxCores": 16}, {"maxMemoryGi": 40}]
        ),
        "budget": draw.choice([None, None, None, 150, 300]),
    }


def _policy(draw: Random, name: str) -> Kind:
    clusters = draw.choice(
        [None, {"minNodes": 2}, {"minNodes": 3, "maxNodes": 4}, {"binPackingThreshold": 1}]
    )
    rules: dict[str, Any] = draw.choice(
        [{}, {}, {"minRegions": 2}, {"spreadConstraint": {"topologyKey": "zone", "maxSkew": 1}}]
    )
    return a_policy(name, selector=draw.choice([None, {"env": "prod"}]), clusters=clusters, **rules)


def _service(draw: Random, name: str) -> Kind:
    skew = {
        "topologyKey": draw.choice(["region", "zone", "pool"]),
        "maxSkew": draw.randint(1, 2),
        "whenUnsatisfiable": "DoNotSchedule",
    }
    demands: dict[str, Any] = {
        "compliance": ["gdpr"],
        "requiredRegions": [draw.choice([*REGIONS, "p0"])],
        "spread": [skew],
        "latency": {
            draw.choice([each for each in NAMES[:2] if each != name]): {"maxMs": draw.choice([1, 2, 80])}
        },
    }
    return a_service(
        name,
        replicas=draw.randint(1, 3),
        cores=draw.choice([0.5, 1, 1.5, 2, 3]),
        memory=draw.choice([1, 2, 3, 6]),
        labels={"env": draw.choice(["prod", "dev"])},
        **{key: value for key, value in demands.items() if draw.random() < 0.2},
    )


@SOME
@given(
    st.integers(0, 1 << 40),
    st.sampled_from([(0, None), (0, 1), (0, 2), (36_000, None), (36_000_000, None), (36_000_000, 2)]),
)
def test_bound_and_result_agree_with_exhaustive_search(number: int, moving: tuple[int, int | None]) -> None:
    settled = small_state(number)
    effort = OptimiserOptions(move_cost=moving[0], max_moves=moving[1], time_limit_s=TIME_LIMIT_S, gap=0.0)
    true = cheapest_fleet_cost(settled, effort.move_price, effort.max_moves)
    assume(true is not None and settled.replica_counts)
    found = optimise(settled, effort)
    assert true is not None
    assert found.lower_bound <= true.total <= found.total
    assert true.cost <= found.rate_after <= found.rate_before
    assert found.gap >= (found.total - true.total) / max(1, found.total) - 1e-9
    if found.status == "optimal":
        assert found.total == true.total
    after = found.plan.state_after
    assert after is not None
    assert {name: counts.total() for name, counts in fleet_of(after).now.items()} == {
        name: counts.total() for name, counts in fleet_of(settled).now.items()
    }
    assert new_violations(settled, after) == []


# --- named cases ---


def optimise_after(*objects: Kind, then: Sequence[Kind] = (), **effort: Any) -> FleetPlan:
    """Place the objects, apply `then`, and optimise."""
    return optimise(
        converge(converge(a_world(*objects)).resulting_world().with_objects(then)),
        OptimiserOptions(time_limit_s=TIME_LIMIT_S, **effort),
    )


def offers(found: FleetPlan) -> dict[str, set[str]]:
    assert found.plan.state_after is not None
    return {
        name.partition("/")[2]: {offer for offer, _, _ in where}
        for name, where in found.plan.state_after.replica_counts.items()
    }


def clusters(found: FleetPlan) -> dict[str, dict[str, int]]:
    assert found.plan.state_after is not None
    return {name: dict(counts) for name, counts in sorted(found.plan.state_after.clusters.items())}


DEAR = a_class("dear", price=2)
EVEN: dict[str, Any] = {
    "spread": [{"topologyKey": "pool", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
}


def test_latency_group_moves_together() -> None:
    dear = a_pool("p1", region="us-east-1", classes=["dear"])
    pair = [a_service("db"), a_service("api", latency={"db": {"maxMs": 2}})]
    found = optimise_after(a_class(), DEAR, dear, *pair, then=[a_pool("p2", region="eu-west-1")], gap=0.0)
    assert offers(found) == {"api": {"p2"}, "db": {"p2"}}
    assert (found.rate_before, found.rate_after, found.bound) == (2_000_000, 200_000, 200_000)


def test_latency_group_stays_if_one_member_must() -> None:
    """The other service is required in its region."""
    dear = a_pool("p1", region="us-east-1", classes=["dear"])
    pair = [a_service("db", requiredRegions=["us-east-1"]), a_service("api", latency={"db": {"maxMs": 2}})]
    found = optimise_after(a_class(), DEAR, dear, *pair, then=[a_pool("p2", region="eu-west-1")])
    assert (found.moves, found.rate_after, found.bound) == (0, 2_000_000, 2_000_000)


def test_move_saves_min_nodes_of_a_cluster() -> None:
    """Each of two clusters has three machines for one replica; one cluster would hold both."""
    rules, pools = a_policy(clusters={"minNodes": 3}), [a_pool("p1", capacity={"maxNodes": 3}), a_pool("p2")]
    found = optimise_after(
        *pools,
        rules,
        a_service("a", cores=4, replicas=3, priority=1),
        a_service("b", cores=4),
        then=[a_service("a", cores=4, priority=1)],
        gap=0.0,
    )
    assert (found.rate_before, found.rate_after, found.bound, found.moves) == (1_200_000, 600_000, 600_000, 1)


def test_optimiser_knows_the_skew_of_a_spread() -> None:
    """Five replicas over three pools with skew 2: (3, 1, 1) is the cheapest legal layout; (3, 2, 0) is not."""
    classes = a_class("a", 2, 4, 0.1), a_class("b", 2, 4, 0.2), a_class("c", 2, 4, 0.3)
    pools = [a_pool(name, classes=[name]) for name in "abc"]
    skew = [{"topologyKey": "pool", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}]
    found = optimise_after(*classes, *pools, a_service(cores=2, replicas=5, spread=skew), gap=0.0)
    assert (found.rate_after, found.bound, found.status, found.gap) == (800_000, 800_000, "optimal", 0.0)


def test_optimiser_knows_the_spread_over_nodes() -> None:
    """Four replicas would fit on one large machine; one to a machine they take four small ones."""
    one = [{"topologyKey": "node", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    classes = a_class("s", 1, 4, 0.1), a_class("l", 8, 32, 0.2)
    service = a_service(replicas=4, spread=one)
    found = optimise_after(*classes, a_pool(classes=["s", "l"]), service, gap=0.0)
    assert (found.rate_after, found.bound, found.gap) == (400_000, 400_000, 0.0)


def test_services_with_different_rules_do_not_share_machines() -> None:
    rules = a_policy(selector={"env": "prod"}, clusters={"maxNodes": 7})
    found = optimise_after(a_pool(), rules, a_service("a"), a_service("b", labels={"env": "prod"}))
    assert (found.rate_after, found.bound, found.status) == (400_000, 400_000, "optimal")


def test_replicas_move_to_cheaper_class_in_same_pool() -> None:
    service = a_service(cores=2, replicas=2)
    classes = a_class("m", 4, 16, 0.2), a_class("n", 4, 16, 0.3)
    found = optimise_after(
        *classes, a_pool(classes=["m", "n"]), service, then=[a_class("n", 4, 16, 0.1)], gap=0.0
    )
    assert (found.moves, found.rate_after, found.bound) == (2, 100_000, 100_000)
    assert clusters(found) == {"p1-002": {"n": 1}}


def test_half_empty_machines_are_consolidated() -> None:
    """Four services filled four machines; after scaling down they fit on one."""
    names = ("a", "b", "c", "d")
    before = converge(a_world(a_pool(), *(a_service(name, cores=3) for name in names))).resulting_world()
    settled = converge(before.with_objects([a_service(name, cores=1) for name in names]))
    assert settled.clusters == {"p1-001": {"m": 4}}
    found = optimise(settled, OptimiserOptions(time_limit_s=TIME_LIMIT_S))
    assert (found.moves, clusters(found)) == (3, {"p1-001": {"m": 1}})
    assert optimise(settled, OptimiserOptions(time_limit_s=TIME_LIMIT_S, max_moves=2)).rate_after == 400_000
    assert optimise(settled, OptimiserOptions(time_limit_s=TIME_LIMIT_S, move_cost=200_000 * 720)).moves == 0


def test_existing_skew_does_not_raise_the_bound() -> None:
    found = optimise_after(
        a_class(),
        DEAR,
        a_pool("p1"),
        a_service(cores=4, replicas=2, **EVEN),
        then=[a_pool("p2", classes=["dear"])],
    )
    assert (found.moves, found.rate_after, found.bound) == (0, 400_000, 400_000)


def test_saving_does_not_increase_skew() -> None:
    """With the third pool the counts are two, two and none; no pool may get more than two."""
    pools = [a_pool("p1", classes=["dear"]), a_pool("p2", classes=["dear"])]
    found = optimise_after(
        a_class(), DEAR, *pools, a_service(cores=4, replicas=4, **EVEN), then=[a_pool("p3")], move_cost=0
    )
    assert (found.rate_after, found.bound) == (4_400_000, 4_400_000)
    assert offers(found)["api"] == {"p1", "p3"}


def test_zone_spread_is_kept() -> None:
    even = {"spread": [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}
    zones = [a_pool("p1", region="r", zone="a"), a_pool("p2", region="r", zone="b", classes=["dear"])]
    found = optimise_after(a_class(), DEAR, *zones, a_service(cores=4, replicas=4, **even))
    assert (found.rate_after, found.bound, found.status) == (4_400_000, 4_400_000, "optimal")


def test_capacity_beside_bare_workload_is_free() -> None:
    applied = converge(a_world(a_class(), a_pool(), a_service(replicas=1))).resulting_world()
    world = World(applied.objects, applied.price_book).with_objects(
        [a_pool_node("n1"), a_replica_on_node("mine", "n1", cores="1")], with_status=True
    )
    found = optimise(converge(world), OptimiserOptions(time_limit_s=TIME_LIMIT_S))
    assert (found.rate_after, found.bound, found.status) == (200_000, 200_000, "optimal")


def test_machine_larger_than_its_class_holds_more() -> None:
    applied = converge(a_world(a_class(), a_pool(), a_service(cores=4))).resulting_world()
    big = a_pool_node("n1", allocatable={"cpu": 8000, "memory": 64 << 30})
    settled = converge(
        World(applied.objects, applied.price_book)
        .with_objects([big], with_status=True)
        .with_objects([a_service(cores=4, replicas=2)])
    )
    found = optimise(settled, OptimiserOptions(time_limit_s=TIME_LIMIT_S))
    assert (found.rate_after, found.bound) == (200_000, 200_000)


def test_machines_of_withdrawn_class_may_stay() -> None:
    old = a_class("old", price=0.1)
    found = optimise_after(
        a_class(), old, a_pool(classes=["old"]), a_service(cores=3, replicas=2), then=[a_pool(classes=["m"])]
    )
    assert (found.moves, found.rate_after, found.bound) == (0, 200_000, 200_000)


UNPRICED = a_class("unpriced", 8, 32, None)


def test_unpriced_class_does_not_dominate_priced_ones() -> None:
    offer = a_world(a_class(), UNPRICED, a_pool(classes=["m", "unpriced"])).supply.offers[0]
    assert [each.name for each in useful_types(offer, ("cpu", "memory"))] == ["m"]
    found = optimise_after(
        a_class(), UNPRICED, a_class("l", 16, 64, 0.7), a_pool(classes=["m", "l", "unpriced"]), a_service()
    )
    assert (found.rate_after, found.bound) == (200_000, 200_000)


def test_unknown_price_is_not_counted_in_the_bound() -> None:
    found = optimise_after(
        UNPRICED, a_class(), a_pool(classes=["unpriced"]), a_service(), then=[a_pool("p2")]
    )
    assert (found.moves, found.rate_after, found.bound) == (0, 0, 0)


def test_unpriced_machines_are_no_saving() -> None:
    found = optimise_after(
        UNPRICED, a_class(), a_pool("p1"), a_service(), then=[a_pool("p2", classes=["unpriced"])]
    )
    assert (found.moves, found.rate_after, found.bound) == (0, 200_000, 200_000)


def test_overflow_replicas_move_to_cheaper_class() -> None:
    overflow = {"enabled": True, "target": "cloud", "trigger": {"capacityThreshold": 50}}
    dear, cheap = a_class("m", costPerHour={"aws": 0.5}), a_class("n", costPerHour={"aws": 0.2})
    first = [
        dear,
        a_static("dc", 1, 4, "16Gi", overflow=overflow),
        a_cloud("cloud", {"r1": {}}),
        a_service(cores=4, replicas=2),
    ]
    found = optimise_after(*first, then=[cheap], gap=0.0)
    assert (found.rate_before, found.rate_after, found.bound, found.moves) == (500_000, 200_000, 200_000, 1)
