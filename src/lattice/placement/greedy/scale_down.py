"""Choose the replicas that a service loses when its desired replica count shrinks, and move the replicas of a
machine that is to be released."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from lattice.lifecycle.rollout import first_on_machines, removals_by_machine
from lattice.placement.greedy.affinity import broken_terms
from lattice.placement.greedy.place import violated_rules
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.replica_index import Assignment
from lattice.placement.plugins.filters.eligibility import eligible_offers

T = TypeVar("T")


def surplus_assignments(demand: Demand, fleet: Fleet) -> list[Assignment]:
    """Return the surplus assignments of the demand: rented before owned, the most expensive first.

    The choice keeps replicas that a rule over all replicas or the latency limit of another service needs, if
    any alternative exists.
    """
    remaining = Counter(fleet.replicas.by_offer(demand.name))
    if remaining.total() <= demand.replicas:
        return []
    surplus: list[Assignment] = []
    by_row: dict[int, list[Assignment]] = {}
    by_cost = sorted(fleet.assignments[demand.name], key=lambda assignment: _cost_rank(fleet, assignment))
    for assignment in by_cost:
        by_row.setdefault(fleet.machines.cluster[assignment.machine].offer_row, []).append(assignment)
    eligible = eligible_offers(ReplicaAsk(demand), fleet)
    while remaining.total() > demand.replicas:
        rows = sorted(
            (row for row in by_row if by_row[row]),
            key=lambda row: _cost_rank(fleet, by_row[row][-1]),
            reverse=True,
        )
        # The sort is stable: rows that put equally many dependants out of range keep the order by cost.
        rows.sort(key=lambda row: _dependants_out_of_range(demand, fleet, remaining, row))
        # First look for an offer that can lose a replica without violating a rule, where the domains of empty
        # eligible offers count for the skew. If there is none, look again with the occupied offers only.
        row = rows[0]
        for counted_offers, candidate in itertools.product((eligible, None), rows):
            if not violated_rules(demand, fleet, remaining - Counter([candidate]), counted_offers):
                row = candidate
                break
        remaining[row] -= 1
        surplus.append(by_row[row].pop())
    counts = Counter(_node_group_of(fleet, assignment) for assignment in surplus)
    return _pick_by_machine(fleet, demand.name, counts)


def _dependants_out_of_range(demand: Demand, fleet: Fleet, counts: Mapping[int, int], row: int) -> int:
    """Count the replicas of dependants that would exceed their latency limit if the service lost its last
    replica in offer `row`."""
    dependants = fleet.dependants.get(demand.name)
    remaining_rows = [counted_row for counted_row, count in counts.items() if count and counted_row != row]
    # With another replica in the same offer, no latency changes.
    if not dependants or counts[row] > 1 or not remaining_rows:
        return 0
    ms_before, ms_after = fleet.ms_to_nearest([*remaining_rows, row]), fleet.ms_to_nearest(remaining_rows)
    out_of_range = 0
    for name, max_ms in dependants:
        if name == demand.name:
            continue
        for dependant_row, count in fleet.replicas.by_offer(name).items():
            if ms_before[dependant_row] <= max_ms < ms_after[dependant_row]:
                out_of_range += count
    return out_of_range


def _cost_rank(fleet: Fleet, assignment: Assignment) -> tuple[bool, int, int, int, int, str]:
    machines = fleet.machines
    cluster, machine_type = machines.cluster[assignment.machine], machines.machine_type[assignment.machine]
    fewest_replicas = -sum(machines.replica_counts[assignment.machine].values())
    return (
        not fleet.offers[cluster.offer_row].is_static,
        machine_type.rate,
        fewest_replicas,
        # Rows are in tie order: names decide only between machines that are equal in everything else.
        cluster.offer_row,
        machine_type.tie_key,
        machines.names[assignment.machine],
    )


def _node_group_of(fleet: Fleet, assignment: Assignment) -> tuple[str, str]:
    return (
        fleet.machines.cluster[assignment.machine].name,
        fleet.machines.machine_type[assignment.machine].name,
    )


def _pick_by_machine(fleet: Fleet, service: str, counts: Counter[tuple[str, str]]) -> list[Assignment]:
    """Choose `counts` assignments by node group, the same replicas that the replica controller stops."""
    machines = fleet.machines
    by_node_group: dict[tuple[str, str], list[Assignment]] = {node_group: [] for node_group in counts}
    for assignment in fleet.assignments[service]:
        by_node_group.get(_node_group_of(fleet, assignment), []).append(assignment)
    chosen: list[Assignment] = []
    for node_group, count in counts.items():
        replicas_by_machine = Counter(
            machines.names[assignment.machine] for assignment in by_node_group[node_group]
        )
        # Machines with replicas of several services.
        shared = set()
        for name in replicas_by_machine:
            machine = machines.row_of[name]
            # On an overcommitted machine the assignment of the trial fleet is a guess: the replicas are not
            # bound yet, so they do not count.
            is_overcommitted = any(
                machines.free(resource)[machine] < 0 for resource in machines.resource_index.values()
            )
            if len(machines.replica_counts[machine]) > 1 and not is_overcommitted:
                shared.add(name)
        removals = removals_by_machine(
            replicas_by_machine, shared.__contains__, count, fleet.clusters[node_group[0]].min_nodes
        )
        chosen += first_on_machines(
            reversed(by_node_group[node_group]),
            lambda assignment: machines.names[assignment.machine],
            removals,
        )
    # Reversed, because callers unassign from the last entry to the first.
    return chosen[::-1]


def empty_machine(machine: int, targets: Sequence[int], fleet: Fleet, demands: Mapping[str, Demand]) -> bool:
    """Move all replicas of the machine to the targets; without capacity, or if the move would break a required
    affinity term of any service, move none and return False."""
    broken, fits = broken_affinity(fleet, demands), fleet.groups.fits_on_machine
    residents = [
        assignment
        for service in sorted(fleet.machines.replica_counts[machine])
        for assignment in fleet.assignments[service]
        if assignment.machine == machine
    ]
    # A replica that must be near another one is assigned after it.
    residents.sort(key=lambda assignment: bool(demands[assignment.service].near_terms))
    with fleet.attempt() as attempt:
        for assignment in residents:
            fleet.unassign(assignment)
        for assignment in residents:
            demand = demands[assignment.service]
            target = next((row for row in targets if row != machine and fits(demand, row)), None)
            if target is None:
                break
            fleet.assign_replica(demand, target)
        else:
            attempt.succeeded = broken_affinity(fleet, demands) <= broken
    return attempt.succeeded


def broken_affinity(fleet: Fleet, demands: Mapping[str, Demand]) -> set[tuple[str, str]]:
    """The services whose required affinity terms the fleet breaks, each with the term."""
    return {
        (name, term)
        for name, demand in demands.items()
        if demand.own_terms
        for term in broken_terms(demand, fleet)
    }
