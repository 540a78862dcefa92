"""What should be said about a service's placement: is it placed, is what it names there, would it be put elsewhere today?"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from lattice.kinds.meta.base import Condition
from lattice.kinds.service import LatticeService, PlacedIn, SchedulerDecision, ServiceStatus
from lattice.placement.greedy.place_all import stale
from lattice.placement.explain.awaited import Services
from lattice.placement.model.edits import plain
from lattice.placement.model.demand import Demand, key_of
from lattice.placement.model.fleet import Fleet
from lattice.placement.greedy.place import Placement
from lattice.placement.greedy.commit_stages import Decided
from lattice.placement.status.service_status import PLACED, Answer, decision_of, with_placement
from lattice.placement.explain.verdict import judge

NAMED = 3  # reasons told in a condition
PLACED_CONDITION, STALE_CONDITION, RESOLVED_CONDITION = "Placed", "PlacementStale", "ReferencesResolved"


@dataclass(frozen=True, slots=True)
class Said:
    """What a service's status is to say; who writes it adds the times."""

    status: ServiceStatus  # but for its conditions
    conditions: tuple[Condition, ...]


def judged(placement: Placement, fleet: Fleet, known: Services, state: str) -> SchedulerDecision:
    """Placed, or with the verdict on those that are not."""
    if placement.is_complete:
        return decision_of(Answer(placement, state=state), fleet)
    verdict = judge(placement, fleet, known)
    return decision_of(
        Answer(placement, verdict.kind, verdict.reason, plain(verdict.required.properties()), state), fleet
    )


def said(service: LatticeService, decided: Decided, decision: SchedulerDecision | None) -> Said:
    """`decision`: None where the last one stands."""
    before, fleet, name = service.status, decided.fleet, key_of(service)
    demand, known = decided.world.demands[name], decided.world.services
    stranded = decided.stranded.get(name, ())
    placed = (*stranded, *with_placement(service, fleet, None).status.placements)
    status = msgspec.structs.replace(
        before,
        placements=placed,
        scheduler_decision=before.scheduler_decision if decision is None else decision,
    )
    reasons = [*(f"{each.pool}: is not offered any more" for each in stranded), *_reasons(demand, fleet)]
    found = [
        _placed(demand, placed, status.scheduler_decision),
        resolved(service, demand, known),
        *_stale(service, reasons, bool(placed)),
    ]
    generation = service.metadata.generation
    return Said(
        status, tuple(msgspec.structs.replace(each, observed_generation=generation) for each in found)
    )


def _placed(demand: Demand, placed: Iterable[PlacedIn], decision: SchedulerDecision | None) -> Condition:
    count = sum(each.replicas or 0 for each in placed)
    reason = decision.reason if decision else ""
    if count >= demand.replicas and not demand.problem:
        return Condition(
            type=PLACED_CONDITION,
            status="True",
            reason=PLACED,
            message=f"{count} of {demand.replicas} replicas are placed",
        )
    words = f"{count} of {demand.replicas} replicas are placed: {reason}" if count else reason
    verdict = decision.verdict if decision and decision.verdict != PLACED else "NotNow"
    return Condition(type=PLACED_CONDITION, status="False", reason=verdict, message=words)


def resolved(service: LatticeService, demand: Demand, known: Collection[str]) -> Condition:
    """References are not checked when it is applied: what they name may come later."""
    own = service.metadata.namespace or "default"
    named = [
        f"{each.namespace or own}/{each.id or name}"
        for name, each in sorted(service.spec.resources.items())
        if name != "*" and each.is_service
    ]
    near = [target for _, target in demand.latency_to]
    absent = sorted({each for each in (*named, *near) if each not in known and each != key_of(service)})
    if not absent:
        return Condition(type=RESOLVED_CONDITION, status="True", reason="Resolved")
    return Condition(
        type=RESOLVED_CONDITION,
        status="False",
        reason="ServiceNotFound",
        message=f"no LatticeService {', '.join(absent)}",
    )


def _reasons(demand: Demand, fleet: Fleet) -> tuple[str, ...]:
    found = stale(demand, fleet)
    return found.reasons if found else ()


def _stale(service: LatticeService, reasons: Sequence[str], has_place: bool) -> Iterable[Condition]:
    """Said of what is placed, or was said to be stale before."""
    if reasons:
        rest = len(reasons) - NAMED
        words = "; ".join(reasons[:NAMED]) + (f"; and {rest} more" if rest > 0 else "")
        message = f"it would not be put there today, and stays: {words}"
        yield Condition(type=STALE_CONDITION, status="True", reason="WouldMove", message=message)
    elif has_place or any(each.type == STALE_CONDITION for each in service.status.conditions):
        yield Condition(type=STALE_CONDITION, status="False", reason="AsDecided")
