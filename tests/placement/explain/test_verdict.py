"""Tests of verdicts: why a service is unplaced, and that exactly the listed blockers are the cause."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from build.joined_machines import a_joined_machine, a_manual_world
from build.worlds import (
    EXAMPLES,
    a_class,
    a_cloud,
    a_policy,
    a_pool,
    a_service,
    a_static,
    a_world,
    arranged,
    seed_world,
    worlds,
)
from hypothesis import HealthCheck, given, note, settings

from lattice.kinds.meta.base import Kind
from lattice.placement.explain.blockers import (
    IGNORABLE_LIMITS,
    LimitBlocker,
    find_blockers,
    is_feasible,
    without_blockers,
)
from lattice.placement.explain.required_infrastructure import as_infrastructure, region_pattern
from lattice.placement.explain.verdict import Verdict, conflicting_requirements, judge
from lattice.placement.greedy.place import place
from lattice.placement.greedy.place_all import PlanRounds, place_one_round
from lattice.placement.model.demand import Requirement
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import World
from lattice.placement.plan.plan import converge

MANY = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
US: dict[str, Any] = {"region": "us-east-1"}


def verdict(*objects: Kind, of: str = "api") -> Verdict:
    """The verdict on one service after every other feasible service is placed."""
    world, name = a_world(*objects), f"default/{of}"
    fleet = arranged(world, name)
    placement = place(world.demands[name], fleet)
    assert not placement.is_complete
    return judge(placement, fleet, world.services)


def words(found: Verdict) -> list[list[str]]:
    return [[str(part) for part in conflict] for conflict in found.blocker_sets]


near: dict[str, Any] = {"latency": {"db": {"maxMs": 5}}}
split = a_pool("p1", capacity={"maxNodes": 1}), a_pool("p2", capacity={"maxNodes": 1})

CASES = [
    pytest.param([a_pool(), a_service(requiredRegions=["moon"])], "NotHere", "no pool is in moon", [["a replica in moon"]],
                 id="a required region without a pool is NotHere"),
    pytest.param([a_pool(budget=100), a_service()], "OverBudget", "1 over budget", [["budgets"]],
                 id="only the budget is in the way"),
    pytest.param([a_class(price=None), a_pool(budget=100), a_service()], "NoPrice", "1 without a known price",
                 [["unknown prices"], ["budgets"]], id="an unknown price is not over a budget: it is unknown"),
    pytest.param([a_class(), a_class("blank", price=None), a_pool("p1", budget=100), a_pool("p2", classes=["blank"], budget=100), a_service()], "NoPrice",
                 "1 over budget; 1 without a known price", [["unknown prices"], ["budgets"]],
                 id="one pool is over budget, of another the price is not known"),
    pytest.param([a_class(price=None), a_pool(budget=100), a_service(compliance=["gdpr"])], "Never",
                 "1 without compliance gdpr", [["compliance gdpr", "unknown prices"], ["compliance gdpr", "budgets"]],
                 id="a price alone would not do"),
    pytest.param([a_pool(capacity={"maxNodes": 0}), a_service()], "NotNow", "1 full", [["capacity limits"]],
                 id="a full pool is a matter of time"),
    pytest.param([a_pool(), a_service(**near)], "NotNow", "waiting for db", [["db within 5 ms"], ["unplaced dependencies"]],
                 id="an undefined dependency with a latency limit is waited for"),
    pytest.param([a_pool(capacity={"maxNodes": 0}, budget=0), a_service()], "NotNow", "1 full", [["budgets", "capacity limits"]],
                 id="full and without money: both would have to change"),
    pytest.param([a_static(overflow={"enabled": True, "target": "cloud"}, nodes=1, cores=4), a_cloud(), a_service(cores=3, replicas=2)],
                 "NotNow", "closed while dc is not full",
                 [["cpu of one replica"], ["capacity limits"], ["overflow rules of data centers that close the cloud"]],
                 id="overflow opens once the data center is fuller"),
    pytest.param([a_static(nodes=1, cores=4, reservation={"reserved": {"nodes": 1}, "reservedFor": [{"labelSelector": {"env": "prod"}}]}),
                  a_service()], "NotNow", "1 full", [["capacity limits"], ["capacity reservations for other services"]],
                 id="what is reserved for others may become free"),
    pytest.param([a_pool(), a_service(compliance=["gdpr"])], "Never", "1 without compliance gdpr", [["compliance gdpr"]],
                 id="a compliance standard that no pool has"),
    pytest.param([a_pool(), a_service(cores=64)], "Never", "1 without a machine type that fits one replica", [["cpu of one replica"]],
                 id="no machine is big enough"),
    pytest.param([a_pool(), a_service(nodeSelector={"disk": "ssd"})], "Never", "without a machine type that fits one replica", [["required machine labels"]],
                 id="no machine has the label"),
    pytest.param([a_pool(), a_policy(compliance=["gdpr"]), a_service(compliance=["gdpr"])], "Never", "without compliance gdpr",
                 [["compliance gdpr", "compliance gdpr"]], id="service and policy ask the same: both would have to give way"),
    pytest.param([a_pool("p1", **US), a_pool("p2", **US), a_policy(minRegions=2), a_service()], "Never",
                 "replica 2 of 2: 0 of 2 pools: 2 in regions that already have a replica", [["replicas in 2 regions"]],
                 id="two regions are wanted and there is one"),
    pytest.param([*split, a_policy(spreadConstraint={"topologyKey": "pool"}), a_service(cores=3, replicas=3)], "NotNow",
                 "replica 3 of 3: 0 of 2 pools: 2 full", [["cpu of one replica"], ["capacity limits"]],
                 id="the third replica finds both pools full"),
    pytest.param([a_pool("p1"), a_pool("p2"), a_policy("a", minRegions=2), a_service(most=1)], "Never", "replicas.max allows 1",
                 [["replicas in 2 regions"]], id="a policy wants more replicas than there may be"),
    pytest.param([a_pool(), a_policy("a", clusters={"minNodes": 5}), a_policy("b", clusters={"maxNodes": 3}), a_service()], "Never",
                 "policy/a wants clusters of at least 5 nodes, policy/b of at most 3", [["cluster sizes that policies require"]], id="policies contradict one another"),
    pytest.param([a_pool(), a_policy("a", clusters={"minNodes": 3}), a_pool("p2", capacity={"maxNodes": 2}, labels={"tier": "x"}),
                  a_service(pools={"matchLabels": {"tier": "x"}})], "NotNow", "1 full",
                 [["pools with tier=x"], ["capacity limits"], ["cluster sizes that policies require"]],
                 id="a cluster of three does not fit where two are left"),
    pytest.param([a_static(accelerators=[{"type": "t4", "count": 4}]), a_service(gpu=1, gpuModel="a100")], "Never", "without a machine type that fits one replica",
                 [["gpu of one replica"], ["the required GPU model"]], id="GPUs of another model"),
]  # fmt: skip


@pytest.mark.parametrize(("objects", "kind", "reason", "conflicts"), CASES)
def test_verdict_kind_and_blockers(
    objects: list[Kind], kind: str, reason: str, conflicts: list[list[str]]
) -> None:
    found = verdict(*objects)
    assert (found.kind, words(found)) == (kind, conflicts)
    assert reason in found.reason


@pytest.mark.parametrize(("nodes", "reserved", "others"), [
    pytest.param(2, 1, [a_service("crit", labels={"env": "prod"}), a_service("big", cores=4)], id="beside services that may use the reserve"),
    pytest.param(3, 3, [a_policy(clusters={"minNodes": 2}), a_service("crit", cores=4, replicas=2, labels={"env": "prod"})],
                 id="on one more machine of their cluster, where two would begin another"),
])  # fmt: skip
def test_reserved_capacity_is_a_blocker(nodes: int, reserved: int, others: list[Kind]) -> None:
    """Without the reservation, clusters on reserved machines would be open to every service."""
    reservation = {"reserved": {"nodes": reserved}, "reservedFor": [{"labelSelector": {"env": "prod"}}]}
    dc = a_static("dc", nodes, 4 * nodes, f"{16 * nodes}Gi", reservation=reservation)
    world = converge(a_world(dc, *others)).resulting_world().with_objects([a_service("api", cores=1)])
    found = judged_in(world)
    assert found is not None
    assert ["capacity reservations for other services"] in words(found)
    assert judged_in(world.with_objects([a_static("dc", nodes, 4 * nodes, f"{16 * nodes}Gi")])) is None


@pytest.mark.parametrize(("db", "words"), [
    pytest.param([], "db, which is not defined", id="the dependency is not defined"),
    pytest.param([a_service("db", compliance=["gdpr"])], "db, which is not placed", id="the dependency is not placed"),
])  # fmt: skip
def test_verdict_names_unplaced_dependency(db: list[Kind], words: str) -> None:
    assert verdict(a_pool(), *db, a_service(**near)).waits == (words,)


def test_verdict_names_class_without_price_and_fix() -> None:
    found = verdict(a_class(price=None), a_pool(budget=100), a_service())
    assert found.waits == ("a price for class m (costPerHour.aws, or a price file)",)
    assert [str(each) for _, why in found.rejections for each in why] == [
        "price of m: need a known price, because a budget applies, have unknown, missing a price: set costPerHour.aws of the class, or provide a price file"
    ]
    assert judged(a_class(price=0.1), a_pool(budget=100), a_service()) is None


def judged(*objects: Kind) -> Verdict | None:
    return judged_in(a_world(*objects))


def judged_in(world: World) -> Verdict | None:
    placement = place(world.demands["default/api"], fleet := world.build_fleet())
    return None if placement.is_complete else judge(placement, fleet)


EU, FED = (
    {"labels": {"compliance": ["gdpr"]}, "region": "eu-west-1"},
    {"labels": {"compliance": ["fedramp"]}, "region": "us-east-1"},
)
CONTRADICTING = [
    pytest.param([a_pool("p1", **EU), a_pool("p2", **FED), a_policy("a", compliance=["gdpr"]), a_policy("b", compliance=["fedramp"]), a_service()],
                 ["compliance gdpr (policy/a) and compliance fedramp (policy/b): no pool has both"], id="two policies, and no pool has both"),
    pytest.param([a_pool("p1", **EU), a_pool("p2", **FED), a_policy("a", compliance=["gdpr"]), a_service(requiredRegions=["us-east-1"])],
                 ["a replica in us-east-1 (service/api) and compliance gdpr (policy/a): no pool has both"],
                 id="a region is required where no pool has what a policy wants"),
    pytest.param([a_pool("p1", **EU), a_pool("p2", **FED),
                  a_service(requiredRegions=["us-east-1"], pools={"matchExpressions": [{"key": "region", "operator": "NotIn", "values": ["us-east-1"]}]})],
                 ["pools with region!=us-east-1 (service/api) and a replica in us-east-1 (service/api): no pool has both"],
                 id="a region is required and ruled out"),
    pytest.param([a_pool(), a_policy("a", clusters={"minNodes": 5}), a_policy("b", clusters={"maxNodes": 3}), a_service()],
                 ["clusters of at least 5 nodes (policy/a) and clusters of at most 3 nodes (policy/b): no number of nodes satisfies both"], id="clusters too small and too large"),
    pytest.param([a_pool("p1"), a_pool("p2"), a_policy("a", minRegions=2), a_service(most=1)],
                 ["replicas in 2 regions (policy/a) and at most 1 replica (service/api): each replica runs in only one region"], id="more regions than replicas"),
    pytest.param([a_pool("p1", **EU), a_policy("a", compliance=["gdpr"]), a_policy("b", compliance=["fedramp"]), a_service()], [],
                 id="a property that no pool has is not a conflict"),
    pytest.param([a_pool("p1", **EU), a_pool("p2", **FED, capacity={"maxNodes": 0}), a_service(requiredRegions=["us-east-1", "eu-west-1"])], [],
                 id="two regions are for two replicas"),
]  # fmt: skip


@pytest.mark.parametrize(("objects", "words"), CONTRADICTING)
def test_conflicting_requirements_name_their_sources(objects: list[Kind], words: list[str]) -> None:
    assert [str(each) for each in verdict(*objects).conflicting_requirements] == words


@MANY
@given(worlds())
def test_conflict_vanishes_without_either_requirement(world: World) -> None:
    fleet = world.build_fleet()
    for name, demand in world.demands.items():
        found = list(conflicting_requirements(demand, fleet))
        assert not found or not is_feasible(
            replace(demand, ignored_limits=frozenset(IGNORABLE_LIMITS)), fleet
        ), name
        for each in demand.requirements:
            without = list(conflicting_requirements(demand.without([each]), fleet))
            assert [
                one
                for one in found
                if (str(each), each.source)
                not in [(side.text, side.source) for side in (one.first, one.second)]
            ] == without


def test_verdict_names_pools_lacking_capacity() -> None:
    found = verdict(
        *split,
        a_pool("p3", labels={"tier": "x"}),
        a_service(
            cores=3, replicas=3, pools={"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}
        ),
    )
    assert found.waits == ("free capacity in p1, p2",)


@pytest.mark.timeout(30)
def test_verdict_time_does_not_grow_with_replicas() -> None:
    """Placing each replica in turn for every set of requirements would take minutes."""
    few, many = (
        judged(a_class(), a_pool("p1", budget=500), a_service(replicas=count)) for count in (2_000, 100_000)
    )
    assert few is not None
    assert many is not None
    assert (few.kind, few.blocker_sets) == (many.kind, many.blocker_sets)


def test_rejections_reflect_state_at_failed_replica() -> None:
    """One machine was free before the first replica was placed; the second replica found none."""
    found = verdict(a_pool(capacity={"maxNodes": 1}), a_service(cores=3, replicas=2))
    assert [str(each) for _, why in found.rejections for each in why] == [
        "nodes: need 1 more, have 0 of 1, missing 1"
    ]


def test_open_overflow_reports_shortfall_of_target() -> None:
    dc = a_static(
        nodes=1, cores=4, overflow={"enabled": True, "target": "cloud", "trigger": {"capacityThreshold": 50}}
    )
    found = verdict(dc, a_cloud(budget={"monthly": 10, "hardLimit": True}), a_service(cores=3, replicas=2))
    assert found.kind == "OverBudget"
    assert dict(found.rejections)["cloud/r1"][0].what == "budget of cloudinfrastructure/cloud"


def test_seed_api_gateway_lacks_gdpr_in_us_east() -> None:
    world = seed_world("soc2", "hipaa")
    fleet = world.build_fleet()
    placements = place_one_round(world.demands.values(), fleet, PlanRounds(fleet))
    found = judge(placements["default/api-gateway"], fleet, world.services)
    assert found.kind == "Never"
    assert (
        found.reason
        == "0 of 3 pools: 2 without compliance gdpr; 1 not in us-east, where a replica is required"
    )
    assert all("compliance gdpr" in parts for parts in words(found))
    database = judge(placements["default/database"], fleet)
    assert words(database) == [["compliance gdpr"], ["a replica in us-east"]]
    needed = database.required.properties()
    assert needed["places"] == 1
    assert needed["requiredProperties"]["region"] == "us-east"
    assert needed["requiredProperties"]["compliance"] == ["gdpr"]


@pytest.mark.parametrize(("regions", "shown"), [
    pytest.param(["us-east"], "us-east", id="one is itself"),
    pytest.param(["us-east", "us-west"], "us-*", id="several that begin alike"),
    pytest.param(["us-east", "eu-west"], "us-east, eu-west", id="several that do not"),
    pytest.param([], "", id="none"),
])  # fmt: skip
def test_region_pattern(regions: list[str], shown: str) -> None:
    assert region_pattern(regions) == shown


REQUIRED = [
    pytest.param([a_pool(), a_service(compliance=["HIPAA"], capabilities=["gpu"], gpu=1)], id="compliance, capability and GPU"),
    pytest.param([a_pool(), a_service(requiredRegions=["us-east", "us-west"])], id="two regions"),
    pytest.param([a_pool("p1", **US), a_policy(minRegions=3), a_service()], id="two more regions"),
    pytest.param([a_pool(), a_service(cores=64, memory=500.5, replicas=3)], id="bigger machines"),
    pytest.param([a_pool(**US), a_service("db", requiredRegions=["p1"]), a_service(latency={"db": {"maxMs": 3}}, compliance=["gdpr"])], id="near a dependency"),
    pytest.param([a_pool(capacity={"maxNodes": 1}), a_policy(clusters={"minNodes": 3, "maxNodes": 4}), a_service(replicas=6, cores=4)],
                 id="room for whole clusters"),
    pytest.param([a_pool(), a_service(dataResidency="eu", pools={"matchLabels": {"tier": "x"}}, nodeSelector={"disk": "ssd"})],
                 id="residency and labels"),
]  # fmt: skip


@pytest.mark.parametrize("objects", REQUIRED)
def test_required_infrastructure_is_exactly_enough(objects: list[Kind]) -> None:
    found, world = verdict(*objects), a_world(*objects)
    fresh = as_infrastructure(found.required)
    assert _fits(world.with_objects(fresh))
    assert len(fresh) == 1 + found.required.place_count
    assert not _fits(world.with_objects(fresh[:-1]))


def _fits(world: World) -> bool:
    return place(world.demands["default/api"], arranged(world, "default/api")).is_complete


# --- random worlds ---


@MANY
@given(worlds())
def test_required_infrastructure_suffices_in_any_world(world: World) -> None:
    """Excluded are services with conflicting rules, with unplaced dependencies, and with spreads that tie new
    supply to old supply."""
    before = converge(world)
    applied = before.resulting_world()
    for name, placement in before.unplaced.items():
        demand = world.demands[name]
        if (
            demand.rule_conflict
            or demand.spread
            or not all(before.fleet.assignments.get(target) for _, target in demand.latency_to)
        ):
            continue
        found = judge(placement, before.fleet)
        note(f"{name}: {found.reason} {found.required.properties()}")
        after = applied.with_objects(as_infrastructure(found.required))
        assert place(after.demands[name], after.build_fleet()).is_complete


def failures(world: World) -> tuple[Fleet, dict[str, Verdict]]:
    fleet = world.build_fleet()
    failed = {
        name: each
        for name, each in place_one_round(world.demands.values(), fleet, PlanRounds(fleet)).items()
        if not each.is_complete
    }
    return fleet, {name: judge(each, fleet, world.services) for name, each in failed.items()}


def fits_without(world: World, fleet: Fleet, name: str, *dropped: Requirement | LimitBlocker) -> bool:
    return is_feasible(without_blockers(world.demands[name], dropped), fleet)


@MANY
@given(worlds())
def test_blocker_sets_are_sufficient_and_minimal(world: World) -> None:
    fleet, verdicts = failures(world)
    for name, found in verdicts.items():
        note(f"{name}: {found.kind} {found.reason} {words(found)}")
        singles = {conflict[0] for conflict in found.blocker_sets if len(conflict) == 1}
        assert not singles or all(len(conflict) == 1 for conflict in found.blocker_sets)
        for conflict in found.blocker_sets:
            assert fits_without(world, fleet, name, *conflict)
            for size in range(1, len(conflict)):
                assert not any(
                    fits_without(world, fleet, name, *some) for some in combinations(conflict, size)
                )
        for other in find_blockers(world.demands[name], fleet):
            assert other in singles or not fits_without(world, fleet, name, other)


@MANY
@given(worlds())
def test_every_rejected_offer_has_a_reason(world: World) -> None:
    for found in failures(world)[1].values():
        if world.demands[found.service].rule_conflict:
            assert found.reason == world.demands[found.service].rule_conflict
            continue
        assert [name for name, _ in found.rejections] == sorted(offer.name for offer in world.supply.offers)
        assert all(
            why and all(each.what and each.need and each.have for each in why) for _, why in found.rejections
        )


@MANY
@given(worlds())
def test_verdict_kinds_match_their_definition(world: World) -> None:
    fleet, verdicts = failures(world)
    for name, found in verdicts.items():
        demand = world.demands[name]
        is_here = all(
            any(offer.matches_region(each.value) for offer in fleet.offers) for each in demand.regions
        )
        with fleet.what_if():
            known = place(replace(demand, ignored_limits=frozenset({"prices"})), fleet).is_complete
        with fleet.what_if():
            free = place(replace(demand, ignored_limits=frozenset({"budget"})), fleet).is_complete
        with fleet.what_if():
            later = place(replace(demand, ignored_limits=frozenset(IGNORABLE_LIMITS)), fleet).is_complete
        by_money = "NoPrice" if known else "OverBudget" if free else "NotNow" if later else "Never"
        expected = "NotHere" if not is_here and not demand.rule_conflict else by_money
        note(f"{name}: {found.reason}")
        assert found.kind == expected
        assert bool(found.waits) == (expected in ("NoPrice", "OverBudget", "NotNow"))


@MANY
@given(worlds())
def test_judge_does_not_change_the_fleet(world: World) -> None:
    fleet = world.build_fleet()
    placements = place_one_round(world.demands.values(), fleet, PlanRounds(fleet))
    before = _state(fleet)
    for each in placements.values():
        if not each.is_complete:
            judge(each, fleet)
    assert _state(fleet) == before


def _state(fleet: Fleet) -> object:
    taken = [[int(amount) for amount in fleet.table.allocated(number)] for number in range(4)]
    seats = {
        name: [(fleet.machines.names[seat.machine], seat.needs) for seat in found]
        for name, found in fleet.assignments.items()
    }
    return (
        taken,
        seats,
        +fleet.ledgers.committed,
        {name: len(each.machines) for name, each in fleet.clusters.items()},
        fleet.inventory.unreserved_nodes_used,
    )


@pytest.mark.parametrize(
    ("machines", "service", "kind"),
    [
        pytest.param([], {}, "NotNow", id="no machine has joined yet"),
        pytest.param([a_joined_machine(cores=1)], {"cores": 2}, "NotNow", id="a larger machine may join"),
        pytest.param([], {"compliance": ["fedramp"]}, "Never", id="no machine makes the pool compliant"),
    ],
)
def test_pool_of_joined_machines_waits_for_a_machine(
    machines: list[Kind], service: dict[str, Any], kind: str
) -> None:
    pool = a_pool(provider="metal", classes=[])
    found = judged_in(a_manual_world(pool, *machines, a_service(replicas=1, **service)))
    assert found is not None
    assert found.kind == kind
    assert found.waits == (("a machine that joins p1",) if kind == "NotNow" else ())
