"""Why a service does not run: the blockers of its placement, replicas and rollout, the first stage first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lattice.diagnosis.blocker import Blocker, Facts, command_in
from lattice.diagnosis.replica import diagnose_replica
from lattice.kinds.meta.base import path_of
from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.meta.quantity import pluralize, without_amounts
from lattice.kinds.service import (
    AVAILABLE_CONDITION,
    CRASHING_CONDITION,
    NO_SURGE_CAPACITY,
    PLACED_CONDITION,
    PROGRESSING_CONDITION,
    SCALE_DOWN_WAITS,
    LatticeService,
)
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.replica_observation import is_terminating
from lattice.lifecycle.rollout import SURGE_ADVICE
from lattice.lifecycle.service_health import ServiceHealth, placed_replicas, service_health


@dataclass(frozen=True, slots=True)
class CountedBlocker:
    """A blocker with the number of replicas that it blocks, and the name of the first; 0 for a blocker of the
    whole service."""

    blocker: Blocker
    replicas: int = 0
    first: str = ""


@dataclass(frozen=True, slots=True)
class ServiceDiagnosis:
    """The health of a service and what blocks it, first stage first; no blockers for a service that runs."""

    health: ServiceHealth
    # Since when the service is available, or is not; for a crash loop, since the first failure.
    since: str
    blockers: tuple[CountedBlocker, ...]
    # The failures that are not forgotten yet, in words; empty if there are none.
    crashes: str = ""

    @property
    def answer(self) -> str:
        """The answer in one sentence."""
        health = self.health
        counts = f"{health.ready:,} of {health.desired:,} replicas are ready"
        if not self.blockers:
            # A crash loop is ready for a moment after every restart.
            crashes = f" {self.crashes}." if self.crashes else ""
            return (
                f"It runs: {counts}.{crashes}" if health.phase == "Running" else f"{health.phase}: {counts}."
            )
        first = self.blockers[0]
        cause = first.blocker.cause
        sentence = f"{first.first}: {cause}" if first.first else f"{cause[:1].upper()}{cause[1:]}"
        return f"{health.phase}, {counts}. {sentence}."


def diagnose_service(
    service: LatticeService, replicas: Sequence[LatticeWorkload], facts: Facts
) -> ServiceDiagnosis:
    """Return what keeps the service from running with all its replicas."""
    health = service_health(service, replicas)
    available = find_condition(service.status.conditions, AVAILABLE_CONDITION)
    since = (available.last_transition_time or "") if available else service.metadata.creation_timestamp or ""
    crashing = find_condition(service.status.conditions, CRASHING_CONDITION)
    is_crashing = crashing is not None and crashing.status == "True"
    if crashing is not None and is_crashing and not health.is_available:
        since = min(since or "~", crashing.last_transition_time or "~").removeprefix("~")
    blockers = list(_service_blockers(service, health, replicas))
    # The blockers of the replicas: equal ones, apart from names and amounts, are counted together.
    grouped: dict[tuple[str, str], CountedBlocker] = {}
    for replica in sorted(replicas, key=lambda replica: replica.spec.slot):
        # A replica that terminates is on its way out: others take its place.
        if is_terminating(replica) and not service.metadata.deletion_timestamp:
            continue
        blocker = diagnose_replica(replica, facts, service)
        if blocker is None:
            continue
        key = (blocker.stage, without_amounts(blocker.cause))
        previous = grouped.get(key)
        if previous is None:
            grouped[key] = CountedBlocker(blocker, 1, replica.metadata.name)
        else:
            grouped[key] = replace(previous, replicas=previous.replicas + 1)
    blockers += list(grouped.values())
    blockers.sort(key=lambda counted: counted.blocker.rank)
    crashes = crashing.message if crashing is not None and is_crashing else ""
    return ServiceDiagnosis(health, since, tuple(blockers), crashes)


def _service_blockers(
    service: LatticeService, health: ServiceHealth, replicas: Sequence[LatticeWorkload]
) -> list[CountedBlocker]:
    name = f"service/{path_of(service)}"
    if service.metadata.deletion_timestamp:
        deleted = Blocker(
            "Deleting",
            name,
            "it is being deleted",
            since=service.metadata.deletion_timestamp,
            next="the object goes after its replicas have ended",
        )
        return [CountedBlocker(deleted)]
    blockers = []
    if placement := _placement_blocker(service, health):
        blockers.append(CountedBlocker(placement))
    elif sum(not is_terminating(replica) for replica in replicas) < placed_replicas(service):
        missing = Blocker(
            "Machine",
            name,
            "its replicas are placed and not created yet",
            next="Lattice creates them within seconds",
        )
        blockers.append(CountedBlocker(missing))
    if rollout := _rollout_blocker(service):
        blockers.append(CountedBlocker(rollout))
    return blockers


def _placement_blocker(service: LatticeService, health: ServiceHealth) -> Blocker | None:
    name, placed = f"service/{path_of(service)}", placed_replicas(service)
    desired = service.spec.desired_replicas()
    condition, decision = (
        find_condition(service.status.conditions, PLACED_CONDITION),
        service.status.scheduler_decision,
    )
    is_refused = condition is not None and condition.status == "False"
    if placed >= desired and not is_refused:
        return None
    if not is_refused and (decision is None or decision.verdict in ("", "Placed")):
        return Blocker(
            "Placement",
            name,
            "it is not placed yet",
            since=service.metadata.creation_timestamp or "",
            next="Lattice places it within seconds",
        )
    verdict = decision.verdict if decision and decision.verdict != "Placed" else "NotNow"
    reason = condition.message if condition and condition.message else decision.reason if decision else ""
    return Blocker(
        "Budget" if verdict == "OverBudget" else "Placement",
        name,
        f"{pluralize(max(1, health.desired - placed), 'replica')} cannot be placed, {verdict}: {reason}",
        need=pluralize(health.desired, "replica"),
        have=f"{placed} placed",
        since=(condition.last_transition_time or "") if condition else "",
        next="Lattice places it as soon as supply, budgets or requirements change",
        fix="the smallest changes that would make it fit are listed by `lattice fit`",
        command=command_in(service.metadata.namespace, f"fit service/{service.metadata.name}"),
    )


def _rollout_blocker(service: LatticeService) -> Blocker | None:
    progressing = find_condition(service.status.conditions, PROGRESSING_CONDITION)
    is_paused = progressing is not None and progressing.status == "False" and progressing.reason != "Complete"
    if progressing is None or not is_paused:
        return None
    # The advice of the message is the fix.
    cause = progressing.message.removesuffix(f". {SURGE_ADVICE}")
    if progressing.reason == SCALE_DOWN_WAITS:
        next_step = "the surplus replicas stop once the other replicas are ready"
        fix = "mend what keeps the other replicas from being ready"
    else:
        next_step = "the update goes on as soon as the cause is gone; until then the other replicas run on"
        fix = "correct the new revision, or apply the previous one again"
        if progressing.reason == NO_SURGE_CAPACITY:
            fix = f"{SURGE_ADVICE[:1].lower()}{SURGE_ADVICE[1:]}"
    return Blocker(
        "Rollout",
        f"service/{path_of(service)}",
        cause,
        since=progressing.last_transition_time or "",
        next=next_step,
        fix=fix,
        command=command_in(service.metadata.namespace, f"describe service/{service.metadata.name}"),
    )
