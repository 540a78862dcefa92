"""Why one replica does not run: the first stage that blocks, from the stored objects alone."""

from lattice.diagnosis.blocker import Blocker, Facts, Stage, command_in
from lattice.diagnosis.machines import machine_blocker, node_blocker
from lattice.kinds.meta.conditions import READY_CONDITION, find_condition, find_false
from lattice.kinds.meta.quantity import pluralize
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import SCHEDULED_CONDITION, LatticeWorkload
from lattice.lifecycle.replica_observation import OVER_BUDGET, is_terminating, unschedulable_reason
from lattice.lifecycle.replica_template import node_group_of
from lattice.lifecycle.retry import (
    EVICTED_FROM_NODE,
    EXITED,
    NODE_LOST,
    PORT_CONFLICT,
    PORT_TAKEN,
    current_retry,
    has_ended,
    has_succeeded,
)
from lattice.lifecycle.service_health import failure_text, is_failing
from lattice.lifecycle.workload import Action

# Stage and advice by failure; every other failure is a crash.
FAILURES: dict[str, tuple[Stage, str]] = {
    "IMAGE_NOT_FOUND": ("Image", "check the name and the tag of the image, and the access to its registry"),
    "IMAGE_PULL_FAILED": ("Image", "check that the node reaches the registry"),
    "INVALID_IMAGE": ("Image", "correct the name of the image"),
    "COMMAND_NOT_FOUND": ("Start", "correct the command, or install the program on the node"),
    "INVALID_SPEC": ("Start", "correct what the message names"),
    "INVALID_SPECIFICATION": ("Start", "correct what the message names"),
    "INVALID_CONFIGURATION": ("Start", "correct what the message names"),
    PORT_CONFLICT: ("Start", "choose another port, or let Lattice allocate one by leaving out the number"),
    PORT_TAKEN: ("Start", "none needed: Lattice allocates other ports"),
    "RUNTIME_UNAVAILABLE": ("Start", "install or start the container runtime on the node"),
    "STORAGE_ERROR": ("Start", "free disk space on the node, or mend its file system"),
    "NETWORK_ERROR": ("Start", "check the network of the node"),
    "MISSING": ("Start", "look at the log of the agent on the node"),
    "NOT_APPLIED": ("Start", "look at the log of the agent on the node"),
    "START_TIMEOUT": ("Start", "check the startup probe and the time that the start needs"),
    "UNHEALTHY": ("Probe", "check the liveness or startup probe, and what the program logs"),
    "INSUFFICIENT_RESOURCES": ("Crash", "raise the memory limit, or let the program use less"),
    "DISCONNECTED": ("Node", "check the network between the node and the servers"),
    NODE_LOST: ("Node", "delete the workload and create it again to run it on another node"),
    EVICTED_FROM_NODE: ("Node", "delete the workload and create it again to run it on another node"),
    EXITED: ("Crash", "let the program run on; for a program that ends use restartPolicy OnFailure or Never"),
}
CRASH_FIX = "look at the log, and mend the program, its arguments or its environment"


def replica_name(replica: LatticeWorkload) -> str:
    return f"workload/{replica.metadata.namespace}/{replica.metadata.name}"


def diagnose_replica(
    replica: LatticeWorkload, facts: Facts, service: LatticeService | None = None
) -> Blocker | None:
    """Return the first stage that keeps the workload from being ready, or None if it is ready; `service` is the
    service of a replica."""
    if is_terminating(replica):
        node = replica.status.binding.node if replica.status.binding else ""
        waits = f"it is being deleted, and node {node} has not confirmed that it has ended" if node else ""
        return Blocker(
            "Deleting",
            replica_name(replica),
            waits or "it is being deleted",
            since=replica.metadata.deletion_timestamp or "",
            next="the object goes as soon as no node can run the workload",
        )
    if has_succeeded(replica):
        return Blocker(
            "Succeeded",
            replica_name(replica),
            f"it ended with exit code 0, and its restartPolicy is {replica.spec.restart_policy}",
            since=replica.status.state_since or "",
            exit_code=0,
        )
    if replica.spec.desired_state != "Running":
        return Blocker(
            "Stopped",
            replica_name(replica),
            "its desired state is Stopped",
            since=replica.status.state_since or "",
            fix="set spec.desiredState to Running",
        )
    if replica.status.ready and replica.status.actual_state == "Running":
        return None
    # A failure that needs a change comes first: no node would mend it.
    if is_failing(replica) and (replica.status.binding is None or has_ended(replica)):
        return _failure(replica)
    if replica.status.binding is None:
        return _unbound(replica, facts, service)
    return (
        _node(replica, facts)
        or _evicting(replica)
        or (_failure(replica) if is_failing(replica) else None)
        or _starting(replica)
    )


def _unbound(replica: LatticeWorkload, facts: Facts, service: LatticeService | None) -> Blocker:
    cluster, node_class = node_group_of(replica)
    if service is not None and unschedulable_reason(replica) and (refused := _purchase(service, cluster)):
        return refused
    machine = machine_blocker(cluster, node_class, facts) if cluster else None
    if machine is not None:
        return machine
    reason = unschedulable_reason(replica)
    scheduled = find_false(replica.status.conditions, SCHEDULED_CONDITION)
    if not reason:
        return Blocker(
            "Machine",
            replica_name(replica),
            "the scheduler has not chosen a node yet",
            since=replica.metadata.creation_timestamp or "",
            next="the scheduler decides within seconds",
        )
    need, have = _amounts(replica)
    return Blocker(
        "Machine",
        replica_name(replica),
        f"no node has capacity for it: {reason}",
        need=need,
        have=have,
        since=(scheduled.last_transition_time or "") if scheduled else "",
        next=(
            "the scheduler tries again when a node changes; for a replica of a service, Lattice also adds a machine "
            "where the budget and the pool allow it"
            if replica.spec.service
            else "the scheduler tries again when a node changes"
        ),
        fix="add capacity, remove other workloads, or request less",
        command="lattice get nodes",
    )


