"""Tests of plans at the edges: delisted classes, conflicting policies, foreign currencies, and names shared
by two kinds."""

from typing import Any

import msgspec
import pytest
from build.placed_worlds import state_after
from build.worlds import a_class, a_cloud, a_policy, a_pool, a_service, a_static, a_world, make_valid_object

from lattice.errors import NotFound
from lattice.kinds import KINDS
from lattice.kinds.ledger import Account, LatticeLedger, LedgerSpec, LedgerStatus, Lot, cloud_ledger_spec
from lattice.kinds.meta.base import Kind, Metadata
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.explain.required_infrastructure import as_infrastructure
from lattice.placement.explain.verdict import Verdict, judge
from lattice.placement.greedy.place import place
from lattice.placement.model.current_state import PlannedLayout
from lattice.placement.model.world import object_key
from lattice.placement.plan.plan import FleetState, converge, plan
from lattice.placement.plan.whatif import WhatIfEvent, whatif
from lattice.placement.status.supply_conditions import supply_conditions

API = "default/api"
replaced = msgspec.structs.replace


def offers(settled: FleetState, service: str) -> set[str]:
    return {offer for offer, _, _ in settled.replica_counts.get(service, ())}


def verdict(settled: FleetState, service: str) -> Verdict:
    return judge(settled.unplaced[service], settled.fleet, settled.world.services)


# --- machines of a delisted class ---

M, N = a_class(), a_class("n", price=0.21)
RUNNING = converge(
    a_world(M, N, a_pool(budget=300), a_service("a", cores=4, replicas=2))
).resulting_world()  # $288 of $300
OTHER = a_pool(classes=["n"], budget=300)
NEW = a_service("b", cores=3)


def a_ledger_with_lots(*lots: tuple[str, int, int]) -> LatticeLedger:
    account = Account(kind="LatticePool", name="p1")
    kept = tuple(Lot(node_class=name, count=count, micros=micros) for name, count, micros in lots)
    status = LedgerStatus(
        committed_micros=sum(each.rate for each in kept),
        month="2026-11",
        as_of="2026-11-01T00:00:00.000000Z",
        machines={"p1-001": kept},
    )
    spec = LedgerSpec(budget=account, limit_micros=300_000_000, hard=True)
    found = LatticeLedger(
        "lattice.dev/v1alpha1", "LatticeLedger", Metadata(name=account.ledger_name), spec=spec, status=status
    )
    assert not list(found.problems())
    return found


def test_delisted_class_keeps_its_price() -> None:
    done = plan(RUNNING, [OTHER, NEW])
    assert done.unplaced == ("default/b",)
    assert done.total == (400_000, 400_000)
    assert verdict(state_after(done), "default/b").kind == "OverBudget"


def test_ledger_rate_counts_for_deleted_class() -> None:
    gone = [object_key(M)]
    enough = RUNNING.with_objects([a_ledger_with_lots(("m", 1, 100_000), ("m", 1, 90_000))], with_status=True)
    assert plan(enough, [OTHER, NEW], gone).total[1] == 190_000 + 210_000
    short = RUNNING.with_objects([a_ledger_with_lots(("m", 2, 150_000))], with_status=True)
    done = plan(short, [OTHER, NEW], gone)
    assert (done.total[1], done.unplaced) == (300_000, ("default/b",))


def test_unknown_price_blocks_under_a_budget() -> None:
    done = plan(
        RUNNING, [replaced(OTHER, spec=a_pool(classes=["n"], budget=9000).spec), NEW], [object_key(M)]
    )
    found = verdict(state_after(done), "default/b")
    assert (found.kind, done.unplaced) == ("NoPrice", ("default/b",))
    need, have = (
        "a known price, because the budget of latticepool/p1 applies",
        "unknown for 2 running machines",
    )
    fix = "set costPerHour.aws of the class, or provide a price file"
    assert [str(each) for _, reasons in found.rejections for each in reasons] == [
        f"price of m: need {need}, have {have}, missing a price: {fix}"
    ]
    assert plan(RUNNING, [a_pool(classes=["n"]), NEW], [object_key(M)]).unplaced == (), (
        "without a budget nothing needs to know"
    )


def test_unknown_price_in_a_region_blocks_shared_budget() -> None:
    hard = {"monthly": 9000, "hardLimit": True}
    start = converge(a_world(M, a_cloud(regions=["r1"]), a_service("a"))).resulting_world()
    unpriced = [
        a_class(price=None),
        a_class("n"),
        a_cloud(regions=["r1", "r2"], budget=hard),
        a_service("b", requiredRegions=["r2"]),
    ]
    assert plan(start, unpriced).unplaced == ("default/b",)
    assert plan(start, [a_class("n"), *unpriced[2:]]).unplaced == ()


