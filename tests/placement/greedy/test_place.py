"""Tests of `place`: each rule alone rejects an offer with a reason, and together they choose the offer of
every replica."""

from collections import Counter
from typing import Any

import pytest
from build.worlds import (
    a_class,
    a_cloud,
    a_policy,
    a_pool,
    a_service,
    a_static,
    a_world,
    arranged,
    make_valid_object,
)

from lattice.engine.explain import rejections_of
from lattice.kinds.meta.base import Kind
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.placement.greedy.place import Placement, place
from lattice.placement.model.demand import Demand
from lattice.placement.model.world import World
from lattice.placement.plan.plan import converge

API = "default/api"


def converged_replicas(*objects: Kind, of: str = "api") -> dict[str, int]:
    found = converge(a_world(*objects)).replica_counts.get(f"default/{of}", {})
    totals: dict[str, int] = {}
    for (offer, _, _), count in found.items():
        totals[offer] = totals.get(offer, 0) + count
    return totals


def demand(*objects: Kind) -> Demand:
    return a_world(*objects).demands[API]


def placement(*objects: Kind) -> tuple[World, Placement]:
    """The placement of api after all other services are placed."""
    world = a_world(*objects)
    return world, place(world.demands[API], arranged(world, API), keep_decisions=99)


def reasons(*objects: Kind, offer: str = "p1") -> list[str]:
    _, found = placement(*objects)
    return [str(each) for each in rejections_of(found.decisions[-1], offer)]


GPU = a_class("g", 4, 16, 0.5, gpu=1, gpu_model="t4")
TAINTED = a_class(taints=[{"key": "only", "value": "x", "effect": "NoSchedule"}])
FULL = a_pool(capacity={"maxNodes": 1})
BUSY = a_service("busy", cores=4)


