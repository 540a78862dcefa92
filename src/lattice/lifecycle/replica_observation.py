"""Observations of the replicas of services: bound, unschedulable, updated and terminating replicas, and nodes
that have joined."""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from lattice.kinds.meta.base import DEFAULT_NAMESPACE
from lattice.kinds.meta.conditions import READY_CONDITION, find_condition, find_false, is_true
from lattice.kinds.meta.timestamps import parse_timestamp
from lattice.kinds.node import NODE_CLASS_LABEL, NOT_JOINED, QUARANTINED, LatticeNode
from lattice.kinds.service import PLACED_CONDITION, LatticeService, service_key
from lattice.kinds.workload import NO_NODE_FITS, SCHEDULED_CONDITION, LatticeWorkload, WorkloadSpec
from lattice.lifecycle.replica_template import NodeGroupKey, node_group_of, workload_template

# A refused purchase whose reason begins so was refused by a budget.
OVER_BUDGET = "over budget"


@dataclass(frozen=True, slots=True)
class NodeShortage:
    """What a replica needs and a node has, as the scheduler found it."""

    node: str = ""
    need: str = ""
    have: str = ""


@dataclass(frozen=True, slots=True)
class IdleNode:
    """A node that could have taken a workload for longer than the timeout and runs none."""

    name: str
    created_at: str = ""
    # A user has changed the spec of the node, for example its taints.
    is_edited: bool = False
    # The owner of the machine joined it: the machine says nothing about machines that Lattice buys.
    is_joined_machine: bool = False


@dataclass(frozen=True)
class ReplicaObservation:
    """Replicas of all services as placement sees them."""

    # Replicas that are unschedulable for longer than the timeout, by service and node group.
    unschedulable: Mapping[str, Counter[NodeGroupKey]] = field(default_factory=dict)
    # Services whose template needs other machines now than when one of their replicas was created. A service
    # without replicas is included if it has changed since it was placed.
    updated_services: frozenset[str] = frozenset()
    # Clusters in which bound replicas differ from placed replicas, a replica terminates, or the service of a
    # replica is gone.
    unsettled_clusters: frozenset[str] = frozenset()
    joined_nodes: Counter[NodeGroupKey] = field(default_factory=Counter)
    # By service: bound replicas by node group. Only services with unschedulable replicas.
    bound: Mapping[str, Counter[NodeGroupKey]] = field(default_factory=dict)
    # By service and node group: what a waiting replica needs and the nearest node has.
    shortages: Mapping[tuple[str, NodeGroupKey], NodeShortage] = field(default_factory=dict)
    idle_nodes: Mapping[NodeGroupKey, tuple[IdleNode, ...]] = field(default_factory=dict)
    # Clusters in which a workload is terminating, so that capacity is about to become free.
    terminating_clusters: frozenset[str] = frozenset()
    # Services whose rollout is complete: all replicas are ready and have the same template as the service.
    rolled_out: frozenset[str] = frozenset()
    # Node groups that get no new node, whatever their desired count, because a ledger does not pay for more
    # machines than exist.
    blocked: frozenset[NodeGroupKey] = frozenset()


@dataclass(frozen=True, slots=True)
class SchedulingTimeout:
    """The time that an unschedulable workload waits for free capacity before placement adds a node."""

    now: datetime
    grace: timedelta

    def has_passed(self, since: str) -> bool:
        """Whether the timeout has passed since the timestamp.

        A timestamp far ahead of this clock was written by a leader whose clock was ahead; its age is unknown,
        and the timeout counts as passed (I-33).
        """
        return not -self.grace <= self.now - parse_timestamp(since) < self.grace


