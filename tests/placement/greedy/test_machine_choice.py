"""Tests of machine choice: clusters are filled, then grown, then created, and their names are never reused."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from build.property_settings import LONG
from build.worlds import a_class, a_cloud, a_policy, a_pool, a_service, a_static, a_world
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.base import Kind
from lattice.placement.greedy.machine_choice import _largest_share, cluster_name
from lattice.placement.model.current_state import EMPTY_LAYOUT
from lattice.placement.model.world import World
from lattice.placement.plan.plan import converge, plan


def clusters(*objects: Kind) -> dict[str, dict[str, int]]:
    return {name: dict(counts) for name, counts in sorted(converge(a_world(*objects)).clusters.items())}


@pytest.mark.parametrize(("objects", "found"), [
    pytest.param([a_pool(), a_service(replicas=3)], {"p1-001": {"m": 1}}, id="an existing cluster is filled"),
    pytest.param([a_pool(), a_service(replicas=5)], {"p1-001": {"m": 2}}, id="a full cluster grows"),
    pytest.param([a_pool(), a_service(cores=4, replicas=3), a_policy(clusters={"maxNodes": 2})], {"p1-001": {"m": 2}, "p1-002": {"m": 1}},
                 id="a cluster at maxNodes is followed by another"),
    pytest.param([a_pool(), a_service(), a_policy(clusters={"minNodes": 3})], {"p1-001": {"m": 3}}, id="a cluster starts with minNodes"),
    pytest.param([a_cloud(regions={"r1": {"quotas": {"maxNodesPerCluster": 2}}}), a_service(cores=4, replicas=3)],
                 {"cloud-r1-001": {"m": 2}, "cloud-r1-002": {"m": 1}}, id="a region's quota caps it"),
    pytest.param([a_cloud(regions={"r1": {"quotas": {"maxNodesPerCluster": 2}}}), a_service(), a_policy(clusters={"minNodes": 3})],
                 {"cloud-r1-001": {"m": 2}}, id="a region's quota caps minNodes"),
    pytest.param([a_cloud(defaults={"maxClustersPerRegion": 1, "maxNodesPerCluster": 1}, regions={"r1": {"quotas": {"maxClusters": 2, "maxNodesPerCluster": 3}}}),
                  a_service(cores=4, replicas=6)], {"cloud-r1-001": {"m": 3}, "cloud-r1-002": {"m": 3}}, id="a region's quota exceeds the default"),
    pytest.param([a_pool(), a_service(cores=1, replicas=4), a_policy(clusters={"binPackingThreshold": 0.5})], {"p1-001": {"m": 2}},
                 id="a cluster that is half full is not filled where half is the threshold"),
    pytest.param([a_pool(capacity={"maxNodes": 1}), a_service(replicas=4), a_policy(clusters={"binPackingThreshold": 0.5})], {"p1-001": {"m": 1}},
                 id="the threshold never rejects a replica"),
    pytest.param([a_pool(), a_service(replicas=4), a_policy(clusters={"binPackingThreshold": 1})], {"p1-001": {"m": 1}}, id="a threshold of 1 uses all"),
    pytest.param([a_pool(), a_service("a"), a_service("b")], {"p1-001": {"m": 1}}, id="services share a cluster"),
    pytest.param([a_pool(), a_service("a"), a_service("b", labels={"env": "prod"}), a_policy(selector={"env": "prod"}, clusters={"maxNodes": 7})],
                 {"p1-001": {"m": 1}, "p1-002": {"m": 1}}, id="services under different rules do not share a cluster"),
    pytest.param([a_pool(), a_service("a"), a_service("b", labels={"env": "prod"}), a_policy(selector={"env": "prod"}, clusters={"maxNodes": 20})],
                 {"p1-001": {"m": 1}}, id="rules are compared by value, not by policy"),
    pytest.param([a_pool(), a_service(), a_policy(clusters={"namePrefix": "prod"})], {"p1-prod-001": {"m": 1}}, id="a policy names clusters"),
])  # fmt: skip
def test_clusters_are_filled_then_grown_then_created(
    objects: list[Kind], found: dict[str, dict[str, int]]
) -> None:
    assert clusters(*objects) == found


SIZES = [
    a_class("s", 2, 4, 0.1),
    a_class("m", 4, 16, 0.2),
    a_class("l", 16, 64, 0.7),
    a_pool(classes=["s", "m", "l"]),
]


@pytest.mark.parametrize(("service", "chosen"), [
    pytest.param(a_service(cores=1), {"s": 1}, id="the cheapest for one"),
    pytest.param(a_service(cores=1.6, memory=1.6, replicas=16), {"l": 2}, id="the cheapest for all of them together"),
    pytest.param(a_service(cores=2, replicas=16), {"s": 16}, id="two large ones would do, but for the fifth kept free it takes three"),
    pytest.param(a_service(cores=3, memory=4, replicas=3), {"m": 3}, id="a large one that is half empty is dearer than three small ones"),
    pytest.param(a_service(cores=3, memory=4, replicas=5), {"l": 1}, id="a large one that is full is not"),
    pytest.param(a_service(cores=3, memory=4, replicas=6), {"l": 1, "m": 1}, id="a small one beside the full large one for the sixth replica"),
    pytest.param(a_service(cores=1, memory=8), {"m": 1}, id="the cheapest class that fits"),
    pytest.param(a_service(cores=4, memory=16, replicas=2), {"m": 2}, id="two small ones if that is less"),
])  # fmt: skip
def test_cheapest_class_that_fits_is_chosen(service: Kind, chosen: dict[str, int]) -> None:
    assert clusters(*SIZES, service) == {"p1-001": chosen}


AUDIT = [a_class("medium", 4, 16, 0.192), a_class("large", 16, 64, 0.6), a_pool(classes=["medium", "large"])]


@pytest.mark.parametrize(("steps", "micros"), [
    pytest.param([5], 600_000, id="five replicas of 3 cores on a large machine"),
    pytest.param([6], 792_000, id="six at once: large and medium, not six mediums"),
    pytest.param([5, 6], 792_000, id="five, then six: the same"),
    pytest.param([1, 6], 792_000, id="one, then six: the medium one is there"),
    pytest.param([7], 984_000, id="two mediums beside the large one"),
    pytest.param([3, 6], 1_152_000, id="three, then six: three mediums are cheaper than a large one"),
    pytest.param([10], 1_200_000, id="two large ones"),
])  # fmt: skip
def test_classes_are_mixed(steps: list[int], micros: int) -> None:
    world = a_world(*AUDIT, a_policy(clusters={"binPackingThreshold": 1}))
    for replicas in steps:
        settled = converge(world.with_objects([a_service(cores=3, memory=4, replicas=replicas)]))
        world = settled.resulting_world()
    assert sum(settled.offer_rates.values()) == micros


def test_machine_of_another_service_is_no_part_of_a_mix() -> None:
    """The first of three replicas goes beside the filler on its large machine; two small machines for the other
    two cost less than a further large one, which would be cheaper for three."""
    classes = [a_class("small", 4, 16, 0.23), a_class("large", 16, 64, 0.66)]
    settled = converge(
        a_world(
            *classes,
            a_pool(classes=["small", "large"]),
            a_policy(clusters={"binPackingThreshold": 1}),
            a_service("filler", cores=12),
            a_service(cores=3, replicas=3),
        )
    )
    assert settled.clusters == {"p1-001": {"large": 1, "small": 2}}


@pytest.mark.parametrize(("max_skew", "made"), [
    pytest.param(1, {"small": 1}, id="one replica each"),
    pytest.param(2, {"medium": 1}, id="both may be in the cheap region, on one machine"),
])  # fmt: skip
def test_machines_are_sized_for_the_share_of_a_region(max_skew: int, made: dict[str, int]) -> None:
    classes = [a_class("small", 4, 16, 0.19), a_class("medium", 8, 32, 0.32), a_class("dear", 4, 16, 0.25)]
    pools = [
        a_pool("cheap", classes=["small", "medium"]),
        a_pool("b", classes=["dear"]),
        a_pool("c", classes=["dear"]),
    ]
    rule = {"topologyKey": "region", "maxSkew": max_skew, "whenUnsatisfiable": "DoNotSchedule"}
    service = a_service(cores=4, replicas=2, spread=[rule])
    settled = converge(a_world(*classes, *pools, a_policy(clusters={"binPackingThreshold": 1}), service))
    assert settled.clusters["cheap-001"] == made


@given(st.lists(st.integers(0, 3), max_size=3), st.integers(1, 6), st.integers(1, 3))
def test_largest_share_agrees_with_the_enumeration(others: list[int], extra: int, max_skew: int) -> None:
    replicas = sum(others) + extra
    shares = [0]
    for counts in itertools.product(range(replicas + 1), repeat=len(others)):
        share = replicas - sum(counts)
        if all(count >= max(least, share - max_skew) for count, least in zip(counts, others, strict=True)):
            shares.append(share)
    assert _largest_share(others, replicas, max_skew) == max(shares)


@settings(max_examples=400 if LONG else 30, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([0.1, 0.5, 0.75, 0.8, 0.95, 1]),
)
def test_predicted_machine_count_equals_placed_count(
    replicas: int, cores: int, memory: int, threshold: float
) -> None:
    """The machine count predicted for a class equals the count after filling and growing."""
    rules = a_policy(clusters={"binPackingThreshold": threshold, "maxNodes": 1000})
    service = a_service(replicas=replicas, cores=cores / 10, memory=memory / 10)
    settled = converge(a_world(a_class("m", 4, 4, 0.2), a_pool(), rules, service))
    counted = settled.fleet.quotes.machine_fit(settled.world.demands["default/api"]).machine_count
    assert settled.clusters == {"p1-001": {"m": int(counted[0, 0])}}


SCARCE = [
    pytest.param(a_pool(classes=["s", "m", "l"], capacity={"maxNodes": 2}), {"l": 1}, id="two machines: a large one holds all"),
    pytest.param(a_pool(classes=["s", "l"], budget=400), {"s": 5}, id="five small ones for less than a large one costs"),
    pytest.param(a_pool(classes=["s", "l"], capacity={"maxCores": 12}), {"s": 6}, id="cores that a large one would not leave"),
    pytest.param(a_cloud(regions={"r1": {"quotas": {"maxClusters": 1, "maxNodesPerCluster": 1}}}), {"l": 1}, id="one cluster of one machine"),
    pytest.param(a_pool(classes=["s", "m"], capacity={"maxNodes": 2}), {"m": 2}, id="as many replicas as fit"),
    pytest.param(a_pool(classes=["s", "m", "l"]), {"s": 6}, id="the cheapest where there is room enough"),
]  # fmt: skip


@pytest.mark.parametrize(("supply", "made"), SCARCE)
def test_larger_class_is_chosen_under_scarce_limits(supply: Kind, made: dict[str, int]) -> None:
    assert list(clusters(*SIZES[:3], supply, a_service(cores=2, replicas=6)).values()) == [made]


@settings(max_examples=2000 if LONG else 20, deadline=None)
@given(
    st.integers(1, 20),
    st.sampled_from([0.5, 1, 1.5, 2, 3, 4, 9]),
    st.sampled_from(
        [
            {},
            {"maxNodes": 1},
            {"maxNodes": 3},
            {"maxNodes": 5},
            {"maxCores": 20},
            {"maxMemoryGi": 70},
            {"maxCores": 18, "maxNodes": 4},
        ]
    ),
    st.sampled_from([None, 100, 300, 500, 700, 1500]),
    st.sampled_from([None, {"maxNodes": 1}, {"maxNodes": 2}, {"binPackingThreshold": 0.4}]),
)
def test_no_single_class_places_more_replicas(
    replicas: int, cores: float, capacity: Any, budget: float | None, rules: Any
) -> None:
    def placed(*classes: str) -> int:
        pool = a_pool(classes=list(classes), capacity=capacity, budget=budget)
        settled = converge(
            a_world(*SIZES[:3], pool, a_policy(clusters=rules), a_service(cores=cores, replicas=replicas))
        )
        return settled.replica_counts["default/api"].total() if settled.replica_counts else 0

    assert placed("s", "m", "l") >= max(placed(each) for each in "sml")


def test_equal_prices_break_ties_by_name() -> None:
    assert clusters(a_class("b"), a_class("a"), a_pool(classes=["a", "b"]), a_service()) == {
        "p1-001": {"a": 1}
    }


@pytest.mark.parametrize(("objects", "found"), [
    pytest.param([a_service(tolerations=[{"key": "only", "operator": "Exists"}])], {"p1-001": {"t": 1}}, id="a taint that is tolerated"),
    pytest.param([a_service()], {"p1-001": {"m": 1}}, id="a taint that is not"),
    pytest.param([a_service(nodeSelector={"disk": "ssd"})], {"p1-001": {"ssd": 1}}, id="a label of the class"),
    pytest.param([a_service(gpu=1)], {"p1-001": {"g": 1}}, id="a GPU"),
    pytest.param([a_service(gpu=0.3, replicas=7)], {"p1-001": {"g": 2}}, id="parts of GPUs: three thirds on each of two"),
    pytest.param([a_service(gpu=0.6, replicas=3)], {"p1-001": {"g": 2}}, id="more than half of one takes it whole"),
])  # fmt: skip
def test_taints_labels_and_gpus_select_classes(objects: list[Kind], found: dict[str, dict[str, int]]) -> None:
    classes = [
        a_class(), a_class("t", price=0.1, taints=[{"key": "only", "effect": "NoSchedule"}]), a_class("ssd", price=0.3, labels={"disk": "ssd"}),
        a_class("g", 16, 64, 2, gpu=2),
    ]  # fmt: skip
    assert clusters(*classes, a_pool(classes=["m", "t", "ssd", "g"]), *objects) == found


def test_data_center_gpus_are_counted_by_model() -> None:
    dc = a_static(
        nodes=4,
        cores=16,
        memory="64Gi",
        accelerators=[{"type": "a100", "count": 1}, {"type": "t4", "count": 2}],
    )
    found = converge(
        a_world(
            dc,
            a_service("big", priority=9, gpu=1, gpuModel="a100", replicas=2),
            a_service("any", gpu=1, replicas=3),
        )
    )
    assert found.replica_counts["default/big"].total() == 1
    assert found.replica_counts["default/any"].total() == 2
    assert sorted(found.unplaced) == ["default/any", "default/big"]


@pytest.mark.parametrize(("offer", "prefix", "number", "name"), [
    ("us-east", "", 1, "us-east-001"), ("us-east", "prod", 12, "us-east-prod-012"), ("aws/us-east-1", "", 1000, "aws-us-east-1-1000"),
])  # fmt: skip
def test_cluster_name(offer: str, prefix: str, number: int, name: str) -> None:
    assert cluster_name(offer, prefix, number) == name


def without_clusters(world: World) -> World:
    return world.with_objects([], [key for key in world.objects if key[0] == LatticeCluster.resource.kind])


@pytest.mark.parametrize(("supply", "names"), [
    pytest.param(a_pool(), ["p1-001", "p1-002", "p1-003"], id="clusters of a pool"),
    pytest.param(a_cloud(), ["cloud-r1-001", "cloud-r1-002", "cloud-r1-003"], id="clusters of a cloud region"),
    pytest.param(a_static(), ["dc-001", "dc-002", "dc-003"], id="clusters of a data center"),
])  # fmt: skip
def test_cluster_numbers_are_never_reused(supply: Kind, names: list[str]) -> None:
    """Neither after a cluster is removed, nor after all objects are read back."""
    given: list[str] = []
    world = a_world(supply)
    for _ in range(3):
        with_it = converge(world.with_objects([a_service()]))
        given += with_it.clusters
        gone = plan(with_it.resulting_world(), [], [("LatticeService", "default", "api")]).state_after
        assert gone is not None
        assert not gone.clusters
        world = World.of(replace(gone.resulting_world(), layout=EMPTY_LAYOUT).objects.values())
    assert given == names


def test_existing_clusters_advance_cluster_numbers() -> None:
    """Existing clusters count even if no status stores the next number."""
    world = converge(a_world(a_pool(), a_service())).resulting_world()
    bare = world.with_objects([a_pool()], with_status=True)
    other = a_service("other", cores=4), a_policy(clusters={"maxNodes": 1})
    assert sorted(converge(bare.with_objects(other)).clusters) == ["p1-001", "p1-002"]


def test_scale_down_removes_most_expensive_and_empty_machines() -> None:
    world = converge(a_world(a_class(), a_class("dear", price=0.9), a_pool("p1", capacity={"maxNodes": 2}), a_pool("p2", classes=["dear"]),
                           a_service(cores=4, replicas=4))).resulting_world()  # fmt: skip
    found = converge(world.with_objects([a_service(cores=4, replicas=2)]))
    assert found.clusters == {"p1-001": {"m": 2}}


def test_cluster_keeps_its_min_nodes() -> None:
    rules = a_policy(clusters={"minNodes": 2})
    world = converge(a_world(a_pool(), rules, a_service(cores=4, replicas=5))).resulting_world()
    assert converge(world.with_objects([a_service(cores=4, replicas=1)])).clusters == {"p1-001": {"m": 2}}


@pytest.mark.parametrize(("rule", "left"), [
    pytest.param({"requiredRegions": ["p1", "p2"]}, {"p1": 1, "p2": 1}, id="the last one in a required region stays"),
    pytest.param({"spread": [{"topologyKey": "pool", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}, {"p1": 1, "p2": 1},
                 id="an even spread stays even"),
])  # fmt: skip
def test_scale_down_keeps_placement_rules(rule: dict[str, Any], left: dict[str, int]) -> None:
    pools = a_class(), a_class("dear", price=0.9), a_pool("p1"), a_pool("p2", classes=["dear"])
    world = converge(a_world(*pools, a_service(cores=4, replicas=6, **rule))).resulting_world()
    found = converge(world.with_objects([a_service(cores=4, replicas=2, **rule)]))
    assert {offer: count for (offer, _, _), count in found.replica_counts["default/api"].items()} == left


def test_scale_down_keeps_even_spread() -> None:
    even = {"spread": [{"topologyKey": "pool", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}
    pools = [
        a_class(),
        a_class("dear", price=0.9),
        a_pool("p1"),
        a_pool("p2"),
        a_pool("p3", classes=["dear"]),
    ]
    world = converge(a_world(*pools, a_service(cores=4, replicas=6, **even))).resulting_world()
    found = converge(world.with_objects([a_service(cores=4, replicas=4, **even)]))
    assert sorted(found.replica_counts["default/api"].values()) == [1, 1, 2]


def test_recreated_pool_continues_cluster_numbers() -> None:
    first = converge(a_world(a_pool("p1"), a_service())).resulting_world()
    empty = plan(first, [], [("LatticeService", "default", "api")]).state_after
    assert empty is not None
    gone = plan(empty.resulting_world(), [], [("LatticePool", "", "p1")]).state_after
    assert gone is not None
    again = plan(gone.resulting_world(), [a_pool("p1"), a_service()]).state_after
    assert again is not None
    assert list(again.clusters) == ["p1-002"]
