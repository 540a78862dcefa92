"""Invariants of binding: a workload is bound once, on a feasible node with enough allocatable resources; a
gang is bound together; a binding follows the binding mode; preemption serves only a higher priority."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from itertools import product
from math import inf

import msgspec
from msgspec.structs import replace

from lattice.kinds.cluster import RESERVE_LABEL
from lattice.kinds.container import format_amount
from lattice.kinds.meta.base import path_of
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload, service_path
from lattice.scheduling.cycle.reservation_record import binding_reservation, reservation_record
from lattice.server.agents.join import node_key
from lattice.sim.invariants.context import CheckerContext, Findings, is_preempted, is_ready, workload_changes
from lattice.sim.invariants.history import (
    ObjectChange,
    StateSnapshot,
    is_bound_to_former_node,
    node_of,
    reserved_node,
)
from lattice.sim.invariants.placement import selector_matches
from lattice.sim.world.settings import RESERVATION_TIMEOUT_S
from lattice.sim.world.store import CommitRecord

Workloads = dict[str, LatticeWorkload]
_decode_workload = msgspec.json.Decoder(LatticeWorkload).decode


def check_bindings(context: CheckerContext, record: CommitRecord, changes: list[ObjectChange]) -> Findings:
    """I-11: a workload is bound once. I-12: requests never exceed the allocatable resources. I-14: a workload
    is bound to a feasible node only."""
    changed = list(workload_changes(changes))
    if not changed:
        return
    next_workloads = _workloads_after(context, changed)
    together = {path_of(workload) for workload in workloads_in(record)}
    for change in changed:
        old, new = node_of(change.old), node_of(change.new)
        # The same name with another uid is another node.
        if old and new and (old, change.old.status.binding.uid) != (new, change.new.status.binding.uid):
            yield "I-11", f"{change.key.path} moved from {old} to {new} in one step"
        fresh = new if new and not old else ""
        claimed = fresh or (reserved_node(change.new) if not reserved_node(change.old) else "")
        # A binding to the node of the reservation claims no further resources.
        if not claimed or (fresh and reserved_node(change.old) == fresh):
            continue
        node = next(
            (node_change.new for node_change in changes if node_change.key == node_key(claimed)), None
        ) or context.snapshot.nodes.get(f"/{claimed}")
        # A workload that is bound to a deleted node of the same name uses nothing of the current node.
        counted = [
            workload for workload in next_workloads.values() if not _is_on_former_node(context, workload)
        ]
        neighbours = [
            _with_smallest_requests(context, record, workload, together)
            for workload in counted
            if claimed in (node_of(workload), reserved_node(workload))
        ]
        for shortfall in shortfalls(change.new, claimed, node, neighbours):
            yield "I-12", shortfall
        is_former_node = node is not None and is_bound_to_former_node(change.new, node)
        violation = (
            ("the workload is bound to a former node of that name" if is_former_node else "")
            or infeasible_reason(change.new, context.snapshot.nodes.get(f"/{claimed}"))
            or _port_conflict(change.new, claimed, counted)
            or _anti_affinity_conflict(context, record, change.new, node, counted)
            or _spread_violation(context, record, change.new, claimed)
        )
        if violation:
            yield "I-14", f"{change.key.path} was bound to {claimed}: {violation}"
    slots = Counter(
        (workload.metadata.namespace, workload.spec.service, workload.spec.slot)
        for workload in next_workloads.values()
        if workload.spec.service
    )
    # A slot names a replica, so a slot has a single workload.
    for (namespace, service, slot), count in slots.items():
        if count > 1:
            yield "I-11", f"{count} replicas have slot {slot} of {namespace}/{service}"


def _is_on_former_node(context: CheckerContext, workload: LatticeWorkload) -> bool:
    """Report whether the workload is bound to a deleted node whose name a new node has."""
    node = context.snapshot.nodes.get(f"/{node_of(workload)}")
    return node is not None and is_bound_to_former_node(workload, node)


def _with_smallest_requests(
    context: CheckerContext, record: CommitRecord, workload: LatticeWorkload, together: Container[str]
) -> LatticeWorkload:
    """The workload with, for every resource, the smallest request that the writer of `record` may have read.

    A bound workload may raise its requests at any time without a change of the node. The writer knows the
    requests of workloads in its own commit (`together`).
    """
    if path_of(workload) in together:
        return workload
    versions = context.snapshot.versions(LatticeWorkload, path_of(workload), context.unseen_since(record))
    # Requests on another node say nothing about the capacity of this node.
    known_amounts = [
        version.spec.request_amounts
        for version in versions
        if _bound_or_reserved_node(version) == _bound_or_reserved_node(workload)
    ]
    amounts = workload.spec.request_amounts
    least = {
        name: min([amount, *(version_amounts.get(name, 0) for version_amounts in known_amounts)])
        for name, amount in amounts.items()
    }
    if least == amounts:
        return workload
    requests: dict[str, str | int] = {name: format_amount(name, amount) for name, amount in least.items()}
    return replace(workload, spec=replace(workload.spec, containers={}, requests=requests))


def _bound_or_reserved_node(workload: LatticeWorkload) -> str:
    return node_of(workload) or reserved_node(workload)


def shortfalls(
    workload: LatticeWorkload, name: str, node: LatticeNode | None, workloads: Iterable[LatticeWorkload]
) -> list[str]:
    """One message for each resource that is short on the node: the requests of the workload, added to those
    of the workloads that are bound to the node or have it reserved, exceed the allocatable amount."""
    allocatable = node.status.allocatable if node else {}
    neighbours = [
        neighbour
        for neighbour in workloads
        if name in (node_of(neighbour), reserved_node(neighbour)) and path_of(neighbour) != path_of(workload)
    ]
    messages = []
    for resource, amount in workload.spec.request_amounts.items():
        requested = amount + sum(neighbour.spec.request_amounts.get(resource, 0) for neighbour in neighbours)
        if requested > allocatable.get(resource, 0):
            messages.append(
                f"{name} has {allocatable.get(resource, 0)} {resource}"
                f" and its {len(neighbours) + 1} workloads request {requested}"
            )
    return messages


def infeasible_reason(workload: LatticeWorkload, node: LatticeNode | None) -> str:
    """The reasons that make a node infeasible for a workload; empty if feasible.

    An oracle for I-14: the checks share no code with the scheduler.
    """
    if node is None:
        return "the node does not exist"
    spec, tolerations = node.spec, workload.spec.constraints.tolerations
    is_tolerated = all(
        taint.effect == "PreferNoSchedule" or any(toleration.tolerates(taint) for toleration in tolerations)
        for taint in spec.taints
    )
    labels = effective_labels(node)
    reasons = {
        "the node is not ready": is_ready(node),
        "the node is cordoned": not spec.unschedulable,
        "the node is being deleted": not node.metadata.deletion_timestamp,
        "the node has an untolerated taint": is_tolerated,
        "the node is in another cluster": workload.spec.cluster in ("", spec.cluster),
        "the node is reserved for services": bool(workload.spec.service) or RESERVE_LABEL not in labels,
        "the node lacks selected labels": all(
            labels.get(key) == value for key, value in workload.spec.constraints.node_selector.items()
        ),
        "the workload is being deleted": not workload.metadata.deletion_timestamp,
        "the desired state of the workload is not Running": workload.spec.desired_state == "Running",
    }
    return "; ".join(words for words, holds in reasons.items() if not holds)


def effective_labels(node: LatticeNode) -> dict[str, str]:
    """The labels that selectors match and topology keys read; fields of the node's spec override labels."""
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
    """Workloads as the commit leaves them."""
    for change in record.changes:
        if change.key.resource == LatticeWorkload.resource.id and change.value is not None:
            yield _decode_workload(change.value)


