"""What is done for replicas that no node takes: a machine more for their cluster, else another place?"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Cluster, Fleet, Seat
from lattice.placement.model.offer import MachineType
from lattice.placement.greedy.place import place
from lattice.placement.model.quotes import takes
from lattice.lifecycle.replica_template import Cell
from lattice.lifecycle.replica_state import Seen
from lattice.placement.greedy.machine_choice import class_counts, take_seat


@dataclass(frozen=True, slots=True)
class Relief:
    """Replicas of one cell. `machines`: that it gets; none: they go elsewhere."""

    cell: Cell
    replicas: int
    machines: int = 0


def relieve(demand: Demand, fleet: Fleet, stuck: Counter[Cell], seen: Seen) -> list[Relief]:
    """Nothing while machines that were bought are still to come: they may take them. They will not while nobody pays for them."""
    found = []
    for cell, count in sorted(stuck.items()):
        cluster = fleet.clusters.get(cell[0])
        if cluster is None or (_is_lacking(fleet, seen, cell) and cell not in seen.held_up):
            continue
        seats = [each for each in fleet.seats.get(demand.name, ()) if _cell(fleet, each) == cell][::-1][
            :count
        ]
        machines, left = _grown(demand, fleet, cluster, seats)
        if machines:
            found.append(Relief(cell, len(seats) - len(left), machines))
        if left and (moved := _moved(demand, fleet, cluster, left)):
            found.append(Relief(cell, moved))
    return found


def in_advance(fleet: Fleet, seen: Seen) -> frozenset[Cell]:
    """Where replicas wait in vain for a machine that nobody pays for, such as the successor of one that leaves after them, and there is
    money for it at once."""
    waiting = {cell for cells in seen.stuck.values() for cell in cells}
    return frozenset(
        cell for cell in seen.held_up & waiting if _is_lacking(fleet, seen, cell) and _is_payable(fleet, cell)
    )


def _is_lacking(fleet: Fleet, seen: Seen, cell: Cell) -> bool:
    cluster = fleet.clusters.get(cell[0])
    return cluster is not None and seen.joined[cell] < class_counts(fleet, cluster)[cell[1]]


def _is_payable(fleet: Fleet, cell: Cell) -> bool:
    cluster = fleet.clusters[cell[0]]
    kind = next((each for each in fleet.offers[cluster.row].types if each.name == cell[1]), None)
    return kind is not None and is_within_limits(fleet, cluster) and _is_affordable(fleet, cluster, kind)


def is_within_limits(fleet: Fleet, cluster: Cluster) -> bool:
    """May machines that are wanted already be paid for? Not where there are more than there may be by now."""
    offer, table = fleet.offers[cluster.row], fleet.table
    is_within = all(
        int(table.free(table.index[each])[cluster.row]) >= 0 for each in ("nodes", "cpu", "memory")
    )
    return (
        is_within
        and not offer.closed
        and len(cluster.machines) <= min(cluster.max_nodes, offer.limits.nodes_per_cluster)
    )


def _cell(fleet: Fleet, seat: Seat) -> Cell:
    return (fleet.machines.cluster[seat.machine].name, fleet.machines.kind[seat.machine].name)


def _grown(demand: Demand, fleet: Fleet, cluster: Cluster, seats: list[Seat]) -> tuple[int, list[Seat]]:
    """Machines that were added, and the replicas for which there may be none."""
    left, added = list(seats), 0
    while left:
        kind = _may_grow(fleet, cluster, _cell(fleet, left[0])[1])
        if kind is None:
            break
        machine = fleet.add_machine(cluster, kind)
        if not takes(fleet, demand, machine):
            fleet.drop_machine(machine)
            break
        added += 1
        while left and takes(fleet, demand, machine):
            fleet.unseat(left.pop())
            take_seat(demand, fleet, machine)
    return added, left


def _may_grow(fleet: Fleet, cluster: Cluster, name: str) -> MachineType | None:
    """One more machine of this class, within every limit of the cluster, its offer and its budgets."""
    offer, table = fleet.offers[cluster.row], fleet.table
    if not cluster.is_kept and fleet.unreserved(cluster.row) < 1:
        return None
    kind = next((each for each in offer.types if each.name == name), None)
    if (
        kind is None
        or offer.closed
        or len(cluster.machines) >= min(cluster.max_nodes, offer.limits.nodes_per_cluster)
    ):
        return None
    needs = {"nodes": 1, "cpu": kind.size.get("cpu", 0), "memory": kind.size.get("memory", 0)}
    if any(int(table.free(table.index[each])[cluster.row]) < amount for each, amount in needs.items()):
        return None
    return kind if _is_affordable(fleet, cluster, kind) else None


def _is_affordable(fleet: Fleet, cluster: Cluster, kind: MachineType) -> bool:
    is_known = kind.is_priced or not fleet.is_limited(cluster.row, cluster.overflow)
    return is_known and kind.rate <= fleet.headroom(cluster.row, cluster.overflow)


def _moved(demand: Demand, fleet: Fleet, cluster: Cluster, seats: list[Seat]) -> int:
    """How many found another place; the others stay where they wait."""
    moved = 0
    for seat in seats:
        with fleet.attempt() as attempt, _closed(fleet, cluster):
            fleet.unseat(seat)
            placement = place(demand, fleet)
            attempt.succeeded = placement.is_complete or bool(placement.seats)
        if not attempt.succeeded:
            break
        moved += 1
    return moved


@contextmanager
def _closed(fleet: Fleet, cluster: Cluster) -> Iterator[None]:
    """On paper its machines have room, and none takes the replica: nothing is put there meanwhile."""
    machines = list(cluster.machines)
    were = [bool(fleet.machines.column("closed")[each]) for each in machines]
    for each in machines:
        fleet.machines.set(each, "closed", True, fixed=False)
    most, cluster.max_nodes = cluster.max_nodes, 0
    fleet.table.touch(cluster.row)
    try:
        yield
    finally:
        cluster.max_nodes = most
        for each, was in zip(machines, were, strict=True):
            if each in fleet.machines.cluster:
                fleet.machines.set(each, "closed", was, fixed=False)
        fleet.table.touch(cluster.row)
