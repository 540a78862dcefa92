"""Binding: once, within the room there is, where it may go, groups together, by its mode, and room made for the more important only."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from math import inf

import msgspec
from msgspec.structs import replace

from lattice.kinds.cluster import RESERVE_LABEL
from lattice.kinds.constraint import WorkloadTerm
from lattice.kinds.container import format_amount
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.scheduling.cycle.reservation_record import binding_reservation, reservation_record
from lattice.server.agents.join import node_key
from lattice.sim.invariants.context import CheckerContext, Findings, is_preempted, is_ready, workload_changes
from lattice.sim.invariants.history import (
    ObjectChange,
    StateSnapshot,
    is_bound_to_former_node,
    node_of,
    path_of,
    reserved_node,
)
from lattice.sim.invariants.placement import selector_matches
from lattice.sim.world.settings import RESERVATION_TIMEOUT_S
from lattice.sim.world.store import CommitRecord

Workloads = dict[str, LatticeWorkload]
_decode_workload = msgspec.json.Decoder(LatticeWorkload).decode


def check_bindings(seen: CheckerContext, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
    """I-11: bound once. I-12: never more than there is room. I-14: only where it may go."""
    changed = list(workload_changes(moves))
    if not changed:
        return
    after, together = _workloads_after(seen, changed), {path_of(each) for each in workloads_in(record)}
    for move in changed:
        old, new = node_of(move.old), node_of(move.new)
        if old and new and (old, move.old.status.binding.uid) != (new, move.new.status.binding.uid):
            yield "I-11", f"{move.key.path} moved from {old} to {new} in one step"
        fresh = new if new and not old else ""
        taken = fresh or (reserved_node(move.new) if not reserved_node(move.old) else "")
        if not taken or (fresh and reserved_node(move.old) == fresh):
            continue
        node = next(
            (each.new for each in moves if each.key == node_key(taken)), None
        ) or seen.snapshot.nodes.get(f"/{taken}")
        there = [each for each in after.values() if not _is_on_former_node(seen, each)]
        beside = [
            _with_smallest_requests(seen, record, each, together)
            for each in there
            if taken in (node_of(each), reserved_node(each))
        ]
        for short in shortfalls(move.new, taken, node, beside):
            yield "I-12", short
        why = (
            _wrong_node_uid(move.new, node)
            or infeasible_reason(move.new, seen.snapshot.nodes.get(f"/{taken}"))
            or _port_conflict(move.new, taken, there)
        )
        why = (
            why
            or _anti_affinity_conflict(seen, record, move.new, node, there)
            or _spread_violation(seen, record, move.new, taken)
        )
        if why:
            yield "I-14", f"{move.key.path} was bound to {taken}: {why}"
    slots = Counter(
        (each.metadata.namespace, each.spec.service, each.spec.slot)
        for each in after.values()
        if each.spec.service
    )
    for (namespace, service, slot), count in slots.items():
        if count > 1:
            yield "I-11", f"{count} replicas have slot {slot} of {namespace}/{service}"


def _wrong_node_uid(workload: LatticeWorkload, node: LatticeNode | None) -> str:
    return (
        "that is another node of that name"
        if node is not None and is_bound_to_former_node(workload, node)
        else ""
    )


def _is_on_former_node(seen: CheckerContext, workload: LatticeWorkload) -> bool:
    """It was on another node that had the name of one that is there now."""
    node = seen.snapshot.nodes.get(f"/{node_of(workload)}")
    return node is not None and is_bound_to_former_node(workload, node)


def _with_smallest_requests(
    seen: CheckerContext, record: CommitRecord, other: LatticeWorkload, together: Container[str]
) -> LatticeWorkload:
    """As it asked for least on its node since what the writer may have known, of each resource: who is bound may ask for more at any
    time, and its node's record does not change by that. What it is bound for with the same commit its writer knows."""
    if path_of(other) in together:
        return other
    known = seen.snapshot.versions(LatticeWorkload, path_of(other), seen.unseen_since(record))
    lately = [
        each.spec.request_amounts
        for each in known
        if _bound_or_reserved_node(each) == _bound_or_reserved_node(other)
    ]
    asked = other.spec.request_amounts
    least = {name: min([amount, *(each.get(name, 0) for each in lately)]) for name, amount in asked.items()}
    return (
        other
        if least == asked
        else replace(other, spec=replace(other.spec, containers={}, requests=_format_requests(least)))
    )


def _bound_or_reserved_node(workload: LatticeWorkload) -> str:
    return node_of(workload) or reserved_node(workload)