@pytest.mark.parametrize(("objects", "words"), [
    pytest.param([a_pool(labels={"tier": "test"}), a_service(pools={"matchLabels": {"tier": "production"}})],
                 ["label: need tier=production, have tier=test"], id="labels"),
    pytest.param([a_pool(), a_service(pools={"matchLabels": {"tier": "production"}})],
                 ["label: need tier=production, have no label tier"], id="a label that is not there"),
    pytest.param([a_pool(labels={"compliance": ["soc2", "hipaa"]}), a_service(compliance=["GDPR"])],
                 ["compliance: need gdpr, have hipaa, soc2"], id="compliance"),
    pytest.param([a_pool(labels={"capabilities": ["arm64"]}), a_service(capabilities=["gpu"])],
                 ["capability: need gpu, have arm64"], id="capabilities"),
    pytest.param([a_pool(labels={"dataResidency": "us"}), a_service(dataResidency="eu")],
                 ["residency: need eu, have us"], id="data residency"),
    pytest.param([a_pool(region="us-east-1"), a_service(requiredRegions=["moon"])],
                 ["region: need moon, have us-east-1"], id="a required region"),
    pytest.param([a_pool(region="us-east-1"), a_service(), a_policy(minRegions=2)],
                 ["region: need a region other than us-east-1, have us-east-1, missing another region"], id="a region too few"),
    pytest.param([a_pool(), a_service(latency={"db": {"maxMs": 5}})],
                 ["latency to db: need 5 ms, have not placed, missing a replica of db"], id="a dependency that is not placed"),
    pytest.param([a_pool(region="us-east-1"), a_pool("p2", region="eu-west-1", labels={"x": "y"}),
                  a_service("db", pools={"matchLabels": {"x": "y"}}), a_service(latency={"db": {"maxMs": 5}}, pools={"matchLabels": {"region": "us-east-1"}})],
                 ["latency to db: need 5 ms, have 90 ms to p2 (estimated over 5,462 km), missing 85 ms"], id="latency"),
    pytest.param([a_pool(region="nowhere"), a_pool("p2", region="somewhere", labels={"x": "y"}),
                  a_service("db", pools={"matchLabels": {"x": "y"}}), a_service(latency={"db": {"maxMs": 500}}, pools={"matchLabels": {"region": "nowhere"}})],
                 ["latency to db: need 500 ms, have unknown, missing a measurement: declare latencyTo, or provide a latency file"], id="unknown latency"),
    pytest.param([a_pool(), a_service(cores=5)], ["cpu on one machine: need 5, have 4, missing 1"], id="a machine that is too small"),
    pytest.param([a_pool(), a_service(cores=1, memory=17)], ["memory on one machine: need 17Gi, have 16Gi, missing 1Gi"], id="a machine with too little memory"),
    pytest.param([a_pool(), a_service(gpu=1)], ["gpu on one machine: need 1, have 0, missing 1"], id="a machine with too few GPUs"),
    pytest.param([GPU, a_pool(classes=["g"]), a_service(gpu=1, gpuModel="a100")],
                 ["gpu model: need a100, have t4"], id="GPUs of another model"),
    pytest.param([TAINTED, a_pool(), a_service()],
                 ["taint of class m: need toleration of only=x:NoSchedule, have no toleration"], id="a taint"),
    pytest.param([a_pool(classes=[]), a_service()], ["machines: need a node class, have none"], id="no machines"),
    pytest.param([FULL, BUSY, a_service()], ["nodes: need 1 more, have 0 of 1, missing 1"], id="machines in all"),
    pytest.param([a_pool(capacity={"maxCores": 5}), BUSY, a_service()], ["cpu for 1 more machine: need 4, have 1, missing 3"], id="cores in all"),
    pytest.param([a_pool(capacity={"maxMemoryGi": 20}), BUSY, a_service()], ["memory for 1 more machine: need 16Gi, have 4Gi, missing 12Gi"],
                 id="memory in all"),
    pytest.param([a_pool(budget=200), BUSY, a_service()], ["budget of latticepool/p1: need $0.20/h, have $0.077777/h, missing $0.122223/h"], id="budget"),
    pytest.param([a_class(price=None), a_pool(budget=200), a_service()], ["price of m: need a known price, because a budget applies, have unknown, missing a price: set costPerHour.aws of the class, or provide a price file"],
                 id="an unknown price where a budget applies"),
    pytest.param([a_pool(capacity={"maxNodes": 2}), a_policy(clusters={"minNodes": 3}), a_service()],
                 ["nodes: need 3 more, have 2 of 2, missing 1"], id="machines for a whole cluster"),
])  # fmt: skip
def test_each_rule_rejects_with_shortfall(objects: list[Kind], words: list[str]) -> None:
    assert reasons(*objects) == words


@pytest.mark.parametrize(("objects", "offer", "words"), [
    pytest.param([a_cloud(regions={"r1": {"quotas": {"maxClusters": 0}}}), a_service()], "cloud/r1",
                 ["clusters: need 1 more, have 0 of 0 in use, missing 1"], id="clusters in a region"),
    pytest.param([a_static(nodes=1, cores=4, memory="16Gi", accelerators=[{"type": "t4", "count": 1}]), a_service("busy", gpu=1), a_service(gpu=1)],
                 "dc", ["gpu: need 1, have 0, missing 1"], id="GPUs of a data center"),
    pytest.param([a_static(nodes=2, reservation={"reserved": {"nodes": 2}, "reservedFor": [{"labelSelector": {"env": "prod"}}]}), a_service()],
                 "dc", ["nodes: need 1 more, have 0 of 2, 2 reserved, missing 1"], id="what is reserved for others"),
    pytest.param([a_static(nodes=1, cores=4, memory="16Gi", overflow={"enabled": True, "target": "cloud"}), a_cloud(), a_service("busy", cores=3),
                  a_service(cores=2)], "cloud/r1",
                 ["overflow of dc: need 90 %, have 75 % in use, missing 15 %"], id="a cloud that is closed while the data center is not full"),
    pytest.param([a_static(nodes=1, cores=4, memory="16Gi", overflow={"enabled": False, "target": "cloud"}), a_cloud(), a_service("busy", cores=3),
                  a_service(cores=2)], "cloud/r1",
                 ["overflow of dc: need enabled: true, have enabled: false"], id="an overflow that is off"),
    pytest.param([a_pool("a", region="r1"), a_pool("b", region="r2", capacity={"maxNodes": 0}),
                  a_service(cores=4, replicas=2), a_policy(spreadConstraint={"topologyKey": "region", "maxSkew": 1})], "a",
                 ["skew over region: need at most 1, have 2 here with this replica, 0 in r2, missing 1"], id="skew"),
])  # fmt: skip
def test_each_rule_of_other_offers_rejects_with_shortfall(
    objects: list[Kind], offer: str, words: list[str]
) -> None:
    assert reasons(*objects, offer=offer) == words


