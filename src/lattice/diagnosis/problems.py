"""What is wrong now: the problems of all objects by severity, each with cause, time and next command."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from lattice.diagnosis.blocker import Blocker, Facts, command_in, facts_of
from lattice.diagnosis.machines import node_blocker
from lattice.diagnosis.replica import diagnose_replica
from lattice.diagnosis.service import diagnose_service
from lattice.kinds.automation import AutomationRule
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import BUDGET_CONDITION, CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import DEFAULT_NAMESPACE, Condition, Kind, path_of
from lattice.kinds.meta.conditions import READY_CONDITION, RESOLVED_CONDITION, find_condition, find_false
from lattice.kinds.meta.timestamps import parse_time
from lattice.kinds.node import DRAINED_CONDITION, LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import (
    AVAILABLE_CONDITION,
    CRASHING_CONDITION,
    PROGRESSING_CONDITION,
    LatticeService,
)
from lattice.kinds.workload import LatticeWorkload, service_path
from lattice.lifecycle.drain import STUCK_DRAIN_REASONS, is_draining
from lattice.lifecycle.replica_observation import has_joined
from lattice.lifecycle.retry import is_reported_failed
from lattice.placement.inputs.ledger_math import judge_budget

Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
# A start, a scheduling or a join that takes longer is a problem.
SLOW_START = timedelta(minutes=5)
UNSCHEDULED_GRACE = timedelta(minutes=1)
ROLLOUT_PAUSED = "RolloutPaused"
# Titles of problems whose cause is in the condition Crashing.
CRASH_TITLES = frozenset({"Crashing", "Restarted"})
# Only so many services are diagnosed in full; the others show the message of their condition.
MAX_DIAGNOSED = 200


@dataclass(frozen=True, slots=True)
class Problem:
    """One object that is not as it should be."""

    severity: Severity
    # The object as the command line names it: kind/name.
    object: str
    namespace: str
    # One word or two: a phase, or the type or reason of a condition.
    title: str
    cause: str
    since: str
    # The command that shows more or helps.
    command: str


@dataclass(frozen=True, slots=True)
class FleetObjects:
    """The stored objects of the kinds that can have problems."""

    services: Sequence[LatticeService] = ()
    workloads: Sequence[LatticeWorkload] = ()
    nodes: Sequence[LatticeNode] = ()
    clusters: Sequence[LatticeCluster] = ()
    pools: Sequence[LatticePool] = ()
    infrastructures: Sequence[CloudInfrastructure | StaticInfrastructure] = ()
    node_classes: Sequence[LatticeNodeClass] = ()
    ledgers: Sequence[LatticeLedger] = ()
    rules: Sequence[AutomationRule] = ()


@dataclass(frozen=True, slots=True)
class _Rule:
    """A condition that reports a problem while its status is `bad`."""

    type: str
    bad: Literal["True", "False"]
    severity: Severity


SUPPLY_RULES = (
    _Rule(READY_CONDITION, "False", "warning"),
    _Rule(BUDGET_CONDITION, "True", "warning"),
    _Rule("CredentialsValid", "False", "warning"),
    _Rule("Degraded", "True", "warning"),
    _Rule("Overlaps", "True", "warning"),
    _Rule("MachinesDiffer", "True", "warning"),
    _Rule(RESOLVED_CONDITION, "False", "warning"),
    _Rule("CapacityPressure", "True", "info"),
    _Rule("BudgetAlert", "True", "info"),
)


def find_problems(objects: FleetObjects, now: datetime) -> list[Problem]:
    """Return the problems, the most severe first, and of one severity the oldest first."""
    facts = facts_of(now, objects.nodes, objects.clusters, objects.pools, objects.ledgers)
    problems = [
        *service_problems(objects, facts),
        *workload_problems(objects.workloads, facts),
        *node_problems(objects.nodes, facts),
        *cluster_problems(objects.clusters),
    ]
    for supplier in (*objects.pools, *objects.infrastructures, *objects.node_classes):
        problems += _condition_problems(supplier, SUPPLY_RULES)
    problems += ledger_problems(objects, facts)
    problems += [
        Problem("warning", f"rule/{rule.metadata.name}", "", "ActionFailed", rule.status.last_error, "", "")
        for rule in objects.rules
        if rule.status.last_error
    ]
    return sorted(
        problems,
        key=lambda problem: (
            SEVERITIES.index(problem.severity),
            problem.since or "~",
            problem.namespace,
            problem.object,
        ),
    )


def is_wrong(problems: Iterable[Problem]) -> bool:
    """Whether a problem needs attention: an info does not."""
    return any(problem.severity != "info" for problem in problems)


def _has_lasted(since: str | None, facts: Facts, at_least: timedelta) -> bool:
    began = parse_time(since)
    return began is not None and facts.now - began >= at_least


def service_problems(objects: FleetObjects, facts: Facts) -> Iterator[Problem]:
    replicas: dict[str, list[LatticeWorkload]] = {}
    for workload in objects.workloads:
        if workload.spec.service:
            replicas.setdefault(service_path(workload), []).append(workload)
    diagnosed = 0
    for service in objects.services:
        title, severity = _service_severity(service, facts)
        if not title:
            continue
        available = find_condition(service.status.conditions, AVAILABLE_CONDITION)
        since = (available.last_transition_time or "") if available else ""
        ready = find_condition(
            service.status.conditions, CRASHING_CONDITION if title in CRASH_TITLES else READY_CONDITION
        )
        cause = ready.message if ready else ""
        if diagnosed < MAX_DIAGNOSED:
            diagnosed += 1
            diagnosis = diagnose_service(service, replicas.get(path_of(service), ()), facts)
            # A drain or an update may block a replica of a service whose problem is its crashes.
            is_about_crashes = title in CRASH_TITLES and service.status.phase == "Running"
            if diagnosis.blockers and not is_about_crashes:
                health, first, since = diagnosis.health, diagnosis.blockers[0], diagnosis.since
                name = f"{first.first}: " if first.first else ""
                cause = f"{health.ready} of {health.desired} replicas ready; {name}{first.blocker.cause}"
        if title == ROLLOUT_PAUSED:
            progressing = find_condition(service.status.conditions, PROGRESSING_CONDITION)
            since = (progressing.last_transition_time or "") if progressing else since
        namespace, name = service.metadata.namespace or DEFAULT_NAMESPACE, service.metadata.name
        yield Problem(
            severity,
            f"service/{name}",
            namespace,
            title,
            cause,
            since,
            command_in(namespace, f"why service/{name}"),
        )


def _service_severity(service: LatticeService, facts: Facts) -> tuple[str, Severity]:
    """The problem of the service in one word, empty for none, and its severity."""
    phase, status = service.status.phase, service.status
    ready = (status.health.ready or 0) if status.health else 0
    if phase in ("Down", "Failed"):
        return phase, "critical"
    decision = status.scheduler_decision
    is_refused = decision is not None and decision.verdict not in ("", "Placed")
    is_starting = phase in ("Pending", "Placing", "Provisioning", "Starting")
    if is_starting and is_refused and decision is not None:
        return decision.verdict, "warning" if ready else "critical"
    if phase == "Degraded":
        return phase, "warning"
    available = find_condition(status.conditions, AVAILABLE_CONDITION)
    since = available.last_transition_time if available else None
    if is_starting and _has_lasted(since, facts, SLOW_START):
        return f"{phase} for long", "warning"
    progressing = find_condition(status.conditions, PROGRESSING_CONDITION)
    if progressing and progressing.status == "False" and progressing.reason != "Complete":
        return ROLLOUT_PAUSED, "warning"
    crashing = find_condition(status.conditions, CRASHING_CONDITION)
    if crashing and crashing.status == "True" and phase not in ("Pending", "Deleting"):
        failures = (status.health.failures or 0) if status.health else 0
        # One failure after which the replica became ready is history, not a crash loop.
        return ("Restarted", "info") if phase == "Running" and failures == 1 else ("Crashing", "warning")
    if phase == "Deleting" and _has_lasted(service.metadata.deletion_timestamp, facts, SLOW_START):
        return "Deleting for long", "warning"
    return "", "info"


def workload_problems(workloads: Iterable[LatticeWorkload], facts: Facts) -> Iterator[Problem]:
    """Problems of workloads without a service; those of replicas belong to their service."""
    for workload in workloads:
        if workload.spec.service:
            continue
        scheduled = find_false(workload.status.conditions, "Scheduled")
        is_waiting = workload.status.binding is None and _has_lasted(
            scheduled.last_transition_time if scheduled else None, facts, UNSCHEDULED_GRACE
        )
        is_failed = is_reported_failed(workload) or workload.status.actual_state in ("Failed", "Unknown")
        if not (is_waiting or is_failed) or workload.spec.desired_state != "Running":
            continue
        blocker = diagnose_replica(workload, facts)
        if blocker is None:
            continue
        namespace, name = workload.metadata.namespace or DEFAULT_NAMESPACE, workload.metadata.name
        title = workload.status.actual_state if is_failed else "Unscheduled"
        yield Problem(
            "warning",
            f"workload/{name}",
            namespace,
            title,
            blocker.cause,
            blocker.since,
            command_in(namespace, f"why workload/{name}"),
        )


def node_problems(nodes: Iterable[LatticeNode], facts: Facts) -> Iterator[Problem]:
    for node in nodes:
        name = node.metadata.name
        command = f"lattice describe node/{name}"
        blocker: Blocker | None = node_blocker(node)
        drained = find_condition(node.status.conditions, DRAINED_CONDITION)
        created = node.metadata.creation_timestamp
        if drained and drained.status == "False" and drained.reason in STUCK_DRAIN_REASONS:
            since = drained.last_transition_time or ""
            yield Problem("warning", f"node/{name}", "", "DrainStuck", drained.message, since, command)
        elif is_draining(node) and not node.metadata.deletion_timestamp:
            message = drained.message if drained else "the node is being drained"
            yield Problem("info", f"node/{name}", "", "Draining", message, "", command)
        elif node.spec.unschedulable and not node.metadata.deletion_timestamp:
            cause = "the node takes no new workloads"
            yield Problem("info", f"node/{name}", "", "Cordoned", cause, "", f"lattice uncordon {name}")
        if node.metadata.deletion_timestamp:
            continue
        if blocker is not None and has_joined(node):
            yield Problem("warning", f"node/{name}", "", "NotReady", blocker.cause, blocker.since, command)
        elif blocker is not None and _has_lasted(created, facts, SLOW_START):
            cause = "no agent has joined for this machine yet"
            yield Problem("warning", f"node/{name}", "", "NotJoined", cause, created or "", command)


def cluster_problems(clusters: Iterable[LatticeCluster]) -> Iterator[Problem]:
    for cluster in clusters:
        name = f"cluster/{cluster.metadata.name}"
        unready = find_false(cluster.status.conditions, "ProviderReady")
        if unready is not None:
            since = unready.last_transition_time or ""
            yield Problem(
                "warning", name, "", unready.reason, unready.message, since, f"lattice describe {name}"
            )
        elif cluster.status.phase in ("Failed", "Degraded"):
            message = cluster.status.message
            ready = find_false(cluster.status.conditions, READY_CONDITION)
            since = (ready.last_transition_time or "") if ready else ""
            command = f"lattice describe {name}"
            yield Problem("warning", name, "", cluster.status.phase, message, since, command)


_WORDS: dict[type[Kind], str] = {
    LatticePool: "pool",
    CloudInfrastructure: "cloud",
    StaticInfrastructure: "static",
    LatticeNodeClass: "class",
}


def _condition_problems(owner: Kind, rules: Iterable[_Rule]) -> Iterator[Problem]:
    conditions: Sequence[Condition] = owner.status.conditions  # type: ignore[attr-defined]
    name = f"{_WORDS[type(owner)]}/{owner.metadata.name}"
    for rule in rules:
        condition = find_condition(conditions, rule.type)
        if condition is None or condition.status != rule.bad:
            continue
        title = condition.reason if rule.bad == "False" and condition.reason else rule.type
        since = condition.last_transition_time or ""
        message = condition.message or condition.reason
        yield Problem(rule.severity, name, "", title, message, since, f"lattice describe {name}")


def ledger_problems(objects: FleetObjects, facts: Facts) -> Iterator[Problem]:
    """Budgets that are exceeded or refuse a purchase, unless the object that states the budget reports it. A budget
    that is used up exactly, and that nothing waits for, is no problem."""
    reported = {
        (owner.resource.kind, owner.metadata.name)
        for owner in (*objects.pools, *objects.infrastructures)
        if (exceeded := find_condition(owner.status.conditions, BUDGET_CONDITION))
        and exceeded.status == "True"
    }
    for ledger in objects.ledgers:
        budget = ledger.spec.budget
        if ledger.spec.limit_micros is None or (budget.kind, budget.name) in reported:
            continue
        verdict = judge_budget(ledger, facts.now, ledger.status.phase)
        if not verdict.is_exceeded:
            continue
        since = min((refusal.at for refusal in verdict.refused), default="")
        name = f"ledger/{ledger.metadata.name}"
        yield Problem(
            "warning", name, "", BUDGET_CONDITION, verdict.message, since, f"lattice describe {name}"
        )
