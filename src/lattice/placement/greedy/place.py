"""Place one service: assign all missing replicas to machines, and record the decision of a replica that fits
no offer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lattice.engine.decide import Decision
from lattice.engine.table import Flags
from lattice.placement.greedy.incremental import IncrementalPlacer
from lattice.placement.greedy.machine_choice import remove_empty_machines
from lattice.placement.greedy.upper_bound import max_additional_on_cheapest, max_additional_replicas
from lattice.placement.model.demand import CHEAPEST_FIRST, Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import domain_of
from lattice.placement.model.replica_index import Assignment

# From this number of missing replicas on, placing takes longer than computing the upper bound of the free
# capacity, so the bound is computed first.
BOUND_CHECK_MIN_REPLICAS = 32
# A commit cap of this size or more, in micro-dollars per hour, is no cap.
UNCAPPED_RATE = 1 << 60


@dataclass(slots=True)
class Placement:
    """The assignments of one service, with the decisions kept for explanations. If a replica fits no offer,
    the decision that failed is the last."""

    demand: Demand
    assignments: list[Assignment] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    # Replicas without an assignment.
    missing: int = 0
    # The ask of the replica that fits no offer.
    failed_ask: ReplicaAsk | None = None

    @property
    def is_short_of_capacity(self) -> bool:
        """Report whether the failed replica was allowed in all regions. If so, capacity was missing, and no
        rule over all replicas failed."""
        ask = self.failed_ask
        return ask is not None and not ask.region and not ask.excluded_regions

    @property
    def is_complete(self) -> bool:
        """Report whether all desired replicas have an assignment, which is possible even if requirements
        conflict."""
        return not self.missing


def place(demand: Demand, fleet: Fleet, *, keep_decisions: int = 0) -> Placement:
    """Place all missing replicas of the demand; without enough capacity, place as many replicas as fit.

    A partial result is kept only if no rule over all replicas, such as required regions, failed. The order of
    attempts: preferences and soft spread as the policies say, then the cheapest offers, which save budget,
    then machine types that hold more replicas.

    `keep_decisions` is the number of decisions to keep for explanations; a failed decision is always kept.
    """
    # No supply can resolve conflicting requirements, so no attempt is made.
    if demand.rule_conflict:
        return Placement(demand, missing=max(0, demand.replicas - fleet.replicas.count(demand.name)))
    # The variants of the demand that are worth an attempt before a partial placement.
    variants: list[Demand] = []
    has_preferences = (
        demand.neighbours or demand.soft_spread or demand.preferences not in ((), CHEAPEST_FIRST)
    )
    # Preferences can use up a capped budget that pays for all replicas in the cheapest offers.
    if has_preferences and any(
        budget.commit_cap < UNCAPPED_RATE for budget in fleet.ledgers.budgets.values()
    ):
        variants = [demand, replace(demand, preferences=CHEAPEST_FIRST, soft_spread=())]
    placement = None
    for variant in variants:
        with fleet.attempt() as attempt:
            placement = place_replicas(variant, fleet, keep_decisions)
            attempt.succeeded = placement.is_complete
        if placement.is_complete:
            break
    if placement is None or (
        not placement.is_complete and placement.assignments and placement.is_short_of_capacity
    ):
        with fleet.attempt() as attempt:
            placement = place_as_many_as_fit(demand, fleet, keep_decisions)
            attempt.succeeded = placement.is_complete or placement.is_short_of_capacity
    # The variants have other preferences; the placement belongs to the original demand.
    placement.demand = demand
    return placement


def place_as_many_as_fit(demand: Demand, fleet: Fleet, keep_decisions: int) -> Placement:
    """Place replicas on the cheapest machine types; if replicas remain, try the largest types and keep the
    attempt with more replicas."""
    missing = demand.replicas - fleet.replicas.count(demand.name)
    upper_bound = max_additional_replicas(demand, fleet) if missing >= BOUND_CHECK_MIN_REPLICAS else missing
    if missing >= BOUND_CHECK_MIN_REPLICAS and not demand.regions and not demand.min_regions:
        bound_on_cheapest = max_additional_on_cheapest(demand, fleet)
        # The cheapest types cannot hold all replicas: try the largest types first.
        if bound_on_cheapest < min(missing, upper_bound):
            on_largest = _place_on_largest(demand, fleet, keep_decisions, bound_on_cheapest)
            if on_largest is not None:
                return on_largest
    with fleet.attempt() as attempt:
        on_cheapest = place_replicas(demand, fleet, keep_decisions)
        is_short = on_cheapest.missing and on_cheapest.assignments and on_cheapest.is_short_of_capacity
        # With several machine types that can host a replica, larger types may hold more replicas.
        # Then the attempt is undone, so that the largest types start from the same fleet.
        attempt.succeeded = not (
            is_short
            and len(on_cheapest.assignments) < upper_bound
            and bool((fleet.quotes.machine_fit(demand).can_host.sum(axis=0) > 1).any())
        )
    if attempt.succeeded:
        return on_cheapest
    return _place_on_largest(demand, fleet, keep_decisions, len(on_cheapest.assignments)) or place_replicas(
        demand, fleet, keep_decisions
    )


def _place_on_largest(
    demand: Demand, fleet: Fleet, keep_decisions: int, min_exceeded: int
) -> Placement | None:
    """Place replicas on the machine types that hold the most replicas. Unless more than `min_exceeded`
    replicas are placed, undo the attempt and return None."""
    with fleet.attempt() as attempt:
        placement = place_replicas(demand, fleet, keep_decisions, on_largest_types=True)
        attempt.succeeded = len(placement.assignments) > min_exceeded
    return placement if attempt.succeeded else None


def place_replicas(
    demand: Demand, fleet: Fleet, keep_decisions: int, *, on_largest_types: bool = False
) -> Placement:
    """Place missing replicas one by one until all are placed or a replica fits no offer."""
    placement, placer = Placement(demand), IncrementalPlacer(demand, fleet, with_scores=keep_decisions > 1)
    for ask in missing_replica_asks(demand, fleet, on_largest_types=on_largest_types):
        decision = placer.decide(ask)
        if not decision.fits or len(placement.decisions) < keep_decisions:
            # The next decision overwrites scores and masks, and explanations read them later: keep a copy.
            placement.decisions.append(decision.copy())
        if not decision.fits:
            placement.missing = demand.replicas - fleet.replicas.count(demand.name)
            placement.failed_ask = ask
            return placement
        placement.assignments.append(placer.assign())
    return placement


def missing_replica_asks(
    demand: Demand, fleet: Fleet, *, on_largest_types: bool = False
) -> Iterator[ReplicaAsk]:
    """Yield an ask for every missing replica: required regions first, then new regions up to the minimum,
    then all regions.

    Every ask depends on the assignments so far: the caller must assign the replica before the next ask.
    """
    while missing := max(0, demand.replicas - fleet.replicas.count(demand.name)):
        if on_largest_types:
            # Round up to a multiple of a power of two, so that one quote serves many replicas.
            step = 1 << max(0, missing.bit_length() - 4)
            capacity_target = -(-missing // step) * step
        else:
            capacity_target = 0
        current_offers = (
            [fleet.offers[row] for row in fleet.replicas.offer_rows(demand.name)]
            if demand.regions or demand.min_regions
            else []
        )
        regions = {offer.region for offer in current_offers}
        missing_region = next(
            (
                requirement.value
                for requirement in demand.regions
                if not any(offer.matches_region(requirement.value) for offer in current_offers)
            ),
            "",
        )
        if missing_region:
            yield ReplicaAsk(demand, region=missing_region, capacity_target=capacity_target)
        elif len(regions) < demand.min_regions:
            yield ReplicaAsk(demand, excluded_regions=frozenset(regions), capacity_target=capacity_target)
        else:
            yield ReplicaAsk(demand, capacity_target=capacity_target)


def violated_rules(
    demand: Demand, fleet: Fleet, counts: Mapping[int, int], counted_offers: Flags | None = None
) -> list[str]:
    """List the rules over all replicas that a distribution with `counts` replicas by offer row violates.

    `counted_offers` marks offers whose domains count for the skew even without a replica.
    """
    used_offers = [fleet.offers[row] for row, count in counts.items() if count]
    broken = [
        str(requirement)
        for requirement in demand.regions
        if not any(offer.matches_region(requirement.value) for offer in used_offers)
    ]
    regions = {offer.region for offer in used_offers}
    if len(regions) < demand.min_regions:
        broken.append(f"replicas in {demand.min_regions} regions, not {len(regions)}")
    for requirement in demand.spread:
        domains = {
            domain_of(fleet.offers[row], requirement.value): 0
            for row in (() if counted_offers is None else np.flatnonzero(counted_offers).tolist())
        }
        for row, count in counts.items():
            if count:
                domain = domain_of(fleet.offers[row], requirement.value)
                domains[domain] = domains.get(domain, 0) + count
        if domains and max(domains.values()) - min(domains.values()) > requirement.amount:
            broken.append(str(requirement))
    return broken


def remove_assignments(fleet: Fleet, assignments: Sequence[Assignment]) -> None:
    """Unassign the replicas and remove machines that become empty."""
    clusters = {fleet.machines.cluster[assignment.machine].name for assignment in assignments}
    for assignment in reversed(assignments):
        fleet.unassign(assignment)
    remove_empty_machines(fleet, sorted(clusters))