def test_label_list_matches_any_of_its_values() -> None:
    assert converged_replicas(
        a_pool(labels={"tier": ["test", "production"]}),
        a_service(pools={"matchLabels": {"tier": "production"}}),
    ) == {"p1": 1}


def test_labels_compare_case_insensitively() -> None:
    pool = a_pool(labels={"compliance": ["SoC2"], "capabilities": ["GPU"], "dataResidency": "EU"})
    assert converged_replicas(
        pool, a_service(compliance=["sOc2"], capabilities=["gpu"], dataResidency="eu")
    ) == {"p1": 1}


# --- policies ---

TWO = [a_pool("p1", region="r1"), a_pool("p2", region="r2")]


def test_requirements_of_all_matching_policies_hold() -> None:
    pools = [a_pool("p1", labels={"compliance": ["soc2"]}), a_pool("p2", labels={"compliance": ["gdpr"]}),
             a_pool("p3", labels={"compliance": ["soc2", "gdpr"]}, budget=144)]  # fmt: skip
    service = a_service(labels={"env": "prod"})
    both = [a_policy("a", compliance=["soc2"], selector={"env": "prod"}), a_policy("b", compliance=["gdpr"])]
    assert converged_replicas(*pools, service, *both) == {"p3": 1}
    assert (
        demand(
            *pools, service, *both, a_policy("c", compliance=["hipaa"], selector={"env": "test"})
        ).requirements
        == demand(*pools, service, *both).requirements
    )


def test_largest_min_regions_counts() -> None:
    found = demand(a_service(), a_policy("a", minRegions=2), a_policy("b", minRegions=3))
    assert (found.min_regions, found.replicas) == (3, 3)


@pytest.mark.parametrize(("policies", "rules"), [
    pytest.param([], (1, 20, 800_000), id="none: 1, 20 and 0.8"),
    pytest.param([{"minNodes": 3}, {"minNodes": 2}], (3, 20, 800_000), id="the largest minNodes"),
    pytest.param([{"maxNodes": 5}, {"maxNodes": 9}], (1, 5, 800_000), id="the smallest maxNodes"),
    pytest.param([{"binPackingThreshold": 0.9}, {"binPackingThreshold": 0.5}], (1, 20, 500_000), id="the smallest threshold"),
    pytest.param([{"binPackingThreshold": 1}], (1, 20, 1_000_000), id="a threshold above the default"),
    pytest.param([None, {"minNodes": 2}], (2, 20, 800_000), id="a policy that says nothing about clusters"),
])  # fmt: skip
def test_cluster_rules_are_merged(policies: list[Any], rules: tuple[int, int, int]) -> None:
    found = demand(
        a_service(), *(a_policy(f"p{number}", clusters=each) for number, each in enumerate(policies))
    ).rules
    assert (found.min_nodes, found.max_nodes, found.packing_millionths) == rules


@pytest.mark.parametrize(("objects", "problem"), [
    pytest.param([a_service(most=2), a_policy(minRegions=3)], "policy/rules wants replicas in 3 regions, replicas.max allows 2", id="more regions than replicas"),
    pytest.param([a_service(), a_policy("a", clusters={"minNodes": 5}), a_policy("b", clusters={"maxNodes": 3})],
                 "policy/a wants clusters of at least 5 nodes, policy/b of at most 3", id="clusters that are too small and too large"),
    pytest.param([a_service(replicas=2, most=2), a_policy(minRegions=2)], "", id="just enough"),
])  # fmt: skip
def test_conflicting_policies_are_reported_and_place_nothing(objects: list[Kind], problem: str) -> None:
    assert demand(*TWO, *objects).rule_conflict == problem
    assert bool(converged_replicas(*TWO, *objects)) == (not problem)


