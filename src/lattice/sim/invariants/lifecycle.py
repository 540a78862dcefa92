"""What ends, and when: silent nodes, copies that must be alone, replicas that are needed, nodes that are removed."""

from bisect import bisect_right
from collections import defaultdict
from itertools import pairwise
from math import inf

from lattice.kinds.node import DRAINING_TAINT, LatticeNode
from lattice.kinds.workload import LatticeWorkload
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
    path_of,
)
from lattice.sim.world.settings import CLOCK_RATE_TOLERANCE, KILL_GRACE_S, REPLACE_AFTER_S, TIMEOUTS
from lattice.sim.world.store import CommitRecord

MAX_REMOVAL_S = 12.0  # seconds that a provider may take to remove a machine


def check_silent_nodes(seen: CheckerContext, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
    """I-13: what ran on a silent node is bound anew only when the time is up: since it was heard, and since this leader was elected."""
    for move in workload_changes(moves):
        node = (
            seen.snapshot.nodes.get(f"/{node_of(move.old)}")
            if node_of(move.old) and not node_of(move.new)
            else None
        )
        if (
            node is None
            or move.new is None
            or is_ready(node)
            or node.metadata.uid != move.old.status.binding.uid
        ):
            continue
        policy = move.old.spec.disconnect
        certain = (
            (policy.stop_after_ms / 1000 + KILL_GRACE_S) * (1 + CLOCK_RATE_TOLERANCE) ** 2
            if policy.policy == "stop"
            else 0.0
        )
        least = max(REPLACE_AFTER_S, certain) / seen.clock_rate(record)
        quiet = record.at - max(seen.last_heartbeats.get(node.metadata.name, -inf), seen.elected_at(record))
        if quiet < least and not _reports_stopped(seen, record, move.old):
            words = f"{move.key.path} was taken from {node.metadata.name} {quiet:.1f} s after that was heard"
            yield "I-13", f"{words} or the leader elected, before {least:.1f} s"


def _reports_stopped(seen: CheckerContext, record: CommitRecord, workload: LatticeWorkload) -> bool:
    """Its node speaks again, to this leader, which has not written yet that it is ready; and there is indeed no copy there."""
    name, at = node_of(workload), record.at
    heard = seen.last_heartbeats.get(name, -inf)
    if heard < seen.elected_at(record) or at - heard >= TIMEOUTS.nodes.not_ready_after / seen.clock_rate(
        record
    ):
        return False
    there = [
        each for each in (*seen.world.removed_machines, *seen.world.machines.values()) if each.name == name
    ]
    copies = [
        life
        for machine in there
        for life in instance_runs(machine)
        if life.instance_id.uid == workload.metadata.uid
    ]
    return not any(life.start <= at < life.end for life in copies)


def check_instances(seen: CheckerContext) -> Findings:
    """I-13: a strict single copy never runs twice, and ends in time when its node is cut off. I-19: a node runs a workload once.

    One that is deleted and made again is the same by its name, though its copies are of another uid.
    """
    by_name: dict[str, list[InstanceRun]] = defaultdict(list)
    contacts: dict[str, list[float]] = defaultdict(list)
    for at, node in sorted([*seen.world.heartbeats, *seen.world.other_messages]):
        contacts[node].append(at)
    for machine in [*seen.world.removed_machines, *seen.world.machines.values()]:
        for life in instance_runs(machine):
            by_name[life.spec.workload].append(life)
            yield from _check_disconnect_stop(
                life, contacts[life.node], min(life.end, seen.world.loop.time())
            )
    for every in by_name.values():
        every.sort(key=lambda life: life.start)
        for index, life in enumerate(every):
            for other in every[index + 1 :]:
                if other.start >= life.end or other.instance_id.container != life.instance_id.container:
                    continue
                words = f"{life.spec.workload} ran on {life.node} from {life.start:.2f} to {life.end:.2f} s"
                if other.node == life.node:
                    yield "I-19", f"{words}, and once more there from {other.start:.2f} s"
                elif life.spec.stop_after is not None:
                    yield "I-13", f"{words}, and on {other.node} from {other.start:.2f} s"


def _check_disconnect_stop(life: InstanceRun, contacts: list[float], end: float) -> Findings:
    if life.spec.stop_after is None:
        return
    allowed = (life.spec.stop_after + KILL_GRACE_S) * (1 + CLOCK_RATE_TOLERANCE)
    index = bisect_right(contacts, life.start)
    known = [
        contacts[index - 1] if index else life.start,
        *contacts[index : bisect_right(contacts, end)],
        end,
    ]
    for heard, following in pairwise(known):
        if following > heard + allowed:
            words = f"{life.spec.workload} ran on {life.node} until {end:.2f} s, which nobody had heard since {heard:.2f} s"
            yield "I-13", f"{words}: it was to end by itself after {life.spec.stop_after:g} s"
            return


def check_disruption(seen: CheckerContext, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
    """I-24: nobody who is needed is stopped by choice. I-28: nor told to make room."""
    if record.origin != CONTROLLERS:
        return
    gone: set[str] = set()
    for move in workload_changes(moves):
        is_stopped, is_told = _is_voluntary_stop(move), _is_newly_preempted(move)
        if (
            not (is_stopped or is_told)
            or not move.old.status.ready
            or _is_evicted_by_taint(seen, record, move.old)
        ):
            continue
        gone.add(move.key.path)
        key = f"{move.key.namespace}/{move.old.spec.service}"
        service = seen.snapshot.services.get(key)
        if (
            service is None
            or service.metadata.deletion_timestamp
            or not _is_owned_by(move.old, service.metadata.uid)
        ):
            continue
        since = seen.unseen_since(record)
        others = [
            each
            for each in seen.snapshot.replicas_of(key)
            if path_of(each) not in gone and _was_ready(seen, each, since)
        ]
        least = seen.snapshot.min_desired_replicas(key, since)
        if len(others) < least:
            number, what = ("I-24", "stopped") if is_stopped else ("I-28", "told to make room")
            yield (
                number,
                f"{move.key.path} was {what} while it was needed: {len(others)} others are ready and {least} are wanted",
            )


def _is_evicted_by_taint(seen: CheckerContext, record: CommitRecord, workload: LatticeWorkload) -> bool:
    """A person does not want it on its node any longer, whether it is needed or not."""
    nodes = seen.snapshot.versions(LatticeNode, f"/{node_of(workload)}", seen.unseen_since(record))
    taints = [
        taint
        for node in nodes
        for taint in node.spec.taints
        if taint.effect == "NoExecute" and taint.key != DRAINING_TAINT
    ]
    return not all(
        any(each.tolerates(taint) for each in workload.spec.constraints.tolerations) for taint in taints
    )


def check_replacement(seen: CheckerContext, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
    """I-25: nobody is replaced who is as he should be: until moves exist, other prices, supply or policies move no healthy replica."""
    for move in workload_changes(moves):
        key = (
            f"{move.key.namespace}/{move.new.spec.service}"
            if move.old is None and move.new.spec.service
            else ""
        )
        service = seen.snapshot.services.get(key)
        if record.origin != CONTROLLERS or service is None or service.metadata.deletion_timestamp:
            continue
        since = seen.unseen_since(record)
        live = [each for each in seen.snapshot.replicas_of(key) if not each.metadata.deletion_timestamp]
        if len(live) >= service.spec.desired_replicas() > 0 and all(
            _is_healthy(seen, each, since) for each in live
        ):
            yield (
                "I-25",
                f"{move.key.path} was made though the {len(live)} that {key} wants are ready, as asked, and on nodes that stay",
            )


def _is_healthy(seen: CheckerContext, workload: LatticeWorkload, since: float) -> bool:
    """Ready, on a node that stays, and made since what is asked of its service last changed; all of that for a while."""
    path, where = path_of(workload), f"/{node_of(workload)}"
    node = seen.snapshot.nodes.get(where)
    if (
        node is None
        or not is_ready(node)
        or seen.snapshot.unschedulable_at.get(where, -inf) >= since
        or _is_closed_node(node)
    ):
        return False
    stated = seen.snapshot.spec_changed_at.get(f"{workload.metadata.namespace}/{workload.spec.service}", 0.0)
    is_steady = bool(workload.status.ready) and seen.snapshot.not_ready_at.get(path, -inf) < since
    return (
        is_steady
        and not is_preempted(workload)
        and stated < seen.snapshot.created_at.get(path, 0.0) - MAX_STALENESS_S
    )


def _is_closed_node(node: LatticeNode) -> bool:
    return bool(node.spec.unschedulable or node.spec.taints or node.metadata.deletion_timestamp)


def _was_ready(seen: CheckerContext, workload: LatticeWorkload, since: float) -> bool:
    """Ready and to stay, or it was when whoever decided last heard of it."""
    path = path_of(workload)
    if workload.metadata.deletion_timestamp or is_preempted(workload):
        return False
    return bool(workload.status.ready) or seen.snapshot.ready_at.get(path, -inf) >= since


def check_node_removal(seen: CheckerContext, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
    """I-27: a machine's node is deleted only when nothing is bound or prepared there, unless the machine itself is gone.

    From a node that is silent goes by itself only what is to run: what is to end ends with the machine, which takes a while to remove.
    """
    for move in moves:
        if isinstance(move.old, LatticeNode) and move.new is None and move.old.spec.cluster:
            there = [
                each
                for each in seen.snapshot.workloads_on(move.key.name)
                if not is_bound_to_former_node(each, move.old)
            ]
            was_silent = not all(
                map(is_ready, seen.snapshot.versions(LatticeNode, move.key.path, record.at - MAX_REMOVAL_S))
            )
            left = [path_of(each) for each in there if not was_silent or not _should_stop(each)]
            if left and not seen.world.cloud.was_lost(move.key.name, record.at):
                yield "I-27", f"node {move.key.name} was deleted with {', '.join(left)} on it"


def _should_stop(workload: LatticeWorkload) -> bool:
    """Somebody wants that, or it has failed for good."""
    retry, spec = workload.status.retry, workload.spec
    has_failed = retry is not None and retry.revision == spec.effective_revision and retry.is_exhausted
    return bool(workload.metadata.deletion_timestamp) or spec.desired_state != "Running" or has_failed


def _is_voluntary_stop(move: ObjectChange) -> bool:
    """Marked for removal, or told to leave its node while it is wanted, whichever is first; not one that makes room for somebody more
    important."""
    old, new = move.old, move.new
    if (
        old is None
        or new is None
        or is_preempted(old)
        or old.metadata.deletion_timestamp
        or not old.spec.service
    ):
        return False
    was_told = old.status.last_action == "ApplyStopped" and old.spec.desired_state == "Running"
    is_told = new.status.last_action == "ApplyStopped" and new.spec.desired_state == "Running"
    return not was_told and (bool(new.metadata.deletion_timestamp) or is_told)


def _is_newly_preempted(move: ObjectChange) -> bool:
    old, new = move.old, move.new
    return (
        old is not None
        and new is not None
        and bool(old.spec.service)
        and is_preempted(new)
        and not is_preempted(old)
    )


def _is_owned_by(workload: LatticeWorkload, uid: str) -> bool:
    return any(each.uid == uid for each in workload.metadata.owner_references)
