"""What if a pool is lost, prices rise, or a certificate is withdrawn: who moves where, who is left without, and for how much?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import msgspec

from lattice.errors import Invalid, NotFound
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.meta.base import Kind
from lattice.kinds.pool import LatticePool
from lattice.placement.greedy.machine_choice import remove_empty_machines
from lattice.placement.greedy.place_all import misplaced_assignments, place_all
from lattice.placement.model.costs import run_rate
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Assignment, Fleet
from lattice.placement.model.object_changes import SupplyObject, supply_object_of
from lattice.placement.model.world import ObjectKey, World, object_key, placed_counts
from lattice.placement.plan.plan import FleetState, PlacementKey, Plan, compare, converge


@dataclass(frozen=True, slots=True)
class WhatIfEvent:
    """What happens. `lose`: offers, or objects with all of theirs; `drop`: certificates of offers; `price`: a factor in millionths."""

    lost_offers: tuple[str, ...] = ()
    dropped_certificates: tuple[tuple[str, str], ...] = ()
    price_millionths: int = 1_000_000


def whatif(world: World, event: WhatIfEvent) -> Plan:
    """As a fresh plan of the world without what is lost, in which services go from where they may not be any more."""
    return plan_event(converge(world), event)


def plan_event(before: FleetState, event: WhatIfEvent) -> Plan:
    return compare(before, apply_event(before, event))


def apply_event(before: FleetState, event: WhatIfEvent) -> FleetState:
    """Unlike a change that somebody plans, a loss does not ask: misplaced replicas are put elsewhere."""
    world = world_after_event(before.resulting_world(), event)
    fleet = world.build_fleet()
    DependencyEviction.of(before, world).evict_misplaced(fleet, fleet.assignments)
    demands = map(before.orphaned.subtract_orphans, world.demands.values())
    return FleetState(world, fleet, place_all(demands, fleet, keep_decisions=1), before.orphaned)


@dataclass(frozen=True, slots=True)
class DependencyEviction:
    """Who has to go when others did."""

    demands: Mapping[str, Demand]
    dependants: Mapping[str, list[str]]  # of a service: those that have to be near it
    already_misplaced: frozenset[
        tuple[str, str]
    ]  # service and offer: should not have been there before; what happens is no reason to move it

    @staticmethod
    def of(before: FleetState, world: World) -> "DependencyEviction":
        dependants: dict[str, list[str]] = {}
        for demand in world.demands.values():
            for _, target in demand.latency_to:
                dependants.setdefault(target, []).append(demand.name)
        fleet, demands = before.fleet, before.world.demands
        strays = {
            (name, _offer(fleet, seat))
            for name in before.replica_counts
            for seat in misplaced_assignments(demands[name], fleet)
        }
        return DependencyEviction(
            {name: before.orphaned.subtract_orphans(each) for name, each in world.demands.items()},
            dependants,
            frozenset(strays),
        )

    def evict_misplaced(self, fleet: Fleet, looking: Iterable[str]) -> set[str]:
        """Of these services, replicas where they may not be any more go, and then those that had to be near them. Answers whose did."""
        left: set[str] = set()
        seen = {name for name in looking if name in self.demands}
        while seen:
            gone = {name for name in sorted(seen) if self._evict(self.demands[name], fleet)}
            left |= gone
            seen = {name for each in gone for name in self.dependants.get(each, ())}
        if left:
            remove_empty_machines(fleet, list(fleet.clusters))
        return left

    def _evict(self, demand: Demand, fleet: Fleet) -> bool:
        leaving = [
            seat
            for seat in misplaced_assignments(demand, fleet)
            if (demand.name, _offer(fleet, seat)) not in self.already_misplaced
        ]
        for seat in leaving:
            fleet.unassign(seat)
        return bool(leaving)


def _offer(fleet: Fleet, seat: Assignment) -> str:
    return fleet.offers[fleet.machines.cluster[seat.machine].offer_row].name


def world_after_event(world: World, event: WhatIfEvent) -> World:
    """The world after it."""
    changed, gone = lost_objects(world, event.lost_offers)
    without = world.with_objects(changed, gone, with_status=True)
    for offer, certificate in event.dropped_certificates:
        without = without.with_objects([without_certificate(without, offer, certificate)], with_status=True)
    return (
        replace(without, price_book=without.price_book.scaled(event.price_millionths))
        if event.price_millionths != 1_000_000
        else without
    )


def lost_objects(world: World, names: Iterable[str]) -> tuple[list[Kind], list[ObjectKey]]:
    """Objects that go, and clouds that lose a region."""
    changed: dict[ObjectKey, Kind] = {}
    gone: list[ObjectKey] = []
    for name in names:
        at, region = object_behind_offer(world, name)
        found = changed.get(at, world.objects[at])
        if region and isinstance(found, CloudInfrastructure):
            changed[at] = _without_region(found, region)
        else:
            gone.append(at)
    return [each for at, each in changed.items() if at not in gone], gone


def object_behind_offer(world: World, name: str) -> tuple[ObjectKey, str]:
    """What an offer of exactly this name comes from, and its region of a cloud; without such an offer, the whole cloud of this name."""
    offer = next((each for each in world.supply.offers if each.name == name), None)
    if offer is not None:
        return object_key(
            supply_object_of(offer, world.objects)
        ), offer.place.region if offer.kind == "cloud" else ""
    cloud = (CloudInfrastructure.resource.kind, "", name)
    if cloud not in world.objects:
        raise NotFound(
            f"no pool, region or infrastructure {name}",
            fix=f"there are {', '.join(offer_names(world)) or 'none'}",
        )
    return cloud, ""


def _without_region(cloud: CloudInfrastructure, region: str) -> CloudInfrastructure:
    regions = {each: stated for each, stated in cloud.spec.regions.items() if each != region}
    return msgspec.structs.replace(cloud, spec=msgspec.structs.replace(cloud.spec, regions=regions))


def offer_names(world: World) -> list[str]:
    return [offer.name for offer in world.supply.offers]


def without_certificate(world: World, offer: str, certificate: str) -> Kind:
    """The object behind an offer, without one of its certificates, in upper or lower case."""
    if offer not in offer_names(world):
        raise NotFound(
            f"no pool or region {offer}", fix=f"there are {', '.join(offer_names(world)) or 'none'}"
        )
    at, region = object_behind_offer(world, offer)
    found = cast("SupplyObject", world.objects[at])
    held = next(each.compliance for each in world.supply.offers if each.name == offer)
    if certificate.lower() not in held:
        raise Invalid(
            f"{offer} does not have {certificate}", fix=f"it has {', '.join(sorted(held)) or 'none'}"
        )
    return _without_certificate(found, region, certificate.lower())


def _without_certificate(found: SupplyObject, region: str, certificate: str) -> Kind:
    def kept(words: Iterable[str]) -> tuple[str, ...]:
        return tuple(word for word in words if word.lower() != certificate)

    replaced = msgspec.structs.replace
    if isinstance(found, LatticePool):
        labels = {**found.spec.labels, "compliance": list(kept(found.spec.compliance))}
        return replaced(found, spec=replaced(found.spec, labels=labels))
    if isinstance(found, StaticInfrastructure):
        return replaced(found, spec=replaced(found.spec, compliance=kept(found.spec.compliance)))
    own = replaced(found.spec.regions[region], compliance=kept(found.spec.compliance_of(region)))
    return replaced(found, spec=replaced(found.spec, regions={**found.spec.regions, region: own}))


@dataclass(frozen=True, slots=True)
class LossImpact:
    """What losing one offer would do. Micro-dollars per hour."""

    offer: str
    moved: Mapping[str, Mapping[PlacementKey, int]]
    newly_unplaced: tuple[str, ...]
    cost: int


def loss_impacts(settled: FleetState) -> list[LossImpact]:
    """The same for each offer in turn, on one fleet: for a drill of all of them."""
    ties = DependencyEviction.of(settled, settled.world)
    return [
        _loss_impact(settled, ties, offer) for offer in sorted(each.name for each in settled.fleet.offers)
    ]


def _loss_impact(settled: FleetState, ties: DependencyEviction, offer: str) -> LossImpact:
    fleet, waiting = settled.fleet, settled.unplaced
    with fleet.what_if():
        hit = _close(fleet, fleet.row(offer))
        hit |= ties.evict_misplaced(
            fleet, {name for each in hit for name in (each, *ties.dependants.get(each, ()))}
        )
        affected = {*hit, *waiting} & ties.demands.keys()
        placements = place_all((ties.demands[name] for name in affected), fleet)
        without = tuple(
            name for name in sorted(affected) if name in placements and not placements[name].is_complete
        )
        moved = {name: dict(placed_counts(fleet, name)) for name in sorted(affected) if name not in without}
        cost = sum(run_rate(fleet).values()) + sum(settled.orphaned.offer_rates.values())
        return LossImpact(offer, moved, tuple(name for name in without if name not in waiting), cost)


def _close(fleet: Fleet, row: int) -> set[str]:
    """Everything in it is gone, and nothing new may come. Answers the services that were there."""
    hit: set[str] = set()
    for name in list(fleet.clusters_by_offer[row]):
        for machine in list(fleet.clusters[name].machines):
            services = list(fleet.machines.replica_counts[machine])
            hit.update(services)
            for seat in [
                each for service in services for each in fleet.assignments[service] if each.machine == machine
            ]:
                fleet.unassign(seat)
            fleet.drop_machine(machine)
        fleet.drop_cluster(name)
    fleet.mark_lost(row)
    return hit
