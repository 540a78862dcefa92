"""Binding: once, within the room there is, where it may go, groups together, by its mode, and room made for the more important only."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from math import inf

import msgspec
from msgspec.structs import replace

from lattice.kinds.cluster import RESERVE_LABEL
from lattice.kinds.constraint import WorkloadTerm
from lattice.kinds.container import show_amount
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.scheduling.cycle.two_phase import bound_by, prepared
from lattice.server.agents.join import node_key
from lattice.sim.invariants.history import Move, Snap, is_on_former, node_of, path_of, prepared_on
from lattice.sim.invariants.placement import selects
from lattice.sim.invariants.context import Found, Seen, is_preempted, is_ready, workload_moves
from lattice.sim.world.settings import RESERVED
from lattice.sim.world.store import Record

Workloads = dict[str, LatticeWorkload]
_workload = msgspec.json.Decoder(LatticeWorkload).decode


def bindings(seen: Seen, record: Record, moves: list[Move]) -> Found:
    """I-11: bound once. I-12: never more than there is room. I-14: only where it may go."""
    changed = list(workload_moves(moves))
    if not changed:
        return
    after, together = _after(seen, changed), {path_of(each) for each in bound_in(record)}
    for move in changed:
        old, new = node_of(move.old), node_of(move.new)
        if old and new and (old, move.old.status.binding.uid) != (new, move.new.status.binding.uid):
            yield "I-11", f"{move.key.path} moved from {old} to {new} in one step"
        fresh = new if new and not old else ""
        taken = fresh or (prepared_on(move.new) if not prepared_on(move.old) else "")
        if not taken or (fresh and prepared_on(move.old) == fresh):
            continue
        node = next((each.new for each in moves if each.key == node_key(taken)), None) or seen.snap.nodes.get(
            f"/{taken}"
        )
        there = [each for each in after.values() if not _is_elsewhere(seen, each)]
        beside = [
            _smallest(seen, record, each, together)
            for each in there
            if taken in (node_of(each), prepared_on(each))
        ]
        for short in lacking(move.new, taken, node, beside):
            yield "I-12", short
        why = (
            _of_another(move.new, node)
            or infeasible(move.new, seen.snap.nodes.get(f"/{taken}"))
            or _same_port(move.new, taken, there)
        )
        why = (
            why
            or _near_all_along(seen, record, move.new, node, there)
            or _uneven(seen, record, move.new, taken)
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


def _of_another(workload: LatticeWorkload, node: LatticeNode | None) -> str:
    return "that is another node of that name" if node is not None and is_on_former(workload, node) else ""


def _is_elsewhere(seen: Seen, workload: LatticeWorkload) -> bool:
    """It was on another node that had the name of one that is there now."""
    node = seen.snap.nodes.get(f"/{node_of(workload)}")
    return node is not None and is_on_former(workload, node)


def _smallest(
    seen: Seen, record: Record, other: LatticeWorkload, together: Container[str]
) -> LatticeWorkload:
    """As it asked for least on its node since what the writer may have known, of each resource: who is bound may ask for more at any
    time, and its node's record does not change by that. What it is bound for with the same commit its writer knows."""
    if path_of(other) in together:
        return other
    known = seen.snap.versions(LatticeWorkload, path_of(other), seen.since(record))
    lately = [each.spec.request_amounts for each in known if _where(each) == _where(other)]
    asked = other.spec.request_amounts
    least = {name: min([amount, *(each.get(name, 0) for each in lately)]) for name, amount in asked.items()}
    return (
        other
        if least == asked
        else replace(other, spec=replace(other.spec, containers={}, requests=_shown(least)))
    )


def _where(workload: LatticeWorkload) -> str:
    return node_of(workload) or prepared_on(workload)


def _shown(amounts: dict[str, int]) -> dict[str, str | int]:
    return {name: show_amount(name, amount) for name, amount in amounts.items()}


def lacking(
    workload: LatticeWorkload, name: str, node: LatticeNode | None, workloads: Iterable[LatticeWorkload]
) -> list[str]:
    """Of what there is too little on a node for all who are there, and this one."""
    room = node.status.allocatable if node else {}
    others = [
        each
        for each in workloads
        if name in (node_of(each), prepared_on(each)) and path_of(each) != path_of(workload)
    ]
    found = []
    for resource, amount in workload.spec.request_amounts.items():
        asked = amount + sum(each.spec.request_amounts.get(resource, 0) for each in others)
        if asked > room.get(resource, 0):
            found.append(
                f"{name} has {room.get(resource, 0)} {resource} and {len(others) + 1} on it ask for {asked}"
            )
    return found


def infeasible(workload: LatticeWorkload, node: LatticeNode | None) -> str:
    """Why that workload may not go to that node; said by somebody who does not know the scheduler."""
    if node is None:
        return "there is no such node"
    spec, tolerations = node.spec, workload.spec.constraints.tolerations
    bearable = all(
        taint.effect == "PreferNoSchedule" or any(each.tolerates(taint) for each in tolerations)
        for taint in spec.taints
    )
    labels = labels_of(node)
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


