"""Tests of `whatif`: the effect of a simulated loss, without any change to the world."""

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest
from build.fleet_violations import violations
from build.placed_worlds import state_after
from build.property_settings import LONG
from build.random_worlds import random_world
from build.worlds import a_class, a_cloud, a_pool, a_service, a_static, a_world
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from lattice.errors import Invalid, NotFound
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure
from lattice.kinds.meta.base import Kind
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.greedy.place import remove_assignments
from lattice.placement.greedy.place_all import PlanRounds, misplaced_assignments, place_one_round
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import World
from lattice.placement.plan.plan import FleetState, Plan, converge, plan
from lattice.placement.plan.whatif import WhatIfEvent, loss_impacts, offer_names, whatif

SOME = settings(max_examples=3000 if LONG else 15, deadline=None, suppress_health_check=list(HealthCheck))
numbers = st.integers(0, 1 << 40)


def state(fleet: Fleet) -> dict[str, Any]:
    """Everything that placement reads from the fleet, by names."""
    machines, table = fleet.machines, fleet.table
    names = machines.names

    def taken(rows: Any, row: int) -> dict[str, int]:
        return {
            name: int(rows.allocated(number)[row])
            for name, number in rows.resource_index.items()
            if rows.allocated(number)[row]
        }

    return {
        "offers": {offer.name: (taken(table, row), bool(table.column("lost")[row]), int(fleet.ledgers.headroom_by_offer[row]), fleet.inventory.unreserved_nodes_used[row],
                                sorted(names[each] for each in fleet.inventory.machines_by_offer[row]), sorted(fleet.inventory.clusters_by_offer[row]), fleet.inventory.next_cluster_number.get(row, 1))
                   for row, offer in enumerate(fleet.offers)},
        "clusters": {name: (each.group, each.overflow_source, each.is_reserved, sorted(names[row] for row in each.machines), each.used, each.size)
                     for name, each in fleet.clusters.items()},
        "machines": {names[row]: (kind.name, taken(machines, row), dict(machines.replica_counts[row]))
                     for row, kind in machines.machine_type.items()},
        "seats": {service: sorted((names[each.machine], each.needs, each.gpu_resource) for each in seats)
                  for service, seats in fleet.assignments.items()},
        "counts": {service: {fleet.offers[row].name: count for row, count in fleet.replicas.by_offer(service).items()} for service in fleet.assignments},
        "money": {name: amount for name, amount in fleet.ledgers.committed.items() if amount},
        "spilled": {name: count for name, count in fleet.inventory.overflow_clusters.items() if count},
    }  # fmt: skip


def without_offer(world: World, offer: str) -> World:
    """The world without the offer's object or region, and without its clusters and replicas."""
    found: dict[Any, Kind] = {}
    owner, _, region = offer.partition("/")
    for key, each in world.objects.items():
        if isinstance(each, LatticeCluster) and each.spec.pool == offer:
            continue
        if isinstance(each, LatticeService):
            placements = tuple(placed for placed in each.status.placements if placed.pool != offer)
            status = msgspec.structs.replace(each.status, placements=placements)
            found[key] = msgspec.structs.replace(each, status=status) if status != each.status else each
        elif each.metadata.name != owner or key[0] not in (
            "LatticePool",
            "CloudInfrastructure",
            "StaticInfrastructure",
        ):
            found[key] = each
        elif region:
            assert isinstance(each, CloudInfrastructure)
            regions = {name: stated for name, stated in each.spec.regions.items() if name != region}
            found[key] = msgspec.structs.replace(
                each, spec=msgspec.structs.replace(each.spec, regions=regions)
            )
    return world.with_objects(
        [each for key, each in found.items() if each is not world.objects[key]],
        set(world.objects) - set(found),
        with_status=True,
    )


def services_out_of_latency(before: FleetState, bare: World) -> set[str]:
    """Running services that were within their latency limits before the loss and are not after it."""
    fleet, limited = bare.build_fleet(), [each for each in bare.demands.values() if each.latency]
    return {
        each.name
        for each in limited
        if len(misplaced_assignments(each, fleet)) > len(misplaced_assignments(each, before.fleet))
    }


