"""Whether a cluster can get a machine for unschedulable replicas, what keeps it from growing, and which
machines are paid in advance."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lattice.kinds.meta.quantity import format_dollars
from lattice.lifecycle.replica_observation import ReplicaObservation
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.affinity.terms import AffinityTerm
from lattice.placement.greedy.machine_choice import class_counts
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.inventory import Cluster
from lattice.placement.model.machine_catalog import fits_empty_machine
from lattice.placement.model.offer import MachineType
from lattice.placement.model.replica_index import Assignment


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


@dataclass(frozen=True, slots=True)
class GrowthBlocker:
    """Why a cluster gets no machine for a replica, with what the machine needs and what is there."""

    text: str
    need: str = ""
    have: str = ""
    # The ledger whose hard limit refuses the machine, and the rate of the machine in micro-dollars per hour.
    ledger: str = ""
    rate: int = 0


def growth_blocker(demand: Demand, fleet: Fleet, cluster: Cluster, node_class: str) -> GrowthBlocker:
    """Return what keeps the cluster from getting one more machine of the class for a replica."""
    offer = fleet.offers[cluster.offer_row]
    kind = next((candidate for candidate in offer.types if candidate.name == node_class), None)
    if offer.closed_reason:
        return GrowthBlocker(f"{offer.name} is closed: {offer.closed_reason}")
    if kind is None:
        return GrowthBlocker(f"{offer.name} no longer offers class {node_class}")
    if not fits_empty_machine(demand, kind):
        return GrowthBlocker(f"no machine of class {node_class} in {offer.name} fits a replica")
    if term := _neighbour_on_node(demand, fleet):
        return GrowthBlocker(f"a replica must share its machine: {term}, and a new machine is empty")
    limit = min(cluster.max_nodes, offer.limits.nodes_per_cluster)
    if len(cluster.machines) >= limit:
        have = f"{len(cluster.machines)} of {limit}"
        return GrowthBlocker(f"cluster {cluster.name} has all its nodes", "1 node more", have)
    table = fleet.table
    for resource in ("nodes", "cpu", "memory"):
        amount = 1 if resource == "nodes" else kind.size.get(resource, 0)
        free = int(table.free(table.resource_index[resource])[cluster.offer_row])
        if amount > free:
            need, have = f"{amount:,} {resource} more", f"{max(0, free):,}"
            return GrowthBlocker(f"{offer.name} is full", need, have)
    if _is_affordable(fleet, cluster, kind):
        return GrowthBlocker(f"the machines of {offer.name} are reserved for other services")
    if not kind.is_priced:
        return GrowthBlocker(f"class {node_class} has no known price, and a budget applies")
    ledgers = fleet.ledgers
    payers = ledgers.paying_for(cluster.offer_row, cluster.overflow_source)
    name = min(payers, key=lambda ledger: ledgers.commit_cap(ledger) - ledgers.committed[ledger])
    headroom = max(0, ledgers.commit_cap(name) - ledgers.committed[name])
    account = ledgers.budgets[name].account
    return GrowthBlocker(
        f"over budget: {account} cannot pay for one more machine of class {node_class}",
        f"{format_dollars(kind.rate)}/h",
        f"{format_dollars(headroom)}/h",
        name,
        kind.rate,
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


def node_group_of(fleet: Fleet, assignment: Assignment) -> NodeGroupKey:
    return (
        fleet.machines.cluster[assignment.machine].name,
        fleet.machines.machine_type[assignment.machine].name,
    )


def growable_type(fleet: Fleet, cluster: Cluster, name: str) -> MachineType | None:
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


def machine_type_for(demand: Demand, fleet: Fleet, cluster: Cluster, name: str) -> MachineType | None:
    """Return the machine type if the cluster may get one more machine of the type and the machine, while empty,
    accepts a replica; else None."""
    kind = growable_type(fleet, cluster, name)
    if kind is None or not fits_empty_machine(demand, kind) or _neighbour_on_node(demand, fleet):
        return None
    return kind


def _neighbour_on_node(demand: Demand, fleet: Fleet) -> AffinityTerm | None:
    """Return the required term by which a replica needs a neighbour on its machine; None if there is no such
    term, or the term waits for its first replica."""
    for term in demand.near_terms:
        is_first = demand.name in term.targets and not any(map(fleet.replicas.count, term.targets))
        if term.key == "node" and not is_first:
            return term
    return None


@contextmanager
def closed_cluster(fleet: Fleet, cluster: Cluster, node_class: str) -> Iterator[None]:
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
