"""Carries the optimiser's numbers out on a copy of the fleet, by the functions that place; what breaks a rule is not done."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lattice.placement.greedy.place_all import misplaced
from lattice.placement.optimise.deadline import Deadline
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.plugins.filters.feasible import eligible
from lattice.placement.model.fleet import Fleet, Seat
from lattice.placement.optimise.fleet_problem import class_of, skew
from lattice.placement.greedy.place import place
from lattice.placement.plan.plan import Settled
from lattice.placement.plugins.filters.overflow import able, sources
from lattice.placement.optimise.problem import Share
from lattice.placement.greedy.machine_choice import settle, settle_on, trim

Spot = tuple[str, str]  # offer and class; "" for any class
Targets = Mapping[str, Counter[Spot]]  # by service


def targets(shares: Iterable[Share], *, by_class: bool) -> dict[str, Counter[Spot]]:
    found: dict[str, Counter[Spot]] = {}
    for share in shares:
        spot = (share.source, class_of(share.model) if by_class else "")
        found.setdefault(share.load, Counter())[spot] += share.replicas
    return found


def carried_out(settled: Settled, target: Targets, deadline: Deadline) -> Settled:
    """On a fleet of its own. Whoever would break a rule that the numbers do not know stays, and so does what it has to be near."""
    world, wanted = settled.applied(), dict(target)
    demands = world.demands
    while True:
        fleet = world.fleet()
        broken = _carry(fleet, demands, wanted)
        if not broken:
            return Settled(world, fleet, settled.placements, settled.adrift)
        staying = broken | {near for name in broken for _, near in demands[name].latency_to}
        if deadline.is_over or not staying & wanted.keys():
            return settled
        wanted = {name: counts for name, counts in wanted.items() if name not in staying}


def _carry(fleet: Fleet, demands: Mapping[str, Demand], target: Targets) -> set[str]:
    """First everybody who moves leaves, then each goes where the numbers say, or stays if that does not work. Answers who is worse off."""
    before = {name: _wrongs(demands[name], fleet) for name in fleet.seats if name in demands}
    moving = {
        name: leaving for name, wanted in sorted(target.items()) if (leaving := _leaving(fleet, name, wanted))
    }
    for seats in moving.values():
        for seat in seats:
            fleet.unseat(seat)
    trim(fleet, list(fleet.clusters))
    order = sorted((demands[name] for name in moving), key=_largest_first)
    for owned in (True, False):  # what is owned fills up before it overflows
        for demand in order:
            _seat_at(demand, fleet, target[demand.name], owned=owned)
    for demand in order:  # who found no room where it was meant to be goes where it is best; who lacked replicas before does so after
        place(replace(demand, replicas=min(demand.replicas, target[demand.name].total())), fleet)
    return {name for name, wrongs in before.items() if not _wrongs(demands[name], fleet) <= wrongs}


def _largest_first(demand: Demand) -> tuple[int, int, str]:
    return (-demand.needs.get("cpu", 0), -demand.needs.get("memory", 0), demand.name)


def _leaving(fleet: Fleet, service: str, wanted: Counter[Spot]) -> list[Seat]:
    """Replicas beyond what is wanted where they are: of the dearest machines, and of those the emptiest."""
    left, machines = Counter(wanted), fleet.machines

    def rank(seat: Seat) -> tuple[int, int, str]:
        return (
            machines.kind[seat.machine].rate,
            -sum(machines.holds[seat.machine].values()),
            machines.names[seat.machine],
        )

    leaving = []
    for seat in sorted(fleet.seats[service], key=rank):
        offer = fleet.offers[machines.cluster[seat.machine].row].name
        spot = next(
            (each for each in ((offer, machines.kind[seat.machine].name), (offer, "")) if left[each] > 0),
            None,
        )
        if spot:
            left[spot] -= 1
        else:
            leaving.append(seat)
    return leaving


def _seat_at(demand: Demand, fleet: Fleet, wanted: Counter[Spot], *, owned: bool) -> None:
    """Each replica where it is meant to be, as far as it may be there and finds room."""
    for (name, kind), count in sorted(wanted.items()):
        row = fleet.row(name)
        if fleet.offers[row].is_static is not owned:
            continue
        for _ in range(count - _there(fleet, demand.name, (name, kind))):
            ask = _allowed(demand, fleet, row)
            if ask is None or not _take(ask, fleet, row, kind):
                break


def _there(fleet: Fleet, service: str, spot: Spot) -> int:
    row, kind = fleet.row(spot[0]), spot[1]
    if not kind:
        return fleet.counts(service)[row]
    machines = (seat.machine for seat in fleet.seats.get(service, ()))
    return sum(1 for each in machines if each in fleet.on_row[row] and fleet.machines.kind[each].name == kind)


def _take(ask: ReplicaAsk, fleet: Fleet, row: int, kind: str) -> bool:
    if kind:
        return settle_on(ask, fleet, row, kind) is not None
    quote = fleet.table.quotes.of(ask)
    if not (quote.has_room[row] or (quote.fits[row] and quote.affordable[row])):
        return False
    settle(ask, fleet, row)
    return True


def _allowed(demand: Demand, fleet: Fleet, row: int) -> ReplicaAsk | None:
    """How a replica may go there: by itself, or as overflow of a data center; None if it may not. Who has to be near may come later."""
    apart = replace(
        demand, requirements=tuple(each for each in demand.requirements if each.kind != "latency")
    )
    ask, offer = ReplicaAsk(demand, region=fleet.offers[row].name), fleet.offers[row]
    if not eligible(ReplicaAsk(apart), fleet)[row]:
        return None
    if offer.is_static or not able(ReplicaAsk(demand), fleet):
        return ask
    for static in sources(ReplicaAsk(demand), fleet):
        overflow = fleet.offers[fleet.row(static)].overflow
        if overflow and overflow.target == offer.owner:
            return replace(ask, overflow=static)
    return None


def _wrongs(demand: Demand, fleet: Fleet) -> Counter[str]:
    """Replicas that are lacking or where they may not be, and how far rules over all of them are from holding."""
    counts = fleet.counts(demand.name)
    here = [fleet.offers[row] for row in counts]
    wrongs = Counter(
        {"lacking": demand.replicas - counts.total(), "misplaced": len(misplaced(demand, fleet))}
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


def moved(before: Settled, after: Settled) -> int:
    """Replicas that leave their machine."""
    return sum(
        sum((_machines(before.fleet, name) - _machines(after.fleet, name)).values()) for name in before.where
    )


def _machines(fleet: Fleet, service: str) -> Counter[str]:
    return Counter(fleet.machines.names[seat.machine] for seat in fleet.seats.get(service, ()))


def unpriced(settled: Settled) -> int:
    """Machines whose price nobody knows: what they cost is not counted, so there must not be more of them for saving."""
    return sum(1 for kind in settled.fleet.machines.kind.values() if not kind.is_priced)