def observe_replicas(
    services: Iterable[LatticeService],
    workloads: Iterable[LatticeWorkload],
    nodes: Iterable[LatticeNode],
    timeout: SchedulingTimeout,
    paid: Iterable[Counter[NodeGroupKey]] = (),
) -> ReplicaObservation:
    """Observe the replicas of all services; `paid` holds the machines that each ledger pays for."""
    # Machines that Lattice makes: joined machines are not bought, so none of them is waited for.
    nodes = list(nodes)
    made_nodes = [node for node in nodes if not node.is_joined_machine]
    joined = Counter(_node_group(node) for node in made_nodes if has_joined(node))
    live_nodes = {node.metadata.name for node in nodes if not node.metadata.deletion_timestamp}
    # Node groups in which a node became ready a moment ago: a replica that waits in such a group is about to
    # be bound, and needs no further node.
    newly_ready = {_node_group(node) for node in nodes if _is_newly_ready(node, timeout)}
    owned: dict[str, list[LatticeWorkload]] = {}
    unsettled: set[str] = set()
    terminating: set[str] = set()
    occupied_nodes: set[str] = set()
    silent_nodes = {node.metadata.name for node in nodes if _is_silent(node, timeout)}
    for workload in workloads:
        binding = workload.status.binding
        if binding is not None:
            occupied_nodes.add(binding.node)
        if is_terminating(workload):
            # A silent node may never report that a replica has ended: its machine is given back all the same.
            if binding is None or binding.node not in silent_nodes:
                if binding is not None:
                    terminating.add(workload.spec.cluster)
                if workload.spec.service:
                    unsettled.add(workload.spec.cluster)
        elif workload.spec.service:
            key = f"{workload.metadata.namespace or DEFAULT_NAMESPACE}/{workload.spec.service}"
            owned.setdefault(key, []).append(workload)
    unschedulable: dict[str, Counter[NodeGroupKey]] = {}
    bound: dict[str, Counter[NodeGroupKey]] = {}
    shortages: dict[tuple[str, NodeGroupKey], NodeShortage] = {}
    updated: set[str] = set()
    rolled_out: set[str] = set()
    for service in services:
        name = service_key(service)
        named = owned.pop(name, [])
        replicas = [workload for workload in named if is_owned(workload, service)]
        # The others belong to an earlier service of the same name.
        unsettled.update(workload.spec.cluster for workload in named if not is_owned(workload, service))
        unsettled.update(_unsettled_clusters(service, replicas, live_nodes))
        waiting: Counter[NodeGroupKey] = Counter()
        for replica in replicas:
            group = node_group_of(replica)
            if group not in newly_ready and is_unschedulable(replica, timeout):
                waiting[group] += 1
                shortages.setdefault((name, group), node_shortage(replica))
        if waiting:
            unschedulable[name] = waiting
            bound[name] = Counter(
                node_group_of(replica)
                for replica in replicas
                if replica.status.binding is not None and replica.status.binding.node in live_nodes
            )
        if service.status.remediation:
            revision = workload_template(service).revision
            if all(replica.spec.revision == revision and replica.status.ready for replica in replicas):
                rolled_out.add(name)
        if _has_new_machine_needs(service, replicas):
            updated.add(name)
    for orphans in owned.values():
        unsettled.update(workload.spec.cluster for workload in orphans)
    return ReplicaObservation(
        unschedulable,
        frozenset(updated),
        frozenset(unsettled),
        joined,
        bound,
        shortages,
        _idle_nodes(nodes, occupied_nodes, timeout),
        frozenset(terminating),
        frozenset(rolled_out),
        _blocked_node_groups(made_nodes, paid),
    )


def _idle_nodes(
    nodes: Iterable[LatticeNode], occupied: set[str], timeout: SchedulingTimeout
) -> dict[NodeGroupKey, tuple[IdleNode, ...]]:
    idle: dict[NodeGroupKey, tuple[IdleNode, ...]] = {}
    for node in nodes:
        ready = find_condition(node.status.conditions, READY_CONDITION)
        if (
            ready is None
            or ready.status != "True"
            or not ready.last_transition_time
            or not timeout.has_passed(ready.last_transition_time)
            or node.spec.unschedulable
            or node.metadata.deletion_timestamp
            or node.metadata.name in occupied
            or is_true(node.status.conditions, QUARANTINED)
        ):
            continue
        metadata = node.metadata
        idle_node = IdleNode(
            metadata.name,
            metadata.creation_timestamp or "",
            metadata.generation > 1,
            node.is_joined_machine,
        )
        idle[_node_group(node)] = (*idle.get(_node_group(node), ()), idle_node)
    return idle