def _purchase(service: LatticeService, cluster: str) -> Blocker | None:
    """Why placement buys no machine for a waiting replica of the service in the cluster, as placement has
    recorded it."""
    for record in service.status.remediation:
        if record.cluster != cluster or not record.reason or record.refused:
            continue
        is_budget = record.reason.startswith(OVER_BUDGET)
        return Blocker(
            "Budget" if is_budget else "Machine",
            f"cluster/{cluster}",
            f"no node has capacity for it, and no machine is bought for it: {record.reason}",
            need=record.need,
            have=record.have,
            next="Lattice buys the machine as soon as budgets and limits allow it",
            fix="raise the budget or the limit, or remove other workloads",
            command="lattice get ledgers" if is_budget else f"lattice describe cluster/{cluster}",
        )
    return None


def _amounts(replica: LatticeWorkload) -> tuple[str, str]:
    """What the replica needs of the resource that the nearest node is short of, and what that node has."""
    nearest = replica.status.decision.get("nearest") or {}
    for short in nearest.get("short", ()):
        if short.get("missing"):
            return f"{short['what']} {short.get('need', '')}", f"{short['what']} {short.get('have', '')}"
    return "", ""


def _node(replica: LatticeWorkload, facts: Facts) -> Blocker | None:
    binding = replica.status.binding
    node = facts.node(binding.node) if binding else None
    if binding is None:
        return None
    if node is None:
        return Blocker(
            "Node",
            f"node/{binding.node}",
            f"its node {binding.node} was removed",
            since=replica.status.state_since or "",
            next="Lattice starts it on another node",
        )
    blocker = node_blocker(node)
    ready = find_condition(replica.status.conditions, READY_CONDITION)
    # The workload controller states when the replica is started elsewhere.
    if blocker is None or ready is None or replica.status.actual_state != "Unknown":
        return blocker
    return Blocker(
        "Node",
        blocker.object,
        blocker.cause,
        since=blocker.since,
        next=ready.message,
        fix=blocker.fix,
        command=blocker.command,
    )


def _evicting(replica: LatticeWorkload) -> Blocker | None:
    status = replica.status
    if status.last_action != Action.APPLY_STOPPED or status.binding is None:
        return None
    ready = find_condition(status.conditions, READY_CONDITION)
    return Blocker(
        "Eviction",
        replica_name(replica),
        ready.message if ready and ready.message else f"it is being evicted from node {status.binding.node}",
        since=status.last_action_at or "",
        next="when it has ended there, the scheduler chooses another node",
        command=f"lattice describe node/{status.binding.node}",
    )


def _failure(replica: LatticeWorkload) -> Blocker:
    status, retry = replica.status, current_retry(replica)
    stage, fix = FAILURES.get(status.failure_reason, ("Crash", CRASH_FIX))
    attempts = (retry.attempts or 0) if retry else 0
    cause = failure_text(replica)
    if attempts > 1:
        cause += f" ({pluralize(attempts, 'failure')})"
    next_at = (retry.next_at or "") if retry else ""
    if has_ended(replica):
        next_step, next_at = "Lattice waits for a change of the spec, or for `lattice retry`", ""
    elif status.actual_state in ("Starting", "Running"):
        next_step, next_at = f"attempt {attempts + 1} is under way", ""
    else:
        next_step = f"attempt {attempts + 1} follows after the back-off"
    log = status.last_log.rstrip("\n")
    name = replica.metadata.name
    return Blocker(
        stage,
        replica_name(replica),
        cause,
        since=status.last_action_at or status.state_since or "",
        next=next_step,
        next_at=next_at,
        fix=fix,
        command=command_in(
            replica.metadata.namespace,
            f"logs {name}" if stage in ("Crash", "Probe") else f"describe workload/{name}",
        ),
        exit_code=status.last_exit_code,
        log=log,
    )


def _starting(replica: LatticeWorkload) -> Blocker:
    status = replica.status
    node = status.binding.node if status.binding else ""
    if status.actual_state == "Running":
        return Blocker(
            "Probe",
            replica_name(replica),
            f"it runs on node {node}, and its readiness probe does not pass",
            since=status.state_since or "",
            next="the agent repeats the probe; the replica counts as ready once it passes",
            fix="check the path, the port and the answer of the readiness probe, and what the program logs",
            command=command_in(replica.metadata.namespace, f"logs {replica.metadata.name}"),
        )
    if status.actual_state == "Starting":
        return Blocker(
            "Start",
            replica_name(replica),
            f"it is starting on node {node}: the image is being pulled, or the startup probe has not passed yet",
            since=status.state_since or "",
            next="a start that takes too long counts as a failure, and is repeated",
            command=command_in(replica.metadata.namespace, f"logs {replica.metadata.name}"),
        )
    return Blocker(
        "Start",
        replica_name(replica),
        f"it was given to node {node}, whose agent has not started it yet",
        since=status.last_action_at or "",
        next="the agent starts it within seconds",
        command=f"lattice describe node/{node}",
    )
