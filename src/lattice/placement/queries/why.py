"""Why is a service where it is, and why not elsewhere: every decision for it made anew, with every pool's scores and refusals."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

from lattice.engine.decide import RULED_OUT, Decision
from lattice.engine.explain import Ranked, ranked, sentence
from lattice.engine.plugin import Reason, Shortfall
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.queries.lack import lack
from lattice.placement.explain.blockers import at_failure
from lattice.placement.greedy.place import Placement, place, withdraw
from lattice.placement.plan.plan import Settled, Where
from lattice.placement.plugins.filters.overflow import NotTheTarget
from lattice.placement.model.reasons import fleet_of, offer_at
from lattice.placement.explain.refused import told
from lattice.placement.greedy.machine_choice import settle
from lattice.placement.explain.verdict import Verdict, judge
from lattice.placement.model.world import placed_counts

LOOKS = 50_000  # refusals that are looked at one by one; of more, those of the first and the last of replicas decided alike
PASSING = (
    "Region",
    "Spread",
)  # filters that speak of one replica: a pool that they refuse may take the next one


@dataclass(frozen=True, slots=True)
class Step:
    """Replicas that were decided alike, one after the other, with the scores of the first."""

    first: int  # counted from 1
    replicas: int
    asked: str
    chosen: str  # "": nowhere
    best: tuple[Ranked, ...]  # best first
    summary: str
    overflow: str = ""

    def is_like(self, other: "Step") -> bool:
        """To the same pool, for the same reasons."""
        return (self.asked, self.chosen, self.overflow, self.summary) == (
            other.asked,
            other.chosen,
            other.overflow,
            other.summary,
        )

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.replicas)


@dataclass(slots=True)
class Ground:
    """One reason, in the numbers of the last replica that it holds for, and all that it does hold for."""

    short: Shortfall
    replicas: list[int] = field(default_factory=list)


Grounds = dict[tuple[str, str, str], Ground]  # by filter, what and need


@dataclass(slots=True)
class Refusal:
    """What rules a pool out. Nothing: at least one replica could go there."""

    pool: str
    decided: list[int] = field(default_factory=list)  # replicas
    lasting: Grounds = field(default_factory=dict)
    passing: Grounds = field(default_factory=dict)  # about one replica only
    fits: bool = False

    @property
    def reasons(self) -> list[tuple[str, Shortfall, str]]:
        """Each with the filter that says so, and the replicas that it is about: `1-4, 6`, or "" for all."""
        shown = self.lasting or ({} if self.fits else self.passing)
        return [
            (plugin, each.short, "" if each.replicas == self.decided else ranges(each.replicas))
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
class Why:
    demand: Demand
    now: dict[Where, int]  # where its replicas are
    would: dict[Where, int]  # where they would be put today, or as many of them as find a place
    steps: tuple[Step, ...]
    refusals: tuple[Refusal, ...]  # every pool, by name
    verdict: Verdict | None  # None: it is placed, or could be


def why(settled: Settled, service: str, now: dict[Where, int]) -> Why:
    """As of now: its replicas are withdrawn, and placed again among everything else. The fleet stays as it is.

    One that lacks replicas, and would not if all of it were placed anew, is asked about those that it lacks.
    """
    fleet, demand = settled.fleet, settled.world.demands[service]
    there = dict(settled.where.get(service, {}))
    with lack(settled, service) as missing:
        verdict = judge(missing.placement, fleet, settled.world.services) if missing else None
    with fleet.what_if():
        withdraw(fleet, list(fleet.seats.get(service, ())))
        placement, would = _placed_again(demand, fleet)
        if verdict is None or not placement.is_complete:
            stays = verdict is None and not placement.is_complete  # on machines that it would not get again
            return Why(demand, now, there if stays else would, *_replayed(placement, fleet), verdict)
    placement, would = _placed_again(settled.adrift.fewer(demand), fleet)
    return Why(
        demand,
        now,
        dict(Counter(would) + settled.adrift.where(service)),
        *_replayed(placement, fleet),
        verdict,
    )


def _placed_again(demand: Demand, fleet: Fleet) -> tuple[Placement, dict[Where, int]]:
    with fleet.what_if():
        return place(demand, fleet, keep=demand.replicas), dict(placed_counts(fleet, demand.name))


def _replayed(placement: Placement, fleet: Fleet) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """Scores and details hold only while the fleet is as it was at each decision, so the decisions are gone through once more."""
    refusals = {offer.name: Refusal(offer.name) for offer in sorted(fleet.offers, key=lambda each: each.name)}
    steps: list[Step] = []
    with fleet.what_if():
        for step in _steps(placement.decisions):
            best = tuple(ranked(placement.decisions[step.first - 1], fleet.table.count))
            looked_at = (
                step.numbers
                if len(placement.decisions) * fleet.table.count <= LOOKS
                else (step.first, step.numbers[-1])
            )
            summary = step.summary
            for number in step.numbers:
                decision = placement.decisions[number - 1]
                if number in looked_at:
                    summary = _refused(decision, number, refusals, fleet)
                if decision.fits:
                    settle(_ask(decision), fleet, decision.chosen)
            steps.append(replace(step, best=best, summary=summary))
    return tuple(steps), tuple(refusals.values())


def _steps(decisions: Iterable[Decision]) -> list[Step]:
    found: list[Step] = []
    for number, decision in enumerate(decisions, 1):
        step = _step(number, decision)
        if found and found[-1].is_like(step):
            found[-1] = replace(found[-1], replicas=found[-1].replicas + 1)
        else:
            found.append(step)
    return found


def _ask(decision: Decision) -> ReplicaAsk:
    return cast("ReplicaAsk", decision.ask)


def _step(number: int, decision: Decision) -> Step:
    ask = _ask(decision)
    return Step(number, 1, asked(ask), decision.name, (), sentence(decision, "pool"), ask.overflow)


def asked(ask: ReplicaAsk) -> str:
    """What this replica was bound to, beside what all of them are."""
    if ask.region:
        return f"in {ask.region}"
    return f"outside {', '.join(sorted(ask.avoid))}" if ask.avoid else "anywhere"


def _refused(decision: Decision, number: int, refusals: dict[str, Refusal], fleet: Fleet) -> str:
    """Notes why each pool refuses, and says it in a sentence. Of a replica without a place, what overflow targets said counts, too."""
    if decision.fits:
        _refuse(decision, number, refusals)
        return sentence(decision, "pool")
    with at_failure(_ask(decision).demand, fleet) as failure:
        _refuse(failure.decision if failure else decision, number, refusals)
        return failure.sentence if failure else sentence(decision, "pool")


def _refuse(decision: Decision, number: int, refusals: dict[str, Refusal]) -> None:
    """What is about this one replica only is all that matters if it found no place."""
    table = decision.table
    for name, refusal in refusals.items():
        row = table.row_of[name]
        refusal.decided.append(number)
        if decision.totals[row] > RULED_OUT:
            refusal.fits = True
            continue
        refusal.fits = refusal.fits and decision.fits
        for plugin, short in told(_reasons(decision, row), _ask(decision), fleet_of(table), row):
            kept = refusal.passing if decision.fits and plugin in PASSING else refusal.lasting
            ground = kept.setdefault((plugin, short.what, short.need), Ground(short))
            ground.short = short
            ground.replicas.append(number)


def _reasons(decision: Decision, row: int) -> list[Reason]:
    """Where a data center overflows: of itself not that it is no target, of what is no target not that there is no room for overflow."""
    found = [reason for reason, mask in decision.reasons.items() if mask[row]]
    if not _ask(decision).overflow or not any(isinstance(each, NotTheTarget) for each in found):
        return found
    needless = ("Overflow",) if offer_at(decision.table, row).is_static else ("Capacity", "Budget")
    return [each for each in found if each.plugin not in needless] or found