def _anti_affinity_conflict(
    context: CheckerContext,
    record: CommitRecord,
    workload: LatticeWorkload,
    node: LatticeNode | None,
    neighbours: Iterable[LatticeWorkload],
) -> str:
    """An anti-affinity violation that holds for every version of the neighbour that the writer may have
    known; empty if none."""
    together = {path_of(committed) for committed in workloads_in(record)}
    for neighbour in neighbours:
        path = path_of(neighbour)
        versions = (
            []
            # The writer knows the workloads of its own commit.
            if path in together
            else context.snapshot.versions(LatticeWorkload, path, context.unseen_since(record))
        )
        # Labels and terms as the writer may have known them, on the node where the neighbour is now.
        violations = [
            _anti_affinity_violation(
                workload, node, [replace(version, status=neighbour.status)], context.snapshot.nodes
            )
            for version in versions or [neighbour]
        ]
        if all(violations):
            return violations[-1]
    return ""


def _anti_affinity_violation(
    workload: LatticeWorkload,
    node: LatticeNode | None,
    neighbours: Iterable[LatticeWorkload],
    nodes: dict[str, LatticeNode],
) -> str:
    """A required anti-affinity term of the workload or of a neighbour that the binding violates; empty if
    none."""
    labels = effective_labels(node) if node else {}
    for neighbour in neighbours:
        neighbour_node = nodes.get(f"/{node_of(neighbour) or reserved_node(neighbour)}")
        # Anti-affinity selects workloads of the same namespace only.
        if (
            neighbour_node is None
            or path_of(neighbour) == path_of(workload)
            or neighbour.metadata.namespace != workload.metadata.namespace
        ):
            continue
        neighbour_labels = effective_labels(neighbour_node)
        for subject, peer in ((workload, neighbour), (neighbour, workload)):
            affinity = subject.spec.constraints.affinity
            if affinity is None or affinity.anti_workload is None:
                continue
            for term in affinity.anti_workload.required:
                is_same_domain = labels.get(term.topology_key) == neighbour_labels.get(term.topology_key)
                if is_same_domain and selector_matches(term.selector, peer.metadata.labels):
                    return f"{path_of(subject)} must not share a domain with {path_of(peer)}"
    return ""