def _blocked_node_groups(
    nodes: Iterable[LatticeNode], paid: Iterable[Counter[NodeGroupKey]]
) -> frozenset[NodeGroupKey]:
    """Node groups that get no new node: some ledger pays for no more machines than exist, and every node of
    the group has joined or is being deleted.

    The ledger pays for a terminating machine until the machine is gone.
    """
    existing = Counter(_node_group(node) for node in nodes)
    awaited: set[NodeGroupKey] = set()
    for node in nodes:
        if not node.metadata.deletion_timestamp and not has_joined(node):
            awaited.add(_node_group(node))
    groups_by_cluster: dict[str, list[NodeGroupKey]] = {}
    for group in existing:
        groups_by_cluster.setdefault(group[0], []).append(group)
    blocked: set[NodeGroupKey] = set()
    for counts in paid:
        for cluster in {cluster for cluster, _ in counts}:
            for group in groups_by_cluster.get(cluster, ()):
                if counts[group] <= existing[group]:
                    blocked.add(group)
    return frozenset(blocked) - awaited


def _node_group(node: LatticeNode) -> NodeGroupKey:
    return (node.spec.cluster, node.spec.node_class)


def is_terminating(workload: LatticeWorkload) -> bool:
    return bool(workload.metadata.deletion_timestamp) or workload.spec.desired_state == "Deleted"


def holds_machine(workload: LatticeWorkload, service: LatticeService | None) -> bool:
    """Whether the workload keeps its machine in use.

    A terminating workload does not, nor does a replica whose service is deleted or being deleted: such a
    replica terminates next and takes part in no placement.
    """
    if is_terminating(workload):
        return False
    if not workload.spec.service:
        return True
    return service is not None and not service.metadata.deletion_timestamp and is_owned(workload, service)


def has_joined(node: LatticeNode) -> bool:
    """Whether the agent of the node has joined and the node is not being deleted."""
    ready = find_condition(node.status.conditions, READY_CONDITION)
    return ready is not None and ready.reason != NOT_JOINED and not node.metadata.deletion_timestamp


def not_ready_message(node: LatticeNode) -> str:
    """Return the message of a joined node that is not ready; empty for every other node."""
    unready = find_false(node.status.conditions, READY_CONDITION)
    return "" if unready is None or unready.reason == NOT_JOINED else unready.message


def is_existing(node: LatticeNode) -> bool:
    """Whether the node is not being deleted and does not wait for its agent to join.

    Unlike in `has_joined`, a node without a Ready condition counts.
    """
    ready = find_condition(node.status.conditions, READY_CONDITION)
    is_awaited = ready is not None and ready.reason == NOT_JOINED
    return not node.metadata.deletion_timestamp and not is_awaited


def _is_newly_ready(node: LatticeNode, timeout: SchedulingTimeout) -> bool:
    """Whether the node became ready more recently than the timeout: a waiting replica is about to be bound to
    the node."""
    ready = find_condition(node.status.conditions, READY_CONDITION)
    if ready is None or ready.status != "True" or not ready.last_transition_time:
        return False
    return not timeout.has_passed(ready.last_transition_time)


def _is_silent(node: LatticeNode, timeout: SchedulingTimeout) -> bool:
    """Whether the node has joined and has not been ready for longer than the timeout."""
    ready = find_condition(node.status.conditions, READY_CONDITION)
    if ready is None or ready.status == "True" or ready.reason == NOT_JOINED:
        return False
    return bool(ready.last_transition_time) and timeout.has_passed(ready.last_transition_time or "")


def is_unschedulable(workload: LatticeWorkload, timeout: SchedulingTimeout) -> bool:
    """Whether no node has accepted the workload for longer than the timeout."""
    condition = find_false(workload.status.conditions, SCHEDULED_CONDITION)
    if condition is None or condition.reason != NO_NODE_FITS or not condition.last_transition_time:
        return False
    return workload.status.binding is None and timeout.has_passed(condition.last_transition_time)


def unschedulable_reason(workload: LatticeWorkload) -> str:
    """Return the reason why no node accepts the workload, with the resources that the nearest node is short
    of.

    The reason is empty for a bound workload and for a workload that the scheduler has not tried yet.
    """
    condition = find_false(workload.status.conditions, SCHEDULED_CONDITION)
    if condition is None or condition.reason != NO_NODE_FITS or workload.status.binding is not None:
        return ""
    nearest = workload.status.decision.get("nearest") or {}
    shortages = []
    for short in nearest.get("short", ()):
        if short.get("missing"):
            amounts = [f"{name} {short[name]}" for name in ("need", "have", "missing") if name in short]
            shortages.append(f"{short['what']} {', '.join(amounts)}")
    if not shortages:
        return condition.message
    return f"{condition.message}; nearest is {nearest['node']}: {'; '.join(shortages)}"