def _format_requests(amounts: dict[str, int]) -> dict[str, str | int]:
    return {name: format_amount(name, amount) for name, amount in amounts.items()}


def shortfalls(
    workload: LatticeWorkload, name: str, node: LatticeNode | None, workloads: Iterable[LatticeWorkload]
) -> list[str]:
    """Of what there is too little on a node for all who are there, and this one."""
    room = node.status.allocatable if node else {}
    others = [
        each
        for each in workloads
        if name in (node_of(each), reserved_node(each)) and path_of(each) != path_of(workload)
    ]
    found = []
    for resource, amount in workload.spec.request_amounts.items():
        asked = amount + sum(each.spec.request_amounts.get(resource, 0) for each in others)
        if asked > room.get(resource, 0):
            found.append(
                f"{name} has {room.get(resource, 0)} {resource} and {len(others) + 1} on it ask for {asked}"
            )
    return found


def infeasible_reason(workload: LatticeWorkload, node: LatticeNode | None) -> str:
    """Why that workload may not go to that node; said by somebody who does not know the scheduler."""
    if node is None:
        return "there is no such node"
    spec, tolerations = node.spec, workload.spec.constraints.tolerations
    bearable = all(
        taint.effect == "PreferNoSchedule" or any(each.tolerates(taint) for each in tolerations)
        for taint in spec.taints
    )
    labels = effective_labels(node)
    reasons = {
        "it is not ready": is_ready(node),
        "it is cordoned": not spec.unschedulable,
        "it is being removed": not node.metadata.deletion_timestamp,
        "it has a taint": bearable,
        "it is of another cluster": workload.spec.cluster in ("", spec.cluster),
        "it is reserved for others": bool(workload.spec.service) or RESERVE_LABEL not in labels,
        "it has other labels": all(
            labels.get(key) == value for key, value in workload.spec.constraints.node_selector.items()
        ),
        "the workload is being deleted": not workload.metadata.deletion_timestamp,
        "the workload is not to run": workload.spec.desired_state == "Running",
    }
    return "; ".join(words for words, holds in reasons.items() if not holds)


def effective_labels(node: LatticeNode) -> dict[str, str]:
    """What nodes are selected and told apart by: what its spec says wins over labels."""
    spec = node.spec
    stated = {
        "zone": spec.zone,
        "region": spec.region,
        "cluster": spec.cluster,
        "pool": spec.pool,
        "provider": spec.provider,
    }
    return {**node.metadata.labels, **stated, "node": node.metadata.name}


def workloads_in(record: CommitRecord) -> Iterator[LatticeWorkload]:
    """Workloads as that commit leaves them."""
    for change in record.changes:
        if change.key.resource == LatticeWorkload.resource.id and change.value is not None:
            yield _decode_workload(change.value)


def _anti_affinity_conflict(
    seen: CheckerContext,
    record: CommitRecord,
    workload: LatticeWorkload,
    node: LatticeNode | None,
    others: Iterable[LatticeWorkload],
) -> str:
    """What another asks for, and is called by, may have changed when this was on its way."""
    together = {path_of(each) for each in workloads_in(record)}
    for other in others:
        path = path_of(other)
        lately = (
            []
            if path in together
            else seen.snapshot.versions(LatticeWorkload, path, seen.unseen_since(record))
        )
        words = [
            _anti_affinity_violation(
                workload, node, [replace(each, status=other.status)], seen.snapshot.nodes
            )
            for each in lately or [other]
        ]
        if all(words):
            return words[-1]
    return ""


def _anti_affinity_violation(
    workload: LatticeWorkload,
    node: LatticeNode | None,
    others: Iterable[LatticeWorkload],
    nodes: dict[str, LatticeNode],
) -> str:
    """Who is near that it must be far from, or that must be far from it."""
    here = effective_labels(node) if node else {}
    for other in others:
        there = nodes.get(f"/{node_of(other) or reserved_node(other)}")
        if (
            there is None
            or path_of(other) == path_of(workload)
            or other.metadata.namespace != workload.metadata.namespace
        ):
            continue
        for one, two in ((workload, other), (other, workload)):
            for term in _anti_affinity_terms(one):
                if here.get(term.topology_key) == effective_labels(there).get(
                    term.topology_key
                ) and selector_matches(term.selector, two.metadata.labels):
                    return f"{path_of(one)} must be far from {path_of(two)}"
    return ""


def _anti_affinity_terms(workload: LatticeWorkload) -> tuple[WorkloadTerm, ...]:
    affinity = workload.spec.constraints.affinity
    return affinity.anti_workload.required if affinity and affinity.anti_workload else ()


