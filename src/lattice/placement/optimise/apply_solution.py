"""Carries the optimiser's numbers out on a copy of the fleet, by the functions that place; what breaks a rule is not done."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lattice.placement.greedy.machine_choice import assign_in_offer, assign_on_type, remove_empty_machines
from lattice.placement.greedy.place import place
from lattice.placement.greedy.place_all import misplaced_assignments
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Assignment, Fleet
from lattice.placement.optimise.fleet_problem import class_of, skew
from lattice.placement.optimise.problem import ReplicaAllocation
from lattice.placement.optimise.solve import Deadline
from lattice.placement.plan.plan import FleetState
from lattice.placement.plugins.filters.eligibility import eligible_offers
from lattice.placement.plugins.filters.overflow import overflow_candidates, overflow_sources

OfferClassKey = tuple[str, str]  # offer and class; "" for any class
Targets = Mapping[str, Counter[OfferClassKey]]  # by service


def targets(shares: Iterable[ReplicaAllocation], *, by_class: bool) -> dict[str, Counter[OfferClassKey]]:
    found: dict[str, Counter[OfferClassKey]] = {}
    for share in shares:
        spot = (share.source, class_of(share.model) if by_class else "")
        found.setdefault(share.load, Counter())[spot] += share.replicas
    return found


def apply_solution(settled: FleetState, target: Targets, deadline: Deadline) -> FleetState:
    """On a fleet of its own. Whoever would break a rule that the numbers do not know stays, and so does what it has to be near."""
    world, wanted = settled.resulting_world(), dict(target)
    demands = world.demands
    while True:
        fleet = world.build_fleet()
        broken = _apply_targets(fleet, demands, wanted)
        if not broken:
            return FleetState(world, fleet, settled.placements, settled.orphaned)
        staying = broken | {near for name in broken for _, near in demands[name].latency_to}
        if deadline.is_over or not staying & wanted.keys():
            return settled
        wanted = {name: counts for name, counts in wanted.items() if name not in staying}


def _apply_targets(fleet: Fleet, demands: Mapping[str, Demand], target: Targets) -> set[str]:
    """First everybody who moves leaves, then each goes where the numbers say, or stays if that does not work. Answers who is worse off."""
    before = {name: _violations(demands[name], fleet) for name in fleet.assignments if name in demands}
    moving = {
        name: leaving
        for name, wanted in sorted(target.items())
        if (leaving := _assignments_to_move(fleet, name, wanted))
    }
    for seats in moving.values():
        for seat in seats:
            fleet.unassign(seat)
    remove_empty_machines(fleet, list(fleet.clusters))
    order = sorted((demands[name] for name in moving), key=_largest_first)
    for owned in (True, False):  # what is owned fills up before it overflows
        for demand in order:
            _assign_at(demand, fleet, target[demand.name], owned=owned)
    for demand in order:  # who found no room where it was meant to be goes where it is best; who lacked replicas before does so after
        place(replace(demand, replicas=min(demand.replicas, target[demand.name].total())), fleet)
    return {name for name, wrongs in before.items() if not _violations(demands[name], fleet) <= wrongs}


def _largest_first(demand: Demand) -> tuple[int, int, str]:
    return (-demand.needs.get("cpu", 0), -demand.needs.get("memory", 0), demand.name)


def _assignments_to_move(fleet: Fleet, service: str, wanted: Counter[OfferClassKey]) -> list[Assignment]:
    """Replicas beyond what is wanted where they are: of the dearest machines, and of those the emptiest."""
    left, machines = Counter(wanted), fleet.machines

    def rank(seat: Assignment) -> tuple[int, int, str]:
        return (
            machines.machine_type[seat.machine].rate,
            -sum(machines.replica_counts[seat.machine].values()),
            machines.names[seat.machine],
        )

    leaving = []
    for seat in sorted(fleet.assignments[service], key=rank):
        offer = fleet.offers[machines.cluster[seat.machine].offer_row].name
        spot = next(
            (
                each
                for each in ((offer, machines.machine_type[seat.machine].name), (offer, ""))
                if left[each] > 0
            ),
            None,
        )
        if spot:
            left[spot] -= 1
        else:
            leaving.append(seat)
    return leaving


def _assign_at(demand: Demand, fleet: Fleet, wanted: Counter[OfferClassKey], *, owned: bool) -> None:
    """Each replica where it is meant to be, as far as it may be there and finds room."""
    for (name, kind), count in sorted(wanted.items()):
        row = fleet.row(name)
        if fleet.offers[row].is_static is not owned:
            continue
        for _ in range(count - _count_at(fleet, demand.name, (name, kind))):
            ask = _ask_for_offer(demand, fleet, row)
            if ask is None or not _try_assign(ask, fleet, row, kind):
                break


def _count_at(fleet: Fleet, service: str, spot: OfferClassKey) -> int:
    row, kind = fleet.row(spot[0]), spot[1]
    if not kind:
        return fleet.replicas_by_offer(service)[row]
    machines = (seat.machine for seat in fleet.assignments.get(service, ()))
    return sum(
        1
        for each in machines
        if each in fleet.machines_by_offer[row] and fleet.machines.machine_type[each].name == kind
    )


def _try_assign(ask: ReplicaAsk, fleet: Fleet, row: int, kind: str) -> bool:
    if kind:
        return assign_on_type(ask, fleet, row, kind) is not None
    quote = fleet.table.quotes.quote_for(ask)
    if not (quote.has_free_capacity[row] or (quote.within_limits[row] and quote.affordable[row])):
        return False
    assign_in_offer(ask, fleet, row)
    return True


def _ask_for_offer(demand: Demand, fleet: Fleet, row: int) -> ReplicaAsk | None:
    """How a replica may go there: by itself, or as overflow of a data center; None if it may not. Who has to be near may come later."""
    apart = replace(
        demand, requirements=tuple(each for each in demand.requirements if each.kind != "latency")
    )
    ask, offer = ReplicaAsk(demand, region=fleet.offers[row].name), fleet.offers[row]
    if not eligible_offers(ReplicaAsk(apart), fleet)[row]:
        return None
    if offer.is_static or not overflow_candidates(ReplicaAsk(demand), fleet):
        return ask
    for static in overflow_sources(ReplicaAsk(demand), fleet):
        overflow = fleet.offers[fleet.row(static)].overflow
        if overflow and overflow.target == offer.owner:
            return replace(ask, overflow_source=static)
    return None


def _violations(demand: Demand, fleet: Fleet) -> Counter[str]:
    """Replicas that are lacking or where they may not be, and how far rules over all of them are from holding."""
    counts = fleet.replicas_by_offer(demand.name)
    here = [fleet.offers[row] for row in counts]
    wrongs = Counter(
        {"lacking": demand.replicas - counts.total(), "misplaced": len(misplaced_assignments(demand, fleet))}
    )
    if not counts:
        return wrongs
    wrongs.update(
        {
            f"region {each.value}": 1
            for each in demand.regions
            if not any(offer.is_in(each.value) for offer in here)
        }
    )
    wrongs["regions"] = max(0, demand.min_regions - len({offer.region for offer in here}))
    wrongs.update(
        {
            f"spread {each.value}": max(0, skew(demand, fleet, each.value) - each.amount)
            for each in demand.spread
        }
    )
    return wrongs


def count_moves(before: FleetState, after: FleetState) -> int:
    """Replicas that leave their machine."""
    return sum(
        sum((_machines(before.fleet, name) - _machines(after.fleet, name)).values())
        for name in before.replica_counts
    )


def _machines(fleet: Fleet, service: str) -> Counter[str]:
    return Counter(fleet.machines.names[seat.machine] for seat in fleet.assignments.get(service, ()))


def count_unpriced(settled: FleetState) -> int:
    """Machines whose price nobody knows: what they cost is not counted, so there must not be more of them for saving."""
    return sum(1 for kind in settled.fleet.machines.machine_type.values() if not kind.is_priced)
