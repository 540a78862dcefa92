"""Tests of `compile_supply`: pools, clouds and data centers become offers, and an invalid one has a finding
that closes as little as possible."""

from typing import Any

import pytest
from build.worlds import a_class, a_cloud, a_pool, a_service, a_static, a_world, make_valid_object

from lattice.kinds.meta.base import Kind
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.offer import NO_LIMIT, Offer
from lattice.placement.model.supply import Supply, compile_supply
from lattice.placement.plan.plan import converge

GIB = 1 << 30


def supply(*objects: Kind) -> Supply:
    return a_world(*objects).supply


def only(*objects: Kind) -> Offer:
    (found,) = supply(*objects).offers
    return found


def findings_of(*objects: Kind) -> list[tuple[str, str, str, str]]:
    return [(each.subject, each.type, each.reason, each.message) for each in supply(*objects).findings]


@pytest.mark.parametrize(("providers", "provider", "size"), [
    pytest.param({"aws": {"instanceType": "m5.xlarge"}}, "aws", (4000, 16 * GIB), id="the class's own where the provider says nothing"),
    pytest.param({"proxmox": {"cores": 8, "memory": 16384}}, "proxmox", (8000, 16 * GIB), id="proxmox counts memory in MiB"),
    pytest.param({"docker": {"cpus": 2, "memory": "4g"}}, "docker", (2000, 4 * GIB), id="docker's 4g is 4 GiB"),
    pytest.param({"aws": {}}, "gcp", None, id="a class without an entry for the provider is not there"),
])  # fmt: skip
def test_class_size_comes_from_provider_entry(
    providers: Any, provider: str, size: tuple[int, int] | None
) -> None:
    node_class = make_valid_object(
        LatticeNodeClass, "m", {"providers": providers, "resources": {"cores": 4, "memoryGi": 16}}
    )
    types = only(node_class, a_pool(provider=provider)).types
    assert [(each.size["cpu"], each.size["memory"]) for each in types] == ([] if size is None else [size])


def test_pool_offer_has_labels_classes_and_limits() -> None:
    pool = a_pool(labels={"tier": "production", "compliance": ["SOC2", "HIPAA"], "dataResidency": "EU", "capabilities": "GPU"}, zone="a",
                  capacity={"maxNodes": 3, "maxCores": 10.5, "maxMemoryGi": 8}, budget=720, classes=["m", "l"])  # fmt: skip
    offer = only(a_class(), a_class("l", 8), a_class("other"), pool)
    assert [each.name for each in offer.types] == ["l", "m"]
    assert offer.labels["compliance"] == ("SOC2", "HIPAA")
    assert {key: offer.labels[key] for key in ("tier", "region", "zone", "provider")} == {
        "tier": ("production",), "region": ("p1-1",), "zone": ("a",), "provider": ("aws",),
    }  # fmt: skip
    assert (offer.compliance, offer.capabilities, offer.residency) == ({"soc2", "hipaa"}, {"gpu"}, {"eu"})
    assert (offer.limits.nodes, offer.limits.millicores, offer.limits.memory, offer.limits.clusters) == (
        3,
        10_500,
        8 * GIB,
        NO_LIMIT,
    )


def test_pool_without_labels_uses_metadata_labels() -> None:
    pool = make_valid_object(
        LatticePool, "p1", {"provider": {"type": "aws"}, "nodeClasses": ["m"]}, {"tier": "gold"}
    )
    assert only(pool).labels["tier"] == ("gold",)
    assert "region" not in only(pool).labels


def test_region_overrides_defaults_and_quotas() -> None:
    cloud = a_cloud(regions={"r1": {"compliance": ["GDPR"], "quotas": {"maxClusters": 10, "maxNodesPerCluster": 3}}, "r2": {}, "r3": {"compliance": []}},
                    defaults={"compliance": ["SOC2"], "capabilities": ["arm64"], "maxClustersPerRegion": 5, "maxNodesPerCluster": 50})  # fmt: skip
    found = {each.name: each for each in supply(cloud).offers}
    assert {name: sorted(each.compliance) for name, each in found.items()} == {
        "cloud/r1": ["gdpr"],
        "cloud/r2": ["soc2"],
        "cloud/r3": [],
    }
    assert {name: (each.limits.clusters, each.limits.nodes_per_cluster) for name, each in found.items()} == {
        "cloud/r1": (10, 3), "cloud/r2": (5, 50), "cloud/r3": (5, 50),
    }  # fmt: skip
    assert all(each.capabilities == {"arm64"} for each in found.values())


def test_cloud_offers_every_class_of_its_provider() -> None:
    offer = only(
        a_cloud(provider="gcp"),
        a_class("a", providers=["aws"]),
        a_class("b", providers=["gcp"]),
        a_class("c"),
    )
    assert [each.name for each in offer.types] == ["b", "c"]


