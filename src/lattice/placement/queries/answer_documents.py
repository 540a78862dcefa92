"""Documents about one service and about hypothetical changes: why, fit, what-if and optimise."""

from collections.abc import Sequence
from typing import Any

import msgspec

from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.placement.explain.verdict import Verdict
from lattice.placement.fit.fit import Suggestion
from lattice.placement.greedy.profile import FILTERS
from lattice.placement.model.object_changes import ObjectChange
from lattice.placement.optimise.optimise import FleetPlan, OptimiserOptions
from lattice.placement.plan.plan import FleetState
from lattice.placement.plan.whatif import LossImpact, WhatIfEvent
from lattice.placement.queries.plan_document import (
    Document,
    latency_documents,
    money_document,
    place_documents,
    price_document,
    rate_change_document,
    rate_document,
    shortfall_document,
    verdict_document,
)
from lattice.placement.queries.why import DecisionStep, PlacementExplanation, Rejection
from lattice.placement.status.fleet_status import PLACED, placed_reason

# Scores that differ by less are equal.
SCORE_TOLERANCE = 1e-9


def why_document(explanation: PlacementExplanation, state: FleetState, pool: str = "") -> Document:
    """Return the explanation of a service's placement; with `pool` only the decisions and rejections of that
    pool."""
    name = explanation.demand.name
    because = {
        "verdict": PLACED,
        "reason": placed_reason(
            explanation.demand, _pools(explanation.current_counts or explanation.desired_counts)
        ),
    }
    outcome: Document = verdict_document(explanation.verdict) if explanation.verdict else because
    return {
        "ask": "why",
        "service": name,
        "replicas": explanation.demand.replicas,
        "isPlaced": explanation.verdict is None,
        **outcome,
        "now": place_documents(explanation.current_counts),
        "would": place_documents(explanation.desired_counts),
        "isStale": bool(explanation.current_counts)
        and explanation.verdict is None
        and _pools(explanation.current_counts) != _pools(explanation.desired_counts),
        "cost": rate_document(state.service_rates.get(name, 0)),
        "isPriced": name not in state.unpriced_services,
        "requirements": [
            {"kind": requirement.kind, "text": str(requirement), "source": requirement.source}
            for requirement in explanation.demand.requirements
        ],
        "filters": [plugin.name for plugin in FILTERS],
        "decisions": [_step(step, pool) for step in explanation.steps],
        "pools": [
            _pool(rejection, state) for rejection in explanation.rejections if pool in ("", rejection.pool)
        ],
        "latencies": latency_documents(state, [name]),
        "prices": price_document(state.fleet),
    }


def _pools(counts: dict[Any, int]) -> dict[str, int]:
    """Replicas by pool, over all clusters of the pool."""
    replicas: dict[str, int] = {}
    for (pool, _, _), count in counts.items():
        replicas[pool] = replicas.get(pool, 0) + count
    return replicas


def _step(step: DecisionStep, pool: str) -> Document:
    pools = step.ranked_pools
    # Without a runner-up, and between equals, no score decided.
    has_rival = len(pools) > 1
    is_tie = has_rival and abs(pools[0].score - pools[1].score) < SCORE_TOLERANCE
    ranked = []
    for candidate in pools:
        if pool in ("", candidate.name):
            parts = [
                {"plugin": part.plugin, "score": round(part.score, 2), "weight": round(part.weight, 4)}
                for part in candidate.parts
            ]
            ranked.append({"name": candidate.name, "score": round(candidate.score, 3), "parts": parts})
    return {
        "firstReplica": step.first_replica,
        "replicas": step.replicas,
        "asked": step.constraint,
        "chosen": step.chosen or None,
        "runnerUp": pools[1].name if has_rival else None,
        "deciding": pools[0].deciding_score(pools[1]).plugin if has_rival and not is_tie else None,
        "isTie": is_tie,
        "overflowOf": step.overflow or None,
        "summary": step.summary,
        "ranked": ranked,
    }


