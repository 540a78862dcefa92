"""Invariants of stopping and removal: silent nodes, replicas that must not run twice, disruption below the
desired count, and removed nodes."""

from bisect import bisect_right
from collections import defaultdict
from itertools import pairwise
from math import inf

from lattice.kinds.meta.base import path_of
from lattice.kinds.node import DRAINING_TAINT, LatticeNode
from lattice.kinds.workload import LatticeWorkload, service_path
from lattice.lifecycle.retry import has_ended
from lattice.sim.invariants.context import (
    CONTROLLERS,
    MAX_STALENESS_S,
    CheckerContext,
    Findings,
    is_preempted,
    is_ready,
    workload_changes,
)
from lattice.sim.invariants.history import (
    InstanceRun,
    ObjectChange,
    instance_runs,
    is_bound_to_former_node,
    node_of,
)
from lattice.sim.world.settings import CLOCK_RATE_TOLERANCE, KILL_GRACE_S, REPLACE_AFTER_S, TIMEOUTS
from lattice.sim.world.store import CommitRecord

# Longest time that a provider takes to remove a machine.
MAX_REMOVAL_S = 12.0


def check_silent_nodes(
    context: CheckerContext, record: CommitRecord, changes: list[ObjectChange]
) -> Findings:
    """I-13: the leader unbinds the workload of a silent node only after the timeout, counted from the last
    heartbeat and from the leader's election."""
    for change in workload_changes(changes):
        node = (
            context.snapshot.nodes.get(f"/{node_of(change.old)}")
            if node_of(change.old) and not node_of(change.new)
            else None
        )
        # Only silent nodes that still exist are checked, because a ready node itself reports that a copy has
        # ended.
        if (
            node is None
            or change.new is None
            or is_ready(node)
            or node.metadata.uid != change.old.status.binding.uid
        ):
            continue
        policy = change.old.spec.disconnect
        # The node measures stopAfter by its own clock, and the leader waits by another clock, so the
        # tolerance applies twice.
        stopped_after_s = (
            (policy.stop_after_ms / 1000 + KILL_GRACE_S) * (1 + CLOCK_RATE_TOLERANCE) ** 2
            if policy.policy == "stop"
            else 0.0
        )
        timeout_s = max(REPLACE_AFTER_S, stopped_after_s) / context.clock_rate(record)
        silent_s = record.at - max(
            context.last_heartbeats.get(node.metadata.name, -inf), context.elected_at(record)
        )
        if silent_s < timeout_s and not _reports_stopped(context, record, change.old):
            words = f"{change.key.path} was moved from {node.metadata.name} {silent_s:.1f} s after the last heartbeat"
            yield "I-13", f"{words} or election; the minimum is {timeout_s:.1f} s"


def _reports_stopped(context: CheckerContext, record: CommitRecord, workload: LatticeWorkload) -> bool:
    """Report whether the node sends heartbeats to the leader again and runs no instance of the workload.

    The leader writes the Ready condition in a separate commit, so the node may still be recorded as not
    ready.
    """
    name, at = node_of(workload), record.at
    heartbeat_at = context.last_heartbeats.get(name, -inf)
    # This leader must have received the heartbeat, because heartbeats to former leaders prove nothing now.
    if heartbeat_at < context.elected_at(
        record
    ) or at - heartbeat_at >= TIMEOUTS.nodes.not_ready_after / context.clock_rate(record):
        return False
    for machine in (*context.world.removed_machines, *context.world.machines.values()):
        if machine.name == name and any(
            run.instance_id.uid == workload.metadata.uid and run.start <= at < run.end
            for run in instance_runs(machine)
        ):
            return False
    return True