def labels_of(node: LatticeNode) -> dict[str, str]:
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


def bound_in(record: Record) -> Iterator[LatticeWorkload]:
    """Workloads as that commit leaves them."""
    for change in record.changes:
        if change.key.resource == LatticeWorkload.resource.id and change.value is not None:
            yield _workload(change.value)


def _near_all_along(
    seen: Seen,
    record: Record,
    workload: LatticeWorkload,
    node: LatticeNode | None,
    others: Iterable[LatticeWorkload],
) -> str:
    """What another asks for, and is called by, may have changed when this was on its way."""
    together = {path_of(each) for each in bound_in(record)}
    for other in others:
        path = path_of(other)
        lately = [] if path in together else seen.snap.versions(LatticeWorkload, path, seen.since(record))
        words = [
            _too_near(workload, node, [replace(each, status=other.status)], seen.snap.nodes)
            for each in lately or [other]
        ]
        if all(words):
            return words[-1]
    return ""


def _too_near(
    workload: LatticeWorkload,
    node: LatticeNode | None,
    others: Iterable[LatticeWorkload],
    nodes: dict[str, LatticeNode],
) -> str:
    """Who is near that it must be far from, or that must be far from it."""
    here = labels_of(node) if node else {}
    for other in others:
        there = nodes.get(f"/{node_of(other) or prepared_on(other)}")
        if (
            there is None
            or path_of(other) == path_of(workload)
            or other.metadata.namespace != workload.metadata.namespace
        ):
            continue
        for one, two in ((workload, other), (other, workload)):
            for term in _far_from(one):
                if here.get(term.topology_key) == labels_of(there).get(term.topology_key) and selects(
                    term.selector, two.metadata.labels
                ):
                    return f"{path_of(one)} must be far from {path_of(two)}"
    return ""


def _far_from(workload: LatticeWorkload) -> tuple[WorkloadTerm, ...]:
    affinity = workload.spec.constraints.affinity
    return affinity.anti_workload.required if affinity and affinity.anti_workload else ()


def _uneven(seen: Seen, record: Record, workload: LatticeWorkload, taken: str) -> str:
    """One more there is too many beside nodes that have fewer. What came or went lately counts in favour of whoever chose, and so does
    what it binds a moment later: of those that are chosen together, and bound each by itself, the last may be written first. What is
    bound in one commit is judged as the commit leaves it, whatever the order it is written in."""
    since, together = seen.since(record), list(bound_in(record))
    for each in workload.spec.constraints.spread:
        if each.when_unsatisfiable != "DoNotSchedule" or each.topology_key != "node" or each.selector:
            continue
        mine = [
            one
            for one in seen.snap.replicas(f"{workload.metadata.namespace}/{workload.spec.service}")
            if one.metadata.uid != workload.metadata.uid and not _is_elsewhere(seen, one)
        ]
        before = {
            path_of(one)
            for one in mine
            if node_of(one) == taken and seen.snap.placed_at.get(path_of(one), inf) < since
        }
        beside = {path_of(one) for one in _alike(workload, together) if node_of(one) == taken}
        here = len((before | beside) - {path_of(workload)})
        lately = [
            former
            for path in seen.snap.known_workloads
            for former in seen.snap.versions(LatticeWorkload, path, since)
        ]
        lately += together
        lately += [change for each in seen.on_its_way(record) for change in bound_in(each)]
        alike = _alike(workload, lately)
        counts = [
            len({path_of(one) for one in alike if path.removeprefix("/") in (node_of(one), prepared_on(one))})
            for path in seen.snap.nodes
            if all(_would_do(workload, one) for one in seen.snap.versions(LatticeNode, path, since))
        ]
        if counts and here + 1 - min(counts) > each.max_skew:
            return f"{here} of its service are there, and {min(counts)} on another node"
    return ""


def _alike(workload: LatticeWorkload, others: Iterable[LatticeWorkload]) -> list[LatticeWorkload]:
    mine = (workload.metadata.namespace, workload.spec.service)
    return [each for each in others if (each.metadata.namespace, each.spec.service) == mine]


def _would_do(workload: LatticeWorkload, node: LatticeNode) -> bool:
    """By what it asks of a node, and the node takes somebody; room and taints aside."""
    labels, asked = labels_of(node), workload.spec
    if node.spec.unschedulable or node.metadata.deletion_timestamp:
        return False
    return (
        is_ready(node)
        and asked.cluster in ("", node.spec.cluster)
        and all(labels.get(key) == value for key, value in asked.constraints.node_selector.items())
    )


