"""Why is a service where it is, and why not elsewhere: every decision for it made anew, with every pool's scores and refusals."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

from lattice.engine.decide import RULED_OUT, Decision
from lattice.engine.explain import RankedCandidate, summarize, top_candidates
from lattice.engine.plugin import Reason, Shortfall
from lattice.placement.explain.blockers import at_failure, reason_shortfalls
from lattice.placement.explain.verdict import Verdict, judge
from lattice.placement.greedy.machine_choice import assign_in_offer
from lattice.placement.greedy.place import Placement, place, remove_assignments
from lattice.placement.greedy.place_all import find_stale_placement
from lattice.placement.model.costs import run_rate
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.rejection_reasons import fleet_of, offer_at
from lattice.placement.model.world import placed_counts
from lattice.placement.plan.plan import FleetState, PlacementKey
from lattice.placement.plugins.filters.overflow import NotOverflowTarget

MAX_DETAILED_REJECTIONS = 50_000  # refusals that are looked at one by one; of more, those of the first and the last of replicas decided alike
PER_REPLICA_FILTERS = (
    "Region",
    "Spread",
)  # filters that speak of one replica: a pool that they refuse may take the next one


@dataclass(frozen=True, slots=True)
class UnplacedReplicas:
    placement: Placement
    freed_rate: int = 0  # micro-dollars per hour that are not paid while its replicas are gone


@contextmanager
def unplaced_replicas(settled: FleetState, service: str) -> Iterator[UnplacedReplicas | None]:
    """None: it has its place. Meanwhile the fleet is without replicas that may not stay where they are."""
    fleet, demand = settled.fleet, settled.orphaned.subtract_orphans(settled.world.demands[service])
    if service in settled.unplaced:
        yield UnplacedReplicas(settled.unplaced[service])
        return
    if find_stale_placement(demand, fleet) is None:
        yield None
        return
    with fleet.what_if():
        paid = sum(run_rate(fleet).values())
        remove_assignments(fleet, list(fleet.assignments.get(service, ())))
        with fleet.what_if():
            placement = place(demand, fleet)
        yield (
            None
            if placement.is_complete
            else UnplacedReplicas(placement, paid - sum(run_rate(fleet).values()))
        )


@dataclass(frozen=True, slots=True)
class DecisionStep:
    """Replicas that were decided alike, one after the other, with the scores of the first."""

    first_replica: int  # counted from 1
    replicas: int
    constraint: str
    chosen: str  # "": nowhere
    ranked_pools: tuple[RankedCandidate, ...]  # best first
    summary: str
    overflow: str = ""

    def is_same_decision(self, other: "DecisionStep") -> bool:
        """To the same pool, for the same reasons."""
        return (self.constraint, self.chosen, self.overflow, self.summary) == (
            other.constraint,
            other.chosen,
            other.overflow,
            other.summary,
        )

    @property
    def replica_numbers(self) -> range:
        return range(self.first_replica, self.first_replica + self.replicas)


@dataclass(slots=True)
class RejectionReason:
    """One reason, in the numbers of the last replica that it holds for, and all that it does hold for."""

    shortfall: Shortfall
    replicas: list[int] = field(default_factory=list)


RejectionReasons = dict[tuple[str, str, str], RejectionReason]  # by filter, what and need


@dataclass(slots=True)
class Rejection:
    """What rules a pool out. Nothing: at least one replica could go there."""

    pool: str
    decided_replicas: list[int] = field(default_factory=list)  # replicas
    lasting_reasons: RejectionReasons = field(default_factory=dict)
    replica_reasons: RejectionReasons = field(default_factory=dict)  # about one replica only
    fits: bool = False

    @property
    def reasons(self) -> list[tuple[str, Shortfall, str]]:
        """Each with the filter that says so, and the replicas that it is about: `1-4, 6`, or "" for all."""
        shown = self.lasting_reasons or ({} if self.fits else self.replica_reasons)
        return [
            (plugin, each.shortfall, "" if each.replicas == self.decided_replicas else ranges(each.replicas))
            for (plugin, _, _), each in shown.items()
        ]


def ranges(numbers: Sequence[int]) -> str:
    """`1-4, 6`; of ascending numbers."""
    ends = [here for here, after in pairwise([*numbers, 0]) if after != here + 1]
    begins = [here for before, here in pairwise([-1, *numbers]) if here != before + 1]
    return ", ".join(
        f"{begin}" if begin == end else f"{begin}-{end}" for begin, end in zip(begins, ends, strict=True)
    )


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    demand: Demand
    current_counts: dict[PlacementKey, int]  # where its replicas are
    desired_counts: dict[
        PlacementKey, int
    ]  # where they would be put today, or as many of them as find a place
    steps: tuple[DecisionStep, ...]
    rejections: tuple[Rejection, ...]  # every pool, by name
    verdict: Verdict | None  # None: it is placed, or could be


def explain_service(settled: FleetState, service: str, now: dict[PlacementKey, int]) -> PlacementExplanation:
    """As of now: its replicas are withdrawn, and placed again among everything else. The fleet stays as it is.

    One that lacks replicas, and would not if all of it were placed anew, is asked about those that it lacks.
    """
    fleet, demand = settled.fleet, settled.world.demands[service]
    there = dict(settled.replica_counts.get(service, {}))
    with unplaced_replicas(settled, service) as missing:
        verdict = judge(missing.placement, fleet, settled.world.services) if missing else None
    with fleet.what_if():
        remove_assignments(fleet, list(fleet.assignments.get(service, ())))
        placement, would = _place_anew(demand, fleet)
        if verdict is None or not placement.is_complete:
            stays = verdict is None and not placement.is_complete  # on machines that it would not get again
            return PlacementExplanation(
                demand, now, there if stays else would, *_replay(placement, fleet), verdict
            )
    placement, would = _place_anew(settled.orphaned.subtract_orphans(demand), fleet)
    return PlacementExplanation(
        demand,
        now,
        dict(Counter(would) + settled.orphaned.replica_counts(service)),
        *_replay(placement, fleet),
        verdict,
    )


def _place_anew(demand: Demand, fleet: Fleet) -> tuple[Placement, dict[PlacementKey, int]]:
    with fleet.what_if():
        return place(demand, fleet, keep_decisions=demand.replicas), dict(placed_counts(fleet, demand.name))


def _replay(placement: Placement, fleet: Fleet) -> tuple[tuple[DecisionStep, ...], tuple[Rejection, ...]]:
    """Scores and details hold only while the fleet is as it was at each decision, so the decisions are gone through once more."""
    refusals = {
        offer.name: Rejection(offer.name) for offer in sorted(fleet.offers, key=lambda each: each.name)
    }
    steps: list[DecisionStep] = []
    with fleet.what_if():
        for step in _steps(placement.decisions):
            best = tuple(top_candidates(placement.decisions[step.first_replica - 1], fleet.table.count))
            looked_at = (
                step.replica_numbers
                if len(placement.decisions) * fleet.table.count <= MAX_DETAILED_REJECTIONS
                else (step.first_replica, step.replica_numbers[-1])
            )
            summary = step.summary
            for number in step.replica_numbers:
                decision = placement.decisions[number - 1]
                if number in looked_at:
                    summary = _record_rejections(decision, number, refusals, fleet)
                if decision.fits:
                    assign_in_offer(_ask(decision), fleet, decision.chosen)
            steps.append(replace(step, ranked_pools=best, summary=summary))
    return tuple(steps), tuple(refusals.values())


def _steps(decisions: Iterable[Decision]) -> list[DecisionStep]:
    found: list[DecisionStep] = []
    for number, decision in enumerate(decisions, 1):
        step = _step(number, decision)
        if found and found[-1].is_same_decision(step):
            found[-1] = replace(found[-1], replicas=found[-1].replicas + 1)
        else:
            found.append(step)
    return found


def _ask(decision: Decision) -> ReplicaAsk:
    return cast("ReplicaAsk", decision.ask)


def _step(number: int, decision: Decision) -> DecisionStep:
    ask = _ask(decision)
    return DecisionStep(
        number,
        1,
        describe_constraint(ask),
        decision.name,
        (),
        summarize(decision, "pool"),
        ask.overflow_source,
    )


def describe_constraint(ask: ReplicaAsk) -> str:
    """What this replica was bound to, beside what all of them are."""
    if ask.region:
        return f"in {ask.region}"
    return f"outside {', '.join(sorted(ask.excluded_regions))}" if ask.excluded_regions else "anywhere"


def _record_rejections(decision: Decision, number: int, refusals: dict[str, Rejection], fleet: Fleet) -> str:
    """Notes why each pool refuses, and says it in a sentence. Of a replica without a place, what overflow targets said counts, too."""
    if decision.fits:
        _add_rejections(decision, number, refusals)
        return summarize(decision, "pool")
    with at_failure(_ask(decision).demand, fleet) as failure:
        _add_rejections(failure.decision if failure else decision, number, refusals)
        return failure.sentence if failure else summarize(decision, "pool")


def _add_rejections(decision: Decision, number: int, refusals: dict[str, Rejection]) -> None:
    """What is about this one replica only is all that matters if it found no place."""
    table = decision.table
    for name, refusal in refusals.items():
        row = table.row_of[name]
        refusal.decided_replicas.append(number)
        if decision.totals[row] > RULED_OUT:
            refusal.fits = True
            continue
        refusal.fits = refusal.fits and decision.fits
        for plugin, short in reason_shortfalls(
            _relevant_reasons(decision, row), _ask(decision), fleet_of(table), row
        ):
            kept = (
                refusal.replica_reasons
                if decision.fits and plugin in PER_REPLICA_FILTERS
                else refusal.lasting_reasons
            )
            ground = kept.setdefault((plugin, short.what, short.need), RejectionReason(short))
            ground.shortfall = short
            ground.replicas.append(number)


def _relevant_reasons(decision: Decision, row: int) -> list[Reason]:
    """Where a data center overflows: of itself not that it is no target, of what is no target not that there is no room for overflow."""
    found = [reason for reason, mask in decision.reasons.items() if mask[row]]
    if not _ask(decision).overflow_source or not any(isinstance(each, NotOverflowTarget) for each in found):
        return found
    needless = ("Overflow",) if offer_at(decision.table, row).is_static else ("Capacity", "Budget")
    return [each for each in found if each.plugin not in needless] or found
