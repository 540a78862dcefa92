"""Tests of overflow: a data center past its trigger overflows to its target only, within its limits."""

from typing import Any

import pytest
from build.worlds import a_class, a_cloud, a_policy, a_pool, a_service, a_static, a_world

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.base import Kind
from lattice.placement.plan.plan import FleetState, converge, plan
from lattice.placement.plugins.filters.overflow import offer_utilisation

API = "default/api"
CLASSES = (a_class(), a_class("cheap", price=0.1, providers=["gcp"]))
AWS, GCP, TWO = a_cloud("aws", ["r1"]), a_cloud("gcp", ["r3"], provider="gcp"), a_cloud("aws", ["r1", "r2"])


def dc(nodes: int = 2, **overflow: Any) -> Kind:
    """A data center with machines of four cores."""
    return a_static(
        nodes=nodes,
        cores=4 * nodes,
        memory=f"{16 * nodes}Gi",
        overflow={"enabled": True, "target": "aws", **overflow},
    )


def settled(*objects: Kind) -> FleetState:
    return converge(a_world(*CLASSES, *objects))


def settled_replicas(*objects: Kind, of: str = "api") -> dict[str, int]:
    found: dict[str, int] = {}
    for (offer, _, _), count in settled(*objects).replica_counts.get(f"default/{of}", {}).items():
        found[offer] = found.get(offer, 0) + count
    return found


def limits(**stated: Any) -> dict[str, Any]:
    return {"limits": stated}


@pytest.mark.parametrize(("objects", "found"), [
    pytest.param([dc(), AWS, GCP, a_service(cores=4, replicas=2)], {"dc": 2}, id="nothing overflows while there is room"),
    pytest.param([dc(), AWS, GCP, a_service(cores=4, replicas=3)], {"dc": 2, "aws/r1": 1}, id="only to the target, though another is cheaper"),
    pytest.param([dc(regions=["r2"]), TWO, a_service(cores=4, replicas=3)], {"dc": 2, "aws/r2": 1}, id="named regions come first"),
    pytest.param([dc(regions=["r2", "r1"]), a_cloud("aws", {"r1": {}, "r2": {"quotas": {"maxClusters": 0}}}), a_service(cores=4, replicas=3)],
                 {"dc": 2, "aws/r1": 1}, id="named regions are tried in order"),
    pytest.param([dc(regions=["r2"]), a_cloud("aws", {"r1": {}, "r2": {"quotas": {"maxClusters": 0}}}), a_service(cores=4, replicas=3)],
                 {"dc": 2, "aws/r1": 1}, id="others of the target after them"),
    pytest.param([dc(), AWS, a_service(cores=3, replicas=3)], {"dc": 2}, id="at 75 percent the trigger of 90 is not reached: the third waits"),
    pytest.param([dc(trigger={"capacityThreshold": 75}), AWS, a_service(cores=3, replicas=3)], {"dc": 2, "aws/r1": 1}, id="at 75 percent the trigger of 75 is reached"),
    pytest.param([dc(enabled=False), AWS, a_service(cores=4, replicas=3)], {"dc": 2}, id="an overflow that is off keeps the cloud closed"),
    pytest.param([dc(), AWS, GCP, a_service(cores=4, replicas=3, requiredRegions=["r3"])], {"dc": 2, "gcp/r3": 1}, id="a required region elsewhere is open"),
    pytest.param([a_static(nodes=2, cores=8, memory="32Gi"), GCP, a_service(cores=4, replicas=3)], {"dc": 2, "gcp/r3": 1},
                 id="without a rule any cloud takes what does not fit"),
    pytest.param([dc(), a_cloud("aws", {"r1": {"capabilities": ["tpu"]}}), a_service(capabilities=["tpu"])], {"aws/r1": 1},
                 id="what the data center cannot do is no overflow"),
    pytest.param([dc(), AWS, a_class("l", 16, 64, 0.9), a_service(cores=8)], {"aws/r1": 1}, id="a replica too big for its machines is no overflow"),
    pytest.param([dc(target="moon"), AWS, a_service(cores=4, replicas=3)], {"dc": 2}, id="a target that is not there takes nothing"),
])  # fmt: skip
def test_overflow_placement(objects: list[Kind], found: dict[str, int]) -> None:
    assert settled_replicas(*objects) == found


@pytest.mark.parametrize(("limit", "spilled"), [
    pytest.param({}, 8, id="no limit"),
    pytest.param({"maxClusters": 0}, 0, id="no clusters"),
    pytest.param({"maxClusters": 1}, 2, id="one cluster, of two machines by quota"),
    pytest.param({"maxClusters": 2}, 4, id="two clusters, whatever the region"),
    pytest.param({"maxMonthlySpend": 144}, 1, id="the price of one machine"),
    pytest.param({"maxMonthlySpend": 500}, 3, id="the price of three machines, in both regions together"),
    pytest.param({"maxMonthlySpend": 0}, 0, id="no spend"),
])  # fmt: skip
def test_overflow_limits(limit: dict[str, Any], spilled: int) -> None:
    quotas = {"quotas": {"maxClusters": 2, "maxNodesPerCluster": 2}}
    found = settled_replicas(
        dc(**limits(**limit)), a_cloud("aws", {"r1": quotas, "r2": quotas}), a_service(cores=4, replicas=20)
    )
    assert found.pop("dc") == 2
    assert sum(found.values()) == spilled


def test_overflow_clusters_are_separate_and_labelled() -> None:
    """Services placed directly in the cloud do not share them."""
    world = settled(
        dc(), AWS, a_service("direct", requiredRegions=["r1"]), a_service(cores=4, replicas=3)
    ).resulting_world()
    made = {
        each.metadata.name: each.spec.labels
        for each in world.objects.values()
        if isinstance(each, LatticeCluster)
    }
    assert made == {"dc-001": {}, "aws-r1-001": {"lattice.dev/overflow-of": "dc"}, "aws-r1-002": {}}