def preferring(*wishes: tuple[str, str, int]) -> LatticePlacementPolicy:
    listed = [
        {"weight": weight, "preference": {"sortBy": sort, "order": order}} for sort, order, weight in wishes
    ]
    return make_valid_object(LatticePlacementPolicy, "wishes", {"preferences": listed})


CHEAP = [a_class(price=0.2), a_class("dear", price=0.4), a_pool("p1", capacity={"maxNodes": 2}), a_pool("p2", classes=["dear"], capacity={"maxNodes": 8}),
         a_service("busy", priority=9, cores=4, pools={"matchLabels": {"region": "p1-1"}})]  # fmt: skip


@pytest.mark.parametrize(("policy", "offer"), [
    pytest.param([], "p1", id="without any, the cheapest"),
    pytest.param([preferring(("cost", "ascending", 1))], "p1", id="the cheapest"),
    pytest.param([preferring(("cost", "descending", 1))], "p2", id="the dearest"),
    pytest.param([preferring(("availableCapacity", "descending", 1))], "p2", id="the emptiest"),
    pytest.param([preferring(("availableCapacity", "ascending", 1))], "p1", id="the fullest"),
    pytest.param([preferring(("cost", "ascending", 50), ("availableCapacity", "descending", 30))], "p1", id="weights count: cost wins"),
    pytest.param([preferring(("cost", "ascending", 10), ("availableCapacity", "descending", 90))], "p2", id="weights count: capacity wins"),
    pytest.param([preferring(("cost", "descending", 0), ("availableCapacity", "ascending", 1))], "p1", id="a weight of 0 counts for nothing"),
])  # fmt: skip
def test_preferences_rank_feasible_offers(policy: list[Kind], offer: str) -> None:
    assert converged_replicas(*CHEAP, a_service(cores=4), *policy) == {offer: 1}


def test_preferences_of_all_policies_count() -> None:
    against = make_valid_object(
        LatticePlacementPolicy,
        "against",
        {"preferences": [{"weight": 100, "preference": {"sortBy": "cost", "order": "descending"}}]},
    )
    assert converged_replicas(*CHEAP, a_service(cores=4), preferring(("cost", "ascending", 10)), against) == {
        "p2": 1
    }


def test_cheapest_order_is_used_if_preferred_exceeds_budget() -> None:
    """Placing on the dearest offer first would use the budget that the second replica needs."""
    pool = a_pool(classes=["m", "dear"], budget=300)
    assert converged_replicas(
        a_class(),
        a_class("dear", 4, 16, 0.4),
        pool,
        a_service(cores=4, replicas=2),
        preferring(("cost", "descending", 1)),
    ) == {"p1": 2}


# --- regions ---

THREE = [a_pool("p1", region="r1"), a_pool("p2", region="r2"), a_pool("p3", region="r3")]


@pytest.mark.parametrize(("objects", "found"), [
    pytest.param([a_service(requiredRegions=["r2"])], {"p2": 1}, id="a required region by its name"),
    pytest.param([a_service(requiredRegions=["p3"])], {"p3": 1}, id="a required region by the pool's name"),
    pytest.param([a_service(requiredRegions=["r1", "p2", "r3"])], {"p1": 1, "p2": 1, "p3": 1}, id="replicas are added for required regions"),
    pytest.param([a_service(requiredRegions=["r1", "moon"])], {}, id="one that cannot be had: nothing is placed"),
    pytest.param([a_service(replicas=2), a_policy(minRegions=3)], {"p1": 1, "p2": 1, "p3": 1}, id="minRegions adds replicas"),
    pytest.param([a_service(), a_policy(minRegions=4)], {}, id="more regions than there are: nothing is placed"),
    pytest.param([a_service(replicas=6), a_policy(spreadConstraint={"topologyKey": "region", "maxSkew": 1})], {"p1": 2, "p2": 2, "p3": 2},
                 id="an even spread"),
])  # fmt: skip
def test_regions_and_spread(objects: list[Kind], found: dict[str, int]) -> None:
    assert converged_replicas(*THREE, *objects) == found