@SOME
@given(numbers)
def test_loss_equals_fresh_plan_without_lost_offer(number: int) -> None:
    settled = converge(random_world(number))
    offers = offer_names(settled.world)
    offer = offers[number % len(offers)]
    lost = state_after(whatif(settled.world, WhatIfEvent(lost_offers=(offer,))))
    bare = without_offer(settled.resulting_world(), offer)
    if services_out_of_latency(settled, bare):
        event("somebody has to be near what is lost")
        return  # it moves with the lost offer, which a plan leaves to the user
    fresh = converge(bare)
    assert (lost.replica_counts, lost.offer_rates, set(lost.unplaced)) == (
        fresh.replica_counts,
        fresh.offer_rates,
        set(fresh.unplaced),
    )


@SOME
@given(numbers)
def test_loss_impacts_equal_single_losses(number: int) -> None:
    settled = converge(random_world(number))
    for loss in loss_impacts(settled):
        made = whatif(settled.world, WhatIfEvent(lost_offers=(loss.offer,)))
        assert loss.cost == made.total[1]
        assert set(loss.newly_unplaced) == set(made.unplaced) - set(settled.unplaced)
        assert all(
            dict(state_after(made).replica_counts.get(name, {})) == dict(places)
            for name, places in loss.moved.items()
        )


@SOME
@given(numbers)
def test_placement_after_loss_keeps_limits_and_rules(number: int) -> None:
    settled = converge(random_world(number))
    offers = offer_names(settled.world)
    made = whatif(settled.world, WhatIfEvent(lost_offers=(offers[number % len(offers)],)))
    assert [each for each in violations(state_after(made)) if "skew" not in each] == []


@SOME
@given(numbers)
def test_dropped_compliance_moves_dependent_services(number: int) -> None:
    settled = converge(random_world(number))
    held = [(offer.name, each) for offer in settled.world.supply.offers for each in sorted(offer.compliance)]
    if not held:
        return
    offer, compliance = held[number % len(held)]
    lost = state_after(whatif(settled.world, WhatIfEvent(dropped_compliance=((offer, compliance.upper()),))))
    assert [each for each in violations(lost) if "skew" not in each] == []
    row = lost.fleet.row(offer)
    needing = [
        name
        for name, each in lost.world.demands.items()
        if any(one.value == compliance for one in each.compliance)
    ]
    assert not any(lost.fleet.replicas.by_offer(name)[row] for name in needing)


def operations(fleet: Fleet, settled: FleetState, number: int) -> Iterator[None]:
    """Random operations of placement on a fleet."""
    draw = Random(number)
    for _ in range(6):
        service = draw.choice(sorted(settled.world.demands))
        seats = list(fleet.assignments.get(service, ()))
        match draw.randint(0, 3):
            case 0 if seats:
                remove_assignments(fleet, draw.sample(seats, draw.randint(1, len(seats))))
            case 1:
                fleet.mark_lost(draw.randrange(len(fleet.offers)))
            case _:
                place_one_round([settled.world.demands[service]], fleet, PlanRounds(fleet))
        yield


@SOME
@given(numbers)
def test_what_if_leaves_no_trace(number: int) -> None:
    settled = converge(random_world(number))
    fleet = settled.fleet
    before = state(fleet)
    with fleet.what_if():
        for step, _ in enumerate(operations(fleet, settled, number)):
            inner = state(fleet)
            with fleet.what_if():
                list(operations(fleet, settled, number + step))
            assert state(fleet) == inner
    assert state(fleet) == before
    assert loss_impacts(settled) == loss_impacts(converge(random_world(number)))


@SOME
@given(numbers)
def test_loss_impacts_leave_no_trace(number: int) -> None:
    settled = converge(random_world(number))
    before = state(settled.fleet)
    loss_impacts(settled)
    assert state(settled.fleet) == before


def places(made: Plan, service: str = "default/api") -> dict[str, int]:
    return {
        offer: count for (offer, _, _), count in state_after(made).replica_counts.get(service, {}).items()
    }


NEAR = {"latency": {"db": {"maxMs": 5}}}
GDPR = {"compliance": ["gdpr"]}


