"""Queries about the fleet: one query in, one document out, equal for the offline command line and the
server."""

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from lattice.errors import Malformed, NotFound
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.placement.explain.verdict import judge
from lattice.placement.fit.fit import fit
from lattice.placement.model.world import ObjectKey, World
from lattice.placement.optimise.optimise import MOVE_COST_MICROS, PAYBACK_HOURS, OptimiserOptions, optimise
from lattice.placement.optimise.solve import Clock, frozen_clock
from lattice.placement.plan.plan import FleetState, Plan, compare, converge, converge_both, plan
from lattice.placement.plan.whatif import WhatIfEvent, apply_event, loss_impacts, plan_event
from lattice.placement.queries.answer_documents import (
    drill_document,
    event_document,
    fit_document,
    optimum_document,
    why_document,
)
from lattice.placement.queries.cost_document import cost_document
from lattice.placement.queries.plan_document import Document, plan_document, rate_document
from lattice.placement.queries.why import explain_service, unplaced_replicas

Query = Mapping[str, Any]
# Limit of names that an error lists if no similar name exists.
MAX_LISTED_NAMES = 10


@dataclass(frozen=True, slots=True)
class QueryContext:
    """The input of a query: the fleet after placement has converged, the world without the changes of the
    query, and a clock for queries with a time limit."""

    state: FleetState
    world: World
    clock: Clock


def answer_query(
    query: Query,
    world: World,
    changes: Sequence[Kind] = (),
    deleted: Sequence[ObjectKey] = (),
    clock: Clock = frozen_clock,
) -> Document:
    """Answer the query about the world.

    `changes` and `deleted` are manifests to apply and objects to delete. A plan describes their effect; every
    other query is answered for the world after these changes.
    """
    if query["ask"] == "plan":
        if changes or deleted:
            return _document_of_plan(plan(world, changes, deleted), world)
        # Without changes the plan shows the remaining work for the declared objects.
        pending = compare(FleetState.current(world), converge(world, max_decisions=1))
        return _document_of_plan(pending, world)
    handler = QUERY_HANDLERS.get(query["ask"])
    if handler is None:
        raise Malformed(
            f"unknown query {query['ask']!r}", fix=f"use one of plan, {', '.join(QUERY_HANDLERS)}"
        )
    if "service" in query:
        service = query["service"]
        services = (world.with_objects(changes, deleted) if changes or deleted else world).services
        if service not in services:
            raise NotFound(f"there is no service {service}", fix=_suggest_name(service, services, "services"))
    # Without changes the cost is that of the recorded machines, which needs no placement.
    if query["ask"] == "cost" and not changes and not deleted and world.recorded_bill is not None:
        return handler(query, QueryContext(FleetState.current(world), world, clock))
    state = converge_both(world, changes, deleted)[1] if changes or deleted else converge(world)
    return handler(query, QueryContext(state, world, clock))


def _document_of_plan(plan: Plan, world: World) -> Document:
    return plan_document(
        plan, cast("FleetState", plan.state_before), cast("FleetState", plan.state_after), world
    )


def _answer_why(query: Query, context: QueryContext) -> Document:
    """Answer why the service is placed as it is."""
    state = context.state
    service, pool = query["service"], query.get("pool", "")
    if pool and pool not in state.fleet.table.row_of:
        raise NotFound(f"there is no pool {pool}", fix=_suggest_name(pool, state.fleet.table.row_of, "pools"))
    current = dict(FleetState.current(context.world).replica_counts.get(service, {}))
    return {
        **why_document(explain_service(state, service, current), state, pool),
        "placed": state.placed_replicas(service),
    }


