"""Affinity over all replicas of a service: the terms that a placement breaks, machines large enough for
replicas that must share them, and the machines that a service counts on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from lattice.kinds.constraints import PlannedNodes
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.affinity.terms import AffinityTerm
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import domain_of
from lattice.placement.model.replica_index import Assignment

# The part of the fleet in which two replicas are near.
Domain = str | int


def _domain(assignment: Assignment, fleet: Fleet, key: str) -> Domain:
    if key == "node":
        return assignment.machine
    cluster = fleet.machines.cluster[assignment.machine]
    return cluster.name if key == "cluster" else domain_of(fleet.offers[cluster.offer_row], key)


def broken_terms(demand: Demand, fleet: Fleet) -> list[str]:
    """List the required terms of the service that the replicas in the fleet break.

    The anti-affinity terms of other services count for those services.
    """
    return [str(term) for term in demand.own_terms if _is_broken(term, demand, fleet)]


def _is_broken(term: AffinityTerm, demand: Demand, fleet: Fleet) -> bool:
    near: Counter[Domain] = Counter()
    for target in term.targets:
        for assignment in fleet.assignments.get(target, ()):
            near[_domain(assignment, fleet, term.key)] += 1
    # A replica is no target for itself.
    own = 1 if demand.name in term.targets else 0
    # The only target that exists is near to itself.
    if not term.is_anti and own and near.total() == 1:
        return False
    for assignment in fleet.assignments.get(demand.name, ()):
        neighbour_count = near[_domain(assignment, fleet, term.key)] - own
        if bool(neighbour_count) is term.is_anti:
            return True
    return False


def add_headroom(group: Sequence[Demand]) -> list[Demand]:
    """Return the group with headroom on the machines of every service that other services of the group must
    share a machine with, apart from what these exclude; an empty list if there is no such service."""
    headroom: dict[str, Counter[str]] = {}
    exclusions: dict[str, list[AffinityTerm]] = {}
    sizes = {demand.name: demand.replicas for demand in group}
    for demand in group:
        for term in demand.near_terms:
            # In the order of placement, because names decide nothing.
            targets = [member for member in sizes if member in term.targets and member != demand.name]
            if term.key != "node" or demand.name in term.targets or not targets:
                continue
            # The first target takes them all; every other target is optional.
            count = -(-demand.replicas // max(1, sizes[targets[0]]))
            for name, amount in demand.effective_needs.items():
                headroom.setdefault(targets[0], Counter())[name] += count * amount
            for local in demand.local_terms:
                excluded = tuple(
                    target for target in local.targets if target not in (demand.name, targets[0])
                )
                if local.is_anti and excluded:
                    inherited = replace(local, targets=excluded, is_own=False)
                    exclusions.setdefault(targets[0], []).append(inherited)
    if not headroom:
        return []
    return [
        replace(
            demand,
            headroom=tuple(sorted(headroom.get(demand.name, {}).items())),
            repelling_terms=(*demand.repelling_terms, *exclusions.get(demand.name, ())),
        )
        for demand in group
    ]


def planned_nodes(name: str, fleet: Fleet) -> dict[NodeGroupKey, PlannedNodes]:
    """Return, by cluster and node class, the machines that the replicas of the service use, where affinity
    decides which services share a machine of that cluster and class.

    The scheduler keeps to them: further machines were bought for services that exclude one another.
    """
    if not fleet.counted_services:
        return {}
    used: dict[NodeGroupKey, Counter[int]] = {}
    for assignment in fleet.assignments.get(name, ()):
        machine = assignment.machine
        group = (fleet.machines.cluster[machine].name, fleet.machines.machine_type[machine].name)
        used.setdefault(group, Counter())[machine] += 1
    planned = {}
    for group, machines in used.items():
        residents = _services_in(group, fleet)
        # A service without affinity must keep to its machines as well, if others of the group depend on it.
        if residents.isdisjoint(fleet.counted_services):
            continue
        shared_with: set[str] = set()
        shared_with.update(*(fleet.machines.replica_counts[machine] for machine in machines))
        planned[group] = PlannedNodes(
            count=len(machines),
            shared_with=tuple(sorted(shared_with - {name})),
            per_node=max(machines.values()) if name in fleet.near_targets else 0,
        )
    return planned


def _services_in(group: NodeGroupKey, fleet: Fleet) -> set[str]:
    """Services with replicas on machines of the cluster and class."""
    cluster, services = fleet.clusters[group[0]], set[str]()
    for machine in cluster.machines:
        if fleet.machines.machine_type[machine].name == group[1]:
            services.update(fleet.machines.replica_counts[machine])
    return services
