"""One question about the fleet, one answer: the same for the command line offline and for a server."""

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from lattice.errors import Malformed, NotFound
from lattice.kinds.meta.base import Kind
from lattice.placement.optimise.deadline import Clock, stopped
from lattice.placement.fit.fit import fit
from lattice.placement.queries.lack import lack
from lattice.placement.optimise.optimise import MOVE_COST, PAYBACK_HOURS, Effort, optimise
from lattice.placement.plan.plan import Plan, Settled, compare, plan, settle, settle_both
from lattice.placement.queries.plan_document import Document, cost_document, plan_document, rate
from lattice.placement.queries.service_documents import (
    drill_document,
    event_document,
    fit_document,
    optimum_document,
    why_document,
)
from lattice.placement.explain.verdict import judge
from lattice.placement.plan.whatif import Event, after, happening, losses
from lattice.placement.queries.why import why
from lattice.placement.model.world import Key, World

Question = Mapping[str, Any]
SOME = 10  # names listed where none is near


@dataclass(frozen=True, slots=True)
class Subject:
    """What a question is about: everything settled, the world as it is, and a clock for those that may take time."""

    settled: Settled
    world: World
    clock: Clock


def answer(
    question: Question,
    world: World,
    changes: Sequence[Kind] = (),
    gone: Sequence[Key] = (),
    clock: Clock = stopped,
) -> Document:
    """`changes` and `gone`: manifests to be applied and objects to be deleted. A plan is about them; other questions are asked
    of the world that such a plan leads to. `clock`: for questions that look for the best within a time."""
    if question["ask"] == "plan":
        return _planned(_plan(world, changes, gone), world)
    asked = ASKS.get(question["ask"])
    if asked is None:
        raise Malformed(
            f"there is no question {question['ask']!r}", fix=f"ask one of plan, {', '.join(ASKS)}"
        )
    if "service" in question:
        _known(question["service"], world.having(changes, gone) if changes or gone else world)
    settled = settle_both(world, changes, gone)[1] if changes or gone else settle(world)
    return asked(question, Subject(settled, world, clock))


def _plan(world: World, changes: Sequence[Kind], gone: Sequence[Key]) -> Plan:
    """Of no change: what is still to be done for what is declared already."""
    if changes or gone:
        return plan(world, changes, gone)
    return compare(Settled.now(world), settle(world, keep=1))


def _planned(made: Plan, now: World) -> Document:
    return plan_document(made, cast("Settled", made.before), cast("Settled", made.after), now)


def _why(question: Question, about: Subject) -> Document:
    settled = about.settled
    service, pool = question["service"], question.get("pool", "")
    if pool and pool not in settled.fleet.table.row_of:
        raise NotFound(f"there is no pool {pool}", fix=_nearest(pool, settled.fleet.table.row_of, "pools"))
    now = dict(Settled.now(about.world).where.get(service, {}))
    return {**why_document(why(settled, service, now), settled, pool), "placed": settled.placed(service)}


def _fit(question: Question, about: Subject) -> Document:
    """Where something happens, too: what would make it fit then."""
    service, event = question["service"], _event(question)
    settled = about.settled if event == Event() else after(about.settled, event)
    has: Document = {"replicas": settled.world.demands[service].replicas, "placed": settled.placed(service)}
    has |= {"event": event_document(event)} if event != Event() else {}
    has["serviceCost"] = rate(settled.costs.get(service, 0))
    with lack(settled, service) as missing:
        if missing is None:
            return {**fit_document(service, (), None), **has}
        verdict = judge(missing.placement, settled.fleet, settled.world.services)
        adrift = settled.adrift.cost(service)
        found = [
            replace(
                each,
                rate=each.rate - missing.freed,
                service_rate=None if each.service_rate is None else each.service_rate + adrift,
            )
            for each in fit(settled.world, service, settled.fleet)
        ]
    return {**fit_document(service, found, verdict), **has}


def _whatif(question: Question, about: Subject) -> Document:
    if question.get("loseEach"):
        return drill_document(losses(about.settled), about.settled)
    event = _event(question)
    return {
        **_planned(happening(about.settled, event), about.world),
        "ask": "whatif",
        "event": event_document(event),
    }


def _event(question: Question) -> Event:
    """What is said twice happens once."""
    drop = {
        (pool, certificate.lower()): (pool, certificate) for pool, certificate in question.get("drop", ())
    }
    return Event(
        tuple(dict.fromkeys(question.get("lose", ()))),
        tuple(drop.values()),
        question.get("priceMillionths", 1_000_000),
    )


def _cost(question: Question, about: Subject) -> Document:
    return cost_document(about.settled, question.get("by", "pool"), question.get("inNamespace", ""))


def _optimise(question: Question, about: Subject) -> Document:
    effort = Effort(
        question.get("maxMoves"),
        question.get("paybackHours", PAYBACK_HOURS),
        question.get("moveCostMicros", MOVE_COST),
        question.get("timeLimitSeconds", 10.0),
    )
    found = optimise(about.settled, effort, about.clock)
    return {**_planned(found.plan, about.world), "ask": "optimise", **optimum_document(found, effort)}


def _known(name: str, world: World) -> None:
    if name not in world.services:
        raise NotFound(f"there is no service {name}", fix=_nearest(name, world.services, "services"))


def demand_namespace(name: str, known: Collection[str]) -> None:
    """Refuses one that nobody declared: whatever is asked about it, the answer would be nothing, and look like one."""
    if name not in known:
        raise NotFound(
            f"there is no namespace {name}", fix=_nearest(name, dict.fromkeys(known), "namespaces")
        )


def _nearest(name: str, known: Mapping[str, object], nouns: str) -> str:
    """The same in another namespace, what begins so, or what looks alike; the namespace alone makes no two names alike."""
    bare = _bare(name)
    same = [each for each in known if _bare(each) == bare]
    begun = [each for each in known if _bare(each).startswith(bare)]
    alike = difflib.get_close_matches(bare, sorted({*map(_bare, known)}), n=1)
    near = same or begun or [each for each in known if _bare(each) in alike]
    if near:
        return f"did you mean {min(near)}?"
    if not known:
        return f"there are no {nouns} here"
    more = f", and {len(known) - SOME:,} more: `lattice get {nouns}` lists them" if len(known) > SOME else ""
    return f"there {'is' if len(known) == 1 else 'are'} {', '.join(sorted(known)[:SOME])}{more}"


def _bare(name: str) -> str:
    return name.rpartition("/")[2]


ASKS: Mapping[str, Callable[[Question, Subject], Document]] = {
    "why": _why,
    "fit": _fit,
    "whatif": _whatif,
    "cost": _cost,
    "optimise": _optimise,
}
