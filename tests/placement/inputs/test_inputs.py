"""Tests of bad input: an invalid field is rejected with its path; unresolved references and conflicts between
objects are reported and never crash."""

from typing import Any

import pytest
from build.property_settings import LONG
from build.worlds import (
    KIND,
    a_class,
    a_cloud,
    a_policy,
    a_pool,
    a_service,
    a_static,
    a_world,
    make_valid_object,
    worlds,
)
from hypothesis import HealthCheck, given, settings

from lattice.errors import Invalid
from lattice.kinds.meta.base import Kind
from lattice.kinds.pool import LatticePool
from lattice.placement.model.world import World
from lattice.placement.optimise.optimise import OptimiserOptions, optimise
from lattice.placement.plan.plan import converge, plan
from lattice.placement.plan.whatif import loss_impacts
from lattice.server.requests.catalog import compile_kind
from lattice.server.resources.admission import admit

SOME = settings(max_examples=2000 if LONG else 40, deadline=None, suppress_health_check=list(HealthCheck))
POOL: dict[str, Any] = {"provider": {"type": "aws"}}
CLASS: dict[str, Any] = {"providers": {"aws": {}}, "resources": {"cores": 4, "memoryGi": 16}}
CLOUD: dict[str, Any] = {"provider": "aws", "regions": {"r1": {}}}
DC: dict[str, Any] = {"location": {"name": "hall"}, "capacity": {"nodes": 1}}
SERVICE: dict[str, Any] = {"containers": {"main": {"image": "app:1"}}}


@pytest.mark.parametrize(("kind", "spec", "path"), [
    pytest.param("LatticePool", {**POOL, "budget": {"alertThreshold": 101}}, "spec.budget.alertThreshold", id="a threshold above 100 percent"),
    pytest.param("LatticePool", {**POOL, "budget": {"alertThreshold": -0.1}}, "spec.budget.alertThreshold", id="a threshold below 0"),
    pytest.param("LatticePool", {**POOL, "budget": {"maxMonthlyCost": -1}}, "spec.budget.maxMonthlyCost", id="a negative budget"),
    pytest.param("LatticePool", {**POOL, "budget": {"maxMonthlyCost": float("nan")}}, "spec.budget.maxMonthlyCost", id="a budget of NaN"),
    pytest.param("LatticePool", {**POOL, "capacity": {"maxNodes": -1}}, "spec.capacity.maxNodes", id="negative machines"),
    pytest.param("LatticePool", {**POOL, "capacity": {"maxCores": "many"}}, "spec.capacity.maxCores", id="cores that are no number"),
    pytest.param("LatticePool", {**POOL, "budget": {"currency": "dollars"}}, "spec.budget.currency", id="no currency"),
    pytest.param("LatticeNodeClass", {**CLASS, "costPerHour": {"aws": -0.1}}, "spec.costPerHour.aws", id="a negative price"),
    pytest.param("LatticeNodeClass", {**CLASS, "costPerHour": {"aws": float("inf")}}, "spec.costPerHour.aws", id="an infinite price"),
    pytest.param("LatticeNodeClass", {**CLASS, "costPerHour": {"aws": "1e999"}}, "spec.costPerHour.aws", id="a price beyond all numbers"),
    pytest.param("CloudInfrastructure", {**CLOUD, "budget": {"monthly": 1, "alertThreshold": 120}}, "spec.budget.alertThreshold", id="a cloud's threshold"),
    pytest.param("CloudInfrastructure", {**CLOUD, "regions": {"r1": {"quotas": {"maxClusters": -1}}}}, "spec.regions.r1.quotas.maxClusters",
                 id="a negative quota"),
    pytest.param("StaticInfrastructure", {**DC, "overflow": {"enabled": True, "target": "x", "trigger": {"capacityThreshold": 150}}},
                 "spec.overflow.trigger.capacityThreshold", id="a trigger above 100 percent"),
    pytest.param("StaticInfrastructure", {**DC, "capacity": {"nodes": 1, "memory": "lots"}}, "spec.capacity.memory", id="memory that is no quantity"),
    pytest.param("StaticInfrastructure", {**DC, "network": {"latencyTo": {"x": "fast"}}}, "spec.network.latencyTo.x", id="a latency that is none"),
    pytest.param("LatticePlacementPolicy", {"clusterPolicy": {"binPackingThreshold": 1.5, "minNodes": 1}}, "spec.clusterPolicy.binPackingThreshold",
                 id="a packing threshold between 1 and 2"),
    pytest.param("LatticePlacementPolicy", {"clusterPolicy": {"minNodes": 5, "maxNodes": 3}}, "spec.clusterPolicy.minNodes", id="clusters that cannot be"),
    pytest.param("LatticePlacementPolicy", {"requirements": {"minRegions": 0}}, "spec.requirements.minRegions", id="no regions"),
    pytest.param("LatticeService", {**SERVICE, "replicas": {"min": 5, "max": 3}}, "spec.replicas.min", id="more replicas than allowed"),
    pytest.param("LatticeService", {**SERVICE, "replicas": {"max": 1}, "placement": {"requiredRegions": ["a", "b"]}}, "spec.placement.requiredRegions",
                 id="more regions than replicas"),
    pytest.param("LatticeService", {**SERVICE, "placement": {"resources": {"cores": "x"}}}, "spec.placement.resources.cores", id="cores of a replica"),
    pytest.param("LatticeService", {**SERVICE, "placement": {"latency": {"db": {"maxMs": -1}}}}, "spec.placement.latency.db.maxMs", id="a negative limit"),
])  # fmt: skip
def test_invalid_field_is_rejected_with_its_path(kind: str, spec: dict[str, Any], path: str) -> None:
    assert path in rejected_paths(kind, spec)


