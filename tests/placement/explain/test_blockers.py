"""Tests of rejections by pool: every failing filter is listed, with need, have and missing."""

from typing import Any

import pytest
from build.worlds import EXAMPLES, a_class, a_cloud, a_policy, a_pool, a_service, a_static, a_world, worlds
from hypothesis import HealthCheck, given, settings

from lattice.kinds.meta.base import Kind
from lattice.placement.explain.verdict import judge
from lattice.placement.model.world import World
from lattice.placement.plan.plan import converge
from lattice.placement.queries.dispatch import answer_query

SMALL = {"maxNodes": 0, "maxCores": 2, "maxMemoryGi": 1}


def rejections_by_pool(
    world: World, service: str = "default/api", **changes: Any
) -> dict[str, list[tuple[str, str]]]:
    """By pool, the (filter, resource) pairs that reject the service."""
    told = answer_query({"ask": "why", "service": service}, world, **changes)
    return {
        pool["name"]: [(each["filter"], each["what"]) for each in pool["reasons"]] for pool in told["pools"]
    }


LIMITS = [
    ("Capacity", "nodes"),
    ("Capacity", "cpu for 1 more machine"),
    ("Capacity", "memory for 1 more machine"),
]
CASES = [
    pytest.param([a_pool(capacity=SMALL, budget=1), a_service(compliance=["gdpr"])],
                 [("Compliance", "compliance"), *LIMITS, ("Budget", "budget of latticepool/p1")], id="closed by compliance, all limits and the budget"),
    pytest.param([a_pool(capacity=SMALL, budget=1), a_service(cores=64, memory=512, gpu=2)],
                 [("Available", "cpu on one machine"), ("Available", "gpu on one machine"), ("Available", "memory on one machine"), *LIMITS,
                  ("Budget", "budget of latticepool/p1")], id="too big in everything, full, and over budget"),
    pytest.param([a_pool(budget=1), a_service(cores=64)], [("Available", "cpu on one machine"), ("Budget", "budget of latticepool/p1")],
                 id="too big, and over budget"),
    pytest.param([a_pool(), a_service(cores=64)], [("Available", "cpu on one machine")], id="too big, and nothing else"),
    pytest.param([a_class(labels={"disk": "hdd"}), a_pool(), a_service(cores=64, nodeSelector={"disk": "ssd"})],
                 [("Available", "cpu on one machine"), ("Available", "label of class m")], id="too big, and of other labels"),
    pytest.param([a_class(price=None), a_pool(capacity={"maxNodes": 0}, budget=9), a_service()],
                 [("Capacity", "nodes"), ("Budget", "price of m")], id="full, and without a price"),
    pytest.param([a_pool(capacity={"maxNodes": 2}), a_policy(clusters={"minNodes": 3}), a_service()], [("Capacity", "nodes")],
                 id="a cluster begins with more than there may be"),
]  # fmt: skip


@pytest.mark.parametrize(("objects", "expected"), CASES)
def test_why_lists_every_failing_filter(objects: list[Kind], expected: list[tuple[str, str]]) -> None:
    assert rejections_by_pool(a_world(*objects))["p1"] == expected


def test_every_exceeded_budget_is_listed() -> None:
    cloud = a_cloud(
        regions={"r1": {"budget": {"monthly": 50, "hardLimit": True}}},
        budget={"monthly": 100, "hardLimit": True},
    )
    told = rejections_by_pool(a_world(cloud, a_service()))["cloud/r1"]
    assert told == [
        ("Budget", "budget of cloudinfrastructure/cloud"),
        ("Budget", "budget of cloudinfrastructure/cloud region r1"),
    ]


def test_full_data_center_and_overflow_target_list_all_reasons() -> None:
    dc = a_static(nodes=1, cores=4, memory="16Gi", overflow={"enabled": True, "target": "cloud"})
    cloud = a_cloud(budget={"monthly": 1, "hardLimit": True}, regions={"r1": {"quotas": {"maxClusters": 0}}})
    told = rejections_by_pool(a_world(dc, cloud, a_service(cores=4, replicas=2)))
    gated, clusters, money = (
        ("Overflow", "overflow of dc"),
        ("Capacity", "clusters"),
        ("Budget", "budget of cloudinfrastructure/cloud"),
    )
    assert sorted(told["cloud/r1"]) == sorted([gated, clusters, money])
    assert told["dc"] == LIMITS[:1]


def test_verdict_lists_every_shortfall() -> None:
    settled = converge(a_world(a_pool(capacity=SMALL, budget=1), a_service(compliance=["gdpr"])))
    (_, shorts) = judge(settled.unplaced["default/api"], settled.fleet).rejections[0]
    assert [str(each) for each in shorts] == [
        "compliance: need gdpr, have none",
        "nodes: need 1 more, have 0 of 0, missing 1",
        "cpu for 1 more machine: need 4, have 2, missing 2",
        "memory for 1 more machine: need 16Gi, have 1Gi, missing 15Gi",
        "budget of latticepool/p1: need $0.20/h, have $0.001388/h, missing $0.198612/h",
    ]


@pytest.mark.parametrize(("objects", "told"), [
    pytest.param([a_pool(), a_service(capabilities=["gpu"])], "capability: need gpu, have none", id="capability"),
    pytest.param([a_pool(), a_service(dataResidency="eu")], "residency: need eu, have none", id="residency"),
    pytest.param([a_pool(), a_service(pools={"matchLabels": {"a": "b"}})], "label: need a=b, have no label a", id="label"),
    pytest.param([a_pool(), a_service(requiredRegions=["moon"])], "region: need moon, have p1-1", id="region"),
    pytest.param([a_pool(), a_policy(minRegions=2), a_service()], "region: need a region other than p1-1, have p1-1, missing another region", id="regions"),
    pytest.param([a_pool(), a_service(latency={"db": {"maxMs": 5}})],
                 "latency to db: need 5 ms, have not placed, missing a replica of db", id="a dependency"),
    pytest.param([a_pool(classes=[]), a_service()], "machines: need a node class, have none", id="classes"),
])  # fmt: skip
def test_non_numeric_shortfalls_are_named(objects: list[Kind], told: str) -> None:
    settled = converge(a_world(*objects))
    refused = dict(judge(settled.unplaced["default/api"], settled.fleet).rejections)["p1"]
    assert told in [str(each) for each in refused]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds())
def test_every_rejection_has_need_have_and_missing(world: World) -> None:
    settled = converge(world)
    for name in settled.unplaced:
        told = answer_query({"ask": "why", "service": name}, world)
        if settled.world.demands[name].rule_conflict:
            continue
        for pool in told["pools"]:
            assert pool["fits"] or pool["reasons"], pool
            assert all(each["need"] and each["have"] and each["missing"] for each in pool["reasons"]), pool
