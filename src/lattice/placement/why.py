"""Why is a service where it is, and why not elsewhere: every decision for it made anew, with every pool's scores and refusals."""

from dataclasses import dataclass, field, replace
from typing import cast

from lattice.engine.decide import RULED_OUT, Decision
from lattice.engine.explain import Ranked, ranked, sentence
from lattice.engine.plugin import Shortfall
from lattice.placement.demand import Demand, ReplicaAsk
from lattice.placement.fleet import Fleet
from lattice.placement.place import Placement, place, withdraw
from lattice.placement.plan import Where
from lattice.placement.size import settle
from lattice.placement.verdict import Verdict, judge
from lattice.placement.world import World, placed_counts

PASSING = ("Region", "Spread")  # filters that speak of one replica: a pool that they refuse may take the next one


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
        return (self.asked, self.chosen, self.overflow, self.summary) == (other.asked, other.chosen, other.overflow, other.summary)


@dataclass(slots=True)
class Refusal:
    """What rules a pool out. Nothing: at least one replica could go there."""

    pool: str
    lasting: dict[tuple[str, str, str], Shortfall] = field(default_factory=dict)  # by filter, what and need
    passing: dict[tuple[str, str, str], Shortfall] = field(default_factory=dict)  # about one replica only
    fits: bool = False

    @property
    def reasons(self) -> list[tuple[str, Shortfall]]:
        """Each with the filter that says so."""
        shown = self.lasting or ({} if self.fits else self.passing)
        return [(plugin, short) for (plugin, _, _), short in shown.items()]


@dataclass(frozen=True, slots=True)
class Why:
    demand: Demand
    now: dict[Where, int]  # where its replicas are
    would: dict[Where, int]  # where they would be put today
    steps: tuple[Step, ...]
    refusals: tuple[Refusal, ...]  # every pool, by name
    verdict: Verdict | None  # None: it is placed, or could be


def why(world: World, fleet: Fleet, service: str) -> Why:
    """As of now: its replicas are withdrawn, and placed again among everything else. `fleet`: the world's, settled; it stays as it is."""
    demand = world.demands[service]
    now = dict(placed_counts(world.fleet(), service))
    with fleet.what_if():
        withdraw(fleet, list(fleet.seats.get(service, ())))
        placement = _placed_again(demand, fleet)
        steps, refusals, would = _replayed(placement, fleet)
        verdict = None if placement.is_complete else judge(placement, fleet, world.services)
    return Why(demand, now, would, steps, refusals, verdict)


def _placed_again(demand: Demand, fleet: Fleet) -> Placement:
    with fleet.what_if():
        return place(demand, fleet, keep=demand.replicas)


def _replayed(placement: Placement, fleet: Fleet) -> tuple[tuple[Step, ...], tuple[Refusal, ...], dict[Where, int]]:
    """Scores hold only while the fleet is as it was at each decision, so the decisions are gone through once more."""
    refusals = {offer.name: Refusal(offer.name) for offer in sorted(fleet.offers, key=lambda each: each.name)}
    steps: list[Step] = []
    with fleet.what_if():
        for number, decision in enumerate(placement.decisions, 1):
            step = _step(number, decision)
            if steps and steps[-1].is_like(step):
                steps[-1] = replace(steps[-1], replicas=steps[-1].replicas + 1)
            else:
                steps.append(replace(step, best=tuple(ranked(decision, fleet.table.count))))
                _refuse(decision, refusals)
            if decision.fits:
                settle(_ask(decision), fleet, decision.chosen)
        would = dict(placed_counts(fleet, placement.demand.name)) if placement.is_complete else {}
    return tuple(steps), tuple(refusals.values()), would


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


def _refuse(decision: Decision, refusals: dict[str, Refusal]) -> None:
    """What is about this one replica only is all that matters if it found no place."""
    table = decision.table
    for name, refusal in refusals.items():
        row = table.row_of[name]
        if decision.totals[row] > RULED_OUT:
            refusal.fits = True
            continue
        refusal.fits = refusal.fits and decision.fits
        for reason, mask in decision.reasons.items():
            if mask[row]:
                kept = refusal.passing if decision.fits and reason.plugin in PASSING else refusal.lasting
                short = reason.detail(table, row)
                kept[reason.plugin, short.what, short.need] = short