@pytest.mark.parametrize(("static", "classes"), [
    pytest.param(a_static(nodes=4, cores=16, memory="64Gi", provider="vsphere"), [("static", 4000, 16 * GIB)], id="capacity divided by machines"),
    pytest.param(a_static(nodes=4, cores=16, memory=None, provider="vsphere"), [("static", 4000, NO_LIMIT)], id="only cores are limited"),
    pytest.param(a_static(nodes=4, cores=None, memory=None, provider="vsphere"), [("v", 2000, 4 * GIB)], id="the classes of its provider"),
    pytest.param(a_static(nodes=4, cores=None, memory=None), [("m", 4000, 16 * GIB), ("v", 1000, 8 * GIB)],
                 id="any class without accelerators if machines are not specified"),
    pytest.param(a_static(nodes=0, cores=0, memory="0Gi"), [("static", 0, 0)], id="an empty data center"),
])  # fmt: skip
def test_data_center_machine_types(static: Kind, classes: list[Any]) -> None:
    own = make_valid_object(
        LatticeNodeClass,
        "v",
        {"providers": {"vsphere": {"cores": 2, "memory": 4096}}, "resources": {"cores": 1, "memoryGi": 8}},
    )
    offer = only(static, own, a_class(), a_class("gpu", gpu=1))
    assert [(each.name, each.size["cpu"], each.size["memory"]) for each in offer.types] == classes
    assert all(each.rate == 0 for each in offer.types)
    assert offer.budgets == ()


@pytest.mark.parametrize(("reserved", "nodes", "unreserved"), [
    pytest.param({"nodes": 2}, 2, (16000, 64 << 30), id="machines"),
    pytest.param({"cores": 5}, 1, (11000, 64 << 30), id="cores: their whole machines, and exactly the amount"),
    pytest.param({"cores": 1, "memory": "40Gi"}, 2, (15000, 24 << 30), id="the larger of cores and memory"),
    pytest.param({"cores": 3}, 0, (13000, 64 << 30), id="less than a machine"),
    pytest.param({}, 0, (16000, 64 << 30), id="nothing"),
])  # fmt: skip
def test_reserve_counts_exactly(reserved: Any, nodes: int, unreserved: tuple[int, int]) -> None:
    reservation = {"reserved": reserved, "reservedFor": [{"labelSelector": {"priority": "critical"}}]}
    offer = only(a_static(nodes=4, cores=16, memory="64Gi", reservation=reservation))
    assert offer.reserved_nodes == nodes
    assert (offer.unreserved("cpu"), offer.unreserved("memory")) == unreserved


@pytest.mark.parametrize(("objects", "finding"), [
    pytest.param([a_pool(classes=["m", "huge", "tiny"])],
                 ("latticepool/p1", "ReferencesResolved", "NodeClassNotFound", "no LatticeNodeClass huge, tiny"), id="classes that do not exist"),
    pytest.param([a_static(overflow={"enabled": True, "target": "moon"})],
                 ("staticinfrastructure/dc", "ReferencesResolved", "OverflowTargetNotFound", "no CloudInfrastructure moon to overflow to"),
                 id="an overflow to nowhere"),
    pytest.param([a_static(overflow={"enabled": True, "target": "cloud", "regions": ["r1", "r9"]}), a_class(), a_cloud("cloud", ["r2", "r1"])],
                 ("staticinfrastructure/dc", "ReferencesResolved", "OverflowRegionNotFound", "cloud has no region r9 to overflow to; its regions are: r1, r2"),
                 id="an overflow to a region that its target does not have"),
    pytest.param([a_static("a", overflow={"enabled": True, "target": "a"})],
                 ("staticinfrastructure/a", "ReferencesResolved", "OverflowCycle", "overflow to a leads back to a; name a CloudInfrastructure"),
                 id="an overflow to itself"),
    pytest.param([a_pool(provider="gcp", region="r", classes=["a"]), a_class("a", providers=["aws"])],
                 ("latticepool/p1", "Ready", "NoNodeClass", "no node class is available on provider gcp"), id="no class for its provider"),
    pytest.param([a_cloud(provider="azure")],
                 ("cloudinfrastructure/cloud", "Ready", "NoNodeClass", "no node class is available in r1 on provider azure"),
                 id="no class for a cloud"),
])  # fmt: skip
def test_invalid_supply_has_a_finding(objects: list[Kind], finding: tuple[str, ...]) -> None:
    assert findings_of(*objects) == [finding]


def test_overflow_cycle_is_a_finding_of_each_member() -> None:
    def spill(target: str) -> dict[str, Any]:
        return {"enabled": True, "target": target}

    found = findings_of(a_static("a", overflow=spill("b")), a_static("b", overflow=spill("c")), a_static("c", overflow=spill("a")),
                 a_static("d", overflow=spill("a")))  # fmt: skip
    assert [(subject, reason) for subject, _, reason, _ in found] == [
        ("staticinfrastructure/a", "OverflowCycle"), ("staticinfrastructure/b", "OverflowCycle"), ("staticinfrastructure/c", "OverflowCycle"),
        ("staticinfrastructure/d", "OverflowTargetNotFound"),
    ]  # fmt: skip