def test_overflow_is_charged_to_both_ledgers() -> None:
    found = settled(dc(**limits(maxMonthlySpend=1000)), AWS, a_service(cores=4, replicas=4))
    assert (
        found.fleet.ledgers.committed["static.dc.overflow"]
        == found.fleet.ledgers.committed["cloud.aws"]
        == 400_000
    )


def test_overflow_is_recovered_from_stored_objects() -> None:
    once = settled(dc(**limits(maxClusters=1)), AWS, a_service(cores=4, replicas=5))
    again = converge(once.resulting_world())
    assert again.replica_counts == once.replica_counts
    assert again.fleet.inventory.overflow_clusters == once.fleet.inventory.overflow_clusters == {"dc": 1}


@pytest.mark.parametrize(("static", "services", "share"), [
    pytest.param(a_static(nodes=2, cores=8, memory="32Gi"), [], 0, id="empty"),
    pytest.param(a_static(nodes=2, cores=8, memory="32Gi"), [a_service(cores=2)], 250_000, id="what replicas ask for, not whole machines"),
    pytest.param(a_static(nodes=2, cores=8, memory="32Gi"), [a_service(cores=1, memory=16)], 500_000, id="memory, where that is more"),
    pytest.param(a_static(nodes=4, cores=None, memory=None, provider="aws"), [a_service(cores=1)], 250_000, id="machines, where nothing else is known"),
    pytest.param(a_static(nodes=0, cores=None, memory=None), [], 1_000_000, id="nothing at all is full"),
])  # fmt: skip
def test_offer_utilisation(static: Kind, services: list[Kind], share: int) -> None:
    found = settled(static, *services)
    assert offer_utilisation(found.fleet, found.fleet.row("dc")) == share


@pytest.mark.parametrize("reserved", [0, 2])
def test_utilisation_counts_machines_with_replicas(reserved: int) -> None:
    """A cluster starts with two machines, of which one is used."""
    reservation = {"reserved": {"nodes": reserved}, "reservedFor": [{"labelSelector": {"env": "prod"}}]}
    static = a_static(nodes=4 + reserved, cores=None, memory=None, provider="aws", reservation=reservation)
    found = settled(static, a_policy(clusters={"minNodes": 2}), a_service(cores=1))
    assert offer_utilisation(found.fleet, found.fleet.row("dc"), includes_reserve=False) == 250_000


def test_overflow_waits_for_other_data_center_with_capacity() -> None:
    """west has capacity, so nothing overflows from east."""
    east = a_static("east", nodes=1, cores=4, memory="16Gi", overflow={"enabled": True, "target": "aws"})
    west = a_static("west", nodes=1, cores=4, memory="16Gi", overflow={"enabled": True, "target": "aws"})
    assert settled_replicas(east, west, AWS, a_service(cores=4, replicas=2)) == {"east": 1, "west": 1}
    assert settled_replicas(east, west, AWS, a_service(cores=4, replicas=3)) == {
        "east": 1,
        "west": 1,
        "aws/r1": 1,
    }


def test_overflow_closes_other_pools() -> None:
    assert settled_replicas(dc(), a_pool(), AWS, a_service(cores=4, replicas=3)) == {"dc": 2, "aws/r1": 1}


def test_reserved_capacity_does_not_hold_back_overflow() -> None:
    reservation = {"reserved": {"nodes": 2}, "reservedFor": [{"labelSelector": {"priority": "critical"}}]}
    overflow = {"enabled": True, "target": "aws", "trigger": {"capacityThreshold": 90}}
    static = a_static("dc", 10, 80, "320Gi", reservation=reservation, overflow=overflow)
    world = a_world(
        a_class("m", 8, 32), static, a_cloud("aws", ["r1"]), a_service("api", replicas=80, cores=1, memory=1)
    )
    fleet = converge(world).fleet
    counts = {fleet.offers[row].name: count for row, count in fleet.replicas.by_offer("default/api").items()}
    assert counts == {"dc": 64, "aws/r1": 16}


def test_alternatives_name_shortfall_of_overflow_target() -> None:
    """The data center is past its trigger and may create no cluster in the target; the alternative names that
    limit."""
    rule = dc(trigger={"capacityThreshold": 50}, **limits(maxClusters=0))
    world = settled(rule, AWS, GCP, a_service(cores=4, replicas=3)).resulting_world()
    decision = world.services[API].status.scheduler_decision
    assert decision is not None
    told = {each.pool: each.rejected for each in decision.alternatives}
    assert told["aws/r1"] == "overflow clusters of dc: need 1 more, have 0 of maxClusters 0, missing 1"
    assert told["gcp/r3"] == "overflow of dc: need target aws, have gcp, missing target: gcp"


def test_fragmented_data_center_is_a_risk() -> None:
    """Three cores of each of four machines are used; the fourth is too small for a replica of three cores."""
    rule = a_static(nodes=4, cores=16, memory="64Gi", overflow={"enabled": True, "target": "cloud"})
    made = plan(a_world(rule, a_cloud()), [a_service(cores=3, replicas=6)])
    assert made.unplaced == (API,)
    assert made.risks[-1] == (
        "dc has no free capacity for default/api and does not overflow: 75 % is in use, the free capacity is fragmented, and overflow begins at 90 %"
    )
    assert plan(a_world(rule, a_cloud()), [a_service(cores=4, replicas=6)]).risks == ("dc uses 4 of 4 nodes",)