def _spread_violation(
    seen: CheckerContext, record: CommitRecord, workload: LatticeWorkload, taken: str
) -> str:
    """One more there is too many beside nodes that have fewer. What came or went lately counts in favour of whoever chose, and so does
    what it binds a moment later: of those that are chosen together, and bound each by itself, the last may be written first. What is
    bound in one commit is judged as the commit leaves it, whatever the order it is written in."""
    since, together = seen.unseen_since(record), list(workloads_in(record))
    for each in workload.spec.constraints.spread:
        if each.when_unsatisfiable != "DoNotSchedule" or each.topology_key != "node" or each.selector:
            continue
        mine = [
            one
            for one in seen.snapshot.replicas_of(f"{workload.metadata.namespace}/{workload.spec.service}")
            if one.metadata.uid != workload.metadata.uid and not _is_on_former_node(seen, one)
        ]
        before = {
            path_of(one)
            for one in mine
            if node_of(one) == taken and seen.snapshot.bound_since.get(path_of(one), inf) < since
        }
        beside = {path_of(one) for one in _same_service(workload, together) if node_of(one) == taken}
        here = len((before | beside) - {path_of(workload)})
        lately = [
            former
            for path in seen.snapshot.all_workload_paths
            for former in seen.snapshot.versions(LatticeWorkload, path, since)
        ]
        lately += together
        lately += [change for each in seen.following_commits(record) for change in workloads_in(each)]
        alike = _same_service(workload, lately)
        counts = [
            len(
                {
                    path_of(one)
                    for one in alike
                    if path.removeprefix("/") in (node_of(one), reserved_node(one))
                }
            )
            for path in seen.snapshot.nodes
            if all(
                _is_spread_candidate(workload, one)
                for one in seen.snapshot.versions(LatticeNode, path, since)
            )
        ]
        if counts and here + 1 - min(counts) > each.max_skew:
            return f"{here} of its service are there, and {min(counts)} on another node"
    return ""


def _same_service(workload: LatticeWorkload, others: Iterable[LatticeWorkload]) -> list[LatticeWorkload]:
    mine = (workload.metadata.namespace, workload.spec.service)
    return [each for each in others if (each.metadata.namespace, each.spec.service) == mine]


def _is_spread_candidate(workload: LatticeWorkload, node: LatticeNode) -> bool:
    """By what it asks of a node, and the node takes somebody; room and taints aside."""
    labels, asked = effective_labels(node), workload.spec
    if node.spec.unschedulable or node.metadata.deletion_timestamp:
        return False
    return (
        is_ready(node)
        and asked.cluster in ("", node.spec.cluster)
        and all(labels.get(key) == value for key, value in asked.constraints.node_selector.items())
    )


def are_unschedulable(members: list[LatticeWorkload], snap: StateSnapshot) -> bool:
    """Whether they cannot all be bound, beside what is there and is as important, or some service's; of one size, as groups are."""
    least = min(each.spec.priority for each in members)
    there = [each for each in snap.workloads.values() if each.spec.priority >= least or each.spec.service]
    for each in members:
        nodes = [
            node for node in snap.nodes.values() if not node_of(each) and not infeasible_reason(each, node)
        ]
        fitting = [
            node
            for node in nodes
            if not shortfalls(each, node.metadata.name, node, there)
            and not _anti_affinity_violation(each, node, there, snap.nodes)
        ]
        if not fitting and not node_of(each):
            return True
        if fitting:
            where = Binding(node=fitting[0].metadata.name, uid=fitting[0].metadata.uid, term=0)
            there = [one for one in there if path_of(one) != path_of(each)]
            there.append(replace(each, status=replace(each.status, binding=where)))
    return False