def _answer_fit(query: Query, context: QueryContext) -> Document:
    """Answer which changes would make the service fit, also after a what-if event."""
    service, event = query["service"], _event(query)
    state = context.state if event == WhatIfEvent() else apply_event(context.state, event)
    figures: Document = {
        "replicas": state.world.demands[service].replicas,
        "placed": state.placed_replicas(service),
    }
    if event != WhatIfEvent():
        figures["event"] = event_document(event)
    figures["serviceCost"] = rate_document(state.service_rates.get(service, 0))
    with unplaced_replicas(state, service) as missing:
        if missing is None:
            # The service is placed: no change is needed.
            return {**fit_document(service, (), None), **figures}
        verdict = judge(missing.placement, state.fleet, state.world.services)
        orphaned_cost = state.orphaned.service_cost(service)
        suggestions = []
        for suggestion in fit(state.world, service, state.fleet):
            rate = suggestion.service_rate
            suggestions.append(
                replace(
                    suggestion,
                    rate_increase=suggestion.rate_increase - missing.freed_rate,
                    service_rate=None if rate is None else rate + orphaned_cost,
                )
            )
    return {**fit_document(service, suggestions, verdict), **figures}


def _answer_whatif(query: Query, context: QueryContext) -> Document:
    """Answer the effect of an event, or of the loss of each pool in turn."""
    if query.get("loseEach"):
        return drill_document(loss_impacts(context.state), context.state)
    event = _event(query)
    return {
        **_document_of_plan(plan_event(context.state, event), context.world),
        "ask": "whatif",
        "event": event_document(event),
    }


def _event(query: Query) -> WhatIfEvent:
    """The what-if event of the query, without repeated pools and compliance standards."""
    # Compliance standards are compared without case.
    drop = {(pool, compliance.lower()): (pool, compliance) for pool, compliance in query.get("drop", ())}
    return WhatIfEvent(
        tuple(dict.fromkeys(query.get("lose", ()))),
        tuple(drop.values()),
        query.get("priceMillionths", MILLIONTHS),
    )


def _answer_optimise(query: Query, context: QueryContext) -> Document:
    options = OptimiserOptions(
        query.get("maxMoves"),
        query.get("paybackHours", PAYBACK_HOURS),
        query.get("moveCostMicros", MOVE_COST_MICROS),
        query.get("timeLimitSeconds", 10.0),
    )
    fleet_plan = optimise(context.state, options, context.clock)
    return {
        **_document_of_plan(fleet_plan.plan, context.world),
        "ask": "optimise",
        **optimum_document(fleet_plan, options),
    }


def require_namespace(name: str, namespaces: Collection[str]) -> None:
    """Raise NotFound for a namespace that does not exist; without the check the answer would be empty and
    look valid."""
    if name not in namespaces:
        raise NotFound(
            f"there is no namespace {name}", fix=_suggest_name(name, dict.fromkeys(namespaces), "namespaces")
        )


def _suggest_name(name: str, names: Mapping[str, object], nouns: str) -> str:
    """Suggest an existing name: equal in another namespace, with the same beginning, or similar. The
    namespace does not count for similarity."""
    own_name = _bare(name)
    equal = [candidate for candidate in names if _bare(candidate) == own_name]
    beginning = [candidate for candidate in names if _bare(candidate).startswith(own_name)]
    similar = difflib.get_close_matches(own_name, sorted({*map(_bare, names)}), n=1)
    matches = equal or beginning or [candidate for candidate in names if _bare(candidate) in similar]
    if matches:
        return f"did you mean {min(matches)}?"
    if not names:
        return f"no {nouns} exist here"
    listed = ", ".join(sorted(names)[:MAX_LISTED_NAMES])
    if len(names) > MAX_LISTED_NAMES:
        hidden = len(names) - MAX_LISTED_NAMES
        return f"use one of: {listed} and {hidden:,} more; `lattice get {nouns}` lists all"
    return f"use one of: {listed}"


def _bare(name: str) -> str:
    return name.rpartition("/")[2]


QUERY_HANDLERS: Mapping[str, Callable[[Query, QueryContext], Document]] = {
    "why": _answer_why,
    "fit": _answer_fit,
    "whatif": _answer_whatif,
    "cost": lambda query, context: cost_document(
        context.state, query.get("by", "pool"), query.get("inNamespace", "")
    ),
    "optimise": _answer_optimise,
}
