"""Explain the placement of a service: repeat every placement decision with the scores and rejections of every
pool."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

from lattice.engine.decide import REJECTED_TOTAL, Decision
from lattice.engine.explain import RankedCandidate, summarize, top_candidates
from lattice.engine.plugin import Reason, Shortfall
from lattice.placement.explain.blockers import at_failure, reason_shortfalls
from lattice.placement.explain.verdict import Verdict, judge
from lattice.placement.greedy.machine_choice import assign_in_offer
from lattice.placement.greedy.place import Placement, place, remove_assignments
from lattice.placement.greedy.place_all import find_stale_placement
from lattice.placement.model.costs import fleet_bill
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import placed_counts
from lattice.placement.plan.plan import FleetState, PlacementKey
from lattice.placement.plugins.filters.overflow import NotOverflowTarget
from lattice.placement.plugins.rejection_reasons import fleet_of, offer_at

# Limit of rejections that are rendered one by one; above it, only the rejections of the first and the last
# replica of each step are rendered.
MAX_DETAILED_REJECTIONS = 50_000
# Filters that concern a single replica: a pool that they reject may take the next replica.
PER_REPLICA_FILTERS = ("Region", "Spread")


@dataclass(frozen=True, slots=True)
class UnplacedReplicas:
    """A placement with unplaced replicas."""

    placement: Placement
    # Micro-dollars per hour that are not paid while the replicas are withdrawn.
    freed_rate: int = 0


@contextmanager
def unplaced_replicas(state: FleetState, service: str) -> Iterator[UnplacedReplicas | None]:
    """Yield the incomplete placement of the service, or None if the service is placed or would fit in a new
    placement.

    If the replicas violate the present requirements, the fleet is without all replicas of the service inside
    the context.
    """
    fleet, demand = state.fleet, state.orphaned.subtract_orphans(state.world.demands[service])
    if service in state.unplaced:
        yield UnplacedReplicas(state.unplaced[service])
        return
    if find_stale_placement(demand, fleet) is None:
        yield None
        return
    with fleet.what_if():
        # The saving of withdrawn replicas is subtracted from the cost of suggestions.
        paid = fleet_bill(fleet).total
        remove_assignments(fleet, list(fleet.assignments.get(service, ())))
        # The inner scope undoes the attempt, so the caller sees the fleet without the replicas.
        with fleet.what_if():
            placement = place(demand, fleet)
        yield (None if placement.is_complete else UnplacedReplicas(placement, paid - fleet_bill(fleet).total))


@dataclass(frozen=True, slots=True)
class DecisionStep:
    """Consecutive replicas with the same decision, with the scores of the first."""

    # Counted from 1.
    first_replica: int
    replicas: int
    constraint: str
    # The chosen pool; empty if no pool accepts the replicas.
    chosen: str
    # Best first.
    ranked_pools: tuple[RankedCandidate, ...]
    summary: str
    overflow: str = ""

    def is_same_decision(self, step: "DecisionStep") -> bool:
        """Whether both steps choose the same pool for the same reasons."""
        return (self.constraint, self.chosen, self.overflow, self.summary) == (
            step.constraint,
            step.chosen,
            step.overflow,
            step.summary,
        )

    @property
    def replica_numbers(self) -> range:
        return range(self.first_replica, self.first_replica + self.replicas)


@dataclass(slots=True)
class RejectionReason:
    """A rejection reason with the shortfall of the last replica, and the numbers of all replicas that the
    reason rejects."""

    shortfall: Shortfall
    replicas: list[int] = field(default_factory=list)


# By filter, shortfall and need.
RejectionReasons = dict[tuple[str, str, str], RejectionReason]


@dataclass(slots=True)
class Rejection:
    """The reasons that reject a pool; empty if at least one replica could go to the pool."""

    pool: str
    # Numbers of the replicas for which the pool was considered.
    decided_replicas: list[int] = field(default_factory=list)
    lasting_reasons: RejectionReasons = field(default_factory=dict)
    # Reasons that concern a single replica.
    replica_reasons: RejectionReasons = field(default_factory=dict)
    fits: bool = False

    @property
    def reasons(self) -> list[tuple[str, Shortfall, str]]:
        """Filter, shortfall and rejected replicas of each reason, such as `1-4, 6`, or "" for all
        replicas."""
        # A reason that concerns a single replica matters only if no replica fits.
        shown = self.lasting_reasons or ({} if self.fits else self.replica_reasons)
        return [
            (
                plugin,
                reason.shortfall,
                "" if reason.replicas == self.decided_replicas else ranges(reason.replicas),
            )
            for (plugin, _, _), reason in shown.items()
        ]


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as ranges: `1-4, 6`."""
    ends = [number for number, following in pairwise([*numbers, 0]) if following != number + 1]
    begins = [number for previous, number in pairwise([-1, *numbers]) if number != previous + 1]
    return ", ".join(
        f"{begin}" if begin == end else f"{begin}-{end}" for begin, end in zip(begins, ends, strict=True)
    )


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    """The placement of a service, explained."""

    demand: Demand
    current_counts: dict[PlacementKey, int]
    # Where placement would put the replicas today, as far as they fit.
    desired_counts: dict[PlacementKey, int]
    steps: tuple[DecisionStep, ...]
    # One entry per pool, by name.
    rejections: tuple[Rejection, ...]
    # None: the service is placed, or could be placed.
    verdict: Verdict | None


