"""Tests of the examples in the design documents: figures, messages and placement order."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from build.worlds import (
    EXAMPLE,
    a_class,
    a_pool,
    a_service,
    a_world,
    make_valid_object,
    read_world,
    seed_world,
)

from lattice.kinds.infrastructure import StaticInfrastructure
from lattice.kinds.meta.base import Kind
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.placement.explain.verdict import judge
from lattice.placement.inputs.ledger_math import BudgetRule, BudgetState, BudgetStatus
from lattice.placement.model.world import World
from lattice.placement.plan.plan import FleetState, converge
from lattice.placement.status.fleet_status import pool_status, spending

EXAMPLES = Path(__file__).parents[2] / "examples"
GATEWAY = "default/api-gateway"


def status(settled: FleetState, service: str = GATEWAY) -> Any:
    """As the API sends it."""
    return msgspec.json.decode(msgspec.json.encode(settled.resulting_world().services[service].status))


def test_seed_api_gateway_status() -> None:
    found = status(converge(read_world(EXAMPLE), max_decisions=1))
    assert [(each["pool"], each["replicas"], each["node"], each["cost"]) for each in found["placements"]] == [
        ("us-east", 2, "medium", {"hourly": "0.384"}),
        ("eu-west", 1, "medium", {"hourly": "0.192"}),
    ]
    assert found["totalCost"] == {"hourly": "0.576", "projected30Day": "414.72"}
    decision = found["schedulerDecision"]
    assert decision["reason"] == "Placed in us-east and eu-west per requiredRegions constraint"
    assert decision["verdict"] == "Placed"
    assert decision["alternatives"] == [{"pool": "ap-south", "rejected": "No GDPR compliance label"}]


def test_seed_api_gateway_without_gdpr_is_unplaced() -> None:
    world = seed_world("soc2", "hipaa")
    settled = converge(world, max_decisions=1)
    assert GATEWAY not in settled.replica_counts
    verdict = judge(settled.placements[GATEWAY], settled.fleet, world.services)
    assert "gdpr" in str(verdict)


def test_seed_pool_figures() -> None:
    """45 machines of 16 cores and 64 GiB: 720 cores and 2880 GiB of 2000 and 8000."""
    classes = a_class("large", 16, 64, Decimal("0.253086"))
    us_east = a_pool(
        "us-east",
        classes=["large"],
        capacity={"maxNodes": 100, "maxCores": 2000, "maxMemoryGi": 8000},
        budget=10000,
    )
    settled = converge(a_world(classes, us_east, a_service(cores=16, memory=64, replicas=45)))
    pool = settled.world.objects["LatticePool", "", "us-east"]
    assert isinstance(pool, LatticePool)
    found = msgspec.json.decode(
        msgspec.json.encode(pool_status(pool, settled.fleet, settled.world, settled.bill))
    )
    assert found["capacity"] == {"allocatedNodes": 45, "allocatedCores": "720", "allocatedMemoryGi": "2880"}
    assert found["utilization"] == {"nodes": "0.45", "cores": "0.36", "memory": "0.36"}
    assert found["budget"]["utilizationPercent"] == "0.82"
    assert sum(each["nodes"] for each in found["clusters"]) == 45


def test_seed_budget_figures() -> None:
    status = BudgetStatus(
        spent=4_523_500_000,
        projected=8_200_000_000,
        run_rate=7_500_000_000,
        limit=10_000_000_000,
        utilisation=820_000,
        rule=BudgetRule.CALENDAR_MONTH,
        state=BudgetState.ALERT,
        is_hard=True,
    )
    found = spending(status)
    assert msgspec.to_builtins(found) == {
        "currentMonthCost": "4523.5", "projectedMonthCost": "8200", "utilizationPercent": "0.82",
    }  # fmt: skip


# --- the second document: many clouds and a data center ---

MULTI = EXAMPLES / "seeds" / "001-multi-cloud"
TPU = make_valid_object(LatticeNodeClass, "tpu", {
    "providers": {"gcp": {}}, "resources": {"cores": 96, "memoryGi": 200, "extended": {"google.com/tpu": 4}}, "costPerHour": {"gcp": 12.88},
})  # fmt: skip
CLASSES = (
    a_class("medium", 4, 16, 0.192, providers=["aws"]),
    a_class("standard", 4, 16, 0.134, providers=["gcp"]),
    TPU,
)


def multi_cloud(*objects: Kind, nodes: int = 100) -> World:
    """The printed example with node classes and the given number of machines in the data center."""
    world = read_world(MULTI).with_objects([*CLASSES, *objects])
    dc = world.objects["StaticInfrastructure", "", "dc-east"]
    assert isinstance(dc, StaticInfrastructure)
    capacity = msgspec.structs.replace(dc.spec.capacity, nodes=nodes)
    return world.with_objects(
        [msgspec.structs.replace(dc, spec=msgspec.structs.replace(dc.spec, capacity=capacity))]
    )


def places(world: World, service: str = "api") -> dict[str, int]:
    found = converge(world)
    return {
        offer: count for (offer, _, _), count in found.replica_counts.get(f"default/{service}", {}).items()
    }


@pytest.mark.parametrize(("service", "nodes", "where"), [
    pytest.param(a_service(cores=4), 100, {"dc-east": 1}, id="1. on dc-east, which costs nothing more"),
    pytest.param(a_service(cores=4, compliance=["SOC2"]), 100, {"aws-production/us-east-1": 1}, id="2. what dc-east cannot do goes to a cloud that can"),
    pytest.param(a_service(cores=4, replicas=4), 2, {"dc-east": 2, "aws-production/us-east-1": 2}, id="2. and so does what it has no room for"),
    pytest.param(a_service(cores=4, capabilities=["tpu-v4"]), 100, {"gcp-ml/us-central1": 1}, id="3. TPU workloads go to gcp-ml"),
    pytest.param(a_service(cores=4), 0, {"aws-production/us-east-1": 1}, id="a data center without machines is full"),
])  # fmt: skip
def test_seed_placement_order(service: Any, nodes: int, where: dict[str, int]) -> None:
    assert places(multi_cloud(service, nodes=nodes)) == where


def test_general_overflow_goes_to_aws_though_gcp_is_cheaper() -> None:
    """4. gcp's machines cost 0.134, aws's 0.192."""
    found = places(multi_cloud(a_service(cores=4, replicas=10), nodes=4))
    assert found == {"dc-east": 4, "aws-production/us-east-1": 6}


def test_data_center_is_filled_before_overflow() -> None:
    """Nine of ten machines reach the trigger of 90 percent; the tenth is used before anything overflows."""
    assert places(multi_cloud(a_service(cores=4, replicas=10), nodes=10)) == {"dc-east": 10}


def test_larger_example_is_fully_placed() -> None:
    settled = converge(read_world(EXAMPLES / "worlds" / "seed-001"))
    assert not settled.unplaced
    where = {
        name.partition("/")[2]: sorted({offer for offer, _, _ in counts})
        for name, counts in settled.replica_counts.items()
    }
    assert where["imaging"] == ["dc-east"]
    assert where["ledger"] == ["dc-eu"]
    assert where["trainer"] == ["gcp-ml/us-central1"]
    assert set(where["storefront"]) <= {"dc-east", "dc-west", "dc-eu"}
    assert sum(settled.offer_rates.values()) == 12_880_000


def test_filter_example_leaves_two_offers() -> None:
    """compliance=[HIPAA], capabilities=[gpu]: us-east-1 and the data center."""
    world = read_world(EXAMPLES / "worlds" / "seed-001")
    able = [
        offer.name
        for offer in world.supply.offers
        if {"hipaa"} <= offer.compliance and {"gpu"} <= offer.capabilities
    ]
    assert able == ["aws-production/us-east-1", "dc-east"]
