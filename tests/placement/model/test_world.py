"""Tests of the world: the fleet read back from objects, and quotes that equal a plain loop."""

from collections.abc import Iterator
from datetime import UTC, datetime
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import msgspec
import pytest
from build.objects import a_ledger
from build.placed_worlds import a_pool_node, a_replica_on_node
from build.property_settings import LONG
from build.random_worlds import random_world
from build.worlds import a_class, a_cloud, a_policy, a_pool, a_service, a_static, a_world
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.placement.greedy.place import remove_assignments
from lattice.placement.greedy.place_all import PlanRounds, place_one_round
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.machine_catalog import UNPRICED_COST, is_type_allowed
from lattice.placement.model.offer import NO_LIMIT, MachineType
from lattice.placement.model.world import World, placed_counts
from lattice.placement.plan.plan import converge

SOME = settings(max_examples=3000 if LONG else 30, deadline=None, suppress_health_check=list(HealthCheck))
API = "default/api"


# --- quotes ---


def _takes(fleet: Fleet, demand: Demand, machine: int) -> bool:
    machines = fleet.machines
    row = machines.cluster[machine].offer_row
    if any(
        int(machines.free(machines.add_resource(name))[machine]) < amount
        for name, amount in demand.effective_needs.items()
    ):
        return False
    if demand.max_per_node and machines.replica_counts[machine][demand.name] >= demand.max_per_node:
        return False
    if _openable(fleet, demand, row) < 0:
        return False
    return is_type_allowed(demand, machines.machine_type[machine]) and _gpus(fleet, demand, row)


def _gpus(fleet: Fleet, demand: Demand, row: int) -> bool:
    limits = fleet.offers[row].limits.gpus
    if not demand.needs.get("gpu") or not limits:
        return True
    models = [model for model in limits if demand.gpu_model in ("", model)]
    return any(
        fleet.table.free(fleet.table.resource_index[f"gpu:{model}"])[row] >= demand.effective_needs["gpu"]
        for model in models
    )


def _serves(demand: Demand, offer: Any) -> list[MachineType]:
    def holds(kind: MachineType) -> bool:
        return all(kind.size.get(name, 0) >= amount for name, amount in demand.effective_needs.items())

    has_model = (
        not offer.limits.gpus
        or not demand.gpu_model
        or not demand.needs.get("gpu")
        or demand.gpu_model in offer.limits.gpus
    )
    return [kind for kind in offer.types if has_model and is_type_allowed(demand, kind) and holds(kind)]


