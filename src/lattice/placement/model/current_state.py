"""What is there already: clusters, their machines, and the replicas on them, put into a fleet."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from lattice.kinds.meta.base import Kind
from lattice.kinds.cluster import RESERVE_LABEL, LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger, number_in
from lattice.kinds.node import LatticeNode
from lattice.kinds.policy import DEFAULT_PACKING
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.model.demand import Demand, group_name
from lattice.placement.model.fleet import Cluster, Fleet, Seat
from lattice.placement.model.former import Former
from lattice.placement.model.offer import NO_LIMIT, MachineType
from lattice.placement.model.quotes import takes
from lattice.lifecycle.replica_state import is_going, stays
from lattice.placement.greedy.machine_choice import plain_seats, ranks, take_seat
from lattice.placement.model.supply import Classes, static_account

OVERFLOW_LABEL = "lattice.dev/overflow-of"
BARE = "workload/"  # before the name of a workload that belongs to no service, where services are named
Said = tuple[str, Mapping[str, int]]  # a class, and the size that nodes of it say they have, if there are any


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands where on paper, where there are no nodes and bindings yet that could tell."""

    machines: Mapping[str, tuple[tuple[str, str], ...]]  # by cluster: names of machines and their classes
    replicas: Mapping[str, tuple[str, ...]]  # by service: the machine of each
    numbers: Mapping[str, int] = field(
        default_factory=dict
    )  # by offer, those that are gone included: of its next cluster

    @staticmethod
    def of(fleet: Fleet, before: "Layout") -> "Layout":
        names, kind = fleet.machines.names, fleet.machines.kind
        return Layout(
            {
                each.name: tuple(sorted((names[row], kind[row].name) for row in each.machines))
                for each in fleet.clusters.values()
            },
            {
                service: tuple(sorted(names[seat.machine] for seat in seats))
                for service, seats in fleet.seats.items()
            },
            {
                **before.numbers,
                **{fleet.offers[row].name: number for row, number in fleet.next_number.items()},
            },
        )


BLANK = Layout({}, {})


@dataclass(frozen=True, slots=True)
class Present:
    """Nodes by cluster, and workloads that are bound, by service; "" has those of no service.

    Replicas that are going, and nodes that are or have not come yet, take part in nothing: their cluster says what it is to have.
    """

    nodes: Mapping[str, list[LatticeNode]]
    bound: Mapping[str, list[LatticeWorkload]]
    layout: Layout
    former: Former

    @staticmethod
    def of(objects: Iterable[Kind], layout: Layout, classes: Classes) -> "Present":
        nodes: dict[str, list[LatticeNode]] = {}
        bound: dict[str, list[LatticeWorkload]] = {}
        kept = list(objects)
        for each in kept:
            if isinstance(each, LatticeNode) and each.spec.cluster and stays(each):
                nodes.setdefault(each.spec.cluster, []).append(each)
            elif isinstance(each, LatticeWorkload) and each.status.binding and not is_going(each):
                owner = (
                    f"{each.metadata.namespace or 'default'}/{each.spec.service}" if each.spec.service else ""
                )
                bound.setdefault(owner, []).append(each)
        return Present(nodes, bound, layout, Former.of(kept, classes))

    @property
    def visited(self) -> set[str]:
        """Clusters with workloads that belong to no service."""
        guests = {each.status.binding.node for each in self.bound.get("", ()) if each.status.binding}
        return {
            cluster
            for cluster, nodes in self.nodes.items()
            if guests and any(each.metadata.name in guests for each in nodes)
        }

    def machines_of(self, service: str) -> list[str]:
        """Where its replicas are, as far as somebody knows."""
        drawn = self.layout.replicas.get(service)
        return (
            list(drawn)
            if drawn is not None
            else sorted(e.status.binding.node for e in self.bound.get(service, ()) if e.status.binding)
        )