def _spread_violation(
    context: CheckerContext, record: CommitRecord, workload: LatticeWorkload, claimed: str
) -> str:
    """A spread constraint over nodes that the binding violates; empty if none.

    Replicas that were bound or removed after the newest revision that the writer had received count in favour
    of the binding. Later commits of the same writer within MAX_DECISION_S count in favour of the binding as
    well, because replicas that are chosen together may be written in any order. Bindings of one commit are
    checked against the state after the commit.
    """
    since, together = context.unseen_since(record), list(workloads_in(record))
    for constraint in workload.spec.constraints.spread:
        if (
            constraint.when_unsatisfiable != "DoNotSchedule"
            or constraint.topology_key != "node"
            or constraint.selector
        ):
            continue
        siblings = [
            replica
            for replica in context.snapshot.replicas_of(service_path(workload))
            if replica.metadata.uid != workload.metadata.uid and not _is_on_former_node(context, replica)
        ]
        known_bound = {
            path_of(replica)
            for replica in siblings
            if node_of(replica) == claimed and context.snapshot.bound_since.get(path_of(replica), inf) < since
        }
        bound_together = {
            path_of(replica) for replica in _same_service(workload, together) if node_of(replica) == claimed
        }
        on_node = len((known_bound | bound_together) - {path_of(workload)})
        versions = [*context.snapshot.workload_versions(since), *together]
        for commit in context.following_commits(record):
            versions += workloads_in(commit)
        same_service = _same_service(workload, versions)
        counts = []
        for path in context.snapshot.nodes:
            # Count a node only if it could have taken the replica in every version that the writer may have
            # read.
            if all(
                _is_spread_candidate(workload, node)
                for node in context.snapshot.versions(LatticeNode, path, since)
            ):
                name = path.removeprefix("/")
                counts.append(
                    len(
                        {
                            path_of(replica)
                            for replica in same_service
                            if name in (node_of(replica), reserved_node(replica))
                        }
                    )
                )
        if counts and on_node + 1 - min(counts) > constraint.max_skew:
            return f"{on_node} replicas of the service are on the node, and {min(counts)} on another node"
    return ""


