"""Tests of incremental placement: replicas placed as a batch equal replicas decided and assigned one at a
time."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from build.joined_machines import a_joined_machine, random_joined_machines
from build.random_worlds import random_world
from build.worlds import EXAMPLES, a_class, a_cloud, a_policy, a_pool, a_service, a_static, a_world

from lattice.engine.decide import Decision
from lattice.kinds.meta.base import Kind
from lattice.kinds.service import LatticeService, Remediation
from lattice.placement.greedy.incremental import IncrementalPlacer, decide_with_overflow
from lattice.placement.greedy.machine_choice import assign_in_offer
from lattice.placement.greedy.place import (
    Placement,
    missing_replica_asks,
    place_as_many_as_fit,
    place_replicas,
)
from lattice.placement.greedy.placement_order import ordered_demands
from lattice.placement.greedy.profile import profile_of
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import World

ALL = 1 << 30


def one_by_one(demand: Demand, fleet: Fleet, keep: int, *, roomy: bool = False) -> Placement:
    """Decide every replica over all offers and assign it over all machines."""
    placement, profile = Placement(demand), profile_of(demand.preferences)
    for ask in missing_replica_asks(demand, fleet, on_largest_types=roomy):
        asked, decision = decide_with_overflow(ask, fleet, profile)
        placement.decisions.append(decision.copy())
        if not decision.fits:
            placement.missing = demand.replicas - fleet.replicas.count(demand.name)
            break
        placement.assignments.append(assign_in_offer(asked, fleet, decision.chosen))
    return placement


def outcome_of(world: World, put: Callable[[Demand, Fleet, int], Placement], keep: int) -> list[Any]:
    """The assignments, the kept decisions with scores and rejections, and the remaining capacity, for all
    services in order."""
    fleet = world.build_fleet()
    found: list[Any] = []
    for demand in ordered_demands(world.demands.values()):
        if demand.rule_conflict:
            continue
        placement = put(demand, fleet, keep)
        found.append((demand.name, placement.missing))
        found += [
            (fleet.machines.names[seat.machine], seat.needs, seat.gpu_resource)
            for seat in placement.assignments
        ]
        found += [_decided(each) for each in placement.decisions[:keep]]
    return [
        *found,
        +fleet.ledgers.committed,
        {name: len(each.machines) for name, each in fleet.clusters.items()},
    ]


def _decided(decision: Decision) -> object:
    refused = {
        (each.plugin, each.summary()): np.flatnonzero(mask).tolist()
        for each, mask in decision.reasons.items()
    }
    return (decision.name, decision.ask.overflow_source, decision.totals.tolist(), refused)  # type: ignore[attr-defined]


def with_more_replicas(draw: Random, world: World) -> World:
    """The world with more replicas of smaller services, and policies with preferences."""
    wishes = [
        [],
        [("cost", "descending")],
        [("availableCapacity", "descending")],
        [("cost", "ascending"), ("availableCapacity", "ascending")],
    ]
    chosen = draw.choice([[], *wishes])
    preferences = [
        {"weight": draw.choice([1, 50]), "preference": {"sortBy": by, "order": order}} for by, order in chosen
    ]
    policy = a_policy("wishes")
    spec = msgspec.convert({"preferences": preferences}, type(policy.spec))
    return world.with_objects(
        [
            msgspec.structs.replace(policy, spec=spec),
            *(_more(draw, each) for each in world.services.values()),
            *(_roomy(draw, world)),
        ]
    )


def _more(draw: Random, service: LatticeService) -> LatticeService:
    replicas = msgspec.structs.replace(service.spec.replicas, min=draw.choice([1, 7, 30, 80]), max=None)
    return msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, replicas=replicas))


def _roomy(draw: Random, world: World) -> list[Kind]:
    return [
        a_pool(name, region=name, classes=["s", "m"], capacity={"maxNodes": draw.choice([5, 30, 90])})
        for name in ("p8", "p9")
    ]


def with_refusals(draw: Random, world: World) -> list[Kind]:
    """The services, some with records of machines that did not accept a replica."""
    offers = [offer.name for offer in world.supply.offers]
    services: list[Kind] = []
    for service in world.services.values():
        records = tuple(
            Remediation(draw.choice(offers), draw.choice(["s", "m", "joined-2c-8g"]), refused=True)
            for _ in range(draw.randint(0, 2))
        )
        status = msgspec.structs.replace(service.status, remediation=records)
        services.append(msgspec.structs.replace(service, status=status))
    return services


@pytest.mark.parametrize("has_joined", [pytest.param(False, id="made"), pytest.param(True, id="joined too")])
@pytest.mark.parametrize("part", range(10))
def test_batch_placement_equals_single_in_random_worlds(part: int, has_joined: bool) -> None:
    for number in range(part * EXAMPLES // 10, (part + 1) * EXAMPLES // 10):
        world = with_more_replicas(Random(number), random_world(number))
        if has_joined:
            machines = random_joined_machines(Random(number), ["p1", "p8"])
            refusing = with_refusals(Random(number), world)
            world = world.with_objects([*machines, *refusing], with_status=True)
        for keep in (0, ALL):
            assert outcome_of(world, place_replicas, keep) == outcome_of(world, one_by_one, keep), (
                f"crowd {number}"
            )
        assert outcome_of(world, partial(place_replicas, on_largest_types=True), 0) == outcome_of(
            world, partial(one_by_one, roomy=True), 0
        ), f"crowd {number}"


SHARED = {"monthly": 400, "hardLimit": True}
CASES = [
    pytest.param([a_pool(), a_service(replicas=90)], id="clusters begin one after the other"),
    pytest.param([a_pool(capacity={"maxNodes": 4}), a_policy(clusters={"minNodes": 3, "maxNodes": 4}), *(a_joined_machine(f"b{n}", n) for n in range(1, 9)), a_service(replicas=60)],
           id="joined machines of many sizes"),
    pytest.param([a_pool("p1", capacity={"maxNodes": 7}), a_pool("p2", classes=["l"]), a_class(), a_class("l", 16, 64, 0.9), a_service(replicas=60)],
                 id="the cheap pool is full before the dear one is begun"),
    pytest.param([a_pool("p1", capacity={"maxCores": 30}), a_pool("p2"), a_service(cores=3, replicas=20)], id="cores run out"),
    pytest.param([a_pool("p1", budget=500), a_pool("p2"), a_service(replicas=40)], id="a budget runs out"),
    pytest.param([a_cloud(regions=["r1", "r2"], budget=SHARED), a_service(cores=3, replicas=9)], id="a budget that regions share runs out"),
    pytest.param([a_pool(), a_policy(clusters={"minNodes": 3, "maxNodes": 4}), a_service(replicas=70)], id="clusters begin with three machines"),
    pytest.param([a_pool(), a_policy(clusters={"maxNodes": 1}), a_service(replicas=20)], id="every machine is a cluster"),
    pytest.param([a_pool(), a_policy(clusters={"binPackingThreshold": 1}), a_service(cores=1.5, replicas=70)], id="clusters are filled to the brim"),
    pytest.param([a_static(nodes=8, cores=32), a_pool(), a_service(replicas=70)], id="owned before rented"),
    pytest.param([a_static("d1", nodes=8, cores=32), a_static("d2", nodes=8, cores=64), a_service(replicas=90)], id="two data centers in turn"),
    pytest.param([a_static(nodes=2, cores=8, overflow={"enabled": True, "target": "cloud"}), a_cloud(regions=["r1", "r2"]), a_service(replicas=60)],
                 id="a data center overflows"),
    pytest.param([a_static(nodes=4, reservation={"reserved": {"nodes": 2}, "reservedFor": [{"labelSelector": {"env": "prod"}}]}), a_service(replicas=40)],
                 id="a part is reserved for others"),
    pytest.param([a_static(accelerators=[{"type": "t4", "count": 5}]), a_service(gpu=1, cores=0.1, replicas=9)], id="GPUs run out"),
    pytest.param([a_pool("p1"), a_pool("p2"), a_policy(spreadConstraint={"topologyKey": "pool"}), a_service(replicas=31)], id="an even spread"),
    pytest.param([a_pool("p1"), a_pool("p2"), a_policy(minRegions=2), a_service(replicas=31)], id="two regions first"),
    pytest.param([a_pool("p1"), a_pool("p2"), a_service(replicas=31, dependencies={"api": {"type": "service", "direction": "outbound"}})],
                 id="a service that talks to itself"),
    pytest.param([a_pool(), a_policy(clusters={"maxNodes": 3}), a_service("aaa", replicas=9), a_service("aab", replicas=9), a_service(
                  replicas=31, dependencies={"aab": {"type": "service", "direction": "outbound"}})], id="the cluster of a neighbour first"),
    pytest.param([*(a_pool(f"p{n}", capacity={"maxNodes": 1}, classes=["s", "m"] if n % 2 else ["m"]) for n in range(9)), a_class("s", 2, 8, 0.05),
                  a_class("m", 4, 16, 0.1), a_service(replicas=40)], id="pools of one machine are sold out one after the other"),
    pytest.param([a_cloud(regions=["r1", "r2"], budget=SHARED), *(a_pool(f"p{n}", capacity={"maxNodes": 1}) for n in range(5)),
                  a_service(cores=2, replicas=20)], id="sold out, and a budget that regions share"),
    pytest.param([*(a_pool(f"p{n}", classes=[f"c{n}"], capacity={"maxNodes": 1}) for n in range(6)), *(a_class(f"c{n}", 4, 16, price)
                  for n, price in enumerate([0.1, 0.100001, 9000, 0.1, 0.1, 8999.99])), a_service(cores=2, replicas=20)],
                 id="prices that look the same beside others"),
    pytest.param([a_pool(), a_service(replicas=12, spread=[{"topologyKey": "node", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}])],
                 id="two to a machine"),
]  # fmt: skip


@pytest.mark.parametrize(
    "keep", [pytest.param(0, id="equal assignments"), pytest.param(ALL, id="equal assignments and scores")]
)
@pytest.mark.parametrize("objects", CASES)
def test_batch_placement_equals_single_placement(objects: list[Kind], keep: int) -> None:
    world = a_world(*objects)
    assert outcome_of(world, place_replicas, keep) == outcome_of(world, one_by_one, keep)


def test_identical_decisions_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 machines to a cluster and 4 replicas to a machine need a few decisions per cluster."""
    world, decided = a_world(a_pool(), a_pool("p2"), a_service(replicas=800)), []
    real = decide_with_overflow
    monkeypatch.setattr(
        "lattice.placement.greedy.incremental.decide_with_overflow",
        lambda *given: decided.append(1) or real(*given),
    )
    placement = place_replicas(world.demands["default/api"], world.build_fleet(), 0)
    assert len(placement.assignments) == 800
    assert len(decided) <= 3 * 13


