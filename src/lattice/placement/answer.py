"""One question about the fleet, one answer: the same for the command line offline and for a server."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from lattice.errors import Malformed, NotFound
from lattice.kinds.base import Kind
from lattice.placement.fit import fit
from lattice.placement.optimise import MOVE_COST, PAYBACK_HOURS, Effort, optimise
from lattice.placement.plan import Plan, Settled, compare, plan, settle
from lattice.placement.report import Document, cost_document, plan_document
from lattice.placement.told import drill_document, event_document, fit_document, optimum_document, why_document
from lattice.placement.verdict import judge
from lattice.placement.whatif import Event, after, losses, whatif
from lattice.placement.why import why
from lattice.placement.world import Key, World

Question = Mapping[str, Any]
SOME = 10  # names listed where none is near


def answer(question: Question, world: World, changes: Sequence[Kind] = (), gone: Sequence[Key] = ()) -> Document:
    """`changes` and `gone`: manifests to be applied and objects to be deleted. A plan is about them; other questions are asked
    as if that had happened."""
    if question["ask"] == "plan":
        return _planned(_plan(world, changes, gone))
    if question["ask"] == "fit" and (changes or gone):
        return _fit(question, settle(world).applied().having(changes, gone))
    asked = ASKS.get(question["ask"])
    if asked is None:
        raise Malformed(f"there is no question {question['ask']!r}", fix=f"ask one of plan, {', '.join(ASKS)}")
    return asked(question, world.having(changes, gone) if changes or gone else world)


def _plan(world: World, changes: Sequence[Kind], gone: Sequence[Key]) -> Plan:
    """Of no change: what is still to be done for what is declared already."""
    if changes or gone:
        return plan(world, changes, gone)
    return compare(Settled(world, world.fleet(), {}), settle(world, keep=1))


def _planned(made: Plan) -> Document:
    return plan_document(made, cast("Settled", made.before), cast("Settled", made.after))


def _why(question: Question, world: World) -> Document:
    service, pool = _service(question["service"], world), question.get("pool", "")
    settled = settle(world)
    if pool and pool not in settled.fleet.table.row_of:
        raise NotFound(f"there is no pool {pool}", fix=_nearest(pool, settled.fleet.table.row_of, "pools"))
    return {**why_document(why(world, settled.fleet, service), settled, pool), "placed": len(settled.fleet.seats.get(service, ()))}


def _fit(question: Question, world: World) -> Document:
    """Where something happens, too: what would make it fit then."""
    service, event = _service(question["service"], world), _event(question)
    settled = settle(world) if event == Event() else after(settle(world), event)
    placement = settled.unplaced.get(service)
    has: Document = {"replicas": settled.world.demands[service].replicas, "placed": len(settled.fleet.seats.get(service, ()))}
    has |= {"event": event_document(event)} if event != Event() else {}
    if placement is None:
        return {**fit_document(service, (), None), **has}
    verdict = judge(placement, settled.fleet, settled.world.services)
    return {**fit_document(service, fit(settled.world, service, settled.fleet), verdict), **has}


def _whatif(question: Question, world: World) -> Document:
    if question.get("loseEach"):
        settled = settle(world)
        return drill_document(losses(settled), settled)
    event = _event(question)
    return {**_planned(whatif(world, event)), "ask": "whatif", "event": event_document(event)}


def _event(question: Question) -> Event:
    """What is said twice happens once."""
    drop = {(pool, certificate.lower()): (pool, certificate) for pool, certificate in question.get("drop", ())}
    return Event(tuple(dict.fromkeys(question.get("lose", ()))), tuple(drop.values()), question.get("priceMillionths", 1_000_000))


def _cost(question: Question, world: World) -> Document:
    return cost_document(settle(world), question.get("by", "pool"), question.get("inNamespace", ""))


def _optimise(question: Question, world: World) -> Document:
    effort = Effort(
        question.get("maxMoves"),
        question.get("paybackHours", PAYBACK_HOURS),
        question.get("moveCostMicros", MOVE_COST),
        question.get("timeLimitSeconds", 10.0),
    )
    found = optimise(settle(world), effort)
    return {**_planned(found.plan), "ask": "optimise", **optimum_document(found, effort)}


def _service(name: str, world: World) -> str:
    if name not in world.services:
        raise NotFound(f"there is no service {name}", fix=_nearest(name, world.services, "services"))
    return name


def _nearest(name: str, known: Mapping[str, object], nouns: str) -> str:
    """The same in another namespace, what begins so, or what looks alike."""
    bare = name.rpartition("/")[2]
    same = [each for each in known if each.rpartition("/")[2] == bare]
    begun = [each for each in known if each.rpartition("/")[2].startswith(bare)]
    near = same or begun or difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {min(near)}?"
    return f"there are {', '.join(sorted(known)[:SOME])}" if known else f"there are no {nouns} here"


ASKS: Mapping[str, Callable[[Question, World], Document]] = {
    "why": _why,
    "fit": _fit,
    "whatif": _whatif,
    "cost": _cost,
    "optimise": _optimise,
}
