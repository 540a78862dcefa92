"""Who goes when fewer replicas are wanted, and which machines are left to nobody then?"""

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from lattice.lifecycle.rollout import first_on_machines, removals_by_machine
from lattice.placement.greedy.place import violated_rules
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Assignment, Fleet
from lattice.placement.plugins.filters.eligibility import eligible_offers

T = TypeVar("T")


def surplus_assignments(demand: Demand, fleet: Fleet) -> list[Assignment]:
    """The rented before the owned, the dearer first, never the last one that a rule or others need."""
    left = Counter(fleet.replicas_by_offer(demand.name))
    if left.total() <= demand.replicas:
        return []
    going: list[Assignment] = []
    by_row: dict[int, list[Assignment]] = {}
    for seat in sorted(fleet.assignments[demand.name], key=lambda each: _cost_rank(fleet, each)):
        by_row.setdefault(fleet.machines.cluster[seat.machine].offer_row, []).append(seat)
    everywhere = eligible_offers(ReplicaAsk(demand), fleet)
    while left.total() > demand.replicas:
        rows = sorted(
            (row for row in by_row if by_row[row]),
            key=lambda row: _cost_rank(fleet, by_row[row][-1]),
            reverse=True,
        )
        rows.sort(key=lambda row: dependants_out_of_range(demand, fleet, left, row))
        spare = (
            row
            for may in (everywhere, None)
            for row in rows
            if not violated_rules(demand, fleet, left - Counter([row]), may)
        )
        row = next(spare, rows[0])
        left[row] -= 1
        going.append(by_row[row].pop())
    return _pick_by_machine(fleet, demand.name, Counter(_node_group_of(fleet, each) for each in going))


def dependants_out_of_range(demand: Demand, fleet: Fleet, counts: Mapping[int, int], row: int) -> int:
    """Replicas of others that are near enough to this service, and would not be with one less of it there."""
    others = fleet.dependants.get(demand.name)
    rest = [each for each, count in counts.items() if count and each != row]
    if not others or counts[row] > 1 or not rest:
        return 0
    before, after = fleet.ms_to_nearest([*rest, row]), fleet.ms_to_nearest(rest)
    near = ((fleet.replicas_by_offer(name), most) for name, most in others if name != demand.name)
    return sum(count for seats, most in near for at, count in seats.items() if before[at] <= most < after[at])


def _cost_rank(fleet: Fleet, seat: Assignment) -> tuple[bool, int, int, str]:
    machines = fleet.machines
    cluster, kind = machines.cluster[seat.machine], machines.machine_type[seat.machine]
    alone = -sum(machines.replica_counts[seat.machine].values())
    return (not fleet.offers[cluster.offer_row].is_static, kind.rate, alone, machines.names[seat.machine])


def _node_group_of(fleet: Fleet, seat: Assignment) -> tuple[str, str]:
    return (fleet.machines.cluster[seat.machine].name, fleet.machines.machine_type[seat.machine].name)


def _pick_by_machine(fleet: Fleet, service: str, counts: Counter[tuple[str, str]]) -> list[Assignment]:
    """So many of each cluster and class: those that the controller of its replicas stops, too."""
    machines = fleet.machines
    here: dict[tuple[str, str], list[Assignment]] = {cell: [] for cell in counts}
    for seat in fleet.assignments[service]:
        here.get(_node_group_of(fleet, seat), []).append(seat)
    found: list[Assignment] = []
    for cell, count in counts.items():
        held = Counter(machines.names[seat.machine] for seat in here[cell])
        shared = {name for name in held if _is_shared_machine(fleet, machines.row_of[name])}
        left = removals_by_machine(held, shared.__contains__, count, fleet.clusters[cell[0]].min_nodes)
        found += first_on_machines(reversed(here[cell]), lambda seat: machines.names[seat.machine], left)
    return found[::-1]


def _is_shared_machine(fleet: Fleet, machine: int) -> bool:
    """Others are there. Whoever has a place and no room is not there yet, wherever it was guessed to be."""
    machines = fleet.machines
    is_crowded = any(machines.free(each)[machine] < 0 for each in machines.resource_index.values())
    return len(machines.replica_counts[machine]) > 1 and not is_crowded