def node_shortage(workload: LatticeWorkload) -> NodeShortage:
    """What the waiting replica needs and the nearest node has; without a named resource, the message of the
    scheduler."""
    nearest = workload.status.decision.get("nearest") or {}
    needs = []
    haves = []
    for short in nearest.get("short", ()):
        # The cluster of a node says nothing about the machine.
        if short.get("missing") and short.get("what") != "cluster":
            needs.append(f"{short['what']} {short.get('need', '')}".strip())
            haves.append(f"{short['what']} {short.get('have', '')}".strip())
    if needs:
        return NodeShortage(nearest.get("node", ""), ", ".join(needs), ", ".join(haves))
    condition = find_false(workload.status.conditions, SCHEDULED_CONDITION)
    return NodeShortage(have=condition.message if condition else "")


def purchase_blocker(service: LatticeService, cluster: str) -> str:
    """Why no machine is bought for a waiting replica of the service in the cluster, with need and have; empty
    if nothing is known to block the purchase."""
    for record in service.status.remediation:
        if record.cluster == cluster and record.reason and not record.refused:
            shortage = f": need {record.need}, have {record.have}" if record.need else ""
            return f"{record.reason}{shortage}"
    return ""


def is_owned(workload: LatticeWorkload, service: LatticeService) -> bool:
    """Whether the service owns the workload, by uid: a deleted service of the same name does not."""
    return any(owner.uid == service.metadata.uid for owner in workload.metadata.owner_references)


def _unsettled_clusters(
    service: LatticeService, replicas: Iterable[LatticeWorkload], nodes: set[str]
) -> set[str]:
    """Clusters in which the bound replicas of the service differ from its placed replicas."""
    placed = Counter(
        {
            (placement.cluster, placement.node): placement.replicas or 0
            for placement in service.status.placements
        }
    )
    bound: Counter[NodeGroupKey] = Counter()
    unsettled = set()
    for replica in replicas:
        if replica.status.binding is None or replica.status.binding.node not in nodes:
            unsettled.add(replica.spec.cluster)
        else:
            bound[node_group_of(replica)] += 1
    return unsettled | {group[0] for group in {*placed, *bound} if placed[group] != bound[group]}


def _has_new_machine_needs(service: LatticeService, replicas: list[LatticeWorkload]) -> bool:
    """Whether some replica of the service was created with other machine needs than the template has now.

    Without replicas the result is True if the service was placed at an older generation.
    """
    if not replicas:
        condition = find_condition(service.status.conditions, PLACED_CONDITION)
        return condition is not None and condition.observed_generation != service.metadata.generation
    desired = machine_needs(workload_template(service))
    # Replicas of one revision share their needs: each revision is computed once.
    needs_by_revision: dict[str, Hashable] = {}
    for replica in replicas:
        if replica.spec.revision not in needs_by_revision:
            needs_by_revision[replica.spec.revision] = machine_needs(replica.spec)
    return any(needs != desired for needs in needs_by_revision.values())


def machine_needs(spec: WorkloadSpec) -> Hashable:
    """Return the part of a workload spec that decides which machines fit, without the node class; comparable
    for equality."""
    constraints = spec.constraints
    node_selector = tuple(
        sorted((name, value) for name, value in constraints.node_selector.items() if name != NODE_CLASS_LABEL)
    )
    return (
        tuple(sorted(spec.request_amounts.items())),
        constraints.tolerations,
        node_selector,
        constraints.gpu_models,
        constraints.spread,
        tuple(sorted({container.runtime for container in spec.containers.values()})),
        msgspec.json.encode(constraints.affinity, order="sorted"),
    )


def replica_shape(spec: WorkloadSpec) -> str:
    """Return a digest of what a replica asks of a machine: replicas of equal shape fit on the same machines."""
    ports = [container.ports for _, container in sorted(spec.containers.items())]
    return hashlib.sha256(msgspec.json.encode((machine_needs(spec), ports))).hexdigest()[:12]
