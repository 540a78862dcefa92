"""What should be said about a service's placement: is it placed, is what it names there, would it be put elsewhere today?"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from lattice.kinds.meta.base import Condition
from lattice.kinds.service import (
    LatticeService,
    SchedulerDecision,
    ServicePlacement,
    ServiceStatus,
    service_key,
)
from lattice.placement.explain.verdict import Services, judge
from lattice.placement.greedy.commit_stages import StagedDecision
from lattice.placement.greedy.place import Placement
from lattice.placement.greedy.place_all import find_stale_placement
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.object_changes import to_json_value
from lattice.placement.status.service_status import PLACED, PlacementResult, decision_of, with_placement

MAX_NAMED_REASONS = 3  # reasons told in a condition
PLACED_CONDITION, STALE_CONDITION, RESOLVED_CONDITION = "Placed", "PlacementStale", "ReferencesResolved"


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """What a service's status is to say; who writes it adds the times."""

    status: ServiceStatus  # but for its conditions
    conditions: tuple[Condition, ...]


def decide_with_verdict(placement: Placement, fleet: Fleet, known: Services, state: str) -> SchedulerDecision:
    """Placed, or with the verdict on those that are not."""
    if placement.is_complete:
        return decision_of(PlacementResult(placement, fleet_digest=state), fleet)
    verdict = judge(placement, fleet, known)
    return decision_of(
        PlacementResult(
            placement, verdict.kind, verdict.reason, to_json_value(verdict.required.properties()), state
        ),
        fleet,
    )


def placement_status(
    service: LatticeService, decided: StagedDecision, decision: SchedulerDecision | None
) -> PlacementStatus:
    """`decision`: None where the last one stands."""
    before, fleet, name = service.status, decided.fleet, service_key(service)
    demand, known = decided.world.demands[name], decided.world.services
    stranded = decided.orphaned_replicas.get(name, ())
    placed = (*stranded, *with_placement(service, fleet, None).status.placements)
    status = msgspec.structs.replace(
        before,
        placements=placed,
        scheduler_decision=before.scheduler_decision if decision is None else decision,
    )
    reasons = [*(f"{each.pool}: is not offered any more" for each in stranded), *_reasons(demand, fleet)]
    found = [
        _placed(demand, placed, status.scheduler_decision),
        references_condition(service, demand, known),
        *_stale(service, reasons, bool(placed)),
    ]
    generation = service.metadata.generation
    return PlacementStatus(
        status, tuple(msgspec.structs.replace(each, observed_generation=generation) for each in found)
    )


def _placed(
    demand: Demand, placed: Iterable[ServicePlacement], decision: SchedulerDecision | None
) -> Condition:
    count = sum(each.replicas or 0 for each in placed)
    reason = decision.reason if decision else ""
    if count >= demand.replicas and not demand.rule_conflict:
        return Condition(
            type=PLACED_CONDITION,
            status="True",
            reason=PLACED,
            message=f"{count} of {demand.replicas} replicas are placed",
        )
    words = f"{count} of {demand.replicas} replicas are placed: {reason}" if count else reason
    verdict = decision.verdict if decision and decision.verdict != PLACED else "NotNow"
    return Condition(type=PLACED_CONDITION, status="False", reason=verdict, message=words)


def references_condition(service: LatticeService, demand: Demand, known: Collection[str]) -> Condition:
    """References are not checked when it is applied: what they name may come later."""
    own = service.metadata.namespace or "default"
    named = [
        f"{each.namespace or own}/{each.id or name}"
        for name, each in sorted(service.spec.resources.items())
        if name != "*" and each.is_service
    ]
    near = [target for _, target in demand.latency_to]
    absent = sorted({each for each in (*named, *near) if each not in known and each != service_key(service)})
    if not absent:
        return Condition(type=RESOLVED_CONDITION, status="True", reason="Resolved")
    return Condition(
        type=RESOLVED_CONDITION,
        status="False",
        reason="ServiceNotFound",
        message=f"no LatticeService {', '.join(absent)}",
    )


def _reasons(demand: Demand, fleet: Fleet) -> tuple[str, ...]:
    found = find_stale_placement(demand, fleet)
    return found.reasons if found else ()


def _stale(service: LatticeService, reasons: Sequence[str], has_place: bool) -> Iterable[Condition]:
    """Said of what is placed, or was said to be stale before."""
    if reasons:
        rest = len(reasons) - MAX_NAMED_REASONS
        words = "; ".join(reasons[:MAX_NAMED_REASONS]) + (f"; and {rest} more" if rest > 0 else "")
        message = f"it would not be put there today, and stays: {words}"
        yield Condition(type=STALE_CONDITION, status="True", reason="WouldMove", message=message)
    elif has_place or any(each.type == STALE_CONDITION for each in service.status.conditions):
        yield Condition(type=STALE_CONDITION, status="False", reason="AsDecided")