def fit_nowhere(members: list[LatticeWorkload], snap: Snap) -> bool:
    """Whether they cannot all be bound, beside what is there and is as important, or some service's; of one size, as groups are."""
    least = min(each.spec.priority for each in members)
    there = [each for each in snap.workloads.values() if each.spec.priority >= least or each.spec.service]
    for each in members:
        nodes = [node for node in snap.nodes.values() if not node_of(each) and not infeasible(each, node)]
        fitting = [
            node
            for node in nodes
            if not lacking(each, node.metadata.name, node, there)
            and not _too_near(each, node, there, snap.nodes)
        ]
        if not fitting and not node_of(each):
            return True
        if fitting:
            where = Binding(node=fitting[0].metadata.name, uid=fitting[0].metadata.uid, term=0)
            there = [one for one in there if path_of(one) != path_of(each)]
            there.append(replace(each, status=replace(each.status, binding=where)))
    return False


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
        bound = sum(
            bool(node_of(each)) or seen.snap.bound_at.get(path_of(each), -inf) >= since for each in members
        )
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
            yield (
                "I-16",
                f"{move.key.path} was bound to {node_of(move.new)} without having been prepared there",
            )
        elif mode == "two-phase" and held is not None and held.reservation != bound_by(move.new):
            yield (
                "I-16",
                f"{move.key.path} was prepared by {held.reservation} and bound by {bound_by(move.new)}",
            )
        elif mode == "two-phase" and held is not None and not held.gang:
            kept = (record.at if record.asked_at is None else record.asked_at) - seen.snap.prepared_at[
                move.key.path
            ]
            if kept > RESERVED / seen.rate(record):
                yield (
                    "I-16",
                    f"{move.key.path} was bound {kept:.1f} s after it was prepared, which holds for {RESERVED:g} s",
                )
        if (
            mode == "pessimistic"
            and move.new.spec.group is None
            and (why := _unlocked(seen, record, node_of(move.new)))
        ):
            yield "I-17", f"{move.key.path} was bound to {node_of(move.new)}, {why}"


def _unlocked(seen: Seen, record: Record, node: str) -> str:
    """Why whoever wrote that did not hold the lock of that node; empty if it did."""
    path = f"lattice-system/node.{node}"
    lock = seen.snap.leases.get(path)
    if lock is None or record.term is None:
        return "which nobody had locked"
    holder, mine = (
        lock.spec.holder_identity or "",
        f"{record.term.role}/{record.term.holder}.{record.term.number} ",
    )
    if not holder.startswith(mine):
        return f"which {holder or 'nobody'} had locked"
    held = (record.at if record.asked_at is None else record.asked_at) - seen.snap.locked_at[path]
    most = (lock.spec.lease_duration_seconds or 0) / seen.rate(record)
    return f"whose lock had ended {held - most:.1f} s before" if held > most else ""


def preemption(seen: Seen, record: Record, moves: list[Move]) -> Found:
    """I-18: who is told to make room is less important than somebody who waits."""
    for move in workload_moves(moves):
        if move.old is None or move.new is None or not is_preempted(move.new) or is_preempted(move.old):
            continue
        since = seen.since(record)
        group = move.old.spec.group.name if move.old.spec.group else ""
        leaving = [
            each
            for each in seen.snap.workloads.values()
            if group and each.spec.group and each.spec.group.name == group
        ]
        places = {node_of(each) for each in (move.old, *leaving)} - {
            ""
        }  # a group makes room as a whole, wherever it is
        nodes = [
            each for place in sorted(places) for each in seen.snap.versions(LatticeNode, f"/{place}", since)
        ]
        if not any(
            _waits_for(each, node) for each in _more_important(seen, move.new, since) for node in nodes
        ):
            yield (
                "I-18",
                f"{move.key.path} of priority {move.new.spec.priority} must make room, and nobody more important waits for that",
            )


def _more_important(seen: Seen, than: LatticeWorkload, since: float) -> list[LatticeWorkload]:
    known = [
        each
        for path in seen.snap.known_workloads
        for each in seen.snap.versions(LatticeWorkload, path, since)
    ]
    return [each for each in known if each.spec.priority > than.spec.priority]


def _waits_for(workload: LatticeWorkload, node: LatticeNode) -> bool:
    return not node_of(workload) and not infeasible(workload, node)


def _after(seen: Seen, moves: Iterable[Move]) -> Workloads:
    after = dict(seen.snap.workloads)
    for move in moves:
        if move.new is None:
            after.pop(move.key.path, None)
        else:
            after[move.key.path] = move.new
    return after


def _same_port(workload: LatticeWorkload, node: str, others: Iterable[LatticeWorkload]) -> str:
    mine = set(workload.status.allocated_ports.values())
    for other in others:
        if path_of(other) == path_of(workload) or node not in (node_of(other), prepared_on(other)):
            continue
        if both := mine & set(other.status.allocated_ports.values()):
            return f"port {min(both)} is {path_of(other)}'s"
    return ""
