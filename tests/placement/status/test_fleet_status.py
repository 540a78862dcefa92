"""Tests of the status of services and supply: figures, messages and conditions."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from build.worlds import a_class, a_cloud, a_policy, a_pool, a_service, a_static, a_world, make_valid_object

from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import Account, LedgerSpec
from lattice.kinds.meta.base import Condition, Kind
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.inputs.ledger_math import BudgetVerdict, judge_budget, open_ledger
from lattice.placement.model.world import NOMINAL_MONTH_START
from lattice.placement.plan.plan import FleetState, converge
from lattice.placement.status.budget_conditions import budget_conditions
from lattice.placement.status.fleet_status import dollar_amount, fleet_digest, placed_reason, spending
from lattice.placement.status.placement_conditions import references_condition
from lattice.placement.status.supply_conditions import (
    highest_usage,
    pressure_condition,
    supply_conditions,
)

DOLLAR = 1_000_000


def settled(*objects: Kind) -> FleetState:
    return converge(a_world(*objects), max_decisions=1)


def status(found: FleetState, kind: str, name: str, namespace: str = "") -> Any:
    """As the API sends it."""
    return msgspec.json.decode(
        msgspec.json.encode(found.resulting_world().objects[kind, namespace, name].status)
    )  # type: ignore[attr-defined]


def conditions_of(found: FleetState, kind: str, name: str) -> dict[str, Condition]:
    supplier = found.world.objects[kind, "", name]
    assert isinstance(supplier, LatticePool | CloudInfrastructure | StaticInfrastructure)
    return {each.type: each for each in supply_conditions(supplier, found.fleet, found.world, found.bill)}


@pytest.mark.parametrize(
    ("micros", "text"),
    [(384_000, "0.384"), (414_720_000, "414.72"), (0, "0"), (1, "0.000001"), (5_000_000, "5")],
)
def test_dollar_amount(micros: int, text: str) -> None:
    assert str(dollar_amount(micros)) == text


def test_service_costs_of_shared_machine_add_up() -> None:
    found = settled(a_class(price=Decimal("0.1")), a_pool(), a_service("a"), a_service("b"), a_service("c"))
    parts = [status(found, "LatticeService", name, "default")["totalCost"]["hourly"] for name in "abc"]
    assert sum(map(Decimal, parts)) == Decimal("0.1")


@pytest.mark.parametrize(("objects", "offers", "reason"), [
    pytest.param([a_service()], {"p1": 1}, "Placed in p1", id="one"),
    pytest.param([a_service()], {"p1": 1, "p2": 3}, "Placed in p2 and p1", id="two, the larger part first"),
    pytest.param([a_service()], {"p1": 1, "p2": 1, "p3": 2}, "Placed in p3, p1 and p2", id="three"),
    pytest.param([a_service(requiredRegions=["p1"])], {"p1": 1}, "Placed in p1 per requiredRegions constraint", id="required regions"),
    pytest.param([a_service(), a_policy("ha", minRegions=2)], {"p1": 1, "p2": 1}, "Placed in p1 and p2 per minRegions of policy/ha", id="minRegions"),
])  # fmt: skip
def test_placed_because(objects: list[Kind], offers: dict[str, int], reason: str) -> None:
    assert placed_reason(a_world(*objects).demands["default/api"], offers) == reason


def test_alternatives_list_rejected_pools() -> None:
    found = settled(a_pool("p1", labels={"compliance": ["gdpr"]}), a_pool("p2"), a_pool("p3", labels={"compliance": ["gdpr"]}, capacity={"maxNodes": 0}),
                    a_service(compliance=["gdpr"]))  # fmt: skip
    assert status(found, "LatticeService", "api", "default")["schedulerDecision"]["alternatives"] == [
        {"pool": "p2", "rejected": "No GDPR compliance label"},
        {"pool": "p3", "rejected": "nodes: need 1 more, have 0 of 0, missing 1"},
    ]


def test_cloud_status_by_region() -> None:
    found = settled(
        a_cloud(regions=["r1", "r2"]),
        a_service("a", requiredRegions=["r1"]),
        a_service("b", requiredRegions=["r2"], cores=4, replicas=2),
    )
    shown = status(found, "CloudInfrastructure", "cloud")
    assert shown["clusters"] == {"total": 2, "byRegion": {"r1": 1, "r2": 1}}
    assert shown["currentSpend"] == {"monthly": "0", "byRegion": {"r1": "0", "r2": "0"}, "projected": "432"}
    assert shown["nextClusterSequence"] == {"r1": 2, "r2": 2}


def test_data_center_status_utilisation() -> None:
    found = settled(a_static(nodes=4, cores=16, memory="64Gi"), a_service(cores=4, replicas=3))
    shown = status(found, "StaticInfrastructure", "dc")
    assert shown["utilization"] == {
        "nodes": {"total": "4", "used": "3", "available": "1"},
        "cores": {"total": "16", "used": "12", "available": "4"},
        "memory": {"total": "64Gi", "used": "48Gi", "available": "16Gi"},
    }
    assert shown["clusters"] == {"total": 1, "names": ["dc-001"]}


def test_pool_without_limits_has_no_utilisation() -> None:
    shown = status(settled(a_pool(), a_service()), "LatticePool", "p1")
    assert shown["capacity"] == {"allocatedNodes": 1, "allocatedCores": "4", "allocatedMemoryGi": "16"}
    assert shown["utilization"] == {}
    assert "budget" not in shown
    assert shown["clusters"] == [{"name": "p1-001", "nodes": 1, "services": 1}]


def test_cluster_status() -> None:
    shown = status(settled(a_pool(), a_service("a", replicas=2), a_service("b")), "LatticeCluster", "p1-001")
    assert (shown["services"], shown["workloads"]) == (2, 3)
    assert shown["utilization"] == {"cores": "0.75", "memory": "0.1875"}
    assert shown["cost"] == {"hourly": "0.2", "projected30Day": "144"}


@pytest.mark.parametrize(("projected", "limit", "share"), [
    (8200, 10_000, "0.82"), (0, 10, "0"), (0, 0, "1"), (15, 10, "1.5"),
])  # fmt: skip
def test_budget_utilisation_is_a_fraction(projected: int, limit: int, share: str) -> None:
    verdict = a_verdict(projected * DOLLAR, limit)
    assert Decimal(str(spending(verdict.status).utilization_percent)) == Decimal(share)


def test_fleet_digest_changes_with_inputs() -> None:
    one, other = settled(a_pool(), a_service()), settled(a_pool(), a_service(), a_service("more"))
    assert fleet_digest(one.fleet) == fleet_digest(settled(a_pool(), a_service()).fleet)
    assert fleet_digest(one.fleet) != fleet_digest(other.fleet)
    digests = {
        status(each, "LatticeService", "api", "default")["schedulerDecision"]["digest"]
        for each in (one, other)
    }
    assert len(digests) == 2


def test_status_is_stable_when_written_again() -> None:
    once = settled(a_pool(), a_cloud(), a_static(), a_service(replicas=30)).resulting_world()
    twice = converge(once).resulting_world()
    assert {
        key: getattr(each, "status", None)
        for key, each in twice.objects.items()
        if key[0] != "LatticeService"
    } == {
        key: getattr(each, "status", None) for key, each in once.objects.items() if key[0] != "LatticeService"
    }


# --- conditions ---


@pytest.mark.parametrize(("uses", "pressed", "message"), [
    pytest.param([(72, 100), (580_000, 800_000), (2100, 3200)], "False", "28% capacity available", id="the printed example: 72 percent in use"),
    pytest.param([(79, 100)], "False", "21% capacity available", id="just below 80 percent"),
    pytest.param([(80, 100)], "True", "20% capacity available", id="at 80 percent"),
    pytest.param([(0, 100), (10, 10)], "True", "0% capacity available", id="the scarcest counts"),
    pytest.param([(12, 10)], "True", "0% capacity available", id="more in use than there is"),
])  # fmt: skip
def test_capacity_pressure(uses: list[tuple[int, int]], pressed: str, message: str) -> None:
    use = highest_usage(uses)
    assert use is not None
    found = pressure_condition(use)
    assert (found.type, found.status, found.message) == ("CapacityPressure", pressed, message)


@pytest.mark.parametrize(("projected", "limit", "hard", "status_", "reason", "text"), [
    pytest.param(99, 100, True, "False", "WithinBudget", "(99 %)", id="below"),
    pytest.param(100, 100, True, "True", "HardLimit", "(100 %), the limit is reached; nothing is stopped, nothing more is bought", id="at 100 percent, hard"),
    pytest.param(100, 100, False, "True", "SoftLimit", "(100 %), the limit is reached; the limit is soft", id="at 100 percent, soft"),
    pytest.param(0, 0, True, "True", "HardLimit", "(100 %), the limit is reached; nothing is stopped, nothing more is bought", id="nothing of nothing"),
])  # fmt: skip
def test_budget_exceeded(
    projected: int, limit: int, hard: bool, status_: str, reason: str, text: str
) -> None:
    world = a_world(a_pool())
    found = budget_conditions(
        world.objects["LatticePool", "", "p1"], {"": a_verdict(projected * DOLLAR, limit, hard=hard)}
    )[0]  # type: ignore[arg-type]
    assert (found.type, found.status, found.reason, found.message) == (
        "BudgetExceeded",
        status_,
        reason,
        f"calendar month: ${projected}.00 of ${limit}.00 {text}",
    )


def a_verdict(projected: int, limit: int, *, hard: bool = True) -> BudgetVerdict:
    """The verdict about a budget that has spent the projected amount and pays for nothing."""
    terms = LedgerSpec(budget=Account(kind="LatticePool", name="p1"), limit_micros=limit * DOLLAR, hard=hard)
    ledger = open_ledger(terms, None, NOMINAL_MONTH_START)
    status = msgspec.structs.replace(ledger.status, spent_micros=projected)
    return judge_budget(msgspec.structs.replace(ledger, status=status), NOMINAL_MONTH_START)


def test_budget_message_is_rounded_to_cents() -> None:
    said_now, said_later = (a_verdict(each, 900).message for each in (148_183_910, 148_183_752))
    assert said_now == said_later == "calendar month: $148.18 of $900.00 (16.4 %)"


def test_healthy_pool_conditions() -> None:
    found = conditions_of(
        settled(a_pool(budget=1000, capacity={"maxNodes": 5}), a_service()), "LatticePool", "p1"
    )
    assert {name: each.status for name, each in found.items()} == {
        "Ready": "True", "ReferencesResolved": "True", "Overlaps": "False", "BudgetExceeded": "False", "BudgetAlert": "False",
        "CapacityPressure": "False",
    }  # fmt: skip


def test_exceeded_soft_budget_has_condition() -> None:
    found = conditions_of(
        settled(a_cloud(budget={"monthly": 100}), a_service()), "CloudInfrastructure", "cloud"
    )
    assert (found["BudgetExceeded"].status, found["BudgetExceeded"].reason) == ("True", "SoftLimit")
    assert found["BudgetExceeded"].message == (
        "calendar month: $144.00 of $100.00 (144 %), $44.00 over the limit; the limit is soft"
    )


def test_cloud_with_unusable_region_is_degraded() -> None:
    twice = make_valid_object(
        LatticePool, "a-pool", {"provider": {"type": "aws", "region": "r1"}, "nodeClasses": ["m"]}
    )
    found = conditions_of(settled(twice, a_cloud(regions=["r1", "r2"])), "CloudInfrastructure", "cloud")
    assert (found["Ready"].status, found["Degraded"].status, found["Degraded"].message) == (
        "True",
        "True",
        "no replica can be placed in r1",
    )
    assert found["Overlaps"].status == "True"
    whole = conditions_of(settled(twice, a_cloud(regions=["r1"])), "CloudInfrastructure", "cloud")
    assert (whole["Ready"].status, whole["Degraded"].status) == ("False", "False")
    assert whole["Ready"].message == "latticepool/a-pool already offers aws r1 with the same credentials"


@pytest.mark.parametrize(("supplier", "kind", "condition", "message"), [
    pytest.param(a_pool(classes=["m", "huge"]), "LatticePool", "ReferencesResolved", "no LatticeNodeClass huge", id="a class that is not there"),
    pytest.param(a_pool(classes=["huge"]), "LatticePool", "Ready", "no node class is available on provider aws", id="no class at all"),
    pytest.param(a_static(overflow={"enabled": True, "target": "moon"}), "StaticInfrastructure", "ReferencesResolved",
                 "no CloudInfrastructure moon to overflow to", id="an overflow to nowhere"),
    pytest.param(a_cloud(provider="azure"), "CloudInfrastructure", "Ready", "no node class is available in r1 on provider azure", id="a cloud without classes"),
])  # fmt: skip
def test_finding_becomes_a_condition(supplier: Kind, kind: str, condition: str, message: str) -> None:
    found = conditions_of(settled(supplier), kind, supplier.metadata.name)[condition]
    assert (found.status, found.message) == ("False", message)


def test_conditions_distinguish_kinds_of_same_name() -> None:
    found = settled(a_pool("same", classes=["huge"]), a_cloud("same"))
    assert conditions_of(found, "LatticePool", "same")["Ready"].status == "False"
    assert conditions_of(found, "CloudInfrastructure", "same")["Ready"].status == "True"


@pytest.mark.parametrize(("service", "said"), [
    pytest.param(a_service(latency={"ghost": {"maxMs": 5}}), ("False", "LatticeService default/ghost not found"), id="a limit to what is not there"),
    pytest.param(a_service(latency={"db": {"maxMs": 5}}), ("True", ""), id="a limit to what is there"),
    pytest.param(a_service(dependencies={"ghost": {"type": "service", "direction": "outbound"}}, latency={"ghost": {"maxMs": 5}}),
                 ("False", "LatticeService default/ghost not found"), id="named twice, reported once"),
    pytest.param(a_service(latency={"api": {"maxMs": 5}}), ("True", ""), id="a limit to itself"),
])  # fmt: skip
def test_missing_service_references_are_reported(service: LatticeService, said: tuple[str, str]) -> None:
    world = a_world(a_pool(), a_service("db"), service)
    found = references_condition(service, world.demands["default/api"], world.services)
    assert (found.status, found.message) == said