def check_instances(context: CheckerContext) -> Findings:
    """I-13: a workload with `disconnect: stop` never runs in two copies at the same time, and stops in time
    when its node is disconnected. I-19: a node runs at most one copy of a workload at a time.

    Runs are compared by the name of the workload, because a workload that is deleted and created again has a
    new uid.
    """
    by_name: dict[str, list[InstanceRun]] = defaultdict(list)
    contacts: dict[str, list[float]] = defaultdict(list)
    for at, node in sorted([*context.world.heartbeats, *context.world.other_messages]):
        contacts[node].append(at)
    for machine in [*context.world.removed_machines, *context.world.machines.values()]:
        for run in instance_runs(machine):
            by_name[run.spec.workload].append(run)
            yield from _check_disconnect_stop(
                run, contacts[run.node], min(run.end, context.world.loop.time())
            )
    for runs in by_name.values():
        runs.sort(key=lambda run: run.start)
        for index, run in enumerate(runs):
            for later_run in runs[index + 1 :]:
                # Containers of a workload run side by side.
                if later_run.start >= run.end or later_run.instance_id.container != run.instance_id.container:
                    continue
                words = f"{run.spec.workload} ran on {run.node} from {run.start:.2f} to {run.end:.2f} s"
                if later_run.node == run.node:
                    yield "I-19", f"{words}, and a second copy ran there from {later_run.start:.2f} s"
                # Without `stopAfter` (`disconnect: keep`) a copy may run twice.
                elif run.spec.stop_after is not None:
                    yield (
                        "I-13",
                        f"{words}, and a second copy ran on {later_run.node} from {later_run.start:.2f} s",
                    )


def _check_disconnect_stop(run: InstanceRun, contacts: list[float], end: float) -> Findings:
    if run.spec.stop_after is None:
        return
    # A slow clock on the node lengthens the time until the agent kills the instance.
    allowed = (run.spec.stop_after + KILL_GRACE_S) * (1 + CLOCK_RATE_TOLERANCE)
    index = bisect_right(contacts, run.start)
    contact_times = [
        contacts[index - 1] if index else run.start,
        *contacts[index : bisect_right(contacts, end)],
        end,
    ]
    for contact, next_contact in pairwise(contact_times):
        if next_contact > contact + allowed:
            words = (
                f"{run.spec.workload} ran until {end:.2f} s on {run.node},"
                f" which had its last contact at {contact:.2f} s"
            )
            yield "I-13", f"{words}: stopAfter is {run.spec.stop_after:g} s"
            return


def check_disruption(context: CheckerContext, record: CommitRecord, changes: list[ObjectChange]) -> Findings:
    """I-24: no controller stops a ready replica that the desired count of its service needs. I-28: preemption
    evicts no such replica.

    Evictions by a user's NoExecute taint are exempt.
    """
    # A user may stop any replica; only controllers must spare needed replicas.
    if record.origin != CONTROLLERS:
        return
    disrupted: set[str] = set()
    for change in workload_changes(changes):
        old, new = change.old, change.new
        if old is None or new is None or not old.spec.service or is_preempted(old):
            continue
        is_stopped = (
            not old.metadata.deletion_timestamp
            and not _is_evicted(old)
            and (bool(new.metadata.deletion_timestamp) or _is_evicted(new))
        )
        if not (is_stopped or is_preempted(new)) or not old.status.ready:
            continue
        if _is_evicted_by_taint(context, record, old):
            continue
        # A replica that the same commit disrupts does not count as ready for the other replicas.
        disrupted.add(change.key.path)
        key = service_path(old)
        service = context.snapshot.services.get(key)
        if (
            service is None
            or service.metadata.deletion_timestamp
            or not any(owner.uid == service.metadata.uid for owner in old.metadata.owner_references)
        ):
            continue
        since = context.unseen_since(record)
        # A replica counts if it is ready, or was ready in a version that the writer may have known.
        ready = [
            replica
            for replica in context.snapshot.replicas_of(key)
            if path_of(replica) not in disrupted
            and not (replica.metadata.deletion_timestamp or is_preempted(replica))
            and (replica.status.ready or context.snapshot.ready_at.get(path_of(replica), -inf) >= since)
        ]
        desired = context.snapshot.min_desired_replicas(key, since)
        if len(ready) < desired:
            number, action = ("I-24", "stopped") if is_stopped else ("I-28", "preempted")
            yield (
                number,
                (
                    f"{change.key.path} was {action} below the desired count: {len(ready)} other replicas are ready"
                    f" and {desired} are desired"
                ),
            )