def _pool(rejection: Rejection, state: FleetState) -> Document:
    offer = state.fleet.offers[state.fleet.row(rejection.pool)]
    reasons = [
        {**shortfall_document(shortfall, plugin), "replicas": replicas or None}
        for plugin, shortfall, replicas in rejection.reasons
    ]
    return {
        "name": rejection.pool,
        "kind": offer.kind,
        "region": offer.region,
        "fits": rejection.fits,
        "reasons": reasons,
    }


def fit_document(service: str, suggestions: Sequence[Suggestion], verdict: Verdict | None) -> Document:
    """Return the suggestions that make the service fit. The changes of a suggestion were tried together, and
    each of them is necessary.

    `serviceCost` is the cost of the service with the changes; `cost` is the additional cost of the whole
    fleet. `ahead` lists the waiting services that would take the freed capacity before this service;
    `isEnough` states whether the capacity suffices for all of them.
    """
    return {
        "ask": "fit",
        "service": service,
        "isPlaced": verdict is None,
        **(verdict_document(verdict) if verdict else {"verdict": PLACED, "reason": ""}),
        "suggestions": [
            {
                "who": list(suggestion.responsible),
                "sentence": suggestion.sentence,
                "cost": rate_document(suggestion.rate_increase),
                "serviceCost": None
                if suggestion.service_rate is None
                else rate_document(suggestion.service_rate),
                "isPriced": suggestion.is_priced,
                "ahead": list(suggestion.services_ahead),
                "isEnough": suggestion.is_enough,
                "changes": [_change(part) for part in suggestion.edits],
            }
            for suggestion in suggestions
        ],
    }


def _change(change: ObjectChange) -> Document:
    kind, namespace, name = change.target
    subject = {"kind": kind, **({"namespace": namespace} if namespace else {}), "name": name}
    values = {"before": _plain(change.old_value), "after": _plain(change.new_value)}
    return {
        "who": change.responsible,
        "object": subject,
        "path": change.path,
        **values,
        "sentence": change.sentence,
    }


def _plain(value: object) -> object:
    """The value with JSON types only, without tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))


def event_document(event: WhatIfEvent) -> Document:
    return {
        "lose": list(event.lost_offers),
        "drop": [{"pool": pool, "compliance": compliance} for pool, compliance in event.dropped_compliance],
        "priceMillionths": event.price_millionths,
    }


def drill_document(impacts: Sequence[LossImpact], state: FleetState) -> Document:
    """Return the impact of losing each pool in turn; the pool is restored before the next pool is lost."""
    rate_before = sum(state.offer_rates.values())
    return {
        "ask": "drill",
        "prices": price_document(state.fleet, state.bill),
        "isEmpty": not any(impact.moved or impact.newly_unplaced for impact in impacts),
        "isFeasible": not any(impact.newly_unplaced for impact in impacts),
        "losses": [
            {
                "pool": impact.offer,
                "moved": [
                    {"name": name, "to": place_documents(to)} for name, to in sorted(impact.moved.items())
                ],
                "leftWithout": list(impact.newly_unplaced),
                "cost": rate_change_document(rate_before, impact.cost),
            }
            for impact in impacts
        ],
    }


def optimum_document(fleet_plan: FleetPlan, options: OptimiserOptions) -> Document:
    """Return the figures of the optimisation; `gapMillionths` is the largest share of the cost that might
    still be saved."""
    return {
        "moves": fleet_plan.moves,
        "saving": rate_document(fleet_plan.saving),
        "bound": rate_document(fleet_plan.bound),
        "gapMillionths": round(fleet_plan.gap * MILLIONTHS),
        "solver": {"status": fleet_plan.status, "note": fleet_plan.note},
        "effort": {
            "maxMoves": options.max_moves,
            "paybackHours": options.payback_hours,
            "moveCost": money_document(options.move_cost),
            "timeLimitSeconds": options.time_limit_s,
        },
    }