def explain_service(
    state: FleetState, service: str, current: dict[PlacementKey, int]
) -> PlacementExplanation:
    """Explain the placement: withdraw the replicas of the service and place them again in the otherwise
    unchanged fleet.

    The fleet is restored. If replicas are missing although all replicas would fit in a new placement, only
    the missing replicas are explained.
    """
    fleet, demand = state.fleet, state.world.demands[service]
    settled_counts = dict(state.replica_counts.get(service, {}))
    with unplaced_replicas(state, service) as missing:
        verdict = judge(missing.placement, fleet, state.world.services) if missing else None
    with fleet.what_if():
        remove_assignments(fleet, list(fleet.assignments.get(service, ())))
        placement, desired = _place_anew(demand, fleet)
        if verdict is None or not placement.is_complete:
            # The replicas of a placed service stay where they run if a new placement would not fit all of
            # them.
            is_kept = verdict is None and not placement.is_complete
            return PlacementExplanation(
                demand, current, settled_counts if is_kept else desired, *_replay(placement, fleet), verdict
            )
    placement, desired = _place_anew(state.orphaned.subtract_orphans(demand), fleet)
    return PlacementExplanation(
        demand,
        current,
        dict(Counter(desired) + state.orphaned.replica_counts(service)),
        *_replay(placement, fleet),
        verdict,
    )


def _place_anew(demand: Demand, fleet: Fleet) -> tuple[Placement, dict[PlacementKey, int]]:
    with fleet.what_if():
        return place(demand, fleet, keep_decisions=demand.replicas), dict(placed_counts(fleet, demand.name))


def _replay(placement: Placement, fleet: Fleet) -> tuple[tuple[DecisionStep, ...], tuple[Rejection, ...]]:
    """Repeat the decisions on the fleet: scores and details are valid only while the fleet is as it was at
    the decision."""
    rejections = {
        offer.name: Rejection(offer.name) for offer in sorted(fleet.offers, key=lambda offer: offer.name)
    }
    steps: list[DecisionStep] = []
    with fleet.what_if():
        for step in _steps(placement.decisions):
            best = tuple(top_candidates(placement.decisions[step.first_replica - 1], fleet.table.count))
            # Beyond the limit the first and the last replica stand for the step.
            detailed = (
                step.replica_numbers
                if len(placement.decisions) * fleet.table.count <= MAX_DETAILED_REJECTIONS
                else (step.first_replica, step.replica_numbers[-1])
            )
            summary = step.summary
            for number in step.replica_numbers:
                decision = placement.decisions[number - 1]
                if number in detailed:
                    summary = _record_rejections(decision, number, rejections, fleet)
                # The next decision depends on this assignment.
                if decision.fits:
                    assign_in_offer(_ask(decision), fleet, decision.chosen)
            steps.append(replace(step, ranked_pools=best, summary=summary))
    return tuple(steps), tuple(rejections.values())


def _steps(decisions: Iterable[Decision]) -> list[DecisionStep]:
    """Consecutive equal decisions as steps, without scores."""
    steps: list[DecisionStep] = []
    for number, decision in enumerate(decisions, 1):
        ask = _ask(decision)
        # The region constraint of this replica, in addition to the constraints of the service.
        constraint = "anywhere"
        if ask.region:
            constraint = f"in {ask.region}"
        elif ask.excluded_regions:
            constraint = f"outside {', '.join(sorted(ask.excluded_regions))}"
        step = DecisionStep(
            number,
            1,
            constraint,
            decision.name,
            (),
            summarize(decision, "pool"),
            ask.overflow_source,
        )
        if steps and steps[-1].is_same_decision(step):
            steps[-1] = replace(steps[-1], replicas=steps[-1].replicas + 1)
        else:
            steps.append(step)
    return steps


def _ask(decision: Decision) -> ReplicaAsk:
    return cast("ReplicaAsk", decision.ask)


def _record_rejections(
    decision: Decision, number: int, rejections: dict[str, Rejection], fleet: Fleet
) -> str:
    """Record the rejections of every pool and return their summary; for an unplaced replica rejections of
    overflow targets are included."""
    if decision.fits:
        _add_rejections(decision, number, rejections)
        return summarize(decision, "pool")
    with at_failure(_ask(decision).demand, fleet) as failure:
        _add_rejections(failure.decision if failure else decision, number, rejections)
        return failure.sentence if failure else summarize(decision, "pool")


def _add_rejections(decision: Decision, number: int, rejections: dict[str, Rejection]) -> None:
    """Add the rejections of one decision. For an unplaced replica, reasons that concern a single replica
    count as lasting."""
    table = decision.table
    for name, rejection in rejections.items():
        row = table.row_of[name]
        rejection.decided_replicas.append(number)
        if decision.totals[row] > REJECTED_TOTAL:
            rejection.fits = True
            continue
        # An unplaced replica means that the pool is not feasible after all.
        rejection.fits = rejection.fits and decision.fits
        for plugin, shortfall in reason_shortfalls(
            _relevant_reasons(decision, row), _ask(decision), fleet_of(table), row
        ):
            reasons = (
                rejection.replica_reasons
                if decision.fits and plugin in PER_REPLICA_FILTERS
                else rejection.lasting_reasons
            )
            reason = reasons.setdefault((plugin, shortfall.what, shortfall.need), RejectionReason(shortfall))
            # The shortfall of the last replica is shown.
            reason.shortfall = shortfall
            reason.replicas.append(number)


def _relevant_reasons(decision: Decision, row: int) -> list[Reason]:
    """The reasons for the row without misleading reasons of overflow.

    A data center shows no reason that it is not an overflow target; an offer that is not an overflow target
    shows no reason about missing capacity.
    """
    reasons = [reason for reason, mask in decision.reasons.items() if mask[row]]
    if not _ask(decision).overflow_source or not any(
        isinstance(reason, NotOverflowTarget) for reason in reasons
    ):
        return reasons
    omitted = ("Overflow",) if offer_at(decision.table, row).is_static else ("Capacity", "Budget")
    return [reason for reason in reasons if reason.plugin not in omitted] or reasons
