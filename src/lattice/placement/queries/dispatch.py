"""One question about the fleet, one answer: the same for the command line offline and for a server."""

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from lattice.errors import Malformed, NotFound
from lattice.kinds.meta.base import Kind
from lattice.placement.explain.verdict import judge
from lattice.placement.fit.fit import fit
from lattice.placement.model.world import ObjectKey, World
from lattice.placement.optimise.optimise import MOVE_COST_MICROS, PAYBACK_HOURS, OptimiserOptions, optimise
from lattice.placement.optimise.solve import Clock, frozen_clock
from lattice.placement.plan.plan import FleetState, Plan, compare, converge, converge_both, plan
from lattice.placement.plan.whatif import WhatIfEvent, apply_event, loss_impacts, plan_event
from lattice.placement.queries.plan_document import Document, cost_document, plan_document, rate_document
from lattice.placement.queries.service_documents import (
    drill_document,
    event_document,
    fit_document,
    optimum_document,
    why_document,
)
from lattice.placement.queries.why import explain_service, unplaced_replicas

Query = Mapping[str, Any]
MAX_LISTED_NAMES = 10  # names listed where none is near


@dataclass(frozen=True, slots=True)
class QueryContext:
    """What a question is about: everything settled, the world as it is, and a clock for those that may take time."""

    state: FleetState
    world: World
    clock: Clock


def answer_query(
    question: Query,
    world: World,
    changes: Sequence[Kind] = (),
    deleted: Sequence[ObjectKey] = (),
    clock: Clock = frozen_clock,
) -> Document:
    """`changes` and `gone`: manifests to be applied and objects to be deleted. A plan is about them; other questions are asked
    of the world that such a plan leads to. `clock`: for questions that look for the best within a time."""
    if question["ask"] == "plan":
        return _document_of_plan(_plan(world, changes, deleted), world)
    asked = QUERY_HANDLERS.get(question["ask"])
    if asked is None:
        raise Malformed(
            f"there is no question {question['ask']!r}", fix=f"ask one of plan, {', '.join(QUERY_HANDLERS)}"
        )
    if "service" in question:
        _require_service(
            question["service"], world.with_objects(changes, deleted) if changes or deleted else world
        )
    settled = converge_both(world, changes, deleted)[1] if changes or deleted else converge(world)
    return asked(question, QueryContext(settled, world, clock))


def _plan(world: World, changes: Sequence[Kind], gone: Sequence[ObjectKey]) -> Plan:
    """Of no change: what is still to be done for what is declared already."""
    if changes or gone:
        return plan(world, changes, gone)
    return compare(FleetState.current(world), converge(world, max_decisions=1))


def _document_of_plan(made: Plan, now: World) -> Document:
    return plan_document(
        made, cast("FleetState", made.state_before), cast("FleetState", made.state_after), now
    )


def _explain(question: Query, about: QueryContext) -> Document:
    settled = about.state
    service, pool = question["service"], question.get("pool", "")
    if pool and pool not in settled.fleet.table.row_of:
        raise NotFound(
            f"there is no pool {pool}", fix=_suggest_name(pool, settled.fleet.table.row_of, "pools")
        )
    now = dict(FleetState.current(about.world).replica_counts.get(service, {}))
    return {
        **why_document(explain_service(settled, service, now), settled, pool),
        "placed": settled.placed_replicas(service),
    }


def _fit(question: Query, about: QueryContext) -> Document:
    """Where something happens, too: what would make it fit then."""
    service, event = question["service"], _event(question)
    settled = about.state if event == WhatIfEvent() else apply_event(about.state, event)
    has: Document = {
        "replicas": settled.world.demands[service].replicas,
        "placed": settled.placed_replicas(service),
    }
    has |= {"event": event_document(event)} if event != WhatIfEvent() else {}
    has["serviceCost"] = rate_document(settled.service_rates.get(service, 0))
    with unplaced_replicas(settled, service) as missing:
        if missing is None:
            return {**fit_document(service, (), None), **has}
        verdict = judge(missing.placement, settled.fleet, settled.world.services)
        adrift = settled.orphaned.service_cost(service)
        found = [
            replace(
                each,
                rate_increase=each.rate_increase - missing.freed_rate,
                service_rate=None if each.service_rate is None else each.service_rate + adrift,
            )
            for each in fit(settled.world, service, settled.fleet)
        ]
    return {**fit_document(service, found, verdict), **has}


def _whatif(question: Query, about: QueryContext) -> Document:
    if question.get("loseEach"):
        return drill_document(loss_impacts(about.state), about.state)
    event = _event(question)
    return {
        **_document_of_plan(plan_event(about.state, event), about.world),
        "ask": "whatif",
        "event": event_document(event),
    }


def _event(question: Query) -> WhatIfEvent:
    """What is said twice happens once."""
    drop = {
        (pool, certificate.lower()): (pool, certificate) for pool, certificate in question.get("drop", ())
    }
    return WhatIfEvent(
        tuple(dict.fromkeys(question.get("lose", ()))),
        tuple(drop.values()),
        question.get("priceMillionths", 1_000_000),
    )


def _cost(question: Query, about: QueryContext) -> Document:
    return cost_document(about.state, question.get("by", "pool"), question.get("inNamespace", ""))


def _optimise(question: Query, about: QueryContext) -> Document:
    effort = OptimiserOptions(
        question.get("maxMoves"),
        question.get("paybackHours", PAYBACK_HOURS),
        question.get("moveCostMicros", MOVE_COST_MICROS),
        question.get("timeLimitSeconds", 10.0),
    )
    found = optimise(about.state, effort, about.clock)
    return {
        **_document_of_plan(found.plan, about.world),
        "ask": "optimise",
        **optimum_document(found, effort),
    }


def _require_service(name: str, world: World) -> None:
    if name not in world.services:
        raise NotFound(f"there is no service {name}", fix=_suggest_name(name, world.services, "services"))


def require_namespace(name: str, known: Collection[str]) -> None:
    """Refuses one that nobody declared: whatever is asked about it, the answer would be nothing, and look like one."""
    if name not in known:
        raise NotFound(
            f"there is no namespace {name}", fix=_suggest_name(name, dict.fromkeys(known), "namespaces")
        )


def _suggest_name(name: str, known: Mapping[str, object], nouns: str) -> str:
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
    more = (
        f", and {len(known) - MAX_LISTED_NAMES:,} more: `lattice get {nouns}` lists them"
        if len(known) > MAX_LISTED_NAMES
        else ""
    )
    return f"there {'is' if len(known) == 1 else 'are'} {', '.join(sorted(known)[:MAX_LISTED_NAMES])}{more}"


def _bare(name: str) -> str:
    return name.rpartition("/")[2]


QUERY_HANDLERS: Mapping[str, Callable[[Query, QueryContext], Document]] = {
    "why": _explain,
    "fit": _fit,
    "whatif": _whatif,
    "cost": _cost,
    "optimise": _optimise,
}
