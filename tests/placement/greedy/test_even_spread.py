"""Tests of soft topology spread (ScheduleAnyway): kept where possible, given up where it would leave a
replica unplaced."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from build.worlds import a_class, a_policy, a_pool, a_service, a_static, a_world, arranged

from lattice.kinds.meta.base import Kind
from lattice.placement.model.world import World, placed_counts
from lattice.placement.plan.plan import converge
from lattice.placement.queries.why import explain_service

CHEAP, DEAR = a_class("s", 4, 16, 0.1), a_class("l", 4, 16, 0.9)
EAST, WEST = a_pool("east", region="east", classes=["s"]), a_pool("west", region="west", classes=["l"])


def wished(key: str = "region", skew: int = 1) -> dict[str, Any]:
    return {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "ScheduleAnyway"}


def by_pool(world: World, name: str = "default/api") -> dict[str, int]:
    found: Counter[str] = Counter()
    for (pool, _, _), count in placed_counts(arranged(world), name).items():
        found[pool] += count
    return dict(found)


@pytest.mark.parametrize(("objects", "expected"), [
    pytest.param([EAST, WEST, a_service(replicas=4)], {"east": 4}, id="without a wish the cheap one takes all"),
    pytest.param([EAST, WEST, a_service(replicas=4, spread=[wished()])], {"east": 2, "west": 2}, id="evenly over regions"),
    pytest.param([EAST, WEST, a_service(replicas=4, cores=4, spread=[wished(skew=2)])], {"east": 3, "west": 1}, id="within the skew the price decides"),
    pytest.param([EAST, WEST, a_service(replicas=4, spread=[wished("pool")])], {"east": 2, "west": 2}, id="evenly over pools"),
    pytest.param([EAST, WEST, a_service(replicas=4, spread=[wished("provider")])], {"east": 4}, id="over providers, of which there is one"),
    pytest.param([EAST, WEST, a_service(replicas=4, spread=[wished("node")])], {"east": 4}, id="over nodes is nothing to choose a pool by"),
    pytest.param([EAST, a_pool("west", region="west", classes=["l"], capacity={"maxNodes": 1}), a_service(replicas=4, cores=4, spread=[wished()])],
                 {"east": 3, "west": 1}, id="where one is full the others take the rest"),
    pytest.param([EAST, a_pool("west", region="west", classes=["l"], budget=1), a_service(replicas=4, cores=4, spread=[wished()])],
                 {"east": 4}, id="where one costs too much the others take all"),
    pytest.param([a_pool("east", region="east", classes=["s"], labels={"tier": "prod"}), WEST, a_service(
                  replicas=4, spread=[wished()], pools={"matchLabels": {"tier": "prod"}})], {"east": 4}, id="where it may not be is not counted"),
    pytest.param([EAST, WEST, a_static("own", region="east", nodes=4, cores=16), a_service(replicas=4, spread=[wished()])], {"own": 4},
                 id="what is owned comes first"),
])  # fmt: skip
def test_soft_spread_placement(objects: list[Kind], expected: dict[str, int]) -> None:
    assert by_pool(a_world(CHEAP, DEAR, *objects)) == expected


def test_soft_spread_over_zones_of_a_region() -> None:
    pools = [
        a_pool(name, region="r", zone=name, classes=[kind])
        for name, kind in (("a", "s"), ("b", "l"), ("c", "l"))
    ]
    assert by_pool(a_world(CHEAP, DEAR, *pools, a_service(replicas=6, spread=[wished("zone")]))) == {
        "a": 2,
        "b": 2,
        "c": 2,
    }


def test_soft_spread_yields_to_budget() -> None:
    """The budget pays for four cheap machines, not for two cheap and two dear ones."""
    pools = [
        a_pool("east", region="east", classes=["s"], budget=300),
        a_pool("west", region="west", classes=["l"], budget=700),
    ]
    world = a_world(CHEAP, DEAR, *pools, a_service(replicas=5, cores=4, spread=[wished()]))
    assert by_pool(world) == {"east": 4, "west": 1}
    assert not converge(world).unplaced


def test_soft_spread_precedes_cost_preference() -> None:
    policy = a_policy("cheap")
    preferences = [{"weight": 100, "preference": {"sortBy": "cost", "order": "ascending"}}]
    cheap = msgspec.structs.replace(
        policy, spec=msgspec.convert({"preferences": preferences}, type(policy.spec))
    )
    assert by_pool(a_world(CHEAP, DEAR, EAST, WEST, cheap, a_service(replicas=6, spread=[wished()]))) == {
        "east": 3,
        "west": 3,
    }


def test_why_shows_even_score() -> None:
    world = a_world(CHEAP, DEAR, EAST, WEST, a_service(replicas=2, spread=[wished()]))
    steps = explain_service(converge(world), "default/api", {}).steps
    assert [each.chosen for each in steps] == ["east", "west"]
    shown = {each.name: {part.plugin: part.score for part in each.parts} for each in steps[1].ranked_pools}
    assert shown["west"]["Even"] == 100
    assert shown["east"]["Even"] == 50


def test_service_without_soft_spread_has_no_even_score() -> None:
    (step,) = explain_service(
        converge(a_world(CHEAP, DEAR, EAST, WEST, a_service())), "default/api", {}
    ).steps
    assert all(part.plugin != "Even" for each in step.ranked_pools for part in each.parts)
