"""Compute the plan for a what-if event: a lost pool, higher prices or dropped compliance."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import msgspec

from lattice.errors import Invalid, NotFound
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.kinds.pool import LatticePool
from lattice.placement.greedy.machine_choice import remove_empty_machines
from lattice.placement.greedy.place_all import misplaced_assignments, place_all
from lattice.placement.model.costs import fleet_bill
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.object_changes import SupplyObject, supply_object_of
from lattice.placement.model.replica_index import Assignment
from lattice.placement.model.world import ObjectKey, World, object_key, placed_counts
from lattice.placement.plan.plan import FleetState, PlacementKey, Plan, compare, converge


@dataclass(frozen=True, slots=True)
class WhatIfEvent:
    """An event. `lost_offers` names offers, or clouds with all their offers; `dropped_compliance` are pairs of
    offer and compliance standard.

    `price_millionths` is a factor for all prices.
    """

    lost_offers: tuple[str, ...] = ()
    dropped_compliance: tuple[tuple[str, str], ...] = ()
    price_millionths: int = MILLIONTHS


def whatif(world: World, event: WhatIfEvent) -> Plan:
    """Plan the event: services leave offers that they may not use after the event."""
    return plan_event(converge(world), event)


def plan_event(before: FleetState, event: WhatIfEvent) -> Plan:
    """Compare the converged state before the event with the state after the event."""
    return compare(before, apply_event(before, event))


def apply_event(before: FleetState, event: WhatIfEvent) -> FleetState:
    """Return the state after the event. Unlike a planned change, an event evicts misplaced replicas, and they
    are placed again."""
    world = before.resulting_world()
    changed, deleted = _lost_objects(world, event.lost_offers)
    world = world.with_objects(changed, deleted, with_status=True)
    for offer, compliance in event.dropped_compliance:
        world = world.with_objects([without_compliance(world, offer, compliance)], with_status=True)
    if event.price_millionths != MILLIONTHS:
        world = replace(world, price_book=world.price_book.scaled(event.price_millionths))
    fleet = world.build_fleet()
    before.orphaned.commit_to(fleet)
    DependencyEviction.of(before, world).evict_misplaced(fleet, fleet.assignments)
    demands = map(before.orphaned.subtract_orphans, world.demands.values())
    return FleetState(world, fleet, place_all(demands, fleet, keep_decisions=1), before.orphaned)


@dataclass(frozen=True, slots=True)
class DependencyEviction:
    """Evicts misplaced replicas, and then replicas of services whose dependencies were evicted."""

    demands: Mapping[str, Demand]
    # By service: the services with a latency limit to the service.
    dependants: Mapping[str, list[str]]
    # Pairs of service and offer that were misplaced before the event; the event is no reason to move these
    # replicas.
    already_misplaced: frozenset[tuple[str, str]]

    @staticmethod
    def of(before: FleetState, world: World) -> "DependencyEviction":
        """Collect the dependants and the replicas that are misplaced before the event."""
        dependants: dict[str, list[str]] = {}
        for demand in world.demands.values():
            for _, target in demand.latency_to:
                dependants.setdefault(target, []).append(demand.name)
        fleet, demands = before.fleet, before.world.demands
        already_misplaced = set()
        for name in before.replica_counts:
            for assignment in misplaced_assignments(demands[name], fleet):
                already_misplaced.add((name, _offer_name(fleet, assignment)))
        return DependencyEviction(
            {name: before.orphaned.subtract_orphans(demand) for name, demand in world.demands.items()},
            dependants,
            frozenset(already_misplaced),
        )

    def evict_misplaced(self, fleet: Fleet, services: Iterable[str]) -> set[str]:
        """Evict misplaced replicas of the services and, transitively, of their dependants; return the names
        of services with evicted replicas."""
        all_evicted: set[str] = set()
        pending = {name for name in services if name in self.demands}
        while pending:
            evicted = set()
            for name in sorted(pending):
                for assignment in misplaced_assignments(self.demands[name], fleet):
                    if (name, _offer_name(fleet, assignment)) not in self.already_misplaced:
                        fleet.unassign(assignment)
                        evicted.add(name)
            all_evicted |= evicted
            pending = set()
            for name in evicted:
                pending.update(self.dependants.get(name, ()))
        # Remove the machines that became empty: their capacity and budget are then free for the evicted
        # replicas.
        if all_evicted:
            remove_empty_machines(fleet, list(fleet.clusters))
        return all_evicted


def _offer_name(fleet: Fleet, assignment: Assignment) -> str:
    return fleet.offers[fleet.machines.cluster[assignment.machine].offer_row].name


def _lost_objects(world: World, names: Iterable[str]) -> tuple[list[Kind], list[ObjectKey]]:
    """Return the changed objects, which are clouds that lose a region, and the keys of lost objects."""
    changed: dict[ObjectKey, Kind] = {}
    deleted: list[ObjectKey] = []
    for name in names:
        key, region = object_behind_offer(world, name)
        resource = changed.get(key, world.objects[key])
        if region and isinstance(resource, CloudInfrastructure):
            regions = {
                region_name: spec
                for region_name, spec in resource.spec.regions.items()
                if region_name != region
            }
            spec = msgspec.structs.replace(resource.spec, regions=regions)
            changed[key] = msgspec.structs.replace(resource, spec=spec)
        else:
            deleted.append(key)
    # A cloud may be lost as a whole after the loss of one of its regions.
    return [resource for key, resource in changed.items() if key not in deleted], deleted


def object_behind_offer(world: World, name: str) -> tuple[ObjectKey, str]:
    """Return the key of the object that supplies the offer, and the region if the offer is a region of a
    cloud.

    A name without such an offer must be the name of a cloud; else NotFound is raised.
    """
    offer = next((candidate for candidate in world.supply.offers if candidate.name == name), None)
    if offer is not None:
        return object_key(
            supply_object_of(offer, world.objects)
        ), offer.place.region if offer.kind == "cloud" else ""
    cloud = (CloudInfrastructure.resource.kind, "", name)
    if cloud not in world.objects:
        raise NotFound(
            f"no pool, region or infrastructure {name}",
            fix=f"use one of: {', '.join(offer_names(world)) or '(none exist)'}",
        )
    return cloud, ""


def offer_names(world: World) -> list[str]:
    return [offer.name for offer in world.supply.offers]


def without_compliance(world: World, offer: str, compliance: str) -> Kind:
    """Return the object behind the offer without the compliance standard, compared without case.

    Raises NotFound for an unknown offer, and Invalid if the offer does not have the standard.
    """
    if offer not in offer_names(world):
        raise NotFound(
            f"no pool or region {offer}", fix=f"use one of: {', '.join(offer_names(world)) or '(none exist)'}"
        )
    key, region = object_behind_offer(world, offer)
    resource = cast("SupplyObject", world.objects[key])
    # The compiled offer holds the compliance standards in lower case.
    offer_compliance = next(
        candidate.compliance for candidate in world.supply.offers if candidate.name == offer
    )
    if compliance.lower() not in offer_compliance:
        listed = ", ".join(sorted(offer_compliance))
        raise Invalid(
            f"{offer} does not have compliance {compliance}",
            fix=f"use one of: {listed}"
            if listed
            else f"choose another pool: {offer} has no compliance at all",
        )

    def remaining(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name.lower() != compliance.lower())

    replace_fields = msgspec.structs.replace
    if isinstance(resource, LatticePool):
        labels = {**resource.spec.labels, "compliance": list(remaining(resource.spec.compliance))}
        return replace_fields(resource, spec=replace_fields(resource.spec, labels=labels))
    if isinstance(resource, StaticInfrastructure):
        remaining_compliance = remaining(resource.spec.compliance)
        return replace_fields(resource, spec=replace_fields(resource.spec, compliance=remaining_compliance))
    region_spec = replace_fields(
        resource.spec.regions[region], compliance=remaining(resource.spec.compliance_of(region))
    )
    regions = {**resource.spec.regions, region: region_spec}
    return replace_fields(resource, spec=replace_fields(resource.spec, regions=regions))


@dataclass(frozen=True, slots=True)
class LossImpact:
    """The impact of losing one offer; the cost is in micro-dollars per hour."""

    offer: str
    moved: Mapping[str, Mapping[PlacementKey, int]]
    newly_unplaced: tuple[str, ...]
    cost: int


def loss_impacts(state: FleetState) -> list[LossImpact]:
    """Compute the impact of losing every offer, one at a time, on one fleet with undo."""
    eviction = DependencyEviction.of(state, state.world)
    return [
        _loss_impact(state, eviction, offer)
        for offer in sorted(candidate.name for candidate in state.fleet.offers)
    ]


def _loss_impact(state: FleetState, eviction: DependencyEviction, offer: str) -> LossImpact:
    fleet, already_unplaced = state.fleet, state.unplaced
    with fleet.what_if():
        # Remove all machines and replicas of the offer; the services with these replicas are evicted.
        row = fleet.row(offer)
        evicted: set[str] = set()
        for name in list(fleet.inventory.clusters_by_offer[row]):
            for machine in list(fleet.clusters[name].machines):
                services = list(fleet.machines.replica_counts[machine])
                evicted.update(services)
                for service in services:
                    on_machine = [
                        assignment
                        for assignment in fleet.assignments[service]
                        if assignment.machine == machine
                    ]
                    for assignment in on_machine:
                        fleet.unassign(assignment)
                fleet.inventory.drop_machine(machine)
            fleet.inventory.drop_cluster(name)
        # A lost offer accepts no new replicas.
        fleet.mark_lost(row)
        candidates = set(evicted)
        for name in evicted:
            candidates.update(eviction.dependants.get(name, ()))
        evicted |= eviction.evict_misplaced(fleet, candidates)
        affected = {*evicted, *already_unplaced} & eviction.demands.keys()
        placements = place_all((eviction.demands[name] for name in affected), fleet)
        unplaced = tuple(
            name for name in sorted(affected) if name in placements and not placements[name].is_complete
        )
        moved = {name: dict(placed_counts(fleet, name)) for name in sorted(affected) if name not in unplaced}
        cost = fleet_bill(fleet, state.orphaned.bill_lines).total
        return LossImpact(
            offer, moved, tuple(name for name in unplaced if name not in already_unplaced), cost
        )