def test_exhausted_offers_do_not_trigger_new_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 pools of one machine, 4 replicas to a machine."""
    world, decided = (
        a_world(*(a_pool(f"p{n:02}", capacity={"maxNodes": 1}) for n in range(50)), a_service(replicas=200)),
        [],
    )
    real = decide_with_overflow
    monkeypatch.setattr(
        "lattice.placement.greedy.incremental.decide_with_overflow",
        lambda *given: decided.append(1) or real(*given),
    )
    placement = place_replicas(world.demands["default/api"], world.build_fleet(), 0)
    assert len(placement.assignments) == 200
    assert len(decided) <= 3


def cheap_then_roomy(demand: Demand, fleet: Fleet, keep: int) -> Placement:
    """The rule of `place_as_many_as_fit`, computed by trying both orders."""
    tried = {}
    for roomy in (False, True):
        with fleet.what_if():
            tried[roomy] = place_replicas(demand, fleet, keep, on_largest_types=roomy)
    cheap = tried[False]
    is_short = cheap.missing and cheap.assignments and cheap.is_short_of_capacity
    return place_replicas(
        demand,
        fleet,
        keep,
        on_largest_types=bool(is_short and len(tried[True].assignments) > len(cheap.assignments)),
    )


@pytest.mark.parametrize("part", range(10))
def test_place_most_equals_naive_in_random_worlds(part: int) -> None:
    for number in range(part * EXAMPLES // 10, (part + 1) * EXAMPLES // 10):
        world = with_more_replicas(Random(number), random_world(number))
        assert outcome_of(world, place_as_many_as_fit, 1) == outcome_of(world, cheap_then_roomy, 1), (
            f"crowd {number}"
        )


@pytest.mark.parametrize("objects", CASES)
def test_place_most_equals_naive(objects: list[Kind]) -> None:
    world = a_world(*objects)
    assert outcome_of(world, place_as_many_as_fit, 1) == outcome_of(world, cheap_then_roomy, 1)


def test_assign_before_decide_raises() -> None:
    world = a_world(a_pool(), a_service())
    with pytest.raises(LookupError, match="nothing is decided about default/api yet"):
        IncrementalPlacer(replace(world.demands["default/api"]), world.build_fleet()).assign()
