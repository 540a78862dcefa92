"""Documents about one service, and about what might happen: why, fit and whatif."""

from collections.abc import Sequence
from typing import Any

import msgspec

from lattice.engine.explain import RankedCandidate
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
from lattice.placement.status.service_status import PLACED, placed_because


def why_document(found: PlacementExplanation, settled: FleetState, pool: str = "") -> Document:
    """With a pool, only what is about it."""
    name = found.demand.name
    because = {
        "verdict": PLACED,
        "reason": placed_because(found.demand, _pools(found.current_counts or found.desired_counts)),
    }
    told: Document = verdict_document(found.verdict) if found.verdict else because
    return {
        "ask": "why",
        "service": name,
        "replicas": found.demand.replicas,
        "isPlaced": found.verdict is None,
        **told,
        "now": place_documents(found.current_counts),
        "would": place_documents(found.desired_counts),
        "isStale": bool(found.current_counts)
        and found.verdict is None
        and _pools(found.current_counts) != _pools(found.desired_counts),
        "cost": rate_document(settled.service_rates.get(name, 0)),
        "requirements": [
            {"kind": each.kind, "text": str(each), "source": each.source}
            for each in found.demand.requirements
        ],
        "filters": [each.name for each in FILTERS],
        "decisions": [_step(each, pool) for each in found.steps],
        "pools": [_pool(each, settled) for each in found.rejections if pool in ("", each.pool)],
        "latencies": latency_documents(settled, [name]),
        "prices": price_document(settled.fleet),
    }


def _pools(counts: dict[Any, int]) -> dict[str, int]:
    """Replicas by pool: which cluster of it they are in does not matter."""
    found: dict[str, int] = {}
    for (pool, _, _), count in counts.items():
        found[pool] = found.get(pool, 0) + count
    return found


def _step(each: DecisionStep, pool: str) -> Document:
    return {
        "firstReplica": each.first_replica,
        "replicas": each.replicas,
        "asked": each.constraint,
        "chosen": each.chosen or None,
        "runnerUp": each.ranked_pools[1].name if len(each.ranked_pools) > 1 else None,
        "deciding": each.ranked_pools[0].deciding_score(each.ranked_pools[1]).plugin
        if len(each.ranked_pools) > 1
        else None,
        "overflowOf": each.overflow or None,
        "summary": each.summary,
        "ranked": [_ranked(ranked) for ranked in each.ranked_pools if pool in ("", ranked.name)],
    }


def _ranked(each: RankedCandidate) -> Document:
    parts = [
        {"plugin": part.plugin, "score": round(part.score, 2), "weight": round(part.weight, 4)}
        for part in each.parts
    ]
    return {"name": each.name, "score": round(each.score, 3), "parts": parts}


def _pool(each: Rejection, settled: FleetState) -> Document:
    offer = settled.fleet.offers[settled.fleet.row(each.pool)]
    reasons = [
        {**shortfall_document(short, plugin), "replicas": which or None}
        for plugin, short, which in each.reasons
    ]
    return {
        "name": each.pool,
        "kind": offer.kind,
        "region": offer.region,
        "fits": each.fits,
        "reasons": reasons,
    }


def fit_document(service: str, found: Sequence[Suggestion], why_not: Verdict | None) -> Document:
    """Each suggestion was tried: all of its changes together make the service fit, and none can be left out.

    `serviceCost` is what the service costs then, `cost` what is paid more for all there is than while it lacks what it lacks.

    Others that wait, too, and come first are `ahead`: they get their part of it; where it is not enough for all, `isEnough` is false.
    """
    return {
        "ask": "fit",
        "service": service,
        "isPlaced": why_not is None,
        **(verdict_document(why_not) if why_not else {"verdict": PLACED, "reason": ""}),
        "suggestions": [
            {
                "who": list(each.responsible),
                "sentence": each.sentence,
                "cost": rate_document(each.rate_increase),
                "serviceCost": None if each.service_rate is None else rate_document(each.service_rate),
                "isPriced": each.is_priced,
                "ahead": list(each.services_ahead),
                "isEnough": each.is_enough,
                "changes": [_change(part) for part in each.edits],
            }
            for each in found
        ],
    }


def _change(each: ObjectChange) -> Document:
    kind, namespace, name = each.target
    subject = {"kind": kind, **({"namespace": namespace} if namespace else {}), "name": name}
    values = {"before": _plain(each.old_value), "after": _plain(each.new_value)}
    return {
        "who": each.responsible,
        "object": subject,
        "path": each.path,
        **values,
        "sentence": each.sentence,
    }


def _plain(value: object) -> object:
    """As JSON has it: no tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))


def event_document(event: WhatIfEvent) -> Document:
    return {
        "lose": list(event.lost_offers),
        "drop": [
            {"pool": pool, "compliance": certificate} for pool, certificate in event.dropped_certificates
        ],
        "priceMillionths": event.price_millionths,
    }


def drill_document(found: Sequence[LossImpact], settled: FleetState) -> Document:
    """What losing each pool in turn would do; everything is back before the next one is lost."""
    now = sum(settled.offer_rates.values())
    return {
        "ask": "drill",
        "isEmpty": not any(each.moved or each.newly_unplaced for each in found),
        "isFeasible": not any(each.newly_unplaced for each in found),
        "losses": [
            {
                "pool": each.offer,
                "moved": [
                    {"name": name, "to": place_documents(to)} for name, to in sorted(each.moved.items())
                ],
                "leftWithout": list(each.newly_unplaced),
                "cost": rate_change_document(now, each.cost),
            }
            for each in found
        ],
    }


def optimum_document(found: FleetPlan, effort: OptimiserOptions) -> Document:
    """`gapMillionths`: the part of the cost after that might still be saved, at most."""
    return {
        "moves": found.moves,
        "saving": rate_document(found.saving),
        "bound": rate_document(found.bound),
        "gapMillionths": round(found.gap * 1_000_000),
        "solver": {"status": found.status, "note": found.note},
        "effort": {
            "maxMoves": effort.max_moves,
            "paybackHours": effort.payback_hours,
            "moveCost": money_document(effort.move_cost),
            "timeLimitSeconds": effort.time_limit_s,
        },
    }