def _same_service(workload: LatticeWorkload, workloads: Iterable[LatticeWorkload]) -> list[LatticeWorkload]:
    service = (workload.metadata.namespace, workload.spec.service)
    return [replica for replica in workloads if (replica.metadata.namespace, replica.spec.service) == service]


def _is_spread_candidate(workload: LatticeWorkload, node: LatticeNode) -> bool:
    """Report whether a node accepts the workload by readiness, cordon, cluster and labels; taints and free
    capacity do not count."""
    labels, spec = effective_labels(node), workload.spec
    if node.spec.unschedulable or node.metadata.deletion_timestamp:
        return False
    return (
        is_ready(node)
        and spec.cluster in ("", node.spec.cluster)
        and all(labels.get(key) == value for key, value in spec.constraints.node_selector.items())
    )


def are_unschedulable(members: list[LatticeWorkload], snap: StateSnapshot) -> bool:
    """Report whether some member of a gang finds no feasible node when the members are bound one after
    another to the capacity that other workloads leave free.

    Workloads of services, and workloads of at least the lowest priority in the gang, keep their resources;
    all other workloads count as absent.

    Members have equal requests, so trying the first fitting node for every member is enough.
    """
    lowest_priority = min(member.spec.priority for member in members)
    competing = [
        workload
        for workload in snap.workloads.values()
        if workload.spec.priority >= lowest_priority or workload.spec.service
    ]
    for member in members:
        nodes = [
            node
            for node in snap.nodes.values()
            if not node_of(member) and not infeasible_reason(member, node)
        ]
        fitting = [
            node
            for node in nodes
            if not shortfalls(member, node.metadata.name, node, competing)
            and not _anti_affinity_violation(member, node, competing, snap.nodes)
        ]
        if not fitting and not node_of(member):
            return True
        if fitting:
            # The member counts as bound from here on, so the next members find less free capacity.
            binding = Binding(node=fitting[0].metadata.name, uid=fitting[0].metadata.uid, term=0)
            competing = [workload for workload in competing if path_of(workload) != path_of(member)]
            competing.append(replace(member, status=replace(member.status, binding=binding)))
    return False


def check_gangs(context: CheckerContext, record: CommitRecord, changes: list[ObjectChange]) -> Findings:
    """I-15: a gang is bound together or not at all. A member that lost its node after the newest revision
    that the writer had received counts as bound."""
    for change in workload_changes(changes):
        group = change.new.spec.group if change.new is not None else None
        if group is None or not node_of(change.new) or node_of(change.old):
            continue
        namespace, since = change.new.metadata.namespace, context.unseen_since(record)
        members = [
            member
            for member in _workloads_after(context, workload_changes(changes)).values()
            if member.spec.group
            and (member.metadata.namespace, member.spec.group.name) == (namespace, group.name)
        ]
        bound = sum(
            bool(node_of(member)) or context.snapshot.bound_at.get(path_of(member), -inf) >= since
            for member in members
        )
        # Members above the minimum may be bound later.
        if bound < group.min_member:
            yield (
                "I-15",
                f"{bound} members of group {group.name} are bound; the group needs {group.min_member}",
            )


def check_binding_modes(
    context: CheckerContext, record: CommitRecord, changes: list[ObjectChange]
) -> Findings:
    """I-16: a two-phase binding commits the reservation of the same attempt, before the reservation expires.
    I-17: a pessimistic binding holds the lock of the node."""
    mode = context.run.fault_plan.world_config.binding
    for change in workload_changes(changes):
        if not node_of(change.new) or node_of(change.old):
            continue
        reservation = reservation_record(change.old) if change.old is not None else None
        if mode == "two-phase" and (reservation is None or reservation.node != node_of(change.new)):
            yield (
                "I-16",
                f"{change.key.path} was bound to {node_of(change.new)} without a reservation there",
            )
        elif (
            mode == "two-phase"
            and reservation is not None
            and reservation.id != binding_reservation(change.new)
        ):
            yield (
                "I-16",
                (
                    f"{change.key.path} was reserved by {reservation.id}"
                    f" and bound by {binding_reservation(change.new)}"
                ),
            )
        # In a gang that is too large for one commit, the first commit decides for the whole gang: the other
        # members are bound later, even when their own reservation has expired.
        elif mode == "two-phase" and reservation is not None and not reservation.gang:
            reserved_s = (
                record.at if record.sent_at is None else record.sent_at
            ) - context.snapshot.reserved_at[change.key.path]
            # The writer measures the timeout by its own clock, so the rate of that clock converts it to
            # simulation time.
            if reserved_s > RESERVATION_TIMEOUT_S / context.clock_rate(record):
                yield (
                    "I-16",
                    (
                        f"{change.key.path} was bound {reserved_s:.1f} s after its reservation,"
                        f" which expires after {RESERVATION_TIMEOUT_S:g} s"
                    ),
                )
        if (
            mode == "pessimistic"
            and change.new.spec.group is None
            and (violation := _lock_violation(context, record, node_of(change.new)))
        ):
            yield "I-17", f"{change.key.path} was bound to {node_of(change.new)}, {violation}"