def count_clusters(fleet: Fleet, objects: Iterable[Kind], layout: Layout) -> None:
    """Numbers that were given to clusters before are not given again, though these, and the pool itself, may have been gone meanwhile.

    The ledger of a pool, region or data center outlives it. One that was written before ledgers counted knows less than the pool's status.
    """
    counted = {
        offer.budgets[-1] if offer.budgets else static_account(offer.name).ledger: offer.name
        for offer in fleet.offers
    }
    for offer, number in layout.numbers.items():
        fleet.count_from(offer, number)
    for each in objects:
        match each:
            case LatticePool() | StaticInfrastructure():
                fleet.count_from(each.metadata.name, each.status.next_cluster_sequence or 1)
            case CloudInfrastructure():
                for region, number in each.status.next_cluster_sequence.items():
                    fleet.count_from(f"{each.metadata.name}/{region}", number)
            case LatticeLedger() if each.metadata.name in counted:
                last = max((number_in(cluster) for cluster in each.status.machines), default=0)
                fleet.count_from(counted[each.metadata.name], max(last, each.status.last_cluster) + 1)


def add_cluster(fleet: Fleet, made: LatticeCluster, present: Present, is_kept: bool | None = None) -> None:
    """One whose offer is gone has no place here. Its nodes are its machines; those that are still to come are counted too.

    `is_kept`: whether all in it are those whom the reserve is for; None: nobody is, and it is what it was made for.
    """
    spec = made.spec
    if spec.pool not in fleet.table.row_of:
        return
    row = fleet.row(spec.pool)
    overflow = spec.labels.get(OVERFLOW_LABEL, "")
    is_kept = fleet.offers[row].reserved_nodes > 0 and (
        RESERVE_LABEL in spec.labels if is_kept is None else is_kept
    )
    cluster = Cluster(
        name=made.metadata.name,
        row=row,
        group=group_name(spec.policy_hash, overflow, spec.pool if is_kept else ""),
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes or NO_LIMIT,
        packing=DEFAULT_PACKING,
        overflow=overflow,
        is_kept=is_kept,
    )
    fleet.add_cluster(cluster, made.status.sequence or number_in(made.metadata.name))
    coming = dict(spec.nodes)
    nodes = sorted(present.nodes.get(made.metadata.name, ()), key=lambda each: each.metadata.name)
    _add_nodes(fleet, cluster, nodes, present.former)
    for node in nodes:
        coming[node.spec.node_class] = coming.get(node.spec.node_class, 0) - 1
    for name, count in sorted(coming.items()):
        if count > 0:
            _add_coming(fleet, cluster, name, count, present)


def _add_coming(fleet: Fleet, cluster: Cluster, name: str, count: int, present: Present) -> None:
    """Machines that are not there yet, under the names that they were drawn with, if they were."""
    drawn = [machine for machine, kind in present.layout.machines.get(cluster.name, ()) if kind == name]
    free = [machine for machine in drawn if machine not in fleet.machines.row_of][:count]
    rows, is_offered = _add(
        fleet,
        cluster,
        (name, {}),
        [*free, *fleet.new_names(cluster, name, count - len(free))],
        present.former,
    )
    if not is_offered:
        _close(fleet, rows)


def _add_nodes(fleet: Fleet, cluster: Cluster, nodes: Iterable[LatticeNode], former: Former) -> None:
    for said, alike in groupby(nodes, lambda each: (each.spec.node_class, each.status.allocatable)):
        kept = list(alike)
        rows, is_offered = _add(fleet, cluster, said, [each.metadata.name for each in kept], former)
        is_known = is_offered or bool(said[1])
        _close(
            fleet, (row for row, node in zip(rows, kept, strict=True) if not is_known or not _is_open(node))
        )


def _add(
    fleet: Fleet, cluster: Cluster, said: Said, machines: Sequence[str], former: Former
) -> tuple[list[int], bool]:
    """Machines of one class. And whether the offer still has that: what others cost may differ from machine to machine, and nothing new
    is put on them before a node says what it really is."""
    (name, size), offer = said, fleet.offers[cluster.row]
    found = next((each for each in offer.types if each.name == name), None)
    if found is not None:
        return fleet.add_machines(cluster, _sized(found, size), machines), True
    kinds = [_sized(former.kind(offer, cluster.name, name), size) for _ in machines]
    return [
        row
        for kind, machine in zip(kinds, machines, strict=True)
        for row in fleet.add_machines(cluster, kind, [machine])
    ], False


def _sized(kind: MachineType, size: Mapping[str, int]) -> MachineType:
    return replace(kind, size={**kind.size, **size}) if size else kind


def _is_open(node: LatticeNode) -> bool:
    return not node.spec.unschedulable and all(
        each.type != "Ready" or each.status == "True" for each in node.status.conditions
    )


def _close(fleet: Fleet, rows: Iterable[int]) -> None:
    """Nothing new is put there."""
    for row in rows:
        fleet.machines.set(row, "closed", True, fixed=False)