def check_gangs(seen: CheckerContext, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
    """I-15: a group is bound together, or not at all. Whoever lost its node when the writer could not know counts as bound."""
    for move in workload_changes(moves):
        group = move.new.spec.group if move.new is not None else None
        if group is None or not node_of(move.new) or node_of(move.old):
            continue
        namespace, since = move.new.metadata.namespace, seen.unseen_since(record)
        members = [
            each
            for each in _workloads_after(seen, workload_changes(moves)).values()
            if each.spec.group and (each.metadata.namespace, each.spec.group.name) == (namespace, group.name)
        ]
        bound = sum(
            bool(node_of(each)) or seen.snapshot.bound_at.get(path_of(each), -inf) >= since
            for each in members
        )
        if bound < group.min_member:
            yield "I-15", f"{bound} of group {group.name} are bound, which needs {group.min_member}"


def check_binding_modes(seen: CheckerContext, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
    """I-16: committed only what was prepared, by the attempt that prepared it. I-17: bound under the lock of its node."""
    mode = seen.run.fault_plan.world_config.binding
    for move in workload_changes(moves):
        if not node_of(move.new) or node_of(move.old):
            continue
        held = reservation_record(move.old) if move.old is not None else None
        if mode == "two-phase" and (held is None or held.node != node_of(move.new)):
            yield (
                "I-16",
                f"{move.key.path} was bound to {node_of(move.new)} without having been prepared there",
            )
        elif mode == "two-phase" and held is not None and held.reservation != binding_reservation(move.new):
            yield (
                "I-16",
                f"{move.key.path} was prepared by {held.reservation} and bound by {binding_reservation(move.new)}",
            )
        elif mode == "two-phase" and held is not None and not held.gang:
            kept = (record.at if record.sent_at is None else record.sent_at) - seen.snapshot.reserved_at[
                move.key.path
            ]
            if kept > RESERVATION_TIMEOUT_S / seen.clock_rate(record):
                yield (
                    "I-16",
                    f"{move.key.path} was bound {kept:.1f} s after it was prepared, which holds for {RESERVATION_TIMEOUT_S:g} s",
                )
        if (
            mode == "pessimistic"
            and move.new.spec.group is None
            and (why := _lock_violation(seen, record, node_of(move.new)))
        ):
            yield "I-17", f"{move.key.path} was bound to {node_of(move.new)}, {why}"


def _lock_violation(seen: CheckerContext, record: CommitRecord, node: str) -> str:
    """Why whoever wrote that did not hold the lock of that node; empty if it did."""
    path = f"lattice-system/node.{node}"
    lock = seen.snapshot.leases.get(path)
    if lock is None or record.term is None:
        return "which nobody had locked"
    holder, mine = (
        lock.spec.holder_identity or "",
        f"{record.term.role}/{record.term.holder}.{record.term.number} ",
    )
    if not holder.startswith(mine):
        return f"which {holder or 'nobody'} had locked"
    held = (record.at if record.sent_at is None else record.sent_at) - seen.snapshot.locked_at[path]
    most = (lock.spec.lease_duration_seconds or 0) / seen.clock_rate(record)
    return f"whose lock had ended {held - most:.1f} s before" if held > most else ""


def check_preemption(seen: CheckerContext, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
    """I-18: who is told to make room is less important than somebody who waits."""
    for move in workload_changes(moves):
        if move.old is None or move.new is None or not is_preempted(move.new) or is_preempted(move.old):
            continue
        since = seen.unseen_since(record)
        group = move.old.spec.group.name if move.old.spec.group else ""
        leaving = [
            each
            for each in seen.snapshot.workloads.values()
            if group and each.spec.group and each.spec.group.name == group
        ]
        places = {node_of(each) for each in (move.old, *leaving)} - {
            ""
        }  # a group makes room as a whole, wherever it is
        nodes = [
            each
            for place in sorted(places)
            for each in seen.snapshot.versions(LatticeNode, f"/{place}", since)
        ]
        if not any(
            _could_run_on(each, node)
            for each in _higher_priority_workloads(seen, move.new, since)
            for node in nodes
        ):
            yield (
                "I-18",
                f"{move.key.path} of priority {move.new.spec.priority} must make room, and nobody more important waits for that",
            )


def _higher_priority_workloads(
    seen: CheckerContext, than: LatticeWorkload, since: float
) -> list[LatticeWorkload]:
    known = [
        each
        for path in seen.snapshot.all_workload_paths
        for each in seen.snapshot.versions(LatticeWorkload, path, since)
    ]
    return [each for each in known if each.spec.priority > than.spec.priority]


def _could_run_on(workload: LatticeWorkload, node: LatticeNode) -> bool:
    return not node_of(workload) and not infeasible_reason(workload, node)


def _workloads_after(seen: CheckerContext, moves: Iterable[ObjectChange]) -> Workloads:
    after = dict(seen.snapshot.workloads)
    for move in moves:
        if move.new is None:
            after.pop(move.key.path, None)
        else:
            after[move.key.path] = move.new
    return after


def _port_conflict(workload: LatticeWorkload, node: str, others: Iterable[LatticeWorkload]) -> str:
    mine = set(workload.status.allocated_ports.values())
    for other in others:
        if path_of(other) == path_of(workload) or node not in (node_of(other), reserved_node(other)):
            continue
        if both := mine & set(other.status.allocated_ports.values()):
            return f"port {min(both)} is {path_of(other)}'s"
    return ""
