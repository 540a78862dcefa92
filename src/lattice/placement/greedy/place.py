"""place(service, fleet): where every replica goes, and why not elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lattice.engine.decide import Decision
from lattice.engine.table import Flags
from lattice.placement.greedy.incremental import IncrementalPlacer
from lattice.placement.greedy.machine_choice import remove_empty_machines
from lattice.placement.greedy.upper_bound import max_additional_on_cheapest, max_additional_replicas
from lattice.placement.model.demand import CHEAPEST_FIRST, Demand, ReplicaAsk
from lattice.placement.model.fleet import Assignment, Fleet
from lattice.placement.plugins.filters.spread import domain_of

BOUND_CHECK_MIN_REPLICAS = (
    32  # replicas: placing so many takes longer than counting how many there could be room for
)


@dataclass(slots=True)
class Placement:
    """The seats that were found, and the last decision: of the replica that found none, if one did not."""

    demand: Demand
    assignments: list[Assignment] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    missing: int = 0  # replicas without a seat
    failed_ask: ReplicaAsk | None = None  # of the replica that found none

    @property
    def is_short_of_capacity(self) -> bool:
        """The last replica could have gone anywhere, by the rules that hold over all of them."""
        last = self.failed_ask
        return last is not None and not last.region and not last.excluded_regions

    @property
    def is_complete(self) -> bool:
        """As many run as are wanted; rules that contradict one another do not take away those that do."""
        return not self.missing


def place(demand: Demand, fleet: Fleet, *, keep_decisions: int = 0) -> Placement:
    """All replicas that it lacks; where there is not room for all, as many as there is, unless a rule over all of them cannot hold.

    Tries the policies' order and an even spread first, then the cheapest, which spares budgets; then classes of machines that hold more.

    `keep`: how many decisions to keep for explaining; the last one, if it fails, is always kept.
    """
    if demand.rule_conflict:
        return Placement(
            demand, missing=max(0, demand.replicas - len(fleet.assignments.get(demand.name, ())))
        )
    placement = None
    for wishing in _preference_variants(demand, fleet):
        with fleet.attempt() as attempt:
            placement = place_replicas(wishing, fleet, keep_decisions)
            attempt.succeeded = placement.is_complete
        if placement.is_complete:
            break
    if placement is None or (
        not placement.is_complete and placement.assignments and placement.is_short_of_capacity
    ):
        with fleet.attempt() as attempt:
            placement = place_as_many_as_fit(demand, fleet, keep_decisions)
            attempt.succeeded = placement.is_complete or placement.is_short_of_capacity
    placement.demand = demand
    return placement


def _preference_variants(demand: Demand, fleet: Fleet) -> list[Demand]:
    """Those that are worth trying before as many are placed as can be."""
    has_other = demand.neighbours or demand.soft_spread or demand.preferences not in ((), CHEAPEST_FIRST)
    return (
        [demand, replace(demand, preferences=CHEAPEST_FIRST, soft_spread=())]
        if has_other and _has_budget_caps(fleet)
        else []
    )


def _has_budget_caps(fleet: Fleet) -> bool:
    return any(budget.commit_cap < 1 << 60 for budget in fleet.budgets.values())


def place_as_many_as_fit(demand: Demand, fleet: Fleet, keep: int) -> Placement:
    """On the classes that cost least; where those do not hold all, on those that hold more, if more replicas find a place then."""
    missing = demand.replicas - len(fleet.assignments.get(demand.name, ()))
    most = max_additional_replicas(demand, fleet) if missing >= BOUND_CHECK_MIN_REPLICAS else missing
    if missing >= BOUND_CHECK_MIN_REPLICAS and not demand.regions and not demand.min_regions:
        cheaply = max_additional_on_cheapest(demand, fleet)
        roomy = _place_on_largest(demand, fleet, keep, cheaply) if cheaply < min(missing, most) else None
        if roomy is not None:
            return roomy
    with fleet.attempt() as attempt:
        cheap = place_replicas(demand, fleet, keep)
        is_short = cheap.missing and cheap.assignments and cheap.is_short_of_capacity
        attempt.succeeded = not (
            is_short and len(cheap.assignments) < most and _has_type_choice(demand, fleet)
        )
    if attempt.succeeded:
        return cheap
    return _place_on_largest(demand, fleet, keep, len(cheap.assignments)) or place_replicas(
        demand, fleet, keep
    )


def _place_on_largest(demand: Demand, fleet: Fleet, keep: int, least: int) -> Placement | None:
    """On the classes that hold most, if that are more replicas than `least`."""
    with fleet.attempt() as attempt:
        roomy = place_replicas(demand, fleet, keep, on_largest_types=True)
        attempt.succeeded = len(roomy.assignments) > least
    return roomy if attempt.succeeded else None


def _has_type_choice(demand: Demand, fleet: Fleet) -> bool:
    """Are there several classes that would do, in any offer?"""
    return bool((fleet.table.quotes.machine_fit(demand).can_host.sum(axis=0) > 1).any())


def place_replicas(demand: Demand, fleet: Fleet, keep: int, *, on_largest_types: bool = False) -> Placement:
    placement, series = Placement(demand), IncrementalPlacer(demand, fleet, with_scores=keep > 1)
    for ask in missing_replica_asks(demand, fleet, on_largest_types=on_largest_types):
        decision = series.decide(ask)
        if not decision.fits or len(placement.decisions) < keep:
            placement.decisions.append(
                decision.copy()
            )  # who asks why goes through them once more: see why.py
        if not decision.fits:
            placement.missing = demand.replicas - len(fleet.assignments.get(demand.name, ()))
            placement.failed_ask = ask
            return placement
        placement.assignments.append(series.assign())
    return placement


def missing_replica_asks(
    demand: Demand, fleet: Fleet, *, on_largest_types: bool = False
) -> Iterator[ReplicaAsk]:
    """One ask after the other, each given where the ones before it went: required regions first, then new regions, then anywhere."""
    while missing := max(0, demand.replicas - len(fleet.assignments.get(demand.name, ()))):
        room_for = _round_up_coarsely(missing) if on_largest_types else 0
        here = (
            [fleet.offers[row] for row in fleet.offer_rows_of(demand.name)]
            if demand.regions or demand.min_regions
            else []
        )
        regions = {offer.region for offer in here}
        lacking = next(
            (each.value for each in demand.regions if not any(offer.is_in(each.value) for offer in here)), ""
        )
        if lacking:
            yield ReplicaAsk(demand, region=lacking, capacity_target=room_for)
        elif len(regions) < demand.min_regions:
            yield ReplicaAsk(demand, excluded_regions=frozenset(regions), capacity_target=room_for)
        else:
            yield ReplicaAsk(demand, capacity_target=room_for)


def _round_up_coarsely(missing: int) -> int:
    """Up to a number with few digits, so that what holds for it is looked at once for many replicas, not for each anew."""
    coarse = 1 << max(0, missing.bit_length() - 4)
    return -(-missing // coarse) * coarse


def violated_rules(
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


def remove_assignments(fleet: Fleet, seats: Sequence[Assignment]) -> None:
    """They leave, and machines that nobody needs any more go with them."""
    clusters = {fleet.machines.cluster[seat.machine].name for seat in seats}
    for seat in reversed(seats):
        fleet.unassign(seat)
    remove_empty_machines(fleet, sorted(clusters))