@pytest.mark.parametrize(("objects", "event", "moved"), [
    pytest.param([a_pool("p1"), a_pool("p2", classes=["dear"]), a_class(), a_class("dear", price=1), a_service()], WhatIfEvent(lost_offers=("p1",)),
                 {"p2": 1}, id="a lost pool's service goes to the next"),
    pytest.param([a_pool("p1"), a_service()], WhatIfEvent(lost_offers=("p1",)), {}, id="a lost pool's service is left without where there is no next"),
    pytest.param([a_cloud(regions=["r1", "r2"]), a_service(requiredRegions=["r1"])], WhatIfEvent(lost_offers=("cloud/r1",)), {},
                 id="one region of a cloud can be lost"),
    pytest.param([a_cloud(regions=["r1", "r2"]), a_pool(classes=["dear"]), a_class(), a_class("dear", price=1, providers=["aws"]), a_service()],
                 WhatIfEvent(lost_offers=("cloud",)), {"p1": 1}, id="a whole cloud can be lost"),
    pytest.param([a_pool("p1", labels=GDPR), a_pool("p2", labels=GDPR, budget=144), a_service(compliance=["gdpr"])],
                 WhatIfEvent(dropped_compliance=(("p1", "GDPR"),)), {"p2": 1}, id="compliance is dropped, in upper or lower case"),
    pytest.param([a_pool("p1", region="r", zone="a"), a_pool("p2", region="s", classes=["dear"]), a_class(), a_class("dear", price=1),
                  a_service("db"), a_service(**NEAR)], WhatIfEvent(lost_offers=("p1",)), {"p2": 1}, id="a service with a latency limit moves along"),
    pytest.param([a_static(nodes=1, cores=4, memory="16Gi"), a_cloud(), a_service()], WhatIfEvent(lost_offers=("dc",)), {"cloud/r1": 1},
                 id="a data center is lost to the cloud"),
])  # fmt: skip
def test_destination_after_event(objects: list[Kind], event: WhatIfEvent, moved: dict[str, int]) -> None:
    made = whatif(a_world(*objects), event)
    assert places(made) == moved
    assert made.unplaced == (() if moved else ("default/api",))


def test_dependents_move_with_lost_service() -> None:
    """db moves to a pool that is not within the latency limit of api's pool."""
    world = a_world(
        a_pool("p1", region="us-east-1", capacity={"maxNodes": 1}),
        a_pool("p2", region="us-east-1", capacity={"maxNodes": 1}),
        a_pool("p3", region="eu-west-1", classes=["dear"]),
        a_class(),
        a_class("dear", price=1),
        a_service("db", cores=4),
        a_service(cores=4, **NEAR),
    )
    settled = converge(world)
    first = next(name for (name, _, _) in settled.replica_counts["default/db"])
    assert first in ("p1", "p2")
    made = whatif(world, WhatIfEvent(lost_offers=(first,)))
    assert not made.unplaced
    assert {*places(made), *places(made, "default/db")} == {"p3"}
    assert next(each for each in loss_impacts(settled) if each.offer == first).moved.keys() == {
        "default/api",
        "default/db",
    }


def test_misplaced_replica_ignores_unrelated_loss() -> None:
    start = converge(a_world(a_pool("p1", labels=GDPR), a_pool("p2", labels=GDPR, classes=["dear"]), a_pool("p3", classes=["dear"]),
                           a_class(), a_class("dear", price=1), a_service(compliance=["gdpr"]))).resulting_world()  # fmt: skip
    stale = state_after(plan(start, [a_pool("p1")])).resulting_world()
    assert places(whatif(stale, WhatIfEvent(lost_offers=("p3",)))) == {"p1": 1}


def test_higher_prices_cost_more_and_move_nothing() -> None:
    made = whatif(a_world(a_pool(), a_service()), WhatIfEvent(price_millionths=1_200_000))
    assert places(made) == {"p1": 1}
    assert made.total == (200_000, 240_000)


@pytest.mark.parametrize(("event", "error", "words"), [
    pytest.param(WhatIfEvent(lost_offers=("moon",)), NotFound, "no pool, region or infrastructure moon", id="a pool that is not there"),
    pytest.param(WhatIfEvent(lost_offers=("p1/r",)), NotFound, "no pool, region or infrastructure p1/r", id="a region of a pool"),
    pytest.param(WhatIfEvent(dropped_compliance=(("moon", "gdpr"),)), NotFound, "no pool or region moon", id="compliance of an unknown pool"),
    pytest.param(WhatIfEvent(dropped_compliance=(("p1", "hipaa"),)), Invalid, "p1 does not have compliance hipaa", id="compliance that it does not have"),
])  # fmt: skip
def test_losing_unknown_supply_is_rejected(event: WhatIfEvent, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        whatif(a_world(a_pool(labels=GDPR)), event)


def test_whatif_does_not_change_the_world() -> None:
    world = a_world(a_pool(labels=GDPR), a_service(compliance=["gdpr"]))
    before = dict(world.objects)
    whatif(world, WhatIfEvent(dropped_compliance=(("p1", "gdpr"),)))
    assert world.objects == before
    pool = world.objects["LatticePool", "", "p1"]
    assert isinstance(pool, LatticePool)
    assert pool.spec.compliance == ("gdpr",)