@pytest.mark.parametrize(("key", "skew", "most"), [
    pytest.param("pool", 2, 3, id="no pool is more than the skew ahead"),
    pytest.param("zone", 1, 2, id="no zone is more than the skew ahead"),
    pytest.param("provider", 1, 5, id="one domain is always even"),
])  # fmt: skip
def test_service_spread_keeps_max_skew(key: str, skew: int, most: int) -> None:
    found = converged_replicas(
        *THREE,
        a_service(
            replicas=5, spread=[{"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule"}]
        ),
    )
    assert sum(found.values()) == 5
    assert max(found.values()) <= most


def test_two_pools_of_a_region_count_once() -> None:
    pools = [a_pool("p1", region="r"), a_pool("p2", region="r")]
    assert converged_replicas(*pools, a_service(), a_policy(minRegions=2)) == {}


def test_partial_placement_runs_what_fits() -> None:
    assert converged_replicas(a_pool(capacity={"maxNodes": 1}), a_service(cores=1, replicas=7)) == {"p1": 4}


def test_full_region_counts_for_skew() -> None:
    pools = [a_pool("p1", region="r1"), a_pool("p2", region="r2", capacity={"maxNodes": 1})]
    rule = a_policy(spreadConstraint={"topologyKey": "region", "maxSkew": 1})
    assert converged_replicas(*pools, a_service(cores=4, replicas=6), rule) == {"p1": 2, "p2": 1}


