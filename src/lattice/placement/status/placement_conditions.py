"""Compute the placement conditions of a service: Placed, ReferencesResolved and PlacementStale."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from lattice.kinds.meta.base import DEFAULT_NAMESPACE, Condition
from lattice.kinds.meta.conditions import RESOLVED_CONDITION, find_condition
from lattice.kinds.meta.quantity import pluralize
from lattice.kinds.service import (
    NO_SURGE_CAPACITY,
    PLACED_CONDITION,
    PROGRESSING_CONDITION,
    ROLLOUT_COMPLETE,
    SCALE_DOWN_WAITS,
    STALE_CONDITION,
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
from lattice.placement.status.fleet_status import (
    PLACED,
    PlacementResult,
    decision_of,
    placed_reason,
    with_placement,
)

# Limit of reasons that a condition names.
MAX_NAMED_REASONS = 3
# The reason of PlacementStale if running replicas violate a rule.
WOULD_MOVE = "WouldMove"
# The reason of PlacementStale if a fresh plan costs less.
COSTS_MORE = "CostsMore"


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """The placement part of a service status. The writer adds the transition times of the conditions."""

    # The conditions in this status are the previous conditions.
    status: ServiceStatus
    conditions: tuple[Condition, ...]


def decide_with_verdict(
    placement: Placement, fleet: Fleet, services: Services, fleet_digest: str
) -> SchedulerDecision:
    """Return the decision of placement for the field `schedulerDecision`, with a verdict if replicas are
    missing."""
    if placement.is_complete:
        return decision_of(PlacementResult(placement, fleet_digest=fleet_digest), fleet)
    verdict = judge(placement, fleet, services)
    return decision_of(
        PlacementResult(
            placement,
            verdict.kind,
            verdict.reason,
            to_json_value(verdict.required.properties()),
            fleet_digest,
        ),
        fleet,
    )


def placement_status(
    service: LatticeService, decided: StagedDecision, decision: SchedulerDecision | None
) -> PlacementStatus:
    """Compute placements and conditions of the service. With `decision` None, the previous scheduler decision
    stays, except that it follows the replicas of a service that has all of them."""
    previous, fleet, name = service.status, decided.fleet, service_key(service)
    demand, services = decided.demands[name], decided.world.services
    orphans = decided.orphaned_replicas.get(name, ())
    placements = (*orphans, *with_placement(service, fleet, None).status.placements)
    if decision is None:
        decision = _decision_of_placed(demand, placements, previous.scheduler_decision)
    status = msgspec.structs.replace(
        previous,
        placements=placements,
        scheduler_decision=decision,
        remediation=decided.records.get(name, previous.remediation),
    )
    # Replicas of withdrawn offers stay where they run, and the condition says so.
    reasons = [f"{pool} is no longer offered" for pool in dict.fromkeys(orphan.pool for orphan in orphans)]
    if stale := find_stale_placement(demand, fleet):
        reasons += stale.reasons
    conditions = [
        _placed(demand, placements, status.scheduler_decision),
        references_condition(service, demand, services),
    ]
    if reasons:
        unnamed = len(reasons) - MAX_NAMED_REASONS
        reason_text = "; ".join(reasons[:MAX_NAMED_REASONS]) + (
            f"; and {unnamed} more" if unnamed > 0 else ""
        )
        message = f"running replicas stay, although a new placement would not put them there: {reason_text}"
        conditions.append(Condition(type=STALE_CONDITION, status="True", reason=WOULD_MOVE, message=message))
    elif cost_condition := _cost_condition(service, decided, status):
        conditions.append(cost_condition)
    # A service that was never placed gets no condition; an existing condition must turn False.
    elif placements or find_condition(previous.conditions, STALE_CONDITION):
        conditions.append(Condition(type=STALE_CONDITION, status="False", reason="AsDecided"))
    generation = service.metadata.generation
    return PlacementStatus(
        status,
        tuple(msgspec.structs.replace(condition, observed_generation=generation) for condition in conditions),
    )


def _decision_of_placed(
    demand: Demand, placements: Iterable[ServicePlacement], previous: SchedulerDecision | None
) -> SchedulerDecision | None:
    """The previous decision, or, if the service has all its replicas and the decision says otherwise, the
    decision Placed with the present pools: a scale-down and a move place no replica anew."""
    counts = Counter[str]()
    for placement in placements:
        if placement.replicas:
            counts[placement.pool] += placement.replicas
    if previous is None or counts.total() < demand.replicas or demand.rule_conflict:
        return previous
    reason = placed_reason(demand, counts) if counts else "No replicas are wanted"
    if (previous.verdict, previous.reason) == (PLACED, reason):
        return previous
    alternatives = tuple(
        alternative for alternative in previous.alternatives if alternative.pool not in counts
    )
    # Without a digest, no later decision takes this text for its own.
    return msgspec.structs.replace(
        previous, verdict=PLACED, reason=reason, alternatives=alternatives, required={}, digest=""
    )


def _cost_condition(
    service: LatticeService, decided: StagedDecision, status: ServiceStatus
) -> Condition | None:
    """The condition PlacementStale of a service whose layout costs more than a fresh plan; None if it does
    not. Without a comparison the previous condition stays."""
    name = service_key(service)
    surge_machines = sum(record.surge_machines for record in status.remediation)
    progress = find_condition(service.status.conditions, PROGRESSING_CONDITION)
    if (
        surge_machines
        and progress is not None
        and progress.status == "False"
        and progress.reason not in (ROLLOUT_COMPLETE, NO_SURGE_CAPACITY, SCALE_DOWN_WAITS)
    ):
        message = (
            f"the update holds {pluralize(surge_machines, 'machine')} more than a fresh plan until it ends; "
            f"a changed or restored template would end it: {progress.message}"
        )
        return Condition(type=STALE_CONDITION, status="True", reason=COSTS_MORE, message=message)
    health, placed = status.health, sum(placement.replicas or 0 for placement in status.placements)
    running = (health.available or 0) if health is not None else 0
    if running > placed and placed < decided.demands[name].replicas:
        message = (
            f"{pluralize(running - placed, 'replica')} of an earlier template run on, because the present one has "
            "no place, and keep their machines; a changed or restored template, or fewer replicas, would release them"
        )
        return Condition(type=STALE_CONDITION, status="True", reason=COSTS_MORE, message=message)
    if decided.cost_messages is None:
        previous = find_condition(service.status.conditions, STALE_CONDITION)
        is_kept = previous is not None and previous.status == "True" and previous.reason == COSTS_MORE
        return previous if is_kept else None
    message = decided.cost_messages.get(name, "")
    if not message:
        return None
    return Condition(type=STALE_CONDITION, status="True", reason=COSTS_MORE, message=message)


def _placed(
    demand: Demand, placements: Iterable[ServicePlacement], decision: SchedulerDecision | None
) -> Condition:
    count = sum(placement.replicas or 0 for placement in placements)
    reason = decision.reason if decision else ""
    if count >= demand.replicas and not demand.rule_conflict:
        return Condition(
            type=PLACED_CONDITION,
            status="True",
            reason=PLACED,
            message=f"{count} of {demand.replicas} replicas are placed",
        )
    message = f"{count} of {demand.replicas} replicas are placed: {reason}" if count else reason
    verdict = decision.verdict if decision and decision.verdict != PLACED else "NotNow"
    return Condition(type=PLACED_CONDITION, status="False", reason=verdict, message=message)


def references_condition(
    service: LatticeService, demand: Demand, defined_services: Collection[str]
) -> Condition:
    """Report references to undefined services. An apply does not check references, since the service may be
    created later."""
    own = service.metadata.namespace or DEFAULT_NAMESPACE
    dependencies = [
        f"{dependency.namespace or own}/{dependency.id or name}"
        for name, dependency in sorted(service.spec.resources.items())
        if name != "*" and dependency.is_service
    ]
    latency_targets = [target for _, target in demand.latency_to]
    absent = sorted(
        {
            target
            for target in (*dependencies, *latency_targets)
            if target not in defined_services and target != service_key(service)
        }
    )
    if not absent:
        return Condition(type=RESOLVED_CONDITION, status="True", reason="Resolved")
    return Condition(
        type=RESOLVED_CONDITION,
        status="False",
        reason="ServiceNotFound",
        message=f"LatticeService {', '.join(absent)} not found",
    )
