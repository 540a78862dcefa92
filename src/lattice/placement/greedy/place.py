"""place(service, fleet): where every replica goes, and why not elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lattice.engine.decide import Decision
from lattice.engine.table import Flags
from lattice.placement.greedy.upper_bound import most_cheaply, most_more
from lattice.placement.model.demand import CHEAPEST_FIRST, Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet, Seat
from lattice.placement.plugins.filters.spread import domain_of
from lattice.placement.greedy.incremental import Series
from lattice.placement.greedy.machine_choice import trim

MANY = 32  # replicas: placing so many takes longer than counting how many there could be room for


@dataclass(slots=True)
class Placement:
    """The seats that were found, and the last decision: of the replica that found none, if one did not."""

    demand: Demand
    seats: list[Seat] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    missing: int = 0  # replicas without a seat
    last_ask: ReplicaAsk | None = None  # of the replica that found none

    @property
    def is_short_of_room(self) -> bool:
        """The last replica could have gone anywhere, by the rules that hold over all of them."""
        last = self.last_ask
        return last is not None and not last.region and not last.avoid

    @property
    def is_complete(self) -> bool:
        """As many run as are wanted; rules that contradict one another do not take away those that do."""
        return not self.missing


def place(demand: Demand, fleet: Fleet, *, keep: int = 0) -> Placement:
    """All replicas that it lacks; where there is not room for all, as many as there is, unless a rule over all of them cannot hold.

    Tries the policies' order and an even spread first, then the cheapest, which spares budgets; then classes of machines that hold more.

    `keep`: how many decisions to keep for explaining; the last one, if it fails, is always kept.
    """
    if demand.problem:
        return Placement(demand, missing=max(0, demand.replicas - len(fleet.seats.get(demand.name, ()))))
    placement = None
    for wishing in _orders(demand, fleet):
        with fleet.attempt() as attempt:
            placement = place_each(wishing, fleet, keep)
            attempt.succeeded = placement.is_complete
        if placement.is_complete:
            break
    if placement is None or (not placement.is_complete and placement.seats and placement.is_short_of_room):
        with fleet.attempt() as attempt:
            placement = place_most(demand, fleet, keep)
            attempt.succeeded = placement.is_complete or placement.is_short_of_room
    placement.demand = demand
    return placement


def _orders(demand: Demand, fleet: Fleet) -> list[Demand]:
    """Those that are worth trying before as many are placed as can be."""
    has_other = demand.neighbours or demand.even or demand.preferences not in ((), CHEAPEST_FIRST)
    return (
        [demand, replace(demand, preferences=CHEAPEST_FIRST, even=())]
        if has_other and _money_matters(fleet)
        else []
    )


def _money_matters(fleet: Fleet) -> bool:
    return any(budget.cap < 1 << 60 for budget in fleet.budgets.values())


def place_most(demand: Demand, fleet: Fleet, keep: int) -> Placement:
    """On the classes that cost least; where those do not hold all, on those that hold more, if more replicas find a place then."""
    missing = demand.replicas - len(fleet.seats.get(demand.name, ()))
    most = most_more(demand, fleet) if missing >= MANY else missing
    if missing >= MANY and not demand.regions and not demand.min_regions:
        cheaply = most_cheaply(demand, fleet)
        roomy = _roomy(demand, fleet, keep, cheaply) if cheaply < min(missing, most) else None
        if roomy is not None:
            return roomy
    with fleet.attempt() as attempt:
        cheap = place_each(demand, fleet, keep)
        is_short = cheap.missing and cheap.seats and cheap.is_short_of_room
        attempt.succeeded = not (is_short and len(cheap.seats) < most and _has_choice(demand, fleet))
    if attempt.succeeded:
        return cheap
    return _roomy(demand, fleet, keep, len(cheap.seats)) or place_each(demand, fleet, keep)


def _roomy(demand: Demand, fleet: Fleet, keep: int, least: int) -> Placement | None:
    """On the classes that hold most, if that are more replicas than `least`."""
    with fleet.attempt() as attempt:
        roomy = place_each(demand, fleet, keep, roomy=True)
        attempt.succeeded = len(roomy.seats) > least
    return roomy if attempt.succeeded else None


def _has_choice(demand: Demand, fleet: Fleet) -> bool:
    """Are there several classes that would do, in any offer?"""
    return bool((fleet.table.quotes.serving(demand).serves.sum(axis=0) > 1).any())


def place_each(demand: Demand, fleet: Fleet, keep: int, *, roomy: bool = False) -> Placement:
    placement, series = Placement(demand), Series(demand, fleet, with_scores=keep > 1)
    for ask in missing_replicas(demand, fleet, roomy=roomy):
        decision = series.decide(ask)
        if not decision.fits or len(placement.decisions) < keep:
            placement.decisions.append(
                decision.copied()
            )  # who asks why goes through them once more: see why.py
        if not decision.fits:
            placement.missing = demand.replicas - len(fleet.seats.get(demand.name, ()))
            placement.last_ask = ask
            return placement
        placement.seats.append(series.settle())
    return placement


def missing_replicas(demand: Demand, fleet: Fleet, *, roomy: bool = False) -> Iterator[ReplicaAsk]:
    """One ask after the other, each given where the ones before it went: required regions first, then new regions, then anywhere."""
    while missing := max(0, demand.replicas - len(fleet.seats.get(demand.name, ()))):
        room_for = _rounded(missing) if roomy else 0
        here = (
            [fleet.offers[row] for row in fleet.rows_of(demand.name)]
            if demand.regions or demand.min_regions
            else []
        )
        regions = {offer.region for offer in here}
        lacking = next(
            (each.value for each in demand.regions if not any(offer.is_in(each.value) for offer in here)), ""
        )
        if lacking:
            yield ReplicaAsk(demand, region=lacking, room_for=room_for)
        elif len(regions) < demand.min_regions:
            yield ReplicaAsk(demand, avoid=frozenset(regions), room_for=room_for)
        else:
            yield ReplicaAsk(demand, room_for=room_for)


def _rounded(missing: int) -> int:
    """Up to a number with few digits, so that what holds for it is looked at once for many replicas, not for each anew."""
    coarse = 1 << max(0, missing.bit_length() - 4)
    return -(-missing // coarse) * coarse


def broken_rules(
    demand: Demand, fleet: Fleet, counts: Mapping[int, int], may: Flags | None = None
) -> list[str]:
    """Rules over all replicas that so many in these offers would not keep. `may`: offers that count for the skew though they are empty."""
    here = [fleet.offers[row] for row, count in counts.items() if count]
    broken = [str(each) for each in demand.regions if not any(offer.is_in(each.value) for offer in here)]
    regions = {offer.region for offer in here}
    if len(regions) < demand.min_regions:
        broken.append(f"replicas in {demand.min_regions} regions, not {len(regions)}")
    for each in demand.spread:
        domains = {
            domain_of(fleet.offers[row], each.value): 0
            for row in (() if may is None else np.flatnonzero(may).tolist())
        }
        for row, count in counts.items():
            if count:
                domain = domain_of(fleet.offers[row], each.value)
                domains[domain] = domains.get(domain, 0) + count
        if domains and max(domains.values()) - min(domains.values()) > each.amount:
            broken.append(str(each))
    return broken


def withdraw(fleet: Fleet, seats: Sequence[Seat]) -> None:
    """They leave, and machines that nobody needs any more go with them."""
    clusters = {fleet.machines.cluster[seat.machine].name for seat in seats}
    for seat in reversed(seats):
        fleet.unseat(seat)
    trim(fleet, sorted(clusters))
