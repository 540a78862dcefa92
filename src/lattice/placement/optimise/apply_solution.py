"""Apply a solution of the optimiser to a trial fleet with the functions of the placer; assignments that break
a rule are not made."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lattice.placement.greedy.affinity import broken_terms
from lattice.placement.greedy.machine_choice import assign_in_offer, assign_on_type, remove_empty_machines
from lattice.placement.greedy.place import place
from lattice.placement.greedy.place_all import misplaced_assignments
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.replica_index import Assignment
from lattice.placement.optimise.fleet_problem import class_of, skew
from lattice.placement.optimise.problem import ReplicaAllocation
from lattice.placement.optimise.solve import Deadline
from lattice.placement.plan.plan import FleetState
from lattice.placement.plugins.filters.eligibility import eligible_offers
from lattice.placement.plugins.filters.overflow import overflow_candidates, overflow_sources

# Offer and node class; "" for any class.
OfferClassKey = tuple[str, str]
# Replicas by service.
Targets = Mapping[str, Counter[OfferClassKey]]


def replica_targets(
    allocations: Iterable[ReplicaAllocation], *, by_class: bool
) -> dict[str, Counter[OfferClassKey]]:
    """Return the desired replicas of each service by offer, and by node class if `by_class` is set."""
    counts: dict[str, Counter[OfferClassKey]] = {}
    for allocation in allocations:
        key = (allocation.source, class_of(allocation.model) if by_class else "")
        counts.setdefault(allocation.load, Counter())[key] += allocation.replicas
    return counts


def apply_solution(state: FleetState, targets: Targets, deadline: Deadline) -> FleetState:
    """Return the state after the targets are applied, computed on a fleet of its own.

    A service for which the targets would break a rule that the optimiser does not model stays in place, and
    so do the services that it must be near. If rules are still broken when the deadline is over, or if no
    remaining target belongs to a service that must stay in place, the state is returned unchanged.
    """
    world, remaining = state.resulting_world(), dict(targets)
    demands = world.demands
    while True:
        fleet = world.build_fleet()
        state.orphaned.commit_to(fleet)
        broken = _apply_targets(fleet, demands, remaining)
        if not broken:
            return FleetState(world, fleet, state.placements, state.orphaned)
        staying = set(broken)
        for name in broken:
            staying.update(near for _, near in demands[name].latency_to)
        # Without a target to withdraw, another attempt would break the same rules.
        if deadline.is_over or not staying & remaining.keys():
            return state
        remaining = {name: counts for name, counts in remaining.items() if name not in staying}


def _apply_targets(fleet: Fleet, demands: Mapping[str, Demand], targets: Targets) -> set[str]:
    """Unassign all moving replicas, then assign them at their targets, or where placement finds a place;
    return the services that miss more replicas or break rules by more than before."""
    previous = {name: _violations(demands[name], fleet) for name in fleet.assignments if name in demands}
    moving: list[Demand] = []
    unassigned: list[Assignment] = []
    for name, counts in sorted(targets.items()):
        assignments = _assignments_to_move(fleet, name, counts)
        if assignments:
            moving.append(demands[name])
        unassigned += assignments
    for assignment in unassigned:
        fleet.unassign(assignment)
    remove_empty_machines(fleet, list(fleet.clusters))
    moving.sort(key=lambda demand: (-demand.needs.get("cpu", 0), -demand.needs.get("memory", 0), demand.name))
    # Owned capacity fills up before services overflow from it.
    for owned in (True, False):
        for demand in moving:
            _assign_at(demand, fleet, targets[demand.name], owned=owned)
    # Replicas without free capacity at their targets go to the best offer; a service keeps its number of
    # placed replicas.
    for demand in moving:
        place(replace(demand, replicas=min(demand.replicas, targets[demand.name].total())), fleet)
    return {
        name for name, violations in previous.items() if not _violations(demands[name], fleet) <= violations
    }


def _assignments_to_move(fleet: Fleet, service: str, desired: Counter[OfferClassKey]) -> list[Assignment]:
    """The assignments beyond the desired counts.

    Assignments on cheap machines and on machines with many replicas are the last to move.
    """
    remaining, machines = Counter(desired), fleet.machines

    def rank(assignment: Assignment) -> tuple[int, int, str]:
        return (
            machines.machine_type[assignment.machine].rate,
            -sum(machines.replica_counts[assignment.machine].values()),
            machines.names[assignment.machine],
        )

    moving = []
    for assignment in sorted(fleet.assignments[service], key=rank):
        offer = fleet.offers[machines.cluster[assignment.machine].offer_row].name
        by_class, any_class = (offer, machines.machine_type[assignment.machine].name), (offer, "")
        if remaining[by_class] > 0:
            remaining[by_class] -= 1
        elif remaining[any_class] > 0:
            remaining[any_class] -= 1
        else:
            moving.append(assignment)
    return moving


def _assign_at(demand: Demand, fleet: Fleet, desired: Counter[OfferClassKey], *, owned: bool) -> None:
    """Assign replicas at their targets, as far as rules and free capacity allow; `owned` selects the targets
    at owned offers, otherwise at all other offers."""
    for (name, node_class), count in sorted(desired.items()):
        row = fleet.row(name)
        if fleet.offers[row].is_static is not owned:
            continue
        for _ in range(count - _count_at(fleet, demand.name, (name, node_class))):
            ask = _ask_for_offer(demand, fleet, row)
            if ask is None:
                break
            if node_class:
                if assign_on_type(ask, fleet, row, node_class) is None:
                    break
                continue
            quote = fleet.quotes.quote_for(ask)
            if not (quote.has_free_capacity[row] or (quote.within_limits[row] and quote.affordable[row])):
                break
            assign_in_offer(ask, fleet, row)


def _count_at(fleet: Fleet, service: str, key: OfferClassKey) -> int:
    row, node_class = fleet.row(key[0]), key[1]
    if not node_class:
        return fleet.replicas.by_offer(service)[row]
    count = 0
    for assignment in fleet.assignments.get(service, ()):
        machine = assignment.machine
        count += (
            machine in fleet.inventory.machines_by_offer[row]
            and fleet.machines.machine_type[machine].name == node_class
        )
    return count


def _ask_for_offer(demand: Demand, fleet: Fleet, row: int) -> ReplicaAsk | None:
    """Return how a replica may go to the offer: directly or as overflow of a data center; None if no rule
    admits the replica.

    Latency is not checked: the services that the replica must be near may move later.
    """
    requirements = tuple(item for item in demand.requirements if item.kind != "latency")
    without_latency = replace(demand, requirements=requirements)
    ask, offer = ReplicaAsk(demand, region=fleet.offers[row].name), fleet.offers[row]
    if not eligible_offers(ReplicaAsk(without_latency), fleet)[row]:
        return None
    if offer.is_static or not overflow_candidates(ReplicaAsk(demand), fleet):
        return ask
    for data_center in overflow_sources(ReplicaAsk(demand), fleet):
        overflow = fleet.offers[fleet.row(data_center)].overflow
        if overflow and overflow.target == offer.owner:
            return replace(ask, overflow_source=data_center)
    return None


def _violations(demand: Demand, fleet: Fleet) -> Counter[str]:
    """Count missing and misplaced replicas, and by how much the service breaks every rule over all its
    replicas (required regions, number of regions, spread)."""
    counts = fleet.replicas.by_offer(demand.name)
    offers = [fleet.offers[row] for row in counts]
    counted = Counter(
        {"lacking": demand.replicas - counts.total(), "misplaced": len(misplaced_assignments(demand, fleet))}
    )
    if not counts:
        return counted
    for rule in demand.regions:
        if not any(offer.matches_region(rule.value) for offer in offers):
            counted[f"region {rule.value}"] += 1
    counted["regions"] = max(0, demand.min_regions - len({offer.region for offer in offers}))
    counted.update(broken_terms(demand, fleet))
    for rule in demand.spread:
        counted[f"spread {rule.value}"] += max(0, skew(demand, fleet, rule.value) - rule.amount)
    return counted


def count_moves(start: FleetState, result: FleetState) -> int:
    """Return the number of replicas that leave their machine between the two states."""
    moves = 0
    for name in start.replica_counts:
        moves += (_machines(start.fleet, name) - _machines(result.fleet, name)).total()
    return moves


def _machines(fleet: Fleet, service: str) -> Counter[str]:
    """Replicas of the service by machine name."""
    return Counter(
        fleet.machines.names[assignment.machine] for assignment in fleet.assignments.get(service, ())
    )


def count_unpriced(state: FleetState) -> int:
    """Return the number of machines without a known price.

    Their cost is not counted. An optimisation must add no such machine, because the addition would look like
    a saving.
    """
    return sum(1 for machine_type in state.fleet.machines.machine_type.values() if not machine_type.is_priced)