def test_delisted_machines_take_nothing_new_after_what_if() -> None:
    world = (
        converge(a_world(M, N, a_pool(), a_service("a")))
        .resulting_world()
        .with_objects([a_pool(classes=["n"])])
    )
    fleet = world.build_fleet()
    with fleet.what_if():
        for seat in list(fleet.assignments["default/a"]):
            fleet.unassign(seat)
        for machine in list(fleet.machines.machine_type):
            fleet.inventory.drop_machine(machine)
    place(world.with_objects([NEW]).demands["default/b"], fleet)
    assert sorted(fleet.machines.machine_type[row].name for row in fleet.machines.machine_type) == ["m", "n"]
    assert PlannedLayout.of(fleet, world.layout).machines.keys() == {"p1-001"}


# --- scale-down ---


def near_db(name: str, region: str) -> LatticeService:
    return a_service(name, latency={"db": {"maxMs": 5}}, requiredRegions=[region])


@pytest.mark.parametrize(
    ("near", "stays"), [(["p1"], "p1"), (["p2"], "p2"), (["p1", "p1", "p2"], "p1"), ([], "p1")]
)
def test_scale_down_keeps_replica_near_dependents(near: list[str], stays: str) -> None:
    even = [{"topologyKey": "region", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    pools = [
        a_pool("p1", region="us-east-1"),
        a_pool("p2", region="eu-west-1", provider="gcp", classes=["n"]),
    ]
    dear = a_class("n", price=0.3, providers=["gcp"])
    others = [near_db(f"api{number}", region) for number, region in enumerate(near)]
    start = converge(a_world(M, dear, *pools, a_service("db", replicas=2, spread=even), *others))
    assert offers(start, "default/db") == {"p1", "p2"}
    done = plan(start.resulting_world(), [a_service("db", replicas=1, spread=even)])
    assert offers(state_after(done), "default/db") == {stays}
    assert len(done.would_move) == (1 if len(set(near)) > 1 else 0)


# --- user input ---


@pytest.mark.parametrize(
    "cls", [cls for cls in KINDS if "status" in cls.__struct_fields__], ids=lambda cls: str(cls.resource.kind)
)
def test_every_status_can_be_blank(cls: type[Kind]) -> None:
    status = next(each.default for each in msgspec.structs.fields(cls) if each.name == "status")
    assert type(status)() == status


def test_user_supplied_status_of_new_object_is_ignored() -> None:
    claimed = {"placements": [{"pool": "p1", "cluster": "p1-001", "replicas": 1, "node": "m"}]}
    invented = replaced(a_service(cores=4), status=msgspec.convert(claimed, type(a_service().status)))
    start = converge(a_world(a_pool(), a_service("a"))).resulting_world()
    assert state_after(plan(start, [invented])).clusters == {"p1-001": {"m": 2}}
    assert API not in start.with_objects([invented]).build_fleet().assignments
    assert API in start.with_objects([invented], with_status=True).build_fleet().assignments


def test_replicas_have_a_maximum() -> None:
    assert a_service(replicas=100_000).spec.min_replicas == 100_000
    with pytest.raises(msgspec.ValidationError, match=r"`int` <= 100000 - at `\$\.spec\.replicas\.min`"):
        a_service(replicas=100_001)
    with pytest.raises(msgspec.ValidationError, match="replicas.max"):
        a_service(most=100_001)


# --- conflicting policies ---

LARGE, SMALL = a_policy("large", clusters={"minNodes": 5}), a_policy("small", clusters={"maxNodes": 2})
CONTRADICTION = "policy/large wants clusters of at least 5 nodes, policy/small of at most 2"


def test_conflicting_policies_require_no_infrastructure() -> None:
    found = verdict(converge(a_world(a_pool(), LARGE, SMALL, a_service())), API)
    assert (found.kind, found.reason, found.required.properties()) == ("Never", CONTRADICTION, {})
    assert as_infrastructure(found.required) == []


def test_running_replicas_stay_under_conflicting_policies() -> None:
    done = plan(converge(a_world(a_pool(), a_service(replicas=2))).resulting_world(), [LARGE, SMALL])
    assert (done.unplaced, done.services) == ((), ())
    assert [(each.name, each.reasons, each.destination) for each in done.would_move] == [
        (API, (CONTRADICTION,), None)
    ]
    more = plan(
        converge(a_world(a_pool(), a_service(replicas=2))).resulting_world(),
        [LARGE, SMALL, a_service(replicas=3)],
    )
    assert (more.unplaced, state_after(more).placements[API].missing) == ((API,), 1)


# --- budgets ---


def test_foreign_currency_budget_has_no_dollar_limit() -> None:
    budget = {"maxMonthlyCost": 100, "currency": "EUR"}
    pool = make_valid_object(
        LatticePool, "p1", {"provider": {"type": "aws"}, "nodeClasses": ["m"], "budget": budget}
    )
    start = converge(a_world(a_pool(region=""), a_service(replicas=2, cores=4))).resulting_world()
    done = plan(start, [pool])
    assert state_after(done).world.supply.budgets["pool.p1"].limit is None
    assert (done.budgets, done.risks) == ((), ())
    words = "budget is in EUR, prices are in USD: nothing new is put here; state the budget in USD"
    assert [(each.subject, each.message) for each in state_after(done).world.findings] == [
        ("latticepool/p1", words)
    ]
    told = {
        each.type: each
        for each in supply_conditions(
            pool, state_after(done).fleet, state_after(done).world, state_after(done).bill
        )
    }
    assert (told["Ready"].status, told["Ready"].message) == ("False", words)


@pytest.mark.parametrize(
    ("region", "alert"), [({}, 500_000), ({"alertThreshold": 0.9}, 900_000), ({"monthly": 5}, 500_000)]
)
def test_region_alert_threshold_equals_ledger_threshold(region: dict[str, Any], alert: int) -> None:
    cloud = a_cloud(regions={"r1": {"budget": region}}, budget={"monthly": 10, "alertThreshold": 0.5})
    terms = cloud_ledger_spec(cloud, "r1")
    budget = a_world(cloud).supply.budgets["cloud.cloud.r1"]
    assert terms is not None
    assert (budget.alert_millionths, terms.alert_millionths) == (alert, alert)


def test_free_class_is_affordable_over_budget() -> None:
    start = converge(
        a_world(M, a_class("free", price=0), a_pool(), a_service("a", cores=4, replicas=2))
    ).resulting_world()
    assert plan(start, [a_pool(classes=["m"], budget=10), a_service("b", cores=4)]).unplaced == ("default/b",)
    assert plan(start, [a_pool(classes=["m", "free"], budget=10), a_service("b", cores=4)]).unplaced == ()


# --- names and models ---


def test_lost_offer_matches_exact_name() -> None:
    world = a_world(a_pool("one"), a_cloud("one", ["r1", "r2"]), a_cloud("two"))

    def left(*names: str) -> list[str]:
        return [
            offer.name
            for offer in state_after(whatif(world, WhatIfEvent(lost_offers=names))).world.supply.offers
        ]

    assert left("one") == ["one/r1", "one/r2", "two/r1"]
    assert left("one/r1", "one/r2") == ["one", "two/r1"]
    assert left("two") == ["one", "one/r1", "one/r2"]
    assert left("two/r1", "two") == ["one", "one/r1", "one/r2"]
    with pytest.raises(NotFound, match="no pool, region or infrastructure one/r3"):
        left("one/r3")


def test_dropped_compliance_matches_exact_offer_name() -> None:
    world = a_world(
        a_cloud("one", {"r1": {"compliance": ["soc2"]}}), a_pool("one", labels={"compliance": ["soc2"]})
    )
    for lost, kept in (("one", "one/r1"), ("one/r1", "one")):
        found = state_after(
            whatif(world, WhatIfEvent(dropped_compliance=((lost, "SOC2"),)))
        ).world.supply.offers
        assert {offer.name: set(offer.compliance) for offer in found} == {lost: set(), kept: {"soc2"}}


def test_unnamed_gpu_model_does_not_match() -> None:
    wanted = a_service(gpu=1, gpuModel="a100")
    found = verdict(converge(a_world(a_class("g", gpu=1), a_pool(classes=["g"]), wanted)), API)
    assert [str(each) for _, reasons in found.rejections for each in reasons] == [
        "gpu model: need a100, have no model specified"
    ]
    assert not converge(a_world(a_class("g", gpu=1), a_pool(classes=["g"]), a_service(gpu=1))).unplaced
    assert not converge(
        a_world(a_class("g", gpu=1, gpu_model="a100"), a_pool(classes=["g"]), wanted)
    ).unplaced


@pytest.mark.parametrize(
    "divided", [True, False], ids=["into equal machines", "into classes of its provider"]
)
def test_data_center_gpu_model_applies_to_all_machines(divided: bool) -> None:
    size: dict[str, Any] = {} if divided else {"cores": None, "memory": None, "provider": "aws"}
    static = a_static(accelerators=[{"type": "a100", "count": 2}], **size)
    classes = [a_class("g", gpu=1)]
    assert not converge(a_world(*classes, static, a_service(gpu=1, gpuModel="a100"))).unplaced
    assert converge(a_world(*classes, static, a_service(gpu=1, gpuModel="t4"))).unplaced
