"""The bill: the machines that exist or are being made, by ledger, offer, cluster and class, at the price of now,
empty or not. Every figure of cost that Lattice shows comes from a bill."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger, Lot
from lattice.kinds.meta.base import DEFAULT_NAMESPACE, path_of
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass, MachineSize
from lattice.kinds.workload import LatticeWorkload, service_path
from lattice.placement.inputs.cost_allocation import BilledMachine, HostedWorkload, MachineState
from lattice.placement.inputs.ledger_math import NodeGroup

# Prefix of the name under which costs list a bare workload (a workload without a service) among services.
BARE_WORKLOAD_PREFIX = "workload/"


@dataclass(frozen=True, slots=True)
class BillLine:
    """Machines of one class in one cluster; `micros` is the price of one machine per hour.

    For machines of unknown price, `micros` is the last known price, or 0.
    """

    offer: str
    cluster: str
    node_class: str
    count: int
    micros: int
    is_priced: bool = True

    @property
    def rate(self) -> int:
        return self.count * self.micros


@dataclass(frozen=True)
class Bill:
    """Lines of machines, each machine in one line, with the rates that ledgers pay. Several ledgers may pay for
    one machine, such as those of a cloud and its region."""

    lines: tuple[BillLine, ...] = ()
    # Micro-dollars per hour by ledger.
    ledger_rates: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(lines: Iterable[BillLine], ledger_rates: Mapping[str, int]) -> "Bill":
        in_order = sorted(lines, key=lambda line: (line.offer, line.cluster, line.node_class, line.micros))
        return Bill(tuple(in_order), dict(ledger_rates))

    @cached_property
    def total(self) -> int:
        """Micro-dollars per hour of all machines."""
        return sum(line.rate for line in self.lines)

    @cached_property
    def offer_rates(self) -> dict[str, int]:
        """Micro-dollars per hour by offer; an offer without machines is left out."""
        rates: dict[str, int] = {}
        for line in self.lines:
            rates[line.offer] = rates.get(line.offer, 0) + line.rate
        return rates

    @cached_property
    def cluster_rates(self) -> dict[str, int]:
        rates: dict[str, int] = {}
        for line in self.lines:
            rates[line.cluster] = rates.get(line.cluster, 0) + line.rate
        return rates

    @property
    def unpriced_machines(self) -> int:
        """The number of machines of unknown price."""
        return sum(line.count for line in self.lines if not line.is_priced)

    @cached_property
    def unpriced_clusters(self) -> dict[str, int]:
        """The number of machines of unknown price by cluster."""
        counts: dict[str, int] = {}
        for line in self.lines:
            if not line.is_priced:
                counts[line.cluster] = counts.get(line.cluster, 0) + line.count
        return counts

    @cached_property
    def unpriced_offers(self) -> dict[str, int]:
        """The number of machines of unknown price by offer."""
        counts: dict[str, int] = {}
        for line in self.lines:
            if not line.is_priced:
                counts[line.offer] = counts.get(line.offer, 0) + line.count
        return counts


def recorded_bill(ledgers: Iterable[LatticeLedger], clusters: Iterable[LatticeCluster]) -> Bill:
    """The bill of the machines that the ledgers pay for, and of owned machines, which cost nothing.

    If several ledgers pay for a machine, the ledger with the most machines of the cluster and class counts; of
    ledgers with as many, that of a region, whose name is the more precise one.
    """
    clusters_by_name = {cluster.metadata.name: cluster for cluster in clusters}
    paying: dict[NodeGroup, tuple[int, LatticeLedger, list[Lot]]] = {}
    ledger_rates: dict[str, int] = {}
    for ledger in sorted(ledgers, key=lambda ledger: (not ledger.spec.budget.region, ledger.metadata.name)):
        ledger_rates[ledger.metadata.name] = ledger.status.committed_micros
        for cluster, lots in ledger.status.machines.items():
            by_class: dict[str, list[Lot]] = {}
            for lot in lots:
                by_class.setdefault(lot.node_class, []).append(lot)
            for node_class, class_lots in by_class.items():
                count = sum(lot.count for lot in class_lots)
                if count > paying.get((cluster, node_class), (0,))[0]:
                    paying[cluster, node_class] = (count, ledger, class_lots)
    lines = []
    for (cluster, node_class), (_, ledger, class_lots) in paying.items():
        offer = _offer(cluster, ledger, clusters_by_name)
        lines += [
            BillLine(offer, cluster, node_class, lot.count, lot.micros, not lot.price_unknown)
            for lot in class_lots
        ]
    for name, stored in clusters_by_name.items():
        # The `pool` and the `infrastructure` of a cluster in a data center both name the data center.
        if stored.spec.pool == stored.spec.infrastructure:
            for node_class, count in stored.spec.nodes.items():
                if count:
                    lines.append(BillLine(stored.spec.pool, name, node_class, count, 0))
    return Bill.of(lines, ledger_rates)


def _offer(cluster: str, ledger: LatticeLedger, clusters: Mapping[str, LatticeCluster]) -> str:
    """The offer of the cluster; for a cluster that is gone, the offer of the ledger."""
    stored = clusters.get(cluster)
    if stored is not None:
        return stored.spec.pool
    account = ledger.spec.budget
    return f"{account.name}/{account.region}" if account.region else account.name


@dataclass(frozen=True)
class RecordedMachines:
    """The stored objects that show which workloads a paid machine has."""

    clusters: Mapping[str, LatticeCluster]
    nodes: Sequence[LatticeNode]
    workloads: Sequence[LatticeWorkload]
    classes: Mapping[str, LatticeNodeClass]

    def of(self, bill: Bill) -> list[BilledMachine]:
        """One machine for every paid node, with the workloads bound to the node, and one entry for the machines
        of every line that have no node yet. A joined machine is on no line: its owner pays for it."""
        nodes: dict[NodeGroup, list[LatticeNode]] = {}
        for node in sorted(self.nodes, key=lambda node: node.metadata.name):
            if not node.is_joined_machine:
                nodes.setdefault((node.spec.cluster, node.spec.node_class), []).append(node)
        hosted = self._hosted()
        machines = []
        for line in bill.lines:
            group = nodes.get((line.cluster, line.node_class), [])
            own, nodes[line.cluster, line.node_class] = group[: line.count], group[line.count :]
            size = self._class_size(line)
            machines += [
                BilledMachine(
                    node.metadata.name,
                    line.offer,
                    line.micros,
                    {**size, **node.status.allocatable},
                    tuple(hosted.get(node.metadata.name, ())),
                    _state(node),
                    is_priced=line.is_priced,
                )
                for node in own
            ]
            if (missing := line.count - len(own)) > 0:
                name = f"({missing} × {line.node_class} being made in {line.cluster})"
                machines.append(
                    BilledMachine(
                        name,
                        line.offer,
                        missing * line.micros,
                        {},
                        state=MachineState.BEING_MADE,
                        count=missing,
                        is_priced=line.is_priced,
                    )
                )
        return machines

    def _hosted(self) -> dict[str, list[HostedWorkload]]:
        """The bound workloads by node. The replicas of one revision share their parsed requests."""
        hosted: dict[str, list[HostedWorkload]] = {}
        requests: dict[tuple[str, str], Mapping[str, int]] = {}
        for workload in self.workloads:
            binding = workload.status.binding
            if binding is None:
                continue
            service = service_path(workload)
            if not service:
                namespace = workload.metadata.namespace or DEFAULT_NAMESPACE
                service = f"{BARE_WORKLOAD_PREFIX}{namespace}/{workload.metadata.name}"
            shape = (service, workload.spec.revision)
            if shape not in requests:
                requests[shape] = workload.spec.request_amounts
            name = f"{service}/{path_of(workload)}"
            hosted.setdefault(binding.node, []).append(HostedWorkload(name, requests[shape], service))
        return hosted

    def _class_size(self, line: BillLine) -> dict[str, int]:
        """The size of the class on paper; what a node reports replaces it."""
        cluster, node_class = self.clusters.get(line.cluster), self.classes.get(line.node_class)
        if node_class is None or cluster is None:
            return {}
        size = node_class.spec.size_on(cluster.spec.provider)
        return {} if size is None else _amounts(size)


def _amounts(size: MachineSize) -> dict[str, int]:
    amounts = {
        "cpu": size.millicores,
        "memory": size.memory,
        "storage": size.storage,
        "gpu": size.gpu,
        **size.extended,
    }
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _state(node: LatticeNode) -> MachineState:
    if node.metadata.deletion_timestamp:
        return MachineState.LEAVING
    has_joined = bool(node.status.agent_version or node.status.allocatable)
    return MachineState.EMPTY if has_joined else MachineState.BEING_MADE