def test_disabled_overflow_needs_no_target_but_checks_it() -> None:
    assert findings_of(a_static(overflow={"enabled": False})) == []
    (found,) = findings_of(a_static(overflow={"enabled": False, "target": "moon"}))
    assert found[2:] == ("OverflowTargetNotFound", "no CloudInfrastructure moon to overflow to")


SHARED = {"credentialsRef": {"name": "login"}}


def a_pool_with_login(name: str, region: str) -> LatticePool:
    return make_valid_object(
        LatticePool,
        name,
        {
            "provider": {"type": "aws", "region": region, "credentials": {"secretRef": "login"}},
            "nodeClasses": ["m"],
        },
    )


def test_overlapping_supply_is_offered_once() -> None:
    """The later object is closed; without timestamps, the later one by name."""
    found = supply(a_pool_with_login("p1", "r1"), a_cloud(regions=["r1", "r2"], **SHARED))
    assert {each.name: bool(each.closed_reason) for each in found.offers} == {
        "cloud/r1": False,
        "cloud/r2": False,
        "p1": True,
    }
    assert [(each.subject, each.type, each.message, each.is_true) for each in found.findings] == [
        ("latticepool/p1", "Overlaps", "cloudinfrastructure/cloud already offers aws r1 with the same credentials", True),
    ]  # fmt: skip
    reverse = supply(a_pool_with_login("a-pool", "r1"), a_cloud(regions=["r1", "r2"], **SHARED))
    assert {each.name: bool(each.closed_reason) for each in reverse.offers} == {
        "cloud/r1": True,
        "cloud/r2": False,
        "a-pool": False,
    }


@pytest.mark.parametrize("other", [
    pytest.param(a_cloud(regions=["r2"], **SHARED), id="in another region"),
    pytest.param(a_cloud(regions=["r1"], credentialsRef={"name": "other"}), id="with another login"),
    pytest.param(a_cloud(regions=["r1"], provider="gcp", **SHARED), id="at another provider"),
])  # fmt: skip
def test_similar_supply_is_not_an_overlap(other: Kind) -> None:
    assert not supply(a_pool_with_login("p1", "r1"), other).findings


def test_foreign_currency_budget_closes_the_pool() -> None:
    budget = {"maxMonthlyCost": 100, "currency": "EUR"}
    pool = make_valid_object(
        LatticePool, "p1", {"provider": {"type": "aws"}, "nodeClasses": ["m"], "budget": budget}
    )
    assert only(pool).closed_reason == "budget is in EUR, prices are in USD"
    assert not converge(a_world(pool, a_service())).replica_counts


@pytest.mark.parametrize(("cloud", "hard"), [
    pytest.param({"budget": {"monthly": 10}}, (False, False), id="soft by default"),
    pytest.param({"budget": {"monthly": 10, "hardLimit": True}}, (True, True), id="a region follows the whole"),
    pytest.param({"budget": {"monthly": 10, "hardLimit": True}, "regions": {"r1": {"budget": {"monthly": 5, "hardLimit": False}}}}, (True, False),
                 id="a region overrides the whole"),
    pytest.param({"regions": {"r1": {"budget": {"monthly": 5, "hardLimit": True}}}}, (False, True), id="a region alone"),
])  # fmt: skip
def test_which_budgets_are_hard(cloud: dict[str, Any], hard: tuple[bool, bool]) -> None:
    budgets = supply(a_cloud(**cloud)).budgets
    assert (budgets["cloud.cloud"].is_hard, budgets["cloud.cloud.r1"].is_hard) == hard


def test_unknown_price_is_none() -> None:
    offer = compile_supply([a_class(price=None), a_pool()], PriceBook({})).offers[0]
    assert [each.price for each in offer.types] == [None]


def test_region_matches_offer_name_or_region_name() -> None:
    offers = {
        each.name: each
        for each in supply(a_pool("p1", region="r"), a_cloud(regions=["r"]), a_static(region="east")).offers
    }
    assert [name for name, each in offers.items() if each.matches_region("r")] == ["cloud/r", "p1"]
    assert offers["p1"].matches_region("p1")
    assert offers["dc"].matches_region("east")
    assert not offers["dc"].matches_region("dc-hall")


def test_latencies_and_not_names_break_ties_of_data_centers() -> None:
    """The two differ only in the declared round trip to a third place."""
    keys = []
    for names in (("a", "b"), ("b", "a")):
        limits = [{"latencyTo": {"aws-us-east-1": ms}} for ms in ("5ms", "9ms")]
        sites = [a_static(name, region="r", network=limit) for name, limit in zip(names, limits, strict=True)]
        by_name = {offer.name: offer.tie_key for offer in supply(*sites).offers}
        keys.append([by_name[name] for name in names])
    assert keys[0] == keys[1]
    assert len({*keys[0]}) == 2
