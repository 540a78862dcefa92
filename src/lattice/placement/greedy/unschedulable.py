"""What is done for replicas that no node takes: a machine more for their cluster, else another place?"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lattice.lifecycle.replica_observation import ReplicaObservation
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.greedy.machine_choice import class_counts
from lattice.placement.greedy.place import place
from lattice.placement.model.assignments import assign
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Assignment, Cluster, Fleet
from lattice.placement.model.offer import MachineType
from lattice.placement.model.quotes import fits_on_machine


@dataclass(frozen=True, slots=True)
class Remediation:
    """Replicas of one cell. `machines`: that it gets; none: they go elsewhere."""

    node_group: NodeGroupKey
    replicas: int
    machines: int = 0


def remediate(
    demand: Demand, fleet: Fleet, stuck: Counter[NodeGroupKey], seen: ReplicaObservation
) -> list[Remediation]:
    """Nothing while machines that were bought are still to come: they may take them. They will not while nobody pays for them."""
    found = []
    for cell, count in sorted(stuck.items()):
        cluster = fleet.clusters.get(cell[0])
        if cluster is None or (_awaits_machines(fleet, seen, cell) and cell not in seen.blocked):
            continue
        seats = [
            each for each in fleet.assignments.get(demand.name, ()) if _node_group_of(fleet, each) == cell
        ][::-1][:count]
        machines, left = _grow_cluster(demand, fleet, cluster, seats)
        if machines:
            found.append(Remediation(cell, len(seats) - len(left), machines))
        if left and (moved := _move_replicas(demand, fleet, cluster, left)):
            found.append(Remediation(cell, moved))
    return found


def payable_in_advance(fleet: Fleet, seen: ReplicaObservation) -> frozenset[NodeGroupKey]:
    """Where replicas wait in vain for a machine that nobody pays for, such as the successor of one that leaves after them, and there is
    money for it at once."""
    waiting = {cell for cells in seen.unschedulable.values() for cell in cells}
    return frozenset(
        cell
        for cell in seen.blocked & waiting
        if _awaits_machines(fleet, seen, cell) and _is_payable(fleet, cell)
    )


def _awaits_machines(fleet: Fleet, seen: ReplicaObservation, cell: NodeGroupKey) -> bool:
    cluster = fleet.clusters.get(cell[0])
    return cluster is not None and seen.joined_nodes[cell] < class_counts(fleet, cluster)[cell[1]]


def _is_payable(fleet: Fleet, cell: NodeGroupKey) -> bool:
    cluster = fleet.clusters[cell[0]]
    kind = next((each for each in fleet.offers[cluster.offer_row].types if each.name == cell[1]), None)
    return kind is not None and is_within_limits(fleet, cluster) and _is_affordable(fleet, cluster, kind)


def is_within_limits(fleet: Fleet, cluster: Cluster) -> bool:
    """May machines that are wanted already be paid for? Not where there are more than there may be by now."""
    offer, table = fleet.offers[cluster.offer_row], fleet.table
    is_within = all(
        int(table.free(table.resource_index[each])[cluster.offer_row]) >= 0
        for each in ("nodes", "cpu", "memory")
    )
    return (
        is_within
        and not offer.closed_reason
        and len(cluster.machines) <= min(cluster.max_nodes, offer.limits.nodes_per_cluster)
    )


def _node_group_of(fleet: Fleet, seat: Assignment) -> NodeGroupKey:
    return (fleet.machines.cluster[seat.machine].name, fleet.machines.machine_type[seat.machine].name)


def _grow_cluster(
    demand: Demand, fleet: Fleet, cluster: Cluster, seats: list[Assignment]
) -> tuple[int, list[Assignment]]:
    """Machines that were added, and the replicas for which there may be none."""
    left, added = list(seats), 0
    while left:
        kind = _growable_type(fleet, cluster, _node_group_of(fleet, left[0])[1])
        if kind is None:
            break
        machine = fleet.add_machine(cluster, kind)
        if not fits_on_machine(fleet, demand, machine):
            fleet.drop_machine(machine)
            break
        added += 1
        while left and fits_on_machine(fleet, demand, machine):
            fleet.unassign(left.pop())
            assign(demand, fleet, machine)
    return added, left


def _growable_type(fleet: Fleet, cluster: Cluster, name: str) -> MachineType | None:
    """One more machine of this class, within every limit of the cluster, its offer and its budgets."""
    offer, table = fleet.offers[cluster.offer_row], fleet.table
    if not cluster.is_reserved and fleet.unreserved_nodes_left(cluster.offer_row) < 1:
        return None
    kind = next((each for each in offer.types if each.name == name), None)
    if (
        kind is None
        or offer.closed_reason
        or len(cluster.machines) >= min(cluster.max_nodes, offer.limits.nodes_per_cluster)
    ):
        return None
    needs = {"nodes": 1, "cpu": kind.size.get("cpu", 0), "memory": kind.size.get("memory", 0)}
    if any(
        int(table.free(table.resource_index[each])[cluster.offer_row]) < amount
        for each, amount in needs.items()
    ):
        return None
    return kind if _is_affordable(fleet, cluster, kind) else None


def _is_affordable(fleet: Fleet, cluster: Cluster, kind: MachineType) -> bool:
    is_known = kind.is_priced or not fleet.has_budget_limit(cluster.offer_row, cluster.overflow_source)
    return is_known and kind.rate <= fleet.headroom(cluster.offer_row, cluster.overflow_source)


def _move_replicas(demand: Demand, fleet: Fleet, cluster: Cluster, seats: list[Assignment]) -> int:
    """How many found another place; the others stay where they wait."""
    moved = 0
    for seat in seats:
        with fleet.attempt() as attempt, _closed_cluster(fleet, cluster):
            fleet.unassign(seat)
            placement = place(demand, fleet)
            attempt.succeeded = placement.is_complete or bool(placement.assignments)
        if not attempt.succeeded:
            break
        moved += 1
    return moved


@contextmanager
def _closed_cluster(fleet: Fleet, cluster: Cluster) -> Iterator[None]:
    """On paper its machines have room, and none takes the replica: nothing is put there meanwhile."""
    machines = list(cluster.machines)
    were = [bool(fleet.machines.column("closed")[each]) for each in machines]
    for each in machines:
        fleet.machines.set(each, "closed", True, fixed=False)
    most, cluster.max_nodes = cluster.max_nodes, 0
    fleet.table.touch(cluster.offer_row)
    try:
        yield
    finally:
        cluster.max_nodes = most
        for each, was in zip(machines, were, strict=True):
            if each in fleet.machines.cluster:
                fleet.machines.set(each, "closed", was, fixed=False)
        fleet.table.touch(cluster.offer_row)