def rejected_paths(kind: str, spec: dict[str, Any]) -> list[str]:
    """The paths of the fields that the API rejects."""
    cls = KIND[kind]
    document = {"apiVersion": cls.resource.api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    with pytest.raises(Invalid) as error:
        admit(compile_kind(cls), document, "Strict")
    return [cause.field for cause in error.value.causes]


SPILL = {"enabled": True, "target": "b"}


@pytest.mark.parametrize("objects", [
    pytest.param([], id="nothing at all"),
    pytest.param([a_service()], id="no supply"),
    pytest.param([a_pool(), a_cloud(), a_static()], id="no services"),
    pytest.param([a_pool(classes=["ghost"]), a_service()], id="a class that is not there"),
    pytest.param([a_static(overflow={"enabled": True, "target": "ghost"}), a_service(cores=99)], id="an overflow to nowhere"),
    pytest.param([a_static("a", overflow=SPILL), a_static("b", overflow={"enabled": True, "target": "a"}), a_service(replicas=40)], id="overflows in a circle"),
    pytest.param([a_pool(), a_service(latency={"ghost": {"maxMs": 1}})], id="a dependency that is not there"),
    pytest.param([a_pool(), a_service(latency={"api": {"maxMs": 1}}, replicas=2)], id="a dependency on itself"),
    pytest.param([a_pool(), a_service(most=1), a_policy(minRegions=3)], id="policies that want more than is allowed"),
    pytest.param([a_pool(), a_policy("a", clusters={"minNodes": 9}), a_policy("b", clusters={"maxNodes": 2}), a_service()], id="policies that contradict each other"),
    pytest.param([make_valid_object(LatticePool, "p1", {**POOL, "nodeClasses": ["m"], "budget": {"maxMonthlyCost": 9, "currency": "EUR"}}), a_pool("p2"), a_service()],
                 id="two currencies"),
    pytest.param([a_pool("same"), a_static("same"), a_service(replicas=30)], id="a pool and a data center of one name"),
    pytest.param([a_pool("cloud-r1"), a_cloud(), a_service("a", requiredRegions=["cloud-r1"]), a_service(requiredRegions=["r1"])],
                 id="offers with equal cluster names"),
    pytest.param([a_class("zero", 0, 0, 0), a_pool(classes=["zero"]), a_service(cores=0, memory=0)], id="machines and replicas of no size"),
    pytest.param([a_class(price=None), a_pool(budget=0), a_service()], id="no price and no money"),
    pytest.param([a_static(nodes=0, cores=0, memory="0Gi"), a_service()], id="a data center without machines"),
    pytest.param([a_cloud(regions={}), a_service()], id="a cloud without regions"),
    pytest.param([a_service(replicas=0), a_pool()], id="no replicas"),
    pytest.param([a_pool(), a_service(replicas=3, cores=0, memory=0)], id="replicas that ask for nothing"),
])  # fmt: skip
def test_degenerate_worlds_are_handled(objects: list[Kind]) -> None:
    settled = converge(a_world(*objects))
    again = converge(settled.resulting_world())
    assert (again.replica_counts, again.offer_rates, set(again.unplaced)) == (
        settled.replica_counts,
        settled.offer_rates,
        set(settled.unplaced),
    )
    assert plan(settled.resulting_world(), []).is_empty
    assert len(loss_impacts(settled)) == len(settled.world.supply.offers)
    assert optimise(settled, OptimiserOptions(time_limit_s=1)).rate_after <= sum(settled.offer_rates.values())


def test_duplicate_offer_name_is_a_finding() -> None:
    found = converge(a_world(a_pool("same"), a_static("same")))
    assert [(each.subject, each.reason, each.message) for each in found.world.findings] == [
        ("staticinfrastructure/same", "NameTaken", "latticepool/same is offered under this name; rename one of them"),
    ]  # fmt: skip


def test_cluster_names_are_unique() -> None:
    found = converge(a_world(a_pool("p1"), a_pool("p1-x"), a_policy(selector={"env": "x"}, clusters={"namePrefix": "x"}),
                           a_service("a", requiredRegions=["p1-x"], priority=1), a_service("b", requiredRegions=["p1"], labels={"env": "x"})))  # fmt: skip
    assert sorted(found.clusters) == ["p1-x-001", "p1-x-002"]
    assert found.offer_of == {"p1-x-001": "p1-x", "p1-x-002": "p1"}


@SOME
@given(worlds())
def test_valid_worlds_never_crash(world: World) -> None:
    settled = converge(world)
    loss_impacts(settled)
    optimise(settled, OptimiserOptions(time_limit_s=1))
    assert all(each.missing or each.demand.rule_conflict for each in settled.unplaced.values())