def _lock_violation(context: CheckerContext, record: CommitRecord, node: str) -> str:
    """The reason that the writer of the commit did not hold the lock of the node; empty if the writer held
    the lock."""
    path = f"lattice-system/node.{node}"
    lock = context.snapshot.leases.get(path)
    if lock is None or record.term is None:
        return "which no server locked"
    holder, writer_prefix = (
        lock.spec.holder_identity or "",
        f"{record.term.role}/{record.term.holder}.{record.term.number} ",
    )
    if not holder.startswith(writer_prefix):
        return f"which {holder or 'no server'} locked"
    # The lock must hold when the commit is sent; delivery may take longer.
    held_s = (record.at if record.sent_at is None else record.sent_at) - context.snapshot.locked_at[path]
    lease_s = (lock.spec.lease_duration_seconds or 0) / context.clock_rate(record)
    return f"whose lock expired {held_s - lease_s:.1f} s earlier" if held_s > lease_s else ""


def check_preemption(context: CheckerContext, record: CommitRecord, changes: list[ObjectChange]) -> Findings:
    """I-18: a victim of preemption has a lower priority than an unbound workload that could run on its node."""
    for change in workload_changes(changes):
        if (
            change.old is None
            or change.new is None
            or not is_preempted(change.new)
            or is_preempted(change.old)
        ):
            continue
        # Every version of a node or waiting workload that the writer may have read counts.
        since = context.unseen_since(record)
        group = change.old.spec.group.name if change.old.spec.group else ""
        victims = [
            workload
            for workload in context.snapshot.workloads.values()
            if group and workload.spec.group and workload.spec.group.name == group
        ]
        # Preemption evicts a gang together, so the nodes of every member count.
        names = {node_of(victim) for victim in (change.old, *victims)} - {""}
        nodes: list[LatticeNode] = []
        for name in sorted(names):
            nodes += context.snapshot.versions(LatticeNode, f"/{name}", since)
        preemptors = [
            workload
            for workload in context.snapshot.workload_versions(since)
            if workload.spec.priority > change.new.spec.priority and not node_of(workload)
        ]
        if not any(not infeasible_reason(workload, node) for workload, node in product(preemptors, nodes)):
            yield (
                "I-18",
                (
                    f"{change.key.path} of priority {change.new.spec.priority} was preempted,"
                    " and no workload of higher priority waits for its node"
                ),
            )


def _workloads_after(context: CheckerContext, changes: Iterable[ObjectChange]) -> Workloads:
    workloads = dict(context.snapshot.workloads)
    for change in changes:
        if change.new is None:
            workloads.pop(change.key.path, None)
        else:
            workloads[change.key.path] = change.new
    return workloads


def _port_conflict(workload: LatticeWorkload, node: str, neighbours: Iterable[LatticeWorkload]) -> str:
    ports = set(workload.status.allocated_ports.values())
    for neighbour in neighbours:
        if path_of(neighbour) == path_of(workload) or node not in (
            node_of(neighbour),
            reserved_node(neighbour),
        ):
            continue
        if shared := ports & set(neighbour.status.allocated_ports.values()):
            return f"port {min(shared)} belongs to {path_of(neighbour)}"
    return ""
