"""The health of a service: its phase, its counts of replicas, and the condition Available."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.conditions import READY_CONDITION, find_condition
from lattice.kinds.meta.quantity import pluralize
from lattice.kinds.service import (
    AVAILABLE_CONDITION,
    CRASHING_CONDITION,
    PLACED_CONDITION,
    PROGRESSING_CONDITION,
    ROLLOUT_COMPLETE,
    LatticeService,
    ServicePhase,
)
from lattice.kinds.workload import LatticeWorkload, Retry
from lattice.lifecycle.replica_observation import is_terminating
from lattice.lifecycle.replica_template import workload_template
from lattice.lifecycle.retry import current_retry, is_reported_failed

PHASES: tuple[ServicePhase, ...] = get_args(ServicePhase)
# Phases in which a service has fewer ready replicas than it should have, although it had or should have them.
UNWELL_PHASES: frozenset[ServicePhase] = frozenset({"Degraded", "Down", "Failed"})
# Reasons of the condition Available.
MINIMUM_READY, NODE_LOST, REPLICA_FAILED = "MinimumReplicasReady", "NodeLost", "ReplicaFailed"


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """Counts over the live replicas of a service, and what follows from them. A replica that is being deleted
    does not count."""

    phase: ServicePhase
    # Replicas that should be ready.
    desired: int
    # Replicas that must be ready for the service to be available.
    minimum: int
    running: int
    ready: int
    # Replicas of the current revision.
    updated: int
    # Failures that are not forgotten yet, of all replicas.
    failures: int
    restarts: int
    # One word, for the condition.
    reason: str
    message: str
    has_been_available: bool
    # Generation of the service that the health is about.
    generation: int

    @property
    def is_available(self) -> bool:
        return self.ready >= self.minimum

    def conditions(self) -> tuple[Condition, Condition]:
        """The conditions Ready and Available; Ready is True only while all replicas are ready and no update
        is under way."""
        is_ready = self.phase == "Running"
        return (
            Condition(
                type=READY_CONDITION,
                status="True" if is_ready else "False",
                reason="ReplicasReady" if is_ready else self.reason,
                message=self.message,
                observed_generation=self.generation,
            ),
            Condition(
                type=AVAILABLE_CONDITION,
                status="True" if self.is_available else "False",
                reason=MINIMUM_READY if self.is_available else self.reason,
                message=self.message,
                observed_generation=self.generation,
            ),
        )


def placed_replicas(service: LatticeService) -> int:
    return sum(placement.replicas or 0 for placement in service.status.placements)


def wanted_replicas(service: LatticeService) -> int:
    """Return the number of replicas that should be ready: as declared, and more where policies demand more."""
    return max(placed_replicas(service), service.spec.desired_replicas())


def is_failing(replica: LatticeWorkload) -> bool:
    """Whether the replica has failed and has not been ready since. The next attempt ends the failure only once
    the replica is ready, so that a crash loop does not look like a first start between two attempts."""
    if replica.status.ready:
        return False
    retry = current_retry(replica)
    return replica.status.actual_state == "Failed" or (retry is not None and bool(retry.attempts))


def service_health(service: LatticeService, replicas: Sequence[LatticeWorkload]) -> ServiceHealth:
    """Return the health of the service from its replicas."""
    live = sorted(
        (replica for replica in replicas if not is_terminating(replica)),
        key=lambda replica: replica.spec.slot,
    )
    running = [replica for replica in live if replica.status.actual_state == "Running"]
    ready = sum(bool(replica.status.ready) for replica in running)
    revision = workload_template(service).revision if live else ""
    updated = sum(replica.spec.revision in ("", revision) for replica in live)
    desired, minimum = wanted_replicas(service), service.spec.min_replicas
    has_been_available = service.status.has_been_available or (ready > 0 and ready >= minimum)
    # A service that was scaled to zero starts from the beginning.
    has_been_available = has_been_available and service.spec.desired_replicas() > 0
    phase = _phase(service, live, ready, updated, has_been_available=has_been_available)
    reason, cause = _cause(service, phase, live)
    message = f"{ready:,} of {desired:,} replicas are ready"
    return ServiceHealth(
        phase=phase,
        desired=desired,
        minimum=minimum,
        running=len(running),
        ready=ready,
        updated=updated,
        failures=sum(retry.attempts or 0 for replica in live if (retry := current_retry(replica))),
        restarts=sum(replica.status.restarts or 0 for replica in live),
        reason=reason,
        message=f"{message}; {cause}" if cause else message,
        has_been_available=has_been_available,
        generation=service.metadata.generation,
    )


def _phase(
    service: LatticeService,
    live: Sequence[LatticeWorkload],
    ready: int,
    updated: int,
    *,
    has_been_available: bool,
) -> ServicePhase:
    if service.metadata.deletion_timestamp:
        return "Deleting"
    if ready >= wanted_replicas(service):
        return "Running" if updated == len(live) else "Updating"
    failing = [replica for replica in live if is_failing(replica)]
    lost = [replica for replica in live if replica.status.actual_state == "Unknown"]
    is_unwell = has_been_available or failing or lost
    if ready and _is_refused(service):
        return "Degraded"
    if ready:
        return "Degraded" if is_unwell else "Starting"
    if failing and all(is_reported_failed(replica) for replica in live):
        return "Failed"
    return "Down" if is_unwell else _first_start_phase(service, live)


def _is_refused(service: LatticeService) -> bool:
    """Whether placement has refused some replicas of the service."""
    placed = find_condition(service.status.conditions, PLACED_CONDITION)
    return (
        placed is not None
        and placed.status == "False"
        and placed_replicas(service) < wanted_replicas(service)
    )


def _first_start_phase(service: LatticeService, live: Sequence[LatticeWorkload]) -> ServicePhase:
    """The phase of a service on its way to its first ready replica."""
    if not placed_replicas(service):
        placed = find_condition(service.status.conditions, PLACED_CONDITION)
        decision = service.status.scheduler_decision
        is_decided = placed is not None or (decision is not None and decision.verdict != "")
        return "Placing" if is_decided else "Pending"
    if not live or all(replica.status.binding is None for replica in live):
        return "Provisioning"
    return "Starting"


def _cause(service: LatticeService, phase: ServicePhase, live: Sequence[LatticeWorkload]) -> tuple[str, str]:
    """Why replicas are not ready: one word, and a part of a sentence, both about the first such replica."""
    if phase in ("Running", "Deleting"):
        return phase, ""
    if phase == "Updating":
        progress = find_condition(service.status.conditions, PROGRESSING_CONDITION)
        if progress and progress.status == "False" and progress.reason != ROLLOUT_COMPLETE:
            return progress.reason, progress.message
        return "Updating", "replicas of an earlier revision are being replaced"
    waiting = [replica for replica in live if not replica.status.ready]
    failing = [replica for replica in waiting if is_failing(replica)]
    if failing:
        # A replica that is reported as failed comes before one that has just failed for the first time.
        first = next(filter(is_reported_failed, failing), failing[0])
        return REPLICA_FAILED, f"{first.metadata.name} failed: {failure_text(first)}"
    for replica in waiting:
        if replica.status.actual_state == "Unknown" and replica.status.binding:
            node = replica.status.binding.node
            return NODE_LOST, f"{replica.metadata.name}: its node {node} sends no heartbeats"
    decision = service.status.scheduler_decision
    if len(live) < service.spec.desired_replicas() and decision and decision.verdict not in ("", "Placed"):
        return decision.verdict, f"not placed: {decision.reason}" if decision.reason else "not placed"
    if any(replica.status.binding is None for replica in waiting):
        return (
            "NoNode",
            f"{pluralize(sum(r.status.binding is None for r in waiting), 'replica')} without a node",
        )
    return "ReplicasMissing", ""


def failure_text(replica: LatticeWorkload) -> str:
    """The last failure of the replica: one word, and the details from its node."""
    status = replica.status
    if not status.failure_reason:
        return "no reason reported"
    return f"{status.failure_reason}: {status.failure_message}".removesuffix(": ")


@dataclass(frozen=True, slots=True)
class CrashReport:
    """The condition Crashing of a service, and the message of the event about it; empty for no event."""

    condition: Condition
    event: str = ""


def crash_report(
    service: LatticeService, health: ServiceHealth, replicas: Sequence[LatticeWorkload]
) -> CrashReport | None:
    """Return what to report about failing replicas; None for a service whose replicas never failed.

    An event is due when the service becomes Failed, and when the number of failures reaches the next power of
    two, so that a crash loop has events at growing intervals. The last number is in the status: a new leader repeats no event.
    """
    previous = service.status.health.failures or 0 if service.status.health else 0
    if not health.failures:
        if find_condition(service.status.conditions, CRASHING_CONDITION) is None:
            return None
        return CrashReport(
            Condition(
                type=CRASHING_CONDITION,
                status="False",
                reason="NoFailures",
                observed_generation=health.generation,
            )
        )
    failed = [
        replica
        for replica in replicas
        if not is_terminating(replica) and (retry := current_retry(replica)) and retry.attempts
    ]
    worst = max(
        failed, key=lambda replica: ((replica.status.retry or Retry()).attempts or 0, -replica.spec.slot)
    )
    of = f" of {len(failed)} replicas" if len(failed) > 1 else ""
    message = (
        f"{pluralize(health.failures, 'failure')}{of}; {worst.metadata.name} failed: {failure_text(worst)}"
    )
    condition = Condition(
        type=CRASHING_CONDITION,
        status="True",
        reason=worst.status.failure_reason or REPLICA_FAILED,
        message=message,
        observed_generation=health.generation,
    )
    is_newly_failed = health.phase == "Failed" and service.status.phase != "Failed"
    is_due = is_newly_failed or health.failures.bit_length() > previous.bit_length()
    return CrashReport(condition, message if is_due else "")
