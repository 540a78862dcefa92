"""Who goes when fewer replicas are wanted, and which machines are left to nobody then?"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.plugins.filters.feasible import eligible
from lattice.placement.model.fleet import Fleet, Seat
from lattice.placement.greedy.place import broken_rules

T = TypeVar("T")


def surplus(demand: Demand, fleet: Fleet) -> list[Seat]:
    """The rented before the owned, the dearer first, never the last one that a rule or others need."""
    left = Counter(fleet.counts(demand.name))
    if left.total() <= demand.replicas:
        return []
    going: list[Seat] = []
    by_row: dict[int, list[Seat]] = {}
    for seat in sorted(fleet.seats[demand.name], key=lambda each: _dearness(fleet, each)):
        by_row.setdefault(fleet.machines.cluster[seat.machine].row, []).append(seat)
    everywhere = eligible(ReplicaAsk(demand), fleet)
    while left.total() > demand.replicas:
        rows = sorted(
            (row for row in by_row if by_row[row]),
            key=lambda row: _dearness(fleet, by_row[row][-1]),
            reverse=True,
        )
        rows.sort(key=lambda row: stranded(demand, fleet, left, row))
        spare = (
            row
            for may in (everywhere, None)
            for row in rows
            if not broken_rules(demand, fleet, left - Counter([row]), may)
        )
        row = next(spare, rows[0])
        left[row] -= 1
        going.append(by_row[row].pop())
    return _of_machines(fleet, demand.name, Counter(_cell(fleet, each) for each in going))


def stranded(demand: Demand, fleet: Fleet, counts: Mapping[int, int], row: int) -> int:
    """Replicas of others that are near enough to this service, and would not be with one less of it there."""
    others = fleet.dependants.get(demand.name)
    rest = [each for each, count in counts.items() if count and each != row]
    if not others or counts[row] > 1 or not rest:
        return 0
    before, after = fleet.nearest([*rest, row]), fleet.nearest(rest)
    near = ((fleet.counts(name), most) for name, most in others if name != demand.name)
    return sum(count for seats, most in near for at, count in seats.items() if before[at] <= most < after[at])


def _dearness(fleet: Fleet, seat: Seat) -> tuple[bool, int, int, str]:
    machines = fleet.machines
    cluster, kind = machines.cluster[seat.machine], machines.kind[seat.machine]
    alone = -sum(machines.holds[seat.machine].values())
    return (not fleet.offers[cluster.row].is_static, kind.rate, alone, machines.names[seat.machine])


def _cell(fleet: Fleet, seat: Seat) -> tuple[str, str]:
    return (fleet.machines.cluster[seat.machine].name, fleet.machines.kind[seat.machine].name)


def _of_machines(fleet: Fleet, service: str, counts: Counter[tuple[str, str]]) -> list[Seat]:
    """So many of each cluster and class: those that the controller of its replicas stops, too."""
    machines = fleet.machines
    here: dict[tuple[str, str], list[Seat]] = {cell: [] for cell in counts}
    for seat in fleet.seats[service]:
        here.get(_cell(fleet, seat), []).append(seat)
    found: list[Seat] = []
    for cell, count in counts.items():
        held = Counter(machines.names[seat.machine] for seat in here[cell])
        shared = {name for name in held if _is_shared(fleet, machines.row_of[name])}
        left = leaving(held, shared.__contains__, count, fleet.clusters[cell[0]].min_nodes)
        found += taken(reversed(here[cell]), lambda seat: machines.names[seat.machine], left)
    return found[::-1]


def _is_shared(fleet: Fleet, machine: int) -> bool:
    """Others are there. Whoever has a place and no room is not there yet, wherever it was guessed to be."""
    machines = fleet.machines
    is_crowded = any(machines.free(each)[machine] < 0 for each in machines.index.values())
    return len(machines.holds[machine]) > 1 and not is_crowded


def leaving(
    held: Mapping[str, int], is_shared: Callable[[str], bool], count: int, least: int
) -> Counter[str]:
    """How many leave each machine: as many machines as can be are left to nobody, the rest leaves those with the most of them.

    `held`: replicas of one service on machines of one class in a cluster. `is_shared`: is anything else there? `least`: on so many
    machines it stays as long as it can, since a cluster keeps them whoever is on them.
    """
    left, going = Counter(held), Counter[str]()
    names, rest = sorted(held, reverse=True), count
    for name in sorted(names, key=lambda each: held[each]):
        if held[name] > rest or len(left) <= least:
            break
        if not is_shared(name):
            going[name] = left.pop(name)
            rest -= going[name]
    queue = [(-left[name], order, name) for order, name in enumerate(names) if name in left]
    heapq.heapify(queue)
    for _ in range(rest):
        fewer, order, name = queue[0]
        going[name] += 1
        heapq.heapreplace(queue, (fewer + 1, order, name))
    return going


def taken(several: Iterable[T], machine: Callable[[T], str], counts: Counter[str]) -> list[T]:
    """The first that are on these machines, so many of each."""
    left, found = Counter(counts), []
    for each in several:
        if left[machine(each)]:
            left[machine(each)] -= 1
            found.append(each)
    return found