@dataclass
class Seating:
    """Puts replicas into a fleet whose machines are all there: of all services those that are bound, then those that are not yet."""

    fleet: Fleet
    present: Present
    _usable: dict[tuple[str, str], list[int]] = field(
        default_factory=dict
    )  # machines by cluster and class, "" for all
    _bound: list[Seat] = field(default_factory=list)
    _waiting: list[tuple[Demand, Sequence[int], int]] = field(default_factory=list)

    def add(self, service: LatticeService, demand: Demand) -> None:
        """Where they are bound; the others are kept in mind."""
        row_of = self.fleet.machines.row_of
        rows = [row_of[name] for name in self.present.machines_of(demand.name) if name in row_of]
        here: list[int] = []
        for placed in service.status.placements:
            cluster = self.fleet.clusters.get(placed.cluster)
            if cluster is None:
                continue
            usable, wanted = self._machines(cluster, placed.node), placed.replicas or 0
            among = set(usable) if rows else ()
            bound = [row for row in rows if row in among][:wanted]
            here += bound
            if wanted > len(bound):
                self._waiting.append((demand, usable, wanted - len(bound)))
        self._seat(demand, here)

    def _seat(self, demand: Demand, machines: Sequence[int]) -> None:
        seats = plain_seats(demand, self.fleet, machines)
        if seats is not None:
            self._bound += seats
            return
        for each in machines:
            take_seat(demand, self.fleet, each)

    def settle(self) -> None:
        """All that are bound."""
        self.fleet.seat_all(self._bound)

    def guess(self) -> None:
        """Those that are not bound yet to where they would be, in the room that all others leave."""
        for demand, usable, count in self._waiting:
            _guess(self.fleet, demand, usable, count)

    def _machines(self, cluster: Cluster, kind: str) -> list[int]:
        known = self._usable.get((cluster.name, kind))
        if known is None:
            kinds = self.fleet.machines.kind
            known = self._usable[cluster.name, kind] = [
                each for each in cluster.machines if kind in ("", kinds[each].name)
            ]
        return known


def _guess(fleet: Fleet, demand: Demand, machines: Sequence[int], count: int) -> None:
    """One after the other to the machine that suits best, as `pick_machine` says; when none does, to the least crowded."""
    suited = _Series(machines, lambda each: ranks(demand, fleet, each))
    for number in range(count):
        machine = suited.first(lambda each: takes(fleet, demand, each))
        if machine is None:
            return _crowd(fleet, demand, machines, count - number)
        take_seat(demand, fleet, machine)
        suited.moved()
    return None


def _crowd(fleet: Fleet, demand: Demand, machines: Sequence[int], count: int) -> None:
    free, names = fleet.machines.free, fleet.machines.names
    widest = _Series(
        machines, lambda some: [(-int(free(0)[each]), -int(free(1)[each]), names[each]) for each in some]
    )
    for _ in range(count):
        machine = widest.first(lambda _: True)
        if machine is None:
            return
        take_seat(demand, fleet, machine)
        widest.moved()


class _Series:
    """Machines in the order in which equal replicas take them: each taken changes the rank of that one only, and never for the better."""

    def __init__(
        self, machines: Sequence[int], ranks: Callable[[Sequence[int]], Sequence[tuple[int | str, ...]]]
    ) -> None:
        self._ranks = ranks
        self._heap = list(zip(ranks(machines), machines, strict=True))
        heapq.heapify(self._heap)

    def first(self, takes: Callable[[int], bool]) -> int | None:
        """Who does not take one now takes none later."""
        while self._heap and not takes(self._heap[0][1]):
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def moved(self) -> None:
        machine = self._heap[0][1]
        heapq.heapreplace(self._heap, (self._ranks([machine])[0], machine))


def add_bare(fleet: Fleet, present: Present) -> None:
    """Workloads of no service take room too."""
    for each in sorted(
        present.bound.get("", ()), key=lambda each: (each.metadata.namespace or "", each.metadata.name)
    ):
        node = each.status.binding.node if each.status.binding else ""
        if node in fleet.machines.row_of:
            name = f"{BARE}{each.metadata.namespace or 'default'}/{each.metadata.name}"
            fleet.seat(
                Seat(name, fleet.machines.row_of[node], tuple(sorted(each.spec.request_amounts.items())))
            )
