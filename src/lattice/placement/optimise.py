"""The whole fleet at once: which services should move where, what that saves, and how far from the best it can be at most."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from lattice.placement.arrange import in_order, misplaced
from lattice.placement.demand import Demand, ReplicaAsk
from lattice.placement.eligible import eligible
from lattice.placement.fleet import Fleet, Seat
from lattice.placement.offer import NO_LIMIT, MachineType, Offer
from lattice.placement.place import broken_rules, place
from lattice.placement.plan import Plan, Settled, compare
from lattice.placement.plugins.overflow import able
from lattice.placement.plugins.spread import domain_of
from lattice.placement.program import Load, Model, Outcome, Program, Source
from lattice.placement.size import settle as take_room
from lattice.placement.size import trim
from lattice.placement.solve import solve

MOVE_COST = 50_000  # micro-dollars for one replica that moves: some minutes of running twice
PAYBACK_HOURS = 720
OPTIMAL = "optimal"


@dataclass(frozen=True, slots=True)
class Effort:
    """`payback_hours`: what a move saves within them must be more than it costs."""

    max_moves: int | None = None
    payback_hours: int = PAYBACK_HOURS
    move_cost: int = MOVE_COST
    time_limit: float = 10.0  # seconds for the solver
    gap: float = 0.0005  # what is near enough to the best, as a share of the cost


@dataclass(frozen=True)
class FleetPlan:
    """Micro-dollars per hour. `bound`: no arrangement costs less, moves weighed in; `gap` is what might still be saved, 0 to 1."""

    plan: Plan
    moves: int
    before: int
    after: int
    bound: int
    status: str
    note: str = ""

    @property
    def saving(self) -> int:
        return self.before - self.after

    @property
    def gap(self) -> float:
        return (self.after - self.bound) / self.after if self.after > self.bound else 0.0


def optimise(settled: Settled, effort: Effort = Effort()) -> FleetPlan:  # noqa: B008
    """Again from where it got to while that saves more: a better start may show the solver a way that it did not see."""
    first = found = _improved(settled, effort)
    while found.moves and found.status != OPTIMAL and found.plan.after is not None:
        left = None if effort.max_moves is None else effort.max_moves - _moved(settled, found.plan.after)
        more = _improved(found.plan.after, replace(effort, max_moves=left))
        if not more.moves or more.plan.after is None:
            break
        found = replace(more, plan=compare(settled, more.plan.after), moves=_moved(settled, more.plan.after), before=first.before)
    return replace(found, bound=min(found.after, first.bound))


def _improved(settled: Settled, effort: Effort) -> FleetPlan:
    """Solved as numbers, then carried out on a copy of the fleet by the same functions that place; only what really saves is kept."""
    program, rest = program_of(settled, effort)
    outcome = solve(program, time_limit=effort.time_limit, gap=effort.gap)
    after = _carried_out(settled, _targets(outcome))
    before_cost, after_cost = sum(settled.rates.values()), sum(after.rates.values())
    moves = _moved(settled, after)
    if after_cost + moves * effort.move_cost // effort.payback_hours >= before_cost or moves > _most(effort):
        after, after_cost, moves = settled, before_cost, 0
    return FleetPlan(
        compare(settled, after), moves, before_cost, after_cost, min(after_cost, outcome.bound + rest), outcome.status, outcome.note
    )


def _most(effort: Effort) -> int:
    return NO_LIMIT if effort.max_moves is None else effort.max_moves


def program_of(settled: Settled, effort: Effort) -> tuple[Program, int]:
    """The fleet as a program. Machines that hold anything but services stay as they are; their price comes on top."""
    fleet, demands = settled.fleet, settled.world.demands
    placed = [demand for name, demand in sorted(demands.items()) if name in fleet.seats]
    resources = tuple(sorted({name for demand in placed for name in demand.effective_needs} | {"cpu", "memory"}))
    fixed = {seat.machine for name, seats in fleet.seats.items() if name not in demands for seat in seats}
    rest = sum(fleet.machines.kind[machine].rate for machine in fixed)
    loads = tuple(_load(demand, fleet, resources, effort) for demand in placed)
    ledgers = {name: fleet.cap(name) for name in fleet.budgets if fleet.cap(name) < NO_LIMIT}
    sources = tuple(_source(fleet, row, resources, fixed) for row in range(fleet.table.count))
    return Program(resources, sources, loads, ledgers, effort.payback_hours, effort.max_moves), rest


def _source(fleet: Fleet, row: int, resources: tuple[str, ...], fixed: set[int]) -> Source:
    offer = fleet.offers[row]
    there = Counter(fleet.machines.kind[machine].name for machine in fleet.on_row[row] if machine not in fixed)
    models = tuple(
        Model(kind.name, tuple(min(kind.size.get(name, 0), NO_LIMIT) for name in resources), kind.rate, there[kind.name])
        for kind in useful_types(offer, resources, there)
    )
    limits = {"cpu": offer.limits.milli, "memory": offer.limits.memory}
    most = tuple(limits[name] if limits.get(name, NO_LIMIT) < NO_LIMIT else None for name in resources)
    nodes = offer.limits.nodes  # the reserved ones too: a bound must not lie above what somebody who may use them can reach
    return Source(offer.name, offer.region, models, nodes if nodes < 1 << 60 else None, most, offer.budgets)


def useful_types(offer: Offer, resources: tuple[str, ...], there: Mapping[str, int]) -> list[MachineType]:
    """Classes that are there, and those that no other beats: one as large in everything, alike in the rest, and not dearer.

    Where cores or memory are limited a smaller machine leaves more for others, and none is left out.
    """
    if offer.limits.milli < NO_LIMIT or offer.limits.memory < NO_LIMIT:
        return list(offer.types)
    kept: list[MachineType] = []
    for kind in sorted(offer.types, key=lambda each: (each.rate, -sum(each.size.get(name, 0) for name in resources), each.name)):
        alike = (other for other in kept if (other.labels, other.taints, other.gpu_model) == (kind.labels, kind.taints, kind.gpu_model))
        if there.get(kind.name) or not any(all(other.size.get(name, 0) >= kind.size.get(name, 0) for name in resources) for other in alike):
            kept.append(kind)
    return sorted(kept, key=lambda each: each.name)


def _load(demand: Demand, fleet: Fleet, resources: tuple[str, ...], effort: Effort) -> Load:
    needs = demand.effective_needs
    here = {fleet.offers[row].name: count for row, count in fleet.counts(demand.name).items()}
    rows = _may_go(demand, fleet)
    serving = fleet.table.quotes.serving(demand)
    names = fleet.table.quotes.catalogue.names
    known = serving.serves & fleet.table.quotes.catalogue.is_priced  # what has no price is not free
    serves = {fleet.offers[row].name: tuple(name for name, does in zip(names, known[:, row], strict=True) if does) for row in rows}
    offers = [fleet.offers[row] for row in rows]
    return Load(
        name=demand.name,
        replicas=sum(here.values()),
        needs=tuple(needs.get(name, 0) for name in resources),
        serves={name: types for name, types in serves.items() if types},
        groups=tuple(frozenset(offer.name for offer in offers if offer.is_in(each.value)) for each in demand.regions),
        min_regions=max(1, demand.min_regions),
        most_per_source=_most_per(demand, offers, "pool"),
        most_per_region=_most_per(demand, offers, "region"),
        current=here,
        move_cost=effort.move_cost,
    )


def _may_go(demand: Demand, fleet: Fleet) -> list[int]:
    """Where it is, and every offer it may be in; rented ones only where no data center keeps it."""
    ask = ReplicaAsk(demand)
    may = eligible(ask, fleet)
    if able(ask, fleet):
        may &= np.array([offer.is_static for offer in fleet.offers], np.bool_)
    for row in fleet.counts(demand.name):
        may[row] = True
    return [int(row) for row in np.flatnonzero(may)]


def _most_per(demand: Demand, offers: Iterable[Offer], key: str) -> int | None:
    """With so many domains to spread over, no one needs more than this."""
    rules = [each.amount for each in demand.spread if each.value == key]
    if not rules:
        return None
    domains = len({domain_of(offer, key) for offer in offers})
    return -(-demand.replicas // max(1, domains)) + min(rules) - 1


def _targets(outcome: Outcome) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for share in outcome.shares:
        found.setdefault(share.load, Counter())[share.source] += share.replicas
    return found


def _carried_out(settled: Settled, target: Mapping[str, Counter[str]]) -> Settled:
    """On a fleet of its own. Whoever would break a rule that the numbers do not know stays, and so does what it has to be near."""
    world, wanted = settled.applied(), dict(target)
    demands = world.demands
    while True:
        fleet = world.fleet()
        broken = _carry(fleet, demands, wanted)
        if not broken:
            return Settled(world, fleet, settled.placements)
        staying = broken | {near for name in broken for _, near in demands[name].latency_to}
        if not staying & wanted.keys():
            return settled
        wanted = {name: counts for name, counts in wanted.items() if name not in staying}


def _carry(fleet: Fleet, demands: Mapping[str, Demand], target: Mapping[str, Counter[str]]) -> set[str]:
    """First everybody who moves leaves, then each goes where the numbers say, or stays if that does not work. Answers who is worse off."""
    before = {name: _wrongs(demands[name], fleet) for name in fleet.seats if name in demands}
    moving = {name: _leaving(fleet, name, wanted) for name, wanted in sorted(target.items())}
    for seats in moving.values():
        for seat in seats:
            fleet.unseat(seat)
    trim(fleet, list(fleet.clusters))
    for demand in in_order(demands[name] for name, seats in moving.items() if seats):
        _seat_at(demand, fleet, target[demand.name])
    return {name for name, wrongs in before.items() if not _wrongs(demands[name], fleet) <= wrongs}


def _leaving(fleet: Fleet, service: str, wanted: Counter[str]) -> list[Seat]:
    """Replicas beyond what is wanted where they are, dearest first."""
    left = Counter(wanted)
    leaving = []
    for seat in sorted(fleet.seats[service], key=lambda each: (fleet.machines.kind[each.machine].rate, fleet.machines.names[each.machine])):
        offer = fleet.offers[fleet.machines.cluster[seat.machine].row].name
        if left[offer] > 0:
            left[offer] -= 1
        else:
            leaving.append(seat)
    return leaving


def _seat_at(demand: Demand, fleet: Fleet, wanted: Counter[str]) -> None:
    """Each replica in the offer that it is meant for; one that finds no room there goes where it is best."""
    for name, count in sorted(wanted.items()):
        row = fleet.row(name)
        ask = ReplicaAsk(demand, region=name)
        for _ in range(count - fleet.counts(demand.name)[row]):
            quote = fleet.table.quotes.of(ask)
            if not (quote.has_room[row] or (quote.fits[row] and quote.affordable[row])):
                break
            take_room(ask, fleet, row)
    place(replace(demand, replicas=min(demand.replicas, wanted.total())), fleet)  # who lacked replicas before does so after


def _wrongs(demand: Demand, fleet: Fleet) -> Counter[str]:
    """Replicas that are lacking or where they may not be, and rules over all of them that do not hold."""
    seats = fleet.seats.get(demand.name, ())
    rules = broken_rules(demand, fleet, fleet.counts(demand.name), eligible(ReplicaAsk(demand), fleet)) if seats else []
    return Counter({"lacking": demand.replicas - len(seats), "misplaced": len(misplaced(demand, fleet)), **dict.fromkeys(rules, 1)})


def _moved(before: Settled, after: Settled) -> int:
    return sum(sum((_by_offer(before, name) - _by_offer(after, name)).values()) for name in before.where)


def _by_offer(settled: Settled, service: str) -> Counter[str]:
    return Counter({settled.fleet.offers[row].name: count for row, count in settled.fleet.counts(service).items()})
