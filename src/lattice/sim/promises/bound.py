"""Binding: once, within the room there is, where it may go, groups together, by its mode, and room made for the more important only."""

from collections import Counter
from collections.abc import Iterable
from math import inf

from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.prepared import bound_by, prepared
from lattice.server.joining import node_key
from lattice.sim.past import Move, node_of, path_of, prepared_on
from lattice.sim.promises.seen import Found, Seen, is_preempted, is_ready, workload_moves
from lattice.sim.stores import Record

Workloads = dict[str, LatticeWorkload]


def bindings(seen: Seen, record: Record, moves: list[Move]) -> Found:
    """I-11: bound once. I-12: never more than there is room. I-14: only where it may go."""
    changed = list(workload_moves(moves))
    if not changed:
        return
    after = _after(seen, changed)
    for move in changed:
        old, new = node_of(move.old), node_of(move.new)
        if old and new and (old, move.old.status.binding.uid) != (new, move.new.status.binding.uid):
            yield "I-11", f"{move.key.path} moved from {old} to {new} in one step"
        fresh = new if new and not old else ""
        taken = fresh or (prepared_on(move.new) if not prepared_on(move.old) else "")
        if not taken or (fresh and prepared_on(move.old) == fresh):
            continue
        node = next((each.new for each in moves if each.key == node_key(taken)), None) or seen.snap.nodes.get(f"/{taken}")
        for short in lacking(move.new, taken, node, after.values()):
            yield "I-12", short
        why = infeasible(move.new, seen.snap.nodes.get(f"/{taken}")) or _same_port(move.new, taken, after)
        if why:
            yield "I-14", f"{move.key.path} was bound to {taken}: {why}"
    slots = Counter((each.metadata.namespace, each.spec.service, each.spec.slot) for each in after.values() if each.spec.service)
    for (namespace, service, slot), count in slots.items():
        if count > 1:
            yield "I-11", f"{count} replicas have slot {slot} of {namespace}/{service}"


def lacking(workload: LatticeWorkload, name: str, node: LatticeNode | None, workloads: Iterable[LatticeWorkload]) -> list[str]:
    """Of what there is too little on a node for all who are there, and this one."""
    room = node.status.allocatable if node else {}
    others = [each for each in workloads if name in (node_of(each), prepared_on(each)) and path_of(each) != path_of(workload)]
    found = []
    for resource, amount in workload.spec.request_amounts.items():
        asked = amount + sum(each.spec.request_amounts.get(resource, 0) for each in others)
        if asked > room.get(resource, 0):
            found.append(f"{name} has {room.get(resource, 0)} {resource} and {len(others) + 1} on it ask for {asked}")
    return found


def infeasible(workload: LatticeWorkload, node: LatticeNode | None) -> str:
    """Why that workload may not go to that node; said by somebody who does not know the scheduler."""
    if node is None:
        return "there is no such node"
    spec, tolerations = node.spec, workload.spec.constraints.tolerations
    bearable = all(taint.effect == "PreferNoSchedule" or any(each.tolerates(taint) for each in tolerations) for taint in spec.taints)
    labels = {**node.metadata.labels, "zone": spec.zone, "region": spec.region, "cluster": spec.cluster, "pool": spec.pool}
    reasons = {
        "it is not ready": is_ready(node),
        "it is cordoned": not spec.unschedulable,
        "it is being removed": not node.metadata.deletion_timestamp,
        "it has a taint": bearable,
        "it is of another cluster": workload.spec.cluster in ("", spec.cluster),
        "it has other labels": all(labels.get(key) == value for key, value in workload.spec.constraints.node_selector.items()),
        "the workload is being deleted": not workload.metadata.deletion_timestamp,
        "the workload is not to run": workload.spec.desired_state == "Running",
    }
    return "; ".join(words for words, holds in reasons.items() if not holds)


def gangs(seen: Seen, record: Record, moves: list[Move]) -> Found:
    """I-15: a group is bound together, or not at all. Whoever lost its node when the writer could not know counts as bound."""
    for move in workload_moves(moves):
        group = move.new.spec.group if move.new is not None else None
        if group is None or not node_of(move.new) or node_of(move.old):
            continue
        namespace, since = move.new.metadata.namespace, seen.since(record)
        members = [
            each
            for each in _after(seen, workload_moves(moves)).values()
            if each.spec.group and (each.metadata.namespace, each.spec.group.name) == (namespace, group.name)
        ]
        bound = sum(bool(node_of(each)) or seen.snap.bound_at.get(path_of(each), -inf) >= since for each in members)
        if bound < group.min_member:
            yield "I-15", f"{bound} of group {group.name} are bound, which needs {group.min_member}"


def modes(seen: Seen, record: Record, moves: list[Move]) -> Found:
    """I-16: committed only what was prepared, by the attempt that prepared it. I-17: bound under the lock of its node."""
    mode = seen.run.swarm.shape.binding
    for move in workload_moves(moves):
        if not node_of(move.new) or node_of(move.old):
            continue
        held = prepared(move.old) if move.old is not None else None
        if mode == "two-phase" and (held is None or held.node != node_of(move.new)):
            yield "I-16", f"{move.key.path} was bound to {node_of(move.new)} without having been prepared there"
        elif mode == "two-phase" and held is not None and held.reservation != bound_by(move.new):
            yield "I-16", f"{move.key.path} was prepared by {held.reservation} and bound by {bound_by(move.new)}"
        lock = seen.snap.leases.get(f"lattice-system/node.{node_of(move.new)}")
        if mode == "pessimistic" and move.new.spec.group is None and lock is None:
            yield "I-17", f"{move.key.path} was bound to {node_of(move.new)}, which nobody had locked"


def preemption(seen: Seen, record: Record, moves: list[Move]) -> Found:
    """I-18: who is told to make room is less important than somebody who waits."""
    for move in workload_moves(moves):
        if move.old is None or move.new is None or not is_preempted(move.new) or is_preempted(move.old):
            continue
        waiting = [each.spec.priority for each in seen.snap.workloads.values() if not node_of(each)]
        if not any(priority > move.new.spec.priority for priority in waiting):
            yield "I-18", f"{move.key.path} of priority {move.new.spec.priority} must make room, and nobody more important waits"


def _after(seen: Seen, moves: Iterable[Move]) -> Workloads:
    after = dict(seen.snap.workloads)
    for move in moves:
        if move.new is None:
            after.pop(move.key.path, None)
        else:
            after[move.key.path] = move.new
    return after


def _same_port(workload: LatticeWorkload, node: str, after: Workloads) -> str:
    mine = set(workload.status.allocated_ports.values())
    for other in after.values():
        if path_of(other) == path_of(workload) or node not in (node_of(other), prepared_on(other)):
            continue
        if both := mine & set(other.status.allocated_ports.values()):
            return f"port {min(both)} is {path_of(other)}'s"
    return ""