def _is_evicted_by_taint(context: CheckerContext, record: CommitRecord, workload: LatticeWorkload) -> bool:
    """Report whether the node has, or recently had, a NoExecute taint of a user that the workload does not
    tolerate.

    Such a taint evicts needed replicas too.
    """
    nodes = context.snapshot.versions(LatticeNode, f"/{node_of(workload)}", context.unseen_since(record))
    tolerations = workload.spec.constraints.tolerations
    for node in nodes:
        for taint in node.spec.taints:
            # A drain must spare needed replicas, so the taint of a drain excuses no eviction.
            if taint.effect != "NoExecute" or taint.key == DRAINING_TAINT:
                continue
            if not any(toleration.tolerates(taint) for toleration in tolerations):
                return True
    return False


def check_replacement(context: CheckerContext, record: CommitRecord, changes: list[ObjectChange]) -> Findings:
    """I-25: the controllers create no replica while the desired replicas are healthy; prices, supply and
    policies move no healthy replica."""
    for change in workload_changes(changes):
        key = service_path(change.new) if change.old is None and change.new.spec.service else ""
        service = context.snapshot.services.get(key)
        if record.origin != CONTROLLERS or service is None or service.metadata.deletion_timestamp:
            continue
        since = context.unseen_since(record)
        live = [
            replica
            for replica in context.snapshot.replicas_of(key)
            if not replica.metadata.deletion_timestamp
        ]
        if len(live) >= service.spec.desired_replicas() > 0 and all(
            _is_healthy(context, replica, since) for replica in live
        ):
            yield (
                "I-25",
                (
                    f"{change.key.path} was created although the {len(live)} desired replicas of {key} are"
                    " ready, up to date and on schedulable nodes"
                ),
            )


def _is_healthy(context: CheckerContext, workload: LatticeWorkload, since: float) -> bool:
    """Report whether a replica has been ready on a schedulable node since before `since`, and is newer than
    the spec of its service."""
    path, node_path = path_of(workload), f"/{node_of(workload)}"
    node = context.snapshot.nodes.get(node_path)
    if (
        node is None
        or not is_ready(node)
        or context.snapshot.unschedulable_at.get(node_path, -inf) >= since
        or node.spec.unschedulable
        or node.spec.taints
        or node.metadata.deletion_timestamp
    ):
        return False
    spec_changed_at = context.snapshot.spec_changed_at.get(service_path(workload), 0.0)
    is_steady = bool(workload.status.ready) and context.snapshot.not_ready_at.get(path, -inf) < since
    # A replica created soon after a change of the spec may have the older spec, because the cache of its
    # writer was behind.
    return (
        is_steady
        and not is_preempted(workload)
        and spec_changed_at < context.snapshot.created_at.get(path, 0.0) - MAX_STALENESS_S
    )


def check_node_removal(
    context: CheckerContext, record: CommitRecord, changes: list[ObjectChange]
) -> Findings:
    """I-27: the node of a machine is deleted only when no workload is bound or reserved on the node, unless
    the machine is gone.

    On a silent node, a workload that should stop does not prevent the removal: the workload ends with the
    machine. The provider needs up to MAX_REMOVAL_S to remove the machine.
    """
    for change in changes:
        if not isinstance(change.old, LatticeNode) or change.new is not None or not change.old.spec.cluster:
            continue
        # A node that sent heartbeats again during the removal still counts as silent.
        nodes = context.snapshot.versions(LatticeNode, change.key.path, record.at - MAX_REMOVAL_S)
        was_silent = not all(is_ready(node) for node in nodes)
        blocking = []
        for workload in context.snapshot.workloads_on(change.key.name):
            if is_bound_to_former_node(workload, change.old):
                continue
            should_stop = (
                bool(workload.metadata.deletion_timestamp)
                or workload.spec.desired_state != "Running"
                or has_ended(workload)
            )
            if not was_silent or not should_stop:
                blocking.append(path_of(workload))
        if blocking and not context.world.cloud.was_lost(change.key.name, record.at):
            yield "I-27", f"node {change.key.name} was deleted while {', '.join(blocking)} ran on the node"


def _is_evicted(workload: LatticeWorkload) -> bool:
    """Report whether the controllers stop a workload that its spec wants to run."""
    return workload.status.last_action == "ApplyStopped" and workload.spec.desired_state == "Running"