def _on_one(demand: Demand, kind: MachineType) -> int:
    """Replicas that a machine of this class holds."""
    held = [kind.size[name] // amount for name, amount in demand.effective_needs.items() if amount]
    return max(1, min([demand.max_per_node or demand.replicas, *held]))


def _all_of_them(demand: Demand, kind: MachineType) -> int:
    """The price of machines of this class for all replicas; a machine is added when the others are past the
    threshold or full."""
    if not kind.is_priced:
        return UNPRICED_COST
    machines = 0
    for others in range(demand.replicas):
        taken = [
            Fraction(others * demand.effective_needs.get(name, 0), max(1, machines) * kind.size[name])
            for name in ("cpu", "memory")
        ]
        if (
            others >= machines * _on_one(demand, kind)
            or max(taken) * 1_000_000 >= demand.rules.packing_millionths
        ):
            machines += 1
    return machines * kind.rate


def _held(fleet: Fleet, ask: ReplicaAsk, row: int, kind: MachineType) -> int:
    """How many of the requested replicas machines of this class hold, when machines are added up to the
    limits."""
    demand, offer = ask.demand, fleet.offers[row]
    left = {
        name: int(fleet.table.free(fleet.table.resource_index[name])[row])
        for name in ("nodes", "clusters", "cpu", "memory")
    }
    left["nodes"] = min(left["nodes"], _openable(fleet, demand, row))
    left["clusters"] = min(left["clusters"], _spillable(fleet, ask))
    money, group = (
        fleet.ledgers.headroom(row, ask.overflow_source),
        fleet.groups.group_of(demand, ask.overflow_source, row),
    )
    grow = sum(
        each.max_nodes - len(each.machines)
        for each in fleet.clusters.values()
        if each.offer_row == row and each.group == group
    )
    held = 0
    while held < ask.capacity_target:
        if grow < 1:
            grow, left["clusters"] = (
                grow + min(demand.rules.max_nodes, offer.limits.nodes_per_cluster),
                left["clusters"] - 1,
            )
        left["nodes"], grow, money = left["nodes"] - 1, grow - 1, money - kind.rate
        for name in ("cpu", "memory"):
            left[name] -= kind.size[name] if kind.size[name] < NO_LIMIT else 0
        if min(left.values()) < 0 or (kind.rate and money < 0):
            break
        held += _on_one(demand, kind)
    return min(held, ask.capacity_target)


def _openable(fleet: Fleet, demand: Demand, row: int) -> int:
    """Machines that the demand may open, given machines reserved for other services."""
    offer = fleet.offers[row]
    is_free = not offer.reserved_nodes or offer.name in demand.usable_reserves
    others = sum(
        len(each.machines)
        for each in fleet.clusters.values()
        if each.offer_row == row and not each.is_reserved
    )
    return NO_LIMIT if is_free else offer.limits.nodes - offer.reserved_nodes - others


def _spillable(fleet: Fleet, ask: ReplicaAsk) -> int:
    """Clusters that may still be created as overflow of the source data center."""
    source = fleet.offers[fleet.row(ask.overflow_source)].overflow if ask.overflow_source else None
    most = source.limits.max_clusters if source else None
    return NO_LIMIT if most is None else most - fleet.inventory.overflow_clusters[ask.overflow_source]


def _at_least(count: int, demand: Demand, kind: MachineType) -> int:
    return max(_all_of_them(demand, kind), kind.rate * count)


def obvious(fleet: Fleet, ask: ReplicaAsk, row: int) -> dict[str, Any]:
    demand, offer = ask.demand, fleet.offers[row]
    group = fleet.groups.group_of(demand, ask.overflow_source, row)
    own = [
        cluster for cluster in fleet.clusters.values() if cluster.offer_row == row and cluster.group == group
    ]
    grows = any(len(cluster.machines) < cluster.max_nodes for cluster in own)
    count = 1 if grows else max(1, min(demand.rules.min_nodes, offer.limits.nodes_per_cluster))
    left = {
        name: int(fleet.table.free(fleet.table.resource_index[name])[row])
        for name in ("nodes", "clusters", "cpu", "memory")
    }
    left["nodes"] = min(left["nodes"], _openable(fleet, demand, row))
    may_open = min(left["clusters"], _spillable(fleet, ask)) >= 1
    serving = _serves(demand, offer)
    fitting = [
        kind for kind in serving
        if left["nodes"] >= count and (grows or may_open) and _gpus(fleet, demand, row)
        and all(kind.size[name] >= NO_LIMIT or kind.size[name] * count <= left[name] for name in ("cpu", "memory"))
    ]  # fmt: skip
    money, needs_price = (
        fleet.ledgers.headroom(row, ask.overflow_source),
        fleet.ledgers.has_limit(row, ask.overflow_source),
    )
    paid = [kind for kind in fitting if kind.rate * count <= money and (kind.is_priced or not needs_price)]
    best = min(
        paid,
        key=lambda kind: (
            -_held(fleet, ask, row, kind),
            _at_least(count, demand, kind),
            kind.rate,
            kind.name,
        ),
        default=None,
    )
    shared = [
        each
        for each in fleet.clusters.values()
        if each.offer_row == row and each.group in fleet.groups.accepting(demand, ask.overflow_source)
    ]
    has_room = any(_takes(fleet, demand, machine) for cluster in shared for machine in cluster.machines)
    return {
        "serves": bool(serving), "has_room": has_room, "fits": bool(fitting), "affordable": bool(paid),
        "type": best.name if best else None, "count": 0 if has_room else count,
        "rate": 0 if has_room or best is None else best.rate * count,
    }  # fmt: skip


def quoted(fleet: Fleet, ask: ReplicaAsk, row: int) -> dict[str, Any]:
    quote = fleet.quotes.quote_for(ask)
    names = fleet.quotes.catalog.type_names
    affordable = bool(quote.affordable[row])
    return {
        "serves": bool(quote.can_host[row]), "has_room": bool(quote.has_free_capacity[row]), "fits": bool(quote.within_limits[row]), "affordable": affordable,
        "type": names[quote.type_id[row]] if affordable else None, "count": int(quote.machine_count[row]),
        "rate": int(quote.rate[row]) if affordable or quote.has_free_capacity[row] else 0,
    }  # fmt: skip


@SOME
@given(st.integers(0, 1 << 40))
def test_quote_agrees_with_naive_loop(number: int) -> None:
    """Also after changes, when only the affected offers are evaluated again."""
    world, draw = random_world(number), Random(number)
    fleet, demands = world.build_fleet(), list(world.demands.values())
    for _ in range(5):
        demand = draw.choice(demands)
        seats = list(fleet.assignments.get(demand.name, ()))
        if seats and draw.random() < 0.4:
            remove_assignments(fleet, draw.sample(seats, draw.randint(1, len(seats))))
        else:
            place_one_round([demand], fleet, PlanRounds(fleet))
        for ask, row in [pair for each in demands for pair in _asks(fleet, each)]:
            assert quoted(fleet, ask, row) == obvious(fleet, ask, row)


def _asks(fleet: Fleet, demand: Demand) -> Iterator[tuple[ReplicaAsk, int]]:
    """Asks for every offer, by cost and by capacity, and for the targets of every overflow."""
    for row, offer in enumerate(fleet.offers):
        sources = [
            each.name for each in fleet.offers if each.overflow and each.overflow.target == offer.owner
        ]
        for overflow, room_for in product(["", *sources], [0, 1, demand.replicas]):
            yield ReplicaAsk(demand, overflow_source=overflow, capacity_target=room_for), row


def test_overflow_budget_change_updates_region_quotes() -> None:
    def dc(spend: int) -> World:
        overflow = {"enabled": True, "target": "cloud", "limits": {"maxMonthlySpend": spend}}
        return a_world(
            a_static(overflow=overflow), a_cloud(regions=["r1", "r2", "r3", "r4", "r5"]), a_service()
        )

    fleet, ask = dc(100).build_fleet(), ReplicaAsk(dc(100).demands[API], overflow_source="dc")
    for spend in (100, 500, 100):
        changed = dc(spend).supply
        fleet.replace_supply(
            [each for each in changed.offers if each.is_static], [changed.budgets["static.dc.overflow"]]
        )
        assert quoted(fleet, ask, fleet.row("cloud/r1"))["affordable"] == (spend == 500)


# --- read back ---


def settled_world(*objects: Kind) -> World:
    """The world as a server stores it, without the layout that only a plan has."""
    applied = converge(a_world(*objects)).resulting_world()
    return World(applied.objects, applied.price_book)


def holds(fleet: Fleet) -> dict[str, dict[str, int]]:
    return {
        fleet.machines.names[row]: dict(held) for row, held in sorted(fleet.machines.replica_counts.items())
    }


def test_bound_replicas_are_on_their_nodes() -> None:
    world = settled_world(a_pool(), a_service(replicas=6)).with_objects(
        [
            a_pool_node("n1"),
            a_pool_node("n2"),
            *(a_replica_on_node(f"api-{slot}", "n2", "api") for slot in range(4)),
            a_replica_on_node("api-4", "n1", "api"),
        ],
        with_status=True,
    )
    assert holds(world.build_fleet()) == {"n1": {API: 2}, "n2": {API: 4}}


def test_pending_machines_are_counted() -> None:
    world = settled_world(a_pool(), a_service(replicas=8)).with_objects([a_pool_node("n1")], with_status=True)
    assert len(holds(world.build_fleet())) == len(converge(world).fleet.machines.machine_type) == 3


@pytest.mark.parametrize("broken", [
    pytest.param(a_pool_node("n1", ready="False"), id="not ready"),
    pytest.param(a_pool_node("n1", ready="Unknown"), id="not heard of"),
    pytest.param(a_pool_node("n1", spec={"unschedulable": True}), id="cordoned"),
])  # fmt: skip
def test_unavailable_machine_takes_no_new_replicas(broken: LatticeNode) -> None:
    world = settled_world(a_pool(), a_service(replicas=1)).with_objects(
        [broken, a_replica_on_node("api-0", "n1", "api")], with_status=True
    )
    found = converge(world.with_objects([a_service(replicas=2)]))
    assert holds(found.fleet) == {"n1": {API: 1}, "p1-001/m/1": {API: 1}}


def test_machine_capacity_is_its_allocatable() -> None:
    world = settled_world(a_pool(), a_service(replicas=1)).with_objects(
        [a_pool_node("n1", allocatable={"cpu": 1500})], with_status=True
    )
    assert converge(world.with_objects([a_service(replicas=2)])).clusters == {"p1-001": {"m": 2}}


def test_bare_workloads_use_capacity_and_keep_machine() -> None:
    world = settled_world(a_pool(), a_service(replicas=1)).with_objects(
        [a_pool_node("n1"), a_replica_on_node("mine", "n1", cores="3")], with_status=True
    )
    assert converge(world.with_objects([a_service(replicas=2)])).clusters == {"p1-001": {"m": 2}}
    gone = converge(world.with_objects([], [("LatticeService", "default", "api")]))
    assert gone.clusters == {"p1-001": {"m": 1}}


def test_terminating_service_is_not_placed() -> None:
    service = a_service()
    going = msgspec.structs.replace(
        service, metadata=msgspec.structs.replace(service.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    assert not converge(a_world(a_pool(), going)).replica_counts


def test_deleted_pool_removes_its_clusters() -> None:
    world = settled_world(a_pool("p1"), a_service())
    assert not world.with_objects([], [("LatticePool", "", "p1")]).build_fleet().clusters


def test_withdrawn_class_takes_no_new_replicas() -> None:
    world = settled_world(a_class(), a_class("n"), a_pool(classes=["m"]), a_service(replicas=2))
    found = converge(world.with_objects([a_pool(classes=["n"]), a_service(replicas=3)]))
    assert found.clusters == {"p1-001": {"m": 1, "n": 1}}


def test_user_supplied_status_is_ignored() -> None:
    world = settled_world(a_pool(), a_service(replicas=2))
    invented = msgspec.structs.replace(
        a_service(replicas=2), status=msgspec.convert({"placements": []}, type(a_service().status))
    )
    assert dict(placed_counts(world.with_objects([invented]).build_fleet(), API)) == {
        ("p1", "p1-001", "m"): 2
    }


def test_cluster_keeps_packing_threshold() -> None:
    world = settled_world(a_pool(), a_policy(clusters={"binPackingThreshold": 0.5}), a_service(replicas=2))
    assert converge(world.with_objects([a_service(replicas=3)])).clusters == {"p1-001": {"m": 2}}


def test_derived_worlds_are_independent() -> None:
    world = a_world(a_pool(), a_service())
    assert converge(world.with_objects([a_service(replicas=9)])).replica_counts[API].total() == 9
    assert converge(world).replica_counts[API].total() == 1
    assert len(converge(world.with_objects([a_static(nodes=9, cores=36)])).world.supply.offers) == 2
    assert len(world.supply.offers) == 1


def test_changed_policies_update_demands() -> None:
    world = a_world(a_pool(), a_service(labels={"env": "prod"}))
    assert world.demands[API].replicas == 1
    assert world.with_objects([a_policy(minRegions=2)]).demands[API].replicas == 2
    relabelled = world.with_objects([a_policy(minRegions=2, selector={"env": "prod"})])
    assert relabelled.demands[API].replicas == 2
    assert relabelled.with_objects([a_service(labels={"env": "dev"})]).demands[API].replicas == 1


def a_ledger_with_spending(spent: int, as_of: str = "2026-01-16T00:00:00.000000Z") -> LatticeLedger:
    return a_ledger("p1", 300_000_000, month=as_of[:7], asOf=as_of, spentMicros=spent)


@pytest.mark.parametrize(("spent", "count"), [
    pytest.param(0, 2, id="nothing spent: as much as 30 days of the rate allow"),
    pytest.param(150_000_000, 1, id="half spent in half a month leaves half, of which one machine takes 76.80"),
    pytest.param(290_000_000, 0, id="nearly all spent"),
])  # fmt: skip
def test_spend_of_the_month_reduces_budget(spent: int, count: int) -> None:
    now = datetime(2026, 1, 16, tzinfo=UTC)
    objects = a_world(
        a_pool(budget=300), a_ledger_with_spending(spent), a_service(cores=4, replicas=3)
    ).objects
    found = converge(World(objects, now=now))
    assert found.replica_counts.get(API, {}) == ({("p1", "p1-001", "m"): count} if count else {})


@pytest.mark.parametrize("now", [
    pytest.param(datetime(2026, 1, 16, 12, tzinfo=UTC), id="the clock is right"),
    pytest.param(datetime(2026, 1, 16, 11, tzinfo=UTC), id="the clock was set back by an hour"),
])  # fmt: skip
def test_projection_starts_at_last_accrual(now: datetime) -> None:
    """An hour that is already spent is not projected again."""
    objects = a_world(
        a_pool(budget=300), a_ledger_with_spending(5_000_000, "2026-01-16T12:00:00.000000Z")
    ).objects
    assert (
        World(objects, now=now).budget_status("pool.p1", 100_000).projected
        == 5_000_000 + 100_000 * 15 * 24 + 100_000 * 12
    )


def test_same_name_services_in_two_namespaces_are_distinct() -> None:
    other = msgspec.structs.replace(
        a_service(), metadata=msgspec.structs.replace(a_service().metadata, namespace="team")
    )
    assert isinstance(other, LatticeService)
    assert sorted(converge(a_world(a_pool(), a_service(), other)).replica_counts) == [
        "default/api",
        "team/api",
    ]
