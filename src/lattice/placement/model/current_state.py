"""Read the current clusters, machines and replicas from stored objects and add them to a trial fleet
(model/fleet.py)."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from lattice.kinds.cluster import RESERVE_LABEL, LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger, cluster_number
from lattice.kinds.meta.base import DEFAULT_NAMESPACE, Kind
from lattice.kinds.meta.conditions import READY_CONDITION, find_condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.policy import DEFAULT_PACKING_MILLIONTHS
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.replica_observation import is_existing, is_terminating
from lattice.placement.inputs.bill import BARE_WORKLOAD_PREFIX
from lattice.placement.inputs.joined_machines import JoinedMachine
from lattice.placement.inputs.observed_machines import MachineReport, machine_report
from lattice.placement.inputs.price_book import Price
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.inventory import Cluster, group_name
from lattice.placement.model.offer import NO_LIMIT, TIE_KEY_BITS, MachineType, Offer
from lattice.placement.model.replica_index import Assignment
from lattice.placement.model.supply import NodeClasses, as_owned, digest, of_kind, static_account

OVERFLOW_LABEL = "lattice.dev/overflow-of"
# Prefix of the name under which the fleet lists a surge replica, which runs beside the placed replicas.
SURGE_PREFIX = f"{BARE_WORKLOAD_PREFIX}surge:"
# A node class, and what nodes of the class report; None before a node reports.
ReportedMachine = tuple[str, MachineReport | None]


@dataclass(frozen=True, slots=True)
class LedgerPrices:
    """Prices of existing machines from the ledgers, valid for one build of a fleet: every lookup takes one
    paid machine of the cluster and class off the list."""

    classes: NodeClasses
    # Micro-dollars per hour of every paid machine by cluster and class, the most expensive last.
    rates: dict[tuple[str, str], list[int]]
    # The clusters and classes with machines of unknown price.
    unpriced: set[tuple[str, str]] = field(default_factory=set)

    @staticmethod
    def of(objects: Iterable[Kind], classes: NodeClasses) -> "LedgerPrices":
        """Read the prices from the ledgers; nested budgets pay for the same machine, so the first ledger with
        the cluster counts."""
        rates: dict[tuple[str, str], list[int]] = {}
        unpriced: set[tuple[str, str]] = set()
        counted: set[str] = set()
        for ledger in sorted(of_kind(objects, LatticeLedger), key=lambda ledger: ledger.metadata.name):
            for cluster, lots in ledger.status.machines.items():
                if cluster in counted:
                    continue
                counted.add(cluster)
                for lot in sorted(lots, key=lambda lot: lot.micros):
                    rates.setdefault((cluster, lot.node_class), []).extend([lot.micros] * lot.count)
                    if lot.price_unknown:
                        unpriced.add((cluster, lot.node_class))
        return LedgerPrices(classes, rates, unpriced)

    def machine_type(self, offer: Offer, cluster: str, name: str) -> MachineType:
        """The machine type at the price of the ledger, else at the catalog price of the offer, which may be
        unknown."""
        catalog_type = self._catalog_type(name, offer.place.provider, offer.place.region)
        if offer.is_static:
            return as_owned(catalog_type)
        lots = self.rates.get((cluster, name))
        if not lots:
            return catalog_type
        micros = lots.pop()
        price = None if (cluster, name) in self.unpriced else Price(micros, "ledger")
        return replace(catalog_type, rate=micros, price=price)

    def next_price(self, lot: tuple[str, str], provider: str, region: str) -> tuple[int, bool]:
        """Micro-dollars per hour of the next machine of a cluster and class whose offer is deleted, and whether
        the price is known; `lot` is the cluster and the class."""
        lots = self.rates.get(lot)
        if lots:
            return lots.pop(), lot not in self.unpriced
        catalog_type = self._catalog_type(lot[1], provider, region)
        return catalog_type.rate, catalog_type.is_priced

    def _catalog_type(self, name: str, provider: str, region: str) -> MachineType:
        return next(iter(self.classes.machine_types([name], provider, region)), MachineType(name, {}, 0))


@dataclass(frozen=True, slots=True)
class PlannedLayout:
    """The machines of clusters and services in a plan, where no nodes and bindings exist yet."""

    machines: Mapping[str, tuple[tuple[str, str], ...]]  # by cluster: machine names with classes
    replicas: Mapping[str, tuple[str, ...]]  # by service: the machine of every replica
    # By offer, deleted offers included: the number of the next cluster.
    next_cluster_numbers: Mapping[str, int] = field(default_factory=dict)
    # By joined machine: the cluster that has claimed the machine, or an empty name.
    joined: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(fleet: Fleet, previous: "PlannedLayout") -> "PlannedLayout":
        """The layout of the fleet; cluster numbers of deleted offers are kept from the previous layout."""
        names, machine_type = fleet.machines.names, fleet.machines.machine_type
        machines: dict[str, tuple[tuple[str, str], ...]] = {}
        for cluster in fleet.clusters.values():
            rows = [row for row in cluster.machines if not machine_type[row].is_joined]
            machines[cluster.name] = tuple(sorted((names[row], machine_type[row].name) for row in rows))
        joined: dict[str, str] = {}
        for row, cluster in fleet.machines.cluster.items():
            if machine_type[row].is_joined:
                joined[names[row]] = "" if cluster.is_unclaimed else cluster.name
        replicas: dict[str, tuple[str, ...]] = {}
        for service, assignments in fleet.assignments.items():
            replicas[service] = tuple(sorted(names[assignment.machine] for assignment in assignments))
        next_numbers = dict(previous.next_cluster_numbers)
        for row, number in fleet.inventory.next_cluster_number.items():
            next_numbers[fleet.offers[row].name] = number
        return PlannedLayout(machines, replicas, next_numbers, joined)


EMPTY_LAYOUT = PlannedLayout({}, {})


@dataclass(frozen=True, slots=True)
class CurrentState:
    """Nodes by cluster, and bound workloads by service; bare workloads are under "".

    Terminating replicas are left out, and so are nodes that are being deleted or have not joined yet. The
    spec of the cluster counts the machines that are still to come.
    """

    nodes: Mapping[str, list[LatticeNode]]
    bound_workloads: Mapping[str, list[LatticeWorkload]]
    layout: PlannedLayout
    ledger_prices: LedgerPrices

    @staticmethod
    def of(objects: Iterable[Kind], layout: PlannedLayout, classes: NodeClasses) -> "CurrentState":
        nodes: dict[str, list[LatticeNode]] = {}
        bound: dict[str, list[LatticeWorkload]] = {}
        kinds = list(objects)
        for kind in kinds:
            if isinstance(kind, LatticeNode) and kind.is_joined_machine:
                # `add_joined_machines` adds these.
                continue
            if isinstance(kind, LatticeNode) and kind.spec.cluster and is_existing(kind):
                nodes.setdefault(kind.spec.cluster, []).append(kind)
            elif isinstance(kind, LatticeWorkload) and kind.status.binding and not is_terminating(kind):
                owner = (
                    f"{kind.metadata.namespace or DEFAULT_NAMESPACE}/{kind.spec.service}"
                    if kind.spec.service
                    else ""
                )
                bound.setdefault(owner, []).append(kind)
        return CurrentState(nodes, bound, layout, LedgerPrices.of(kinds, classes))

    @property
    def clusters_with_bare_workloads(self) -> set[str]:
        """Clusters with workloads that belong to no service."""
        occupied = set()
        for workload in self.bound_workloads.get("", ()):
            if workload.status.binding:
                occupied.add(workload.status.binding.node)
        return {
            cluster
            for cluster, nodes in self.nodes.items()
            if occupied and any(node.metadata.name in occupied for node in nodes)
        }

    def machines_of(self, service: str) -> list[str]:
        """The machine names of the replicas of the service, from the layout or from the bindings."""
        planned = self.layout.replicas.get(service)
        if planned is not None:
            return list(planned)
        workloads = self.bound_workloads.get(service, ())
        return sorted(workload.status.binding.node for workload in workloads if workload.status.binding)


def restore_cluster_numbers(fleet: Fleet, objects: Iterable[Kind], layout: PlannedLayout) -> None:
    """Skip the cluster numbers that were used before, so that no number is used twice, even if clusters or
    the pool were deleted.

    The ledger of a pool, region or data center outlives the object. A ledger from before ledgers stored the
    number of the last cluster may have a lower number than the status of the pool; the higher number counts.
    """
    offer_of_ledger = {
        offer.budgets[-1] if offer.budgets else static_account(offer.name).ledger_name: offer.name
        for offer in fleet.offers
    }
    for offer, number in layout.next_cluster_numbers.items():
        fleet.inventory.skip_cluster_numbers(offer, number)
    for kind in objects:
        match kind:
            case LatticePool() | StaticInfrastructure():
                fleet.inventory.skip_cluster_numbers(
                    kind.metadata.name, kind.status.next_cluster_sequence or 1
                )
            case CloudInfrastructure():
                for region, number in kind.status.next_cluster_sequence.items():
                    fleet.inventory.skip_cluster_numbers(f"{kind.metadata.name}/{region}", number)
            case LatticeLedger() if kind.metadata.name in offer_of_ledger:
                last = max((cluster_number(cluster) for cluster in kind.status.machines), default=0)
                fleet.inventory.skip_cluster_numbers(
                    offer_of_ledger[kind.metadata.name], max(last, kind.status.last_cluster) + 1
                )


def add_cluster(
    fleet: Fleet, stored: LatticeCluster, present: CurrentState, is_reserved: bool | None = None
) -> None:
    """Add a stored cluster with its nodes and its expected machines to the fleet; a cluster of a deleted
    offer is left out.

    `is_reserved` says whether every replica in the cluster may use the reserved machines of the offer; False
    with a bare workload. None: nothing occupies the cluster, and its label decides.
    """
    spec = stored.spec
    if spec.pool not in fleet.table.row_of:
        return
    row = fleet.row(spec.pool)
    overflow = spec.labels.get(OVERFLOW_LABEL, "")
    is_reserved = fleet.offers[row].has_reserve and (
        RESERVE_LABEL in spec.labels if is_reserved is None else is_reserved
    )
    cluster = Cluster(
        name=stored.metadata.name,
        offer_row=row,
        group=group_name(spec.policy_hash, overflow, spec.pool if is_reserved else ""),
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes or NO_LIMIT,
        packing_threshold=DEFAULT_PACKING_MILLIONTHS,
        overflow_source=overflow,
        is_reserved=is_reserved,
    )
    fleet.inventory.add_cluster(cluster, stored.status.sequence or cluster_number(stored.metadata.name))
    expected = dict(spec.nodes)
    nodes = sorted(present.nodes.get(stored.metadata.name, ()), key=lambda node: node.metadata.name)
    _add_nodes(fleet, cluster, nodes, present.ledger_prices)
    for node in nodes:
        expected[node.spec.node_class] = expected.get(node.spec.node_class, 0) - 1
    for name, count in sorted(expected.items()):
        if count > 0:
            _add_expected_machines(fleet, cluster, name, count, present)


def add_joined_machines(
    fleet: Fleet, machines: Iterable[JoinedMachine], layout: PlannedLayout, classes: NodeClasses
) -> None:
    """Add joined machines to the clusters that have claimed them, all other joined machines as unclaimed
    machines of their pools. A machine of an unknown pool and cluster is left out."""
    for machine in machines:
        cluster = fleet.clusters.get(layout.joined.get(machine.node, machine.cluster))
        if cluster is None:
            row = fleet.table.row_of.get(machine.pool)
            if row is None or fleet.offers[row].kind != "pool":
                continue
            cluster = fleet.inventory.unclaimed_cluster(row)
        place = fleet.offers[cluster.offer_row].place
        stated = classes.machine_types([machine.node_class], place.provider, place.region)
        # The price of the stated class is for reporting only: the owner pays for the machine.
        kind = MachineType(
            machine.node_class,
            machine.size,
            0,
            as_owned(next(iter(stated), MachineType(machine.node_class, {}, 0))).price,
            machine.gpu_model,
            machine.labels,
            machine.taints,
            is_joined=True,
            runtimes=machine.runtimes or None,
            # Labels are left out: they may have the name of the machine.
            tie_key=digest(
                (sorted(machine.size.items()), machine.gpu_model, machine.taints, sorted(machine.runtimes)),
                TIE_KEY_BITS,
            ),
        )
        (row,) = fleet.inventory.add_machines(cluster, kind, [machine.node])
        if machine.is_pinned:
            fleet.inventory.pinned.add(machine.node)
        if not machine.is_open:
            fleet.machines.set(row, "closed", True, fixed=False)


def _add_expected_machines(
    fleet: Fleet, cluster: Cluster, name: str, count: int, present: CurrentState
) -> None:
    """Add machines that do not exist yet; a machine that the planned layout names gets that name."""
    planned = [machine for machine, kind in present.layout.machines.get(cluster.name, ()) if kind == name]
    free = [machine for machine in planned if machine not in fleet.machines.row_of][:count]
    rows, is_offered = _add_machines_of_class(
        fleet,
        cluster,
        (name, None),
        [*free, *fleet.inventory.new_machine_names(cluster, name, count - len(free))],
        present.ledger_prices,
    )
    if not is_offered:
        for row in rows:
            fleet.machines.set(row, "closed", True, fixed=False)


def _add_nodes(
    fleet: Fleet, cluster: Cluster, nodes: Iterable[LatticeNode], ledger_prices: LedgerPrices
) -> None:
    for reported, equal_nodes in groupby(nodes, lambda node: (node.spec.node_class, machine_report(node))):
        group = list(equal_nodes)
        rows, is_offered = _add_machines_of_class(
            fleet, cluster, reported, [node.metadata.name for node in group], ledger_prices
        )
        # If neither the offer nor the node states how large the machine is, no new replica is assigned.
        has_size = is_offered or reported[1] is not None
        for row, node in zip(rows, group, strict=True):
            ready = find_condition(node.status.conditions, READY_CONDITION)
            is_unready = ready is not None and ready.status != "True"
            if not has_size or node.spec.unschedulable or is_unready:
                fleet.machines.set(row, "closed", True, fixed=False)


def _add_machines_of_class(
    fleet: Fleet,
    cluster: Cluster,
    reported: ReportedMachine,
    machines: Sequence[str],
    ledger_prices: LedgerPrices,
) -> tuple[list[int], bool]:
    """Add machines of one class; the second value says whether the offer still has the class.

    If the offer no longer has the class, the price may differ from machine to machine. The caller marks such
    machines as closed, so that no new replica is assigned, until a node reports a size.
    """
    (name, report), offer = reported, fleet.offers[cluster.offer_row]
    offered = next((machine_type for machine_type in offer.types if machine_type.name == name), None)
    rows: list[int] = []
    if offered is not None:
        rows = fleet.inventory.add_machines(cluster, _as_reported(offered, report), machines)
    else:
        types = [
            _as_reported(ledger_prices.machine_type(offer, cluster.name, name), report) for _ in machines
        ]
        for machine_type, machine in zip(types, machines, strict=True):
            rows += fleet.inventory.add_machines(cluster, machine_type, [machine])
    for row in rows:
        if not fleet.machines.machine_type[row].is_priced:
            fleet.ledgers.add_unpriced_machine(cluster.offer_row, cluster.overflow_source)
    return rows, offered is not None


def _as_reported(kind: MachineType, report: MachineReport | None) -> MachineType:
    """The machine type with what the machine reports: a resource that the report leaves out is not there."""
    if report is None:
        return kind
    # A data center counts its GPUs in total, so its machines have no number of their own.
    size = {name: amount for name, amount in kind.size.items() if name == "gpu" and amount >= NO_LIMIT}
    gpu_model = kind.gpu_model if kind.gpu_model in report.gpus else report.gpu_model
    return replace(
        kind,
        size={**report.size, **size},
        gpu_model=gpu_model,
        runtimes=kind.runtimes if report.runtimes is None else report.runtimes,
    )


class _UnboundReplicas(NamedTuple):
    """Replicas of one service that are placed on machines of one cluster and class, and not bound."""

    demand: Demand
    machines: Sequence[int]
    unbound: int
    # The number of machines that all replicas of the service use there; 0: not counted.
    max_machines: int = 0


@dataclass
class ReplicaAssigner:
    """Assigns the replicas of all services to the machines of a fleet: bound replicas first, then unbound
    replicas."""

    fleet: Fleet
    current_state: CurrentState
    # Machine rows by cluster and class; "" is any class.
    _machines_by_class: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    _bound_assignments: list[Assignment] = field(default_factory=list)
    _unbound_replicas: list["_UnboundReplicas"] = field(default_factory=list)

    def add_service(self, service: LatticeService, demand: Demand) -> None:
        """Queue the replicas of the service by the placements in its status: bound replicas, and the
        remaining unbound replicas."""
        row_of = self.fleet.machines.row_of
        rows = [row_of[name] for name in self.current_state.machines_of(demand.name) if name in row_of]
        bound_rows: list[int] = []
        for placement in service.status.placements:
            cluster = self.fleet.clusters.get(placement.cluster)
            if cluster is None:
                continue
            key, desired = (cluster.name, placement.node), placement.replicas or 0
            usable = self._machines_by_class.get(key)
            if usable is None:
                kinds = self.fleet.machines.machine_type
                usable = self._machines_by_class[key] = [
                    row for row in cluster.machines if placement.node in ("", kinds[row].name)
                ]
            usable_rows = set(usable) if rows else ()
            bound = [row for row in rows if row in usable_rows][:desired]
            bound_rows += bound
            if desired > len(bound):
                unbound = _UnboundReplicas(
                    demand,
                    usable,
                    desired - len(bound),
                    placement.machines.count if placement.machines else 0,
                )
                self._unbound_replicas.append(unbound)
        assignments = self.fleet.replicas.bulk_assignments(demand, bound_rows)
        if assignments is not None:
            self._bound_assignments += assignments
            return
        # Some offer counts GPUs in total. The GPU model that a replica gets then depends on the replicas
        # assigned before it, so replicas are assigned one by one.
        for machine in bound_rows:
            self.fleet.assign_replica(demand, machine)

    def assign_bound(self) -> None:
        """Assign the queued bound replicas of all services."""
        self.fleet.replicas.assign_all(self._bound_assignments)

    def assign_unbound(self) -> None:
        """Assign the queued unbound replicas to the free capacity that bound replicas and bare workloads
        leave."""
        # A replica that must be near others is assigned after them.
        self._unbound_replicas.sort(key=lambda unbound: bool(unbound.demand.near_terms))
        for unbound in self._unbound_replicas:
            _assign_unbound(self.fleet, unbound)


def _assign_unbound(fleet: Fleet, unbound: _UnboundReplicas) -> None:
    """Assign replicas in sequence to the best machine that fits; when no machine fits, to the machine with
    most free capacity."""
    demand, machines, count, max_machines = unbound
    used = {row for row in machines if fleet.machines.replica_counts[row][demand.name]}

    def accepts(row: int) -> bool:
        # Further machines are for services that must not share them with this service.
        is_counted = not max_machines or row in used or len(used) < max_machines
        return is_counted and fleet.groups.fits_on_machine(demand, row)

    feasible = _MachineHeap(machines, lambda rows: fleet.machines.ranks(demand.name, rows))
    for number in range(count):
        machine = feasible.first(accepts)
        if machine is None:
            return _overcommit(fleet, demand, machines, count - number)
        fleet.assign_replica(demand, machine)
        used.add(machine)
        feasible.refresh_first()
    return None


def _overcommit(fleet: Fleet, demand: Demand, machines: Sequence[int], count: int) -> None:
    """Assign replicas beyond the free capacity, since the status of the service places the replicas there."""
    free, names = fleet.machines.free, fleet.machines.names
    # Negated: the machine with the most free cores, then memory, comes first.
    widest = _MachineHeap(
        machines, lambda rows: [(-int(free(0)[row]), -int(free(1)[row]), names[row]) for row in rows]
    )
    for _ in range(count):
        machine = widest.first(lambda _: True)
        if machine is None:
            return
        fleet.assign_replica(demand, machine)
        widest.refresh_first()


class _MachineHeap:
    """Machines in the order in which equal replicas take machines.

    An assignment changes the rank of one machine only, and never improves the rank, so a heap stays correct.
    """

    def __init__(
        self, machines: Sequence[int], ranks: Callable[[Sequence[int]], Sequence[tuple[int | str, ...]]]
    ) -> None:
        self._ranks = ranks
        self._heap = list(zip(ranks(machines), machines, strict=True))
        heapq.heapify(self._heap)

    def first(self, accepts: Callable[[int], bool]) -> int | None:
        """The best machine that accepts a replica; a machine that rejects a replica is dropped, since usage
        only grows."""
        while self._heap and not accepts(self._heap[0][1]):
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def refresh_first(self) -> None:
        machine = self._heap[0][1]
        heapq.heapreplace(self._heap, (self._ranks([machine])[0], machine))


def add_bare_workloads(fleet: Fleet, present: CurrentState) -> None:
    """Assign the workloads without a service to their machines, since bare workloads use capacity too."""
    workloads = present.bound_workloads.get("", ())
    for workload in sorted(workloads, key=lambda kind: (kind.metadata.namespace or "", kind.metadata.name)):
        node = workload.status.binding.node if workload.status.binding else ""
        if node in fleet.machines.row_of:
            namespace = workload.metadata.namespace or DEFAULT_NAMESPACE
            name = f"{BARE_WORKLOAD_PREFIX}{namespace}/{workload.metadata.name}"
            needs = tuple(sorted(workload.spec.request_amounts.items()))
            fleet.assign(Assignment(name, fleet.machines.row_of[node], needs))