def test_infeasible_region_does_not_count_for_skew() -> None:
    even = [{"topologyKey": "region", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    pools = [a_pool("p1", region="r1", labels={"compliance": ["gdpr"]}), a_pool("p2", region="r2")]
    before = converge(a_world(*pools, a_service(replicas=2, spread=even))).resulting_world()
    after = converge(before.with_objects([a_service(replicas=4, spread=even, compliance=["gdpr"])]))
    assert Counter(offer for offer, _, _ in after.replica_counts[API].elements()) == {"p1": 3, "p2": 1}


def test_per_node_spread_opens_machines() -> None:
    one = [{"topologyKey": "node", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    settled = converge(a_world(a_pool(), a_service(replicas=3, spread=one)))
    assert settled.clusters == {"p1-001": {"m": 3}}


# --- proximity ---

ZONES = [a_pool("home", region="r1", zone="a"), a_pool("zone", region="r1", zone="a"), a_pool("region", region="r1", zone="b"),
         a_pool("far", region="r2", zone="a"), a_pool("other", region="r2", provider="gcp", classes=["g"]), a_class(), a_class("g", price=0.01, providers=["gcp"])]  # fmt: skip
CALLS = {"dependencies": {"db": {"type": "service", "direction": "outbound"}}}


@pytest.mark.parametrize(("closed", "offer"), [
    pytest.param([], "home", id="the same offer"),
    pytest.param(["home"], "zone", id="the same zone if the offer is closed"),
    pytest.param(["home", "zone"], "region", id="the same region if the zone is closed"),
    pytest.param(["home", "zone", "region"], "other", id="the cheapest if the region is closed: a provider is no nearness"),
])  # fmt: skip
def test_dependencies_attract_without_latency_limit(closed: list[str], offer: str) -> None:
    only = [each for each in ZONES if each.metadata.name not in closed]
    db = a_service("db", priority=9, cores=4, pools={"matchLabels": {"anchor": "yes"}})
    anchored = a_pool(
        "home",
        region="r1",
        zone="a",
        labels={"anchor": "yes"},
        capacity={"maxNodes": 1 if "home" in closed else 9},
    )
    found = converged_replicas(
        anchored, *(each for each in only if each.metadata.name != "home"), db, a_service(cores=4, **CALLS)
    )
    assert found == {offer: 1}


def test_callee_is_placed_near_its_caller() -> None:
    """api is placed first; db, which it calls, is placed next to it."""
    pools = [
        a_pool("p1", labels={"a": "b"}, classes=["dear"]),
        a_pool("p2"),
        a_class(),
        a_class("dear", price=0.9),
    ]
    start = converge(a_world(*pools, a_service(pools={"matchLabels": {"a": "b"}}, **CALLS))).resulting_world()
    found = converge(start.with_objects([a_service("db")])).replica_counts["default/db"]
    assert {offer for offer, _, _ in found} == {"p1"}


FAR = [a_pool("p1", region="us-east-1"), a_pool("p2", region="eu-west-1"), a_pool("p3", region="ap-south-1")]


def test_latency_is_measured_to_nearest_replica() -> None:
    db = a_service("db", requiredRegions=["us-east-1", "eu-west-1"])
    found = converged_replicas(
        *FAR, db, a_service(requiredRegions=["us-east-1", "eu-west-1"], latency={"db": {"maxMs": 5}})
    )
    assert found == {"p1": 1, "p2": 1}
    assert (
        converged_replicas(*FAR, db, a_service(requiredRegions=["ap-south-1"], latency={"db": {"maxMs": 5}}))
        == {}
    )


def test_latency_resolves_dependency_alias() -> None:
    service = a_service(
        latency={"store": {"maxMs": 5}},
        dependencies={"store": {"type": "service", "direction": "outbound", "id": "db"}},
    )
    assert converged_replicas(*FAR, a_service("db", requiredRegions=["p3"]), service) == {"p3": 1}


# --- static first ---

DC = a_static(nodes=1, cores=4, memory="16Gi")


@pytest.mark.parametrize(("objects", "found"), [
    pytest.param([DC, a_cloud(), a_service(cores=4)], {"dc": 1}, id="what is owned comes first"),
    pytest.param([DC, a_cloud(), a_service(cores=4, replicas=3)], {"dc": 1, "cloud/r1": 2}, id="the cloud when it is full"),
    pytest.param([DC, a_cloud(regions={"r1": {"capabilities": ["tpu"]}}), a_service(capabilities=["tpu"])], {"cloud/r1": 1}, id="the cloud when the data center lacks a capability"),
    pytest.param([DC, a_cloud(), a_service(cores=4, requiredRegions=["r1"])], {"cloud/r1": 1}, id="a hard rule beats the tier"),
    pytest.param([DC, a_cloud(), a_service("db", requiredRegions=["r1"]), a_service(**CALLS)], {"dc": 1}, id="the tier beats nearness"),
])  # fmt: skip
def test_static_capacity_precedes_cloud(objects: list[Kind], found: dict[str, int]) -> None:
    assert converged_replicas(*objects) == found


@pytest.mark.parametrize(("reserved", "others", "need"), [
    pytest.param({"cores": 20}, 60, "cpu: need 1, have 0 of 80, 20 reserved", id="20 of 80 cores leave 60"),
    pytest.param({"cores": 21}, 59, "cpu: need 1, have 0 of 80, 21 reserved", id="21 of 80 cores leave 59"),
    pytest.param({"memory": "70Gi"}, 62, "memory: need 4Gi, have 2Gi of 320Gi, 70Gi reserved, missing 2Gi", id="70 of 320 GiB leave 250"),
    pytest.param({"nodes": 2}, 64, "nodes: need 1 more, have 0 of 10, 2 reserved, missing 1", id="2 of 10 machines leave 64 cores"),
])  # fmt: skip
def test_reserve_of_cores_or_memory_counts_exactly(
    reserved: dict[str, object], others: int, need: str
) -> None:
    reservation = {"reserved": reserved, "reservedFor": [{"labelSelector": {"env": "prod"}}]}
    dc = a_static(nodes=10, cores=80, memory="320Gi", reservation=reservation)
    size: dict[str, float] = {"cores": 0.5, "memory": 4} if "memory" in reserved else {}
    service = a_service(replicas=90, priority=9, **size)
    settled = converge(a_world(dc, service))
    assert settled.placed_replicas(API) == others
    decision = settled.unplaced[API].decisions[-1]
    assert [str(shortfall) for shortfall in rejections_of(decision, "dc")] == [need]
    beside = converge(a_world(dc, service, a_service("crit", replicas=80 - others, labels={"env": "prod"})))
    assert beside.placed_replicas(API) == others
    assert beside.placed_replicas("default/crit") == 80 - others


RESERVE = {"reserved": {"nodes": 1}, "reservedFor": [{"labelSelector": {"env": "prod"}}]}


@pytest.mark.parametrize(("labels", "found"), [
    pytest.param({}, {"dc": 2}, id="others keep out of it"),
    pytest.param({"env": "dev"}, {"dc": 2}, id="services with another label keep out of it"),
    pytest.param({"env": "prod"}, {"dc": 3}, id="matching services may use the whole reserve"),
])  # fmt: skip
def test_reserved_capacity_is_for_matching_labels(labels: dict[str, str], found: dict[str, int]) -> None:
    dc = a_static(nodes=3, cores=12, memory="48Gi", reservation=RESERVE)
    assert converged_replicas(dc, a_service(cores=4, replicas=4, labels=labels)) == found


# --- budgets ---


@pytest.mark.parametrize(("objects", "count"), [
    pytest.param([a_pool(budget=288), a_service(cores=4, replicas=5)], 2, id="a pool's budget is hard: two machines at 144 dollars each"),
    pytest.param([a_pool(budget=287.99), a_service(cores=4, replicas=5)], 1, id="a budget holds to the cent"),
    pytest.param([a_cloud(budget={"monthly": 288}), a_service(cores=4, replicas=5)], 5, id="a cloud's is soft"),
    pytest.param([a_cloud(budget={"monthly": 288, "hardLimit": True}), a_service(cores=4, replicas=5)], 2, id="a cloud's budget with hardLimit is hard"),
    pytest.param([a_cloud(regions={"r1": {"budget": {"monthly": 144}}}, budget={"monthly": 720, "hardLimit": True}), a_service(cores=4, replicas=5)], 1,
                 id="a region's is inside the cloud's: both hold"),
    pytest.param([a_cloud(regions={"r1": {"budget": {"monthly": 720}}}, budget={"monthly": 144, "hardLimit": True}), a_service(cores=4, replicas=5)], 1,
                 id="whichever is smaller"),
    pytest.param([a_cloud(regions=["r1", "r2"], budget={"monthly": 432, "hardLimit": True}), a_service(cores=4, replicas=5)], 3,
                 id="the cloud's is shared by its regions"),
    pytest.param([a_pool(budget=144), a_service(cores=1, replicas=5)], 4, id="what fits on a machine that is paid for passes"),
    pytest.param([a_class(price=None), a_pool(budget=1000), a_service()], 0, id="no price where a budget applies: nothing"),
    pytest.param([a_class(price=None), a_cloud(budget={"monthly": 1000}), a_service()], 0, id="no price where a soft budget applies: nothing"),
    pytest.param([a_class(price=None), a_pool(), a_service()], 1, id="no price and no budget: it runs"),
    pytest.param([a_class(price=0), a_pool(budget=0), a_service()], 1, id="what costs nothing needs no money"),
    pytest.param([a_pool(budget=0), a_service()], 0, id="a budget of nothing"),
])  # fmt: skip
def test_budgets(objects: list[Kind], count: int) -> None:
    assert sum(converged_replicas(*objects).values()) == count


def test_unknown_price_ranks_after_known_prices() -> None:
    pools = [a_class(), a_class("mystery", price=None), a_pool("p1", classes=["mystery"]), a_pool("p2")]
    assert converged_replicas(*pools, a_service()) == {"p2": 1}
    both = converge(
        a_world(a_class(), a_class("mystery", price=None), a_pool(classes=["m", "mystery"]), a_service())
    )
    assert both.clusters == {"p1-001": {"m": 1}}
