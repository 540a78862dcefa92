"""Tests of preferences: price, free capacity and nearness are normalised alike over the candidates."""

from collections import Counter

import msgspec
import pytest
from build.worlds import a_class, a_policy, a_pool, a_service, a_world

from lattice.engine.decide import decide
from lattice.engine.explain import top_candidates
from lattice.errors import Cause
from lattice.kinds.meta.base import Kind
from lattice.kinds.policy import LatticePlacementPolicy, SortPreference, WeightedPreference
from lattice.placement.greedy.profile import profile_of
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.plan.plan import converge

CALLS = {"dependencies": {"db": {"type": "service", "direction": "outbound"}}}


def preferring(*weighted: tuple[str, str, int]) -> LatticePlacementPolicy:
    policy = a_policy("wishes")
    preferences = tuple(
        WeightedPreference(weight=weight, preference=SortPreference(sort_by=sort, order=order))  # type: ignore[arg-type]
        for sort, order, weight in weighted
    )
    return msgspec.structs.replace(policy, spec=msgspec.structs.replace(policy.spec, preferences=preferences))


def pools_of(*objects: Kind, service: str = "default/api") -> dict[str, int]:
    counts = converge(a_world(*objects)).replica_counts[service]
    return dict(Counter(offer for offer, _, _ in counts.elements()))


COST, FREE = ("cost", "ascending"), ("availableCapacity", "descending")


@pytest.mark.parametrize(("weights", "pool"), [
    pytest.param((30, 50), "empty", id="capacity outweighs the price"),
    pytest.param((50, 30), "full", id="the price outweighs capacity"),
])  # fmt: skip
def test_price_and_capacity_are_normalised_alike(weights: tuple[int, int], pool: str) -> None:
    """Pool `full` is 0.5 % cheaper and has a tenth of its machines free."""
    classes = a_class("a", 4, 16, 0.995), a_class("b", 4, 16, 1.0)
    filler = a_service("filler", cores=4, replicas=9, priority=9, pools={"matchLabels": {"is": "full"}})
    pools = [
        a_pool("full", classes=["a"], capacity={"maxNodes": 10}, labels={"is": "full"}),
        a_pool("empty", classes=["b"], capacity={"maxNodes": 10}),
    ]
    policy = preferring((*COST, weights[0]), (*FREE, weights[1]))
    assert pools_of(*classes, *pools, filler, policy, a_service(cores=4)) == {pool: 1}


def test_pools_that_are_no_candidates_do_not_stretch_the_scale() -> None:
    """Beside pool `closed` at $100 the price of the other two would differ by a hundredth only."""
    classes = a_class("a", 4, 16, 1), a_class("b", 4, 16, 2), a_class("c", 4, 16, 100)
    open_label = {"open": "yes"}
    pools = [
        a_pool("cheap", classes=["a"], capacity={"maxNodes": 4}, labels=open_label),
        a_pool("dear", classes=["b"], capacity={"maxNodes": 4}, labels=open_label),
        a_pool("closed", classes=["c"]),
    ]
    filler = a_service("filler", cores=4, priority=9, requiredRegions=["cheap"])
    policy = preferring((*COST, 50), (*FREE, 30))
    wanted = {"pools": {"matchLabels": open_label}}
    assert pools_of(*classes, *pools, filler, policy, a_service(cores=4, **wanted)) == {"cheap": 1}


def test_parts_of_a_decision_are_shown_from_0_to_100() -> None:
    classes = a_class("a", 4, 16, 1), a_class("b", 4, 16, 2), a_class("c", 4, 16, 3)
    pools = [a_pool(name, classes=[name]) for name in "abc"]
    world = a_world(*classes, *pools, a_service(cores=4))
    fleet, demand = world.build_fleet(), world.demands["default/api"]
    decision = decide(ReplicaAsk(demand), fleet.table, profile_of(demand.preferences))
    ranked = [
        (candidate.name, candidate.parts[-2].plugin, candidate.parts[-2].score)
        for candidate in top_candidates(decision)
    ]
    assert ranked == [("a", "Cost", 100.0), ("b", "Cost", 50.0), ("c", "Cost", 0.0)]


FAR_AND_CHEAP = [a_class("dear", 4, 16, 40), a_class("cheap", 4, 16, 10.3), a_pool("home", region="us-east-1", classes=["dear"], labels={"is": "home"}),
                 a_pool("far", region="us-west-2", classes=["cheap"])]  # fmt: skip


@pytest.mark.parametrize("name", ["app", "zapp"])
@pytest.mark.parametrize(("preferences", "limit", "pool"), [
    pytest.param([], {}, "home", id="without policies near is better, then cheap"),
    pytest.param([(*COST, 100)], {}, "far", id="a price of weight 100 beats nearness of weight 20"),
    pytest.param([(*COST, 10)], {}, "home", id="a price of weight 10 does not"),
    pytest.param([(*COST, 10), ("proximity", "ascending", 5)], {}, "far", id="a policy states another weight"),
    pytest.param([("proximity", "ascending", 0)], {}, "far", id="weight 0 makes nearness irrelevant"),
    pytest.param([(*COST, 100)], {"latency": {"db": {"maxMs": 500}}}, "home", id="with a latency limit nearness ranks above the price"),
])  # fmt: skip
def test_nearness_to_a_dependency_is_a_preference(
    name: str, preferences: list[tuple[str, str, int]], limit: dict[str, object], pool: str
) -> None:
    db = a_service("db", cores=4, pools={"matchLabels": {"is": "home"}})
    objects = [*FAR_AND_CHEAP, db, preferring(*preferences), a_service(name, cores=4, **CALLS, **limit)]
    assert pools_of(*objects, service=f"default/{name}") == {pool: 1}


@pytest.mark.parametrize("names", [("p1", "p2"), ("p2", "p1")])
def test_one_micro_dollar_decides_beside_an_expensive_pool(names: tuple[str, str]) -> None:
    """Beside $98.32, 32 bits could not tell $0.041600 from $0.041601."""
    spread = [{"topologyKey": "pool", "whenUnsatisfiable": "ScheduleAnyway"}]
    objects = [
        a_class("most", 4, 16, 98.32),
        a_class("less", 4, 16, 0.0416),
        a_class("more", 4, 16, 0.041601),
        a_pool("p3", classes=["most"]),
        *(
            a_pool(name, region="us-east-1", classes=[kind])
            for name, kind in zip(names, ["less", "more"], strict=True)
        ),
        a_service(cores=4, spread=spread),
    ]
    assert pools_of(*objects) == {names[0]: 1}


@pytest.mark.parametrize("name", ["app", "zapp"])
def test_the_same_provider_is_no_nearness(name: str) -> None:
    """db fills its pool; the other pool of its provider is in another region and a hundred times dearer."""
    objects = [
        a_class("dear", 4, 16, 10),
        a_class("cheap", 4, 16, 0.1, providers=["gcp"]),
        a_pool("home", classes=["dear"], capacity={"maxNodes": 1}, labels={"is": "home"}),
        a_pool("sydney", classes=["dear"]),
        a_pool("virginia", provider="gcp", classes=["cheap"]),
        a_service("db", cores=4, pools={"matchLabels": {"is": "home"}}),
        a_service(name, cores=4, **CALLS),
    ]
    assert pools_of(*objects, service=f"default/{name}") == {"virginia": 1}


def test_proximity_has_no_descending_order() -> None:
    (problem,) = preferring(("proximity", "descending", 9)).problems()
    assert isinstance(problem, Cause)
    assert str(problem).startswith("spec.preferences[0].preference.order: must be ascending for proximity")
