"""Remediate unschedulable replicas: add a machine to their cluster, else move the replicas to another
cluster."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lattice.lifecycle.replica_observation import ReplicaObservation
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.greedy.machine_choice import class_counts
from lattice.placement.greedy.place import place
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.inventory import Cluster
from lattice.placement.model.offer import MachineType
from lattice.placement.model.replica_index import Assignment


@dataclass(frozen=True, slots=True)
class Remediation:
    """The remediation of one node group: the replicas that it helps and the machines that are added; with 0
    machines the replicas move."""

    node_group: NodeGroupKey
    replicas: int
    machines: int = 0


def remediate(
    demand: Demand, fleet: Fleet, unschedulable: Counter[NodeGroupKey], observation: ReplicaObservation
) -> list[Remediation]:
    """Remediate the unschedulable replicas of the demand, by node group.

    A node group with bought machines that have not joined yet is skipped, because these machines may accept
    the replicas. Blocked node groups are not skipped: no ledger pays for their machines, so no machine joins.
    """
    remediations = []
    for node_group, count in sorted(unschedulable.items()):
        cluster = fleet.clusters.get(node_group[0])
        # Machines that were bought and have not joined yet may accept the replicas.
        if cluster is None or (
            _awaits_machines(fleet, observation, node_group) and node_group not in observation.blocked
        ):
            continue
        # The last assignments of the node group stand for the unschedulable replicas.
        assignments = [
            assignment
            for assignment in fleet.assignments.get(demand.name, ())
            if _node_group_of(fleet, assignment) == node_group
        ][::-1][:count]
        machines, remaining = _grow_cluster(demand, fleet, cluster, assignments)
        if machines:
            remediations.append(Remediation(node_group, len(assignments) - len(remaining), machines))
        # Move the remaining replicas to other clusters until a replica fits nowhere.
        moved = 0
        for assignment in remaining:
            with fleet.attempt() as attempt, _closed_cluster(fleet, cluster, node_group[1]):
                fleet.unassign(assignment)
                placement = place(demand, fleet)
                attempt.succeeded = placement.is_complete or bool(placement.assignments)
            if not attempt.succeeded:
                break
            moved += 1
        if moved:
            remediations.append(Remediation(node_group, moved))
    return remediations


def payable_in_advance(fleet: Fleet, observation: ReplicaObservation) -> frozenset[NodeGroupKey]:
    """Return blocked node groups with unschedulable replicas, if the budget can pay now for the missing
    machines of the group.

    An example is the successor of a machine that leaves only after its replicas have moved.
    """
    waiting_groups: set[NodeGroupKey] = set()
    for counts in observation.unschedulable.values():
        waiting_groups.update(counts)
    payable: set[NodeGroupKey] = set()
    for node_group in observation.blocked & waiting_groups:
        if not _awaits_machines(fleet, observation, node_group):
            continue
        cluster = fleet.clusters[node_group[0]]
        types = {kind.name: kind for kind in fleet.offers[cluster.offer_row].types}
        machine_type = types.get(node_group[1])
        if (
            machine_type is not None
            and is_within_limits(fleet, cluster)
            and _is_affordable(fleet, cluster, machine_type)
        ):
            payable.add(node_group)
    return frozenset(payable)


def _awaits_machines(fleet: Fleet, observation: ReplicaObservation, node_group: NodeGroupKey) -> bool:
    """Report whether fewer nodes of the node group have joined than the fleet has machines."""
    cluster = fleet.clusters.get(node_group[0])
    return (
        cluster is not None
        and observation.joined_nodes[node_group] < class_counts(fleet, cluster)[node_group[1]]
    )


def is_within_limits(fleet: Fleet, cluster: Cluster) -> bool:
    """Report whether the desired machines of the cluster stay within the limits of the cluster and its
    offer."""
    offer, table = fleet.offers[cluster.offer_row], fleet.table
    is_within = all(
        int(table.free(table.resource_index[resource])[cluster.offer_row]) >= 0
        for resource in ("nodes", "cpu", "memory")
    )
    return (
        is_within
        and not offer.closed_reason
        and len(cluster.machines) <= min(cluster.max_nodes, offer.limits.nodes_per_cluster)
    )


def _node_group_of(fleet: Fleet, assignment: Assignment) -> NodeGroupKey:
    return (
        fleet.machines.cluster[assignment.machine].name,
        fleet.machines.machine_type[assignment.machine].name,
    )


def _grow_cluster(
    demand: Demand, fleet: Fleet, cluster: Cluster, assignments: list[Assignment]
) -> tuple[int, list[Assignment]]:
    """Add machines and assign the replicas to these machines; return the number of machines and the remaining
    assignments."""
    remaining, added = list(assignments), 0
    while remaining:
        machine_type = _growable_type(fleet, cluster, _node_group_of(fleet, remaining[0])[1])
        if machine_type is None:
            break
        machine = fleet.inventory.add_machine(cluster, machine_type)
        # The replica does not fit on an empty machine of this type: more machines do not help.
        if not fleet.groups.fits_on_machine(demand, machine):
            fleet.inventory.drop_machine(machine)
            break
        added += 1
        while remaining and fleet.groups.fits_on_machine(demand, machine):
            fleet.unassign(remaining.pop())
            fleet.assign_replica(demand, machine)
    return added, remaining


def _growable_type(fleet: Fleet, cluster: Cluster, name: str) -> MachineType | None:
    """Return the machine type if the cluster, its offer and its budgets allow one more machine of the type,
    else None."""
    offer, table = fleet.offers[cluster.offer_row], fleet.table
    # A cluster without the reserve must not grow into machines that are reserved for other services.
    if not cluster.is_reserved and fleet.groups.unreserved_nodes_left(cluster.offer_row) < 1:
        return None
    machine_type = next((candidate for candidate in offer.types if candidate.name == name), None)
    if (
        machine_type is None
        or offer.closed_reason
        or len(cluster.machines) >= min(cluster.max_nodes, offer.limits.nodes_per_cluster)
    ):
        return None
    needs = {"nodes": 1, "cpu": machine_type.size.get("cpu", 0), "memory": machine_type.size.get("memory", 0)}
    if any(
        int(table.free(table.resource_index[resource])[cluster.offer_row]) < amount
        for resource, amount in needs.items()
    ):
        return None
    return machine_type if _is_affordable(fleet, cluster, machine_type) else None


def _is_affordable(fleet: Fleet, cluster: Cluster, machine_type: MachineType) -> bool:
    # Without a price, a machine is allowed only where no budget has a limit.
    has_usable_price = machine_type.is_priced or not fleet.ledgers.has_limit(
        cluster.offer_row, cluster.overflow_source
    )
    return has_usable_price and machine_type.rate <= fleet.ledgers.headroom(
        cluster.offer_row, cluster.overflow_source
    )


@contextmanager
def _closed_cluster(fleet: Fleet, cluster: Cluster, node_class: str) -> Iterator[None]:
    """Close the cluster to new replicas inside the context, except for its joined machines of other classes.

    The model shows free capacity on its machines, but no node accepts the replica, so the placement must not
    choose the cluster again. Joined machines differ in size: only those of the class have rejected the replica.
    """
    types = fleet.machines.machine_type
    machines = [
        machine
        for machine in cluster.machines
        if not types[machine].is_joined or types[machine].name == node_class
    ]
    was_closed = [bool(fleet.machines.column("closed")[machine]) for machine in machines]
    for machine in machines:
        fleet.machines.set(machine, "closed", True, fixed=False)
    max_nodes, cluster.max_nodes = cluster.max_nodes, 0
    fleet.table.touch(cluster.offer_row)
    try:
        yield
    finally:
        cluster.max_nodes = max_nodes
        for machine, is_closed in zip(machines, was_closed, strict=True):
            # The placement may have removed a machine of the cluster.
            if machine in fleet.machines.cluster:
                fleet.machines.set(machine, "closed", is_closed, fixed=False)
        fleet.table.touch(cluster.offer_row)
