"""What is there already: clusters, their machines, and the replicas on them, put into a fleet."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from lattice.kinds.cluster import RESERVE_LABEL, LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger, cluster_number
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.policy import DEFAULT_PACKING_MILLIONTHS
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.replica_observation import is_existing, is_terminating
from lattice.placement.inputs.price_book import Price
from lattice.placement.model.assignments import assign, bulk_assignments, machine_ranks
from lattice.placement.model.demand import Demand, group_name
from lattice.placement.model.fleet import Assignment, Cluster, Fleet
from lattice.placement.model.offer import NO_LIMIT, MachineType, Offer
from lattice.placement.model.quotes import fits_on_machine
from lattice.placement.model.supply import NodeClasses, as_owned, static_account

OVERFLOW_LABEL = "lattice.dev/overflow-of"
BARE_WORKLOAD_PREFIX = (
    "workload/"  # before the name of a workload that belongs to no service, where services are named
)
ReportedSize = tuple[
    str, Mapping[str, int]
]  # a class, and the size that nodes of it say they have, if there are any


@dataclass(frozen=True, slots=True)
class LedgerPrices:
    """For one look at what is there: a lot is used up machine by machine."""

    classes: NodeClasses
    rates: dict[
        tuple[str, str], list[int]
    ]  # micro-dollars per hour of each machine by cluster and class, the dearest last

    @staticmethod
    def of(objects: Iterable[Kind], classes: NodeClasses) -> "LedgerPrices":
        """Nested budgets all pay for one machine: the first ledger that has the cluster is enough."""
        paid: dict[str, dict[tuple[str, str], list[int]]] = {}
        for ledger in sorted(
            (each for each in objects if isinstance(each, LatticeLedger)), key=lambda each: each.metadata.name
        ):
            for cluster, lots in ledger.status.machines.items():
                if cluster not in paid:
                    paid[cluster] = {}
                    for lot in sorted(lots, key=lambda each: each.micros):
                        paid[cluster].setdefault((cluster, lot.node_class), []).extend(
                            [lot.micros] * lot.count
                        )
        return LedgerPrices(
            classes, {name: rates for found in paid.values() for name, rates in found.items()}
        )

    def machine_type(self, offer: Offer, cluster: str, name: str) -> MachineType:
        """At what the ledger pays, else at what the class would cost there; a price that nobody knows stays unknown."""
        known = self._catalog_type(name, offer.place.provider, offer.place.region)
        if offer.is_static:
            return as_owned(known)
        lots = self.rates.get((cluster, name))
        if not lots:
            return known
        micros = lots.pop()
        return replace(known, rate=micros, price=Price(micros, "ledger"))

    def next_rate(self, lot: tuple[str, str], provider: str, region: str) -> int:
        """Of one more machine of a cluster and class, in an offer that is gone."""
        lots = self.rates.get(lot)
        return lots.pop() if lots else self._catalog_type(lot[1], provider, region).rate

    def _catalog_type(self, name: str, provider: str, region: str) -> MachineType:
        return next(iter(self.classes.machine_types([name], provider, region)), MachineType(name, {}, 0))


@dataclass(frozen=True, slots=True)
class PlannedLayout:
    """What stands where on paper, where there are no nodes and bindings yet that could tell."""

    machines: Mapping[str, tuple[tuple[str, str], ...]]  # by cluster: names of machines and their classes
    replicas: Mapping[str, tuple[str, ...]]  # by service: the machine of each
    next_cluster_numbers: Mapping[str, int] = field(
        default_factory=dict
    )  # by offer, those that are gone included: of its next cluster

    @staticmethod
    def of(fleet: Fleet, before: "PlannedLayout") -> "PlannedLayout":
        names, kind = fleet.machines.names, fleet.machines.machine_type
        return PlannedLayout(
            {
                each.name: tuple(sorted((names[row], kind[row].name) for row in each.machines))
                for each in fleet.clusters.values()
            },
            {
                service: tuple(sorted(names[seat.machine] for seat in seats))
                for service, seats in fleet.assignments.items()
            },
            {
                **before.next_cluster_numbers,
                **{fleet.offers[row].name: number for row, number in fleet.next_cluster_number.items()},
            },
        )


EMPTY_LAYOUT = PlannedLayout({}, {})


@dataclass(frozen=True, slots=True)
class CurrentState:
    """Nodes by cluster, and workloads that are bound, by service; "" has those of no service.

    Replicas that are going, and nodes that are or have not come yet, take part in nothing: their cluster says what it is to have.
    """

    nodes: Mapping[str, list[LatticeNode]]
    bound_workloads: Mapping[str, list[LatticeWorkload]]
    layout: PlannedLayout
    ledger_prices: LedgerPrices

    @staticmethod
    def of(objects: Iterable[Kind], layout: PlannedLayout, classes: NodeClasses) -> "CurrentState":
        nodes: dict[str, list[LatticeNode]] = {}
        bound: dict[str, list[LatticeWorkload]] = {}
        kept = list(objects)
        for each in kept:
            if isinstance(each, LatticeNode) and each.spec.cluster and is_existing(each):
                nodes.setdefault(each.spec.cluster, []).append(each)
            elif isinstance(each, LatticeWorkload) and each.status.binding and not is_terminating(each):
                owner = (
                    f"{each.metadata.namespace or 'default'}/{each.spec.service}" if each.spec.service else ""
                )
                bound.setdefault(owner, []).append(each)
        return CurrentState(nodes, bound, layout, LedgerPrices.of(kept, classes))

    @property
    def clusters_with_bare_workloads(self) -> set[str]:
        """Clusters with workloads that belong to no service."""
        guests = {
            each.status.binding.node for each in self.bound_workloads.get("", ()) if each.status.binding
        }
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
            else sorted(
                e.status.binding.node for e in self.bound_workloads.get(service, ()) if e.status.binding
            )
        )


def restore_cluster_numbers(fleet: Fleet, objects: Iterable[Kind], layout: PlannedLayout) -> None:
    """Numbers that were given to clusters before are not given again, though these, and the pool itself, may have been gone meanwhile.

    The ledger of a pool, region or data center outlives it. One that was written before ledgers counted knows less than the pool's status.
    """
    counted = {
        offer.budgets[-1] if offer.budgets else static_account(offer.name).ledger_name: offer.name
        for offer in fleet.offers
    }
    for offer, number in layout.next_cluster_numbers.items():
        fleet.skip_cluster_numbers(offer, number)
    for each in objects:
        match each:
            case LatticePool() | StaticInfrastructure():
                fleet.skip_cluster_numbers(each.metadata.name, each.status.next_cluster_sequence or 1)
            case CloudInfrastructure():
                for region, number in each.status.next_cluster_sequence.items():
                    fleet.skip_cluster_numbers(f"{each.metadata.name}/{region}", number)
            case LatticeLedger() if each.metadata.name in counted:
                last = max((cluster_number(cluster) for cluster in each.status.machines), default=0)
                fleet.skip_cluster_numbers(
                    counted[each.metadata.name], max(last, each.status.last_cluster) + 1
                )


def add_cluster(
    fleet: Fleet, made: LatticeCluster, present: CurrentState, is_reserved: bool | None = None
) -> None:
    """One whose offer is gone has no place here. Its nodes are its machines; those that are still to come are counted too.

    `is_kept`: whether all in it are those whom the reserve is for; None: nobody is, and it is what it was made for.
    """
    spec = made.spec
    if spec.pool not in fleet.table.row_of:
        return
    row = fleet.row(spec.pool)
    overflow = spec.labels.get(OVERFLOW_LABEL, "")
    is_reserved = fleet.offers[row].reserved_nodes > 0 and (
        RESERVE_LABEL in spec.labels if is_reserved is None else is_reserved
    )
    cluster = Cluster(
        name=made.metadata.name,
        offer_row=row,
        group=group_name(spec.policy_hash, overflow, spec.pool if is_reserved else ""),
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes or NO_LIMIT,
        packing_threshold=DEFAULT_PACKING_MILLIONTHS,
        overflow_source=overflow,
        is_reserved=is_reserved,
    )
    fleet.add_cluster(cluster, made.status.sequence or cluster_number(made.metadata.name))
    coming = dict(spec.nodes)
    nodes = sorted(present.nodes.get(made.metadata.name, ()), key=lambda each: each.metadata.name)
    _add_nodes(fleet, cluster, nodes, present.ledger_prices)
    for node in nodes:
        coming[node.spec.node_class] = coming.get(node.spec.node_class, 0) - 1
    for name, count in sorted(coming.items()):
        if count > 0:
            _add_expected_machines(fleet, cluster, name, count, present)


def _add_expected_machines(
    fleet: Fleet, cluster: Cluster, name: str, count: int, present: CurrentState
) -> None:
    """Machines that are not there yet, under the names that they were drawn with, if they were."""
    drawn = [machine for machine, kind in present.layout.machines.get(cluster.name, ()) if kind == name]
    free = [machine for machine in drawn if machine not in fleet.machines.row_of][:count]
    rows, is_offered = _add_machines_of_class(
        fleet,
        cluster,
        (name, {}),
        [*free, *fleet.new_machine_names(cluster, name, count - len(free))],
        present.ledger_prices,
    )
    if not is_offered:
        _mark_closed(fleet, rows)


def _add_nodes(fleet: Fleet, cluster: Cluster, nodes: Iterable[LatticeNode], former: LedgerPrices) -> None:
    for said, alike in groupby(nodes, lambda each: (each.spec.node_class, each.status.allocatable)):
        kept = list(alike)
        rows, is_offered = _add_machines_of_class(
            fleet, cluster, said, [each.metadata.name for each in kept], former
        )
        is_known = is_offered or bool(said[1])
        _mark_closed(
            fleet,
            (row for row, node in zip(rows, kept, strict=True) if not is_known or not _is_schedulable(node)),
        )


def _add_machines_of_class(
    fleet: Fleet, cluster: Cluster, said: ReportedSize, machines: Sequence[str], former: LedgerPrices
) -> tuple[list[int], bool]:
    """Machines of one class. And whether the offer still has that: what others cost may differ from machine to machine, and nothing new
    is put on them before a node says what it really is."""
    (name, size), offer = said, fleet.offers[cluster.offer_row]
    found = next((each for each in offer.types if each.name == name), None)
    if found is not None:
        return fleet.add_machines(cluster, _with_size(found, size), machines), True
    kinds = [_with_size(former.machine_type(offer, cluster.name, name), size) for _ in machines]
    return [
        row
        for kind, machine in zip(kinds, machines, strict=True)
        for row in fleet.add_machines(cluster, kind, [machine])
    ], False


def _with_size(kind: MachineType, size: Mapping[str, int]) -> MachineType:
    return replace(kind, size={**kind.size, **size}) if size else kind


def _is_schedulable(node: LatticeNode) -> bool:
    return not node.spec.unschedulable and all(
        each.type != "Ready" or each.status == "True" for each in node.status.conditions
    )


def _mark_closed(fleet: Fleet, rows: Iterable[int]) -> None:
    """Nothing new is put there."""
    for row in rows:
        fleet.machines.set(row, "closed", True, fixed=False)


@dataclass
class ReplicaAssigner:
    """Puts replicas into a fleet whose machines are all there: of all services those that are bound, then those that are not yet."""

    fleet: Fleet
    current_state: CurrentState
    _machines_by_class: dict[tuple[str, str], list[int]] = field(
        default_factory=dict
    )  # machines by cluster and class, "" for all
    _bound_assignments: list[Assignment] = field(default_factory=list)
    _unbound_replicas: list[tuple[Demand, Sequence[int], int]] = field(default_factory=list)

    def add_service(self, service: LatticeService, demand: Demand) -> None:
        """Where they are bound; the others are kept in mind."""
        row_of = self.fleet.machines.row_of
        rows = [row_of[name] for name in self.current_state.machines_of(demand.name) if name in row_of]
        here: list[int] = []
        for placed in service.status.placements:
            cluster = self.fleet.clusters.get(placed.cluster)
            if cluster is None:
                continue
            usable, wanted = self._machines_of(cluster, placed.node), placed.replicas or 0
            among = set(usable) if rows else ()
            bound = [row for row in rows if row in among][:wanted]
            here += bound
            if wanted > len(bound):
                self._unbound_replicas.append((demand, usable, wanted - len(bound)))
        self._queue_bound(demand, here)

    def _queue_bound(self, demand: Demand, machines: Sequence[int]) -> None:
        seats = bulk_assignments(demand, self.fleet, machines)
        if seats is not None:
            self._bound_assignments += seats
            return
        for each in machines:
            assign(demand, self.fleet, each)

    def assign_bound(self) -> None:
        """All that are bound."""
        self.fleet.assign_all(self._bound_assignments)

    def assign_unbound(self) -> None:
        """Those that are not bound yet to where they would be, in the room that all others leave."""
        for demand, usable, count in self._unbound_replicas:
            _assign_unbound(self.fleet, demand, usable, count)

    def _machines_of(self, cluster: Cluster, kind: str) -> list[int]:
        known = self._machines_by_class.get((cluster.name, kind))
        if known is None:
            kinds = self.fleet.machines.machine_type
            known = self._machines_by_class[cluster.name, kind] = [
                each for each in cluster.machines if kind in ("", kinds[each].name)
            ]
        return known


def _assign_unbound(fleet: Fleet, demand: Demand, machines: Sequence[int], count: int) -> None:
    """One after the other to the machine that suits best, as `pick_machine` says; when none does, to the least crowded."""
    suited = _MachineHeap(machines, lambda each: machine_ranks(demand, fleet, each))
    for number in range(count):
        machine = suited.first(lambda each: fits_on_machine(fleet, demand, each))
        if machine is None:
            return _overcommit(fleet, demand, machines, count - number)
        assign(demand, fleet, machine)
        suited.refresh_first()
    return None


def _overcommit(fleet: Fleet, demand: Demand, machines: Sequence[int], count: int) -> None:
    free, names = fleet.machines.free, fleet.machines.names
    widest = _MachineHeap(
        machines, lambda some: [(-int(free(0)[each]), -int(free(1)[each]), names[each]) for each in some]
    )
    for _ in range(count):
        machine = widest.first(lambda _: True)
        if machine is None:
            return
        assign(demand, fleet, machine)
        widest.refresh_first()


class _MachineHeap:
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

    def refresh_first(self) -> None:
        machine = self._heap[0][1]
        heapq.heapreplace(self._heap, (self._ranks([machine])[0], machine))


def add_bare_workloads(fleet: Fleet, present: CurrentState) -> None:
    """Workloads of no service take room too."""
    for each in sorted(
        present.bound_workloads.get("", ()),
        key=lambda each: (each.metadata.namespace or "", each.metadata.name),
    ):
        node = each.status.binding.node if each.status.binding else ""
        if node in fleet.machines.row_of:
            name = f"{BARE_WORKLOAD_PREFIX}{each.metadata.namespace or 'default'}/{each.metadata.name}"
            fleet.assign(
                Assignment(
                    name, fleet.machines.row_of[node], tuple(sorted(each.spec.request_amounts.items()))
                )
            )
