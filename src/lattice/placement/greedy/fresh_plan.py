"""Compare the present bill with that of a fresh plan: the cost if all services were placed again from nothing,
and the moves that would release a machine."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.meta.quantity import format_dollars, pluralize
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import NO_SURGE_CAPACITY, PROGRESSING_CONDITION, LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.replica_observation import is_terminating
from lattice.placement.greedy.place import place
from lattice.placement.greedy.place_all import place_all
from lattice.placement.greedy.scale_down import broken_affinity
from lattice.placement.model.costs import fleet_bill, fleet_costs
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.object_changes import with_fields
from lattice.placement.model.world import ObjectKey, World, object_key

# A larger fleet is not compared: a fresh plan of it takes too long for a reconcile. `lattice optimise`
# compares fleets of every size.
MAX_COMPARED_REPLICAS = 1000
# Limit of machines that the search for a machine to release tries.
MAX_TRIED_MACHINES = 20


@dataclass(frozen=True, slots=True)
class CostComparison:
    """Rates in micro-dollars per hour; `messages` says by service what a fresh plan would save."""

    present: int
    fresh: int
    messages: Mapping[str, str] = field(default_factory=dict)


def is_comparable(fleet: Fleet) -> bool:
    """Whether the fleet is small enough for a comparison."""
    return fleet.replicas.total <= MAX_COMPARED_REPLICAS


def clusters_of_paused_updates(world: World) -> set[str]:
    """The clusters of services whose update waits for capacity. Such a cluster has a replica without a node for as
    long as the update waits."""
    clusters: set[str] = set()
    for service in world.services.values():
        progress = find_condition(service.status.conditions, PROGRESSING_CONDITION)
        if progress is not None and progress.status == "False" and progress.reason == NO_SURGE_CAPACITY:
            clusters.update(placement.cluster for placement in service.status.placements)
    return clusters


def compare_with_fresh_plan(world: World, fleet: Fleet) -> CostComparison:
    """Compare the fleet with a fresh plan of the same services. Without a message the present bill is not
    higher, or the fresh plan places fewer replicas."""
    fresh_world = unplaced_world(world)
    fresh = fresh_world.build_fleet()
    place_all(fresh_world.demands.values(), fresh)
    rates = (fleet_bill(fleet).total, fleet_bill(fresh).total)
    is_as_complete = all(
        fresh.replicas.count(name) >= min(fleet.replicas.count(name), demand.replicas)
        for name, demand in fresh_world.demands.items()
    )
    if not is_as_complete or rates[0] <= rates[1]:
        return CostComparison(*rates)
    summary = f"a fresh plan costs {format_dollars(rates[1])}/h, this one {format_dollars(rates[0])}/h"
    released = _releasable(world.demands, fleet)
    if released is not None:
        machine, replicas = released
        names = ", ".join(f"{pluralize(count, 'replica')} of {name}" for name, count in replicas.items())
        message = f"{summary}; moving {names} would release machine {machine}"
        return CostComparison(*rates, dict.fromkeys(replicas, message))
    present_costs, fresh_costs = fleet_costs(fleet).services, fleet_costs(fresh).services
    message = f"{summary}; it takes several moves: see `lattice optimise`"
    dearer = [name for name in present_costs if present_costs[name] > fresh_costs.get(name, 0)]
    return CostComparison(*rates, dict.fromkeys(dearer or present_costs, message))


def unplaced_world(world: World) -> World:
    """The world as if no service had been placed. Machines with workloads that have no service stay, since no
    plan places such workloads; joined machines belong to no cluster yet."""
    bare = {
        workload.status.binding.node
        for workload in world.of_kind(LatticeWorkload)
        if workload.status.binding and not workload.spec.service and not is_terminating(workload)
    }
    used: dict[str, Counter[str]] = {}
    objects: dict[ObjectKey, Kind] = {}
    for key, obj in world.objects.items():
        match obj:
            case LatticeNode() if obj.is_joined_machine:
                objects[key] = with_fields(obj, spec=with_fields(obj.spec, cluster=""))
            case LatticeNode():
                if obj.metadata.name in bare:
                    objects[key] = obj
                    used.setdefault(obj.spec.cluster, Counter())[obj.spec.node_class] += 1
            case LatticeWorkload():
                if not obj.spec.service:
                    objects[key] = obj
            case LatticeService():
                objects[key] = with_fields(obj, status=with_fields(obj.status, placements=()))
            case LatticeLedger():
                status = msgspec.structs.replace(obj.status, machines={}, committed_micros=0)
                objects[key] = msgspec.structs.replace(obj, status=status)
            case LatticeCluster():
                continue
            case _:
                objects[key] = obj
    for cluster in world.of_kind(LatticeCluster):
        nodes = used.get(cluster.metadata.name)
        if nodes:
            objects[object_key(cluster)] = with_fields(
                cluster, spec=with_fields(cluster.spec, nodes=dict(nodes))
            )
    return replace(world, objects=objects)


def _releasable(demands: Mapping[str, Demand], fleet: Fleet) -> tuple[str, dict[str, int]] | None:
    """The first machine, the fewest replicas first, whose replicas fit on the other machines; with its
    replicas by service."""
    machines = fleet.machines
    counts = machines.replica_counts
    rows = [
        row
        for row, kind in machines.machine_type.items()
        if kind.rate
        and counts[row]
        and counts[row].keys() <= demands.keys()
        # A cluster keeps its minimum of machines while it has replicas on others.
        and len(machines.cluster[row].machines) not in range(2, machines.cluster[row].min_nodes + 1)
    ]
    broken = broken_affinity(fleet, demands)
    rows.sort(key=lambda row: (counts[row].total(), -machines.machine_type[row].rate, machines.names[row]))
    for row in rows[:MAX_TRIED_MACHINES]:
        residents, name = dict(sorted(counts[row].items())), machines.names[row]
        with fleet.what_if():
            is_moved = _fits_elsewhere(demands, fleet, row, residents)
            if is_moved and broken_affinity(fleet, demands) <= broken:
                return name, residents
    return None


def _fits_elsewhere(
    demands: Mapping[str, Demand], fleet: Fleet, row: int, residents: Mapping[str, int]
) -> bool:
    """Move all replicas of the machine to other machines that exist."""
    # Names, since the row of a dropped machine is used again.
    machines_before = set(fleet.machines.row_of)
    for name in residents:
        for assignment in [candidate for candidate in fleet.assignments[name] if candidate.machine == row]:
            fleet.unassign(assignment)
    fleet.inventory.drop_machine(row)
    for name in residents:
        if not place(demands[name], fleet).is_complete:
            return False
    return fleet.machines.row_of.keys() < machines_before
