"""Documents about one service, and about what might happen: why, fit and whatif."""

from collections.abc import Sequence
from typing import Any

import msgspec

from lattice.engine.explain import Ranked
from lattice.placement.model.edits import Change
from lattice.placement.fit.fit import Suggestion
from lattice.placement.optimise.optimise import Effort, FleetPlan
from lattice.placement.plan.plan import Settled
from lattice.placement.greedy.profile import FILTERS
from lattice.placement.queries.plan_document import (
    Document,
    changing,
    latencies,
    money,
    places,
    prices,
    rate,
    shortfall,
    verdict,
)
from lattice.placement.status.service_status import PLACED, placed_because
from lattice.placement.explain.verdict import Verdict
from lattice.placement.plan.whatif import Event, Loss
from lattice.placement.queries.why import Refusal, Step, Why


def why_document(found: Why, settled: Settled, pool: str = "") -> Document:
    """With a pool, only what is about it."""
    name = found.demand.name
    because = {"verdict": PLACED, "reason": placed_because(found.demand, _pools(found.now or found.would))}
    told: Document = verdict(found.verdict) if found.verdict else because
    return {
        "ask": "why",
        "service": name,
        "replicas": found.demand.replicas,
        "isPlaced": found.verdict is None,
        **told,
        "now": places(found.now),
        "would": places(found.would),
        "isStale": bool(found.now) and found.verdict is None and _pools(found.now) != _pools(found.would),
        "cost": rate(settled.costs.get(name, 0)),
        "requirements": [
            {"kind": each.kind, "text": str(each), "source": each.source}
            for each in found.demand.requirements
        ],
        "filters": [each.name for each in FILTERS],
        "decisions": [_step(each, pool) for each in found.steps],
        "pools": [_pool(each, settled) for each in found.refusals if pool in ("", each.pool)],
        "latencies": latencies(settled, [name]),
        "prices": prices(settled.fleet),
    }


def _pools(counts: dict[Any, int]) -> dict[str, int]:
    """Replicas by pool: which cluster of it they are in does not matter."""
    found: dict[str, int] = {}
    for (pool, _, _), count in counts.items():
        found[pool] = found.get(pool, 0) + count
    return found


def _step(each: Step, pool: str) -> Document:
    return {
        "firstReplica": each.first,
        "replicas": each.replicas,
        "asked": each.asked,
        "chosen": each.chosen or None,
        "runnerUp": each.best[1].name if len(each.best) > 1 else None,
        "deciding": each.best[0].deciding_over(each.best[1]).plugin if len(each.best) > 1 else None,
        "overflowOf": each.overflow or None,
        "summary": each.summary,
        "ranked": [_ranked(ranked) for ranked in each.best if pool in ("", ranked.name)],
    }


def _ranked(each: Ranked) -> Document:
    parts = [
        {"plugin": part.plugin, "score": round(part.score, 2), "weight": round(part.weight, 4)}
        for part in each.parts
    ]
    return {"name": each.name, "score": round(each.score, 3), "parts": parts}


def _pool(each: Refusal, settled: Settled) -> Document:
    offer = settled.fleet.offers[settled.fleet.row(each.pool)]
    reasons = [
        {**shortfall(short, plugin), "replicas": which or None} for plugin, short, which in each.reasons
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
        **(verdict(why_not) if why_not else {"verdict": PLACED, "reason": ""}),
        "suggestions": [
            {
                "who": list(each.who),
                "sentence": each.sentence,
                "cost": rate(each.rate),
                "serviceCost": None if each.service_rate is None else rate(each.service_rate),
                "isPriced": each.is_priced,
                "ahead": list(each.ahead),
                "isEnough": each.is_enough,
                "changes": [_change(part) for part in each.changes],
            }
            for each in found
        ],
    }


def _change(each: Change) -> Document:
    kind, namespace, name = each.object
    subject = {"kind": kind, **({"namespace": namespace} if namespace else {}), "name": name}
    values = {"before": _plain(each.before), "after": _plain(each.after)}
    return {"who": each.who, "object": subject, "path": each.path, **values, "sentence": each.sentence}


def _plain(value: object) -> object:
    """As JSON has it: no tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))


def event_document(event: Event) -> Document:
    return {
        "lose": list(event.lose),
        "drop": [{"pool": pool, "compliance": certificate} for pool, certificate in event.drop],
        "priceMillionths": event.price,
    }


def drill_document(found: Sequence[Loss], settled: Settled) -> Document:
    """What losing each pool in turn would do; everything is back before the next one is lost."""
    now = sum(settled.rates.values())
    return {
        "ask": "drill",
        "isEmpty": not any(each.moved or each.left_without for each in found),
        "isFeasible": not any(each.left_without for each in found),
        "losses": [
            {
                "pool": each.offer,
                "moved": [{"name": name, "to": places(to)} for name, to in sorted(each.moved.items())],
                "leftWithout": list(each.left_without),
                "cost": changing(now, each.cost),
            }
            for each in found
        ],
    }


def optimum_document(found: FleetPlan, effort: Effort) -> Document:
    """`gapMillionths`: the part of the cost after that might still be saved, at most."""
    return {
        "moves": found.moves,
        "saving": rate(found.saving),
        "bound": rate(found.bound),
        "gapMillionths": round(found.gap * 1_000_000),
        "solver": {"status": found.status, "note": found.note},
        "effort": {
            "maxMoves": effort.max_moves,
            "paybackHours": effort.payback_hours,
            "moveCost": money(effort.move_cost),
            "timeLimitSeconds": effort.time_limit,
        },
    }
