"""Usage tables by pool, cluster, node and service: current usage, allocatable, requests and cost."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.container import parse_amounts
from lattice.kinds.ledger import Account, LatticeLedger, pool_ledger_spec
from lattice.kinds.meta.base import path_of
from lattice.kinds.meta.conditions import READY_CONDITION, is_true
from lattice.kinds.meta.quantity import Quantity
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload, service_path
from lattice.placement.inputs.bill import Bill, RecordedMachines, recorded_bill
from lattice.placement.inputs.cost_allocation import CostPart, cost_parts
from lattice.placement.inputs.ledger_math import (
    UNLIMITED_HEADROOM,
    headroom,
    judge_budget,
    open_ledger,
)
from lattice.presence import LastHeartbeat, Usage

Row = dict[str, Any]
NO_USAGE = Usage()
NO_REQUESTS = (0, 0)
# Requests of every container, as written in the spec.
ContainerRequests = tuple[tuple[tuple[str, Quantity], ...], ...]


@dataclass(frozen=True)
class UsageSnapshot:
    """The stored objects at one moment, and the last heartbeat of every node."""

    now: datetime
    pools: Sequence[LatticePool] = ()
    clusters: Sequence[LatticeCluster] = ()
    nodes: Sequence[LatticeNode] = ()
    services: Sequence[LatticeService] = ()
    workloads: Sequence[LatticeWorkload] = ()
    ledgers: Sequence[LatticeLedger] = ()
    classes: Sequence[LatticeNodeClass] = ()
    presence_of: Callable[[str], LastHeartbeat | None] = lambda node: None

    @cached_property
    def bill(self) -> Bill:
        """The machines that are paid for."""
        return recorded_bill(self.ledgers, self.clusters)

    @cached_property
    def cost_parts(self) -> tuple[CostPart, ...]:
        """The parts of the bill: of services, and of machines without replicas."""
        machines = RecordedMachines(
            {cluster.metadata.name: cluster for cluster in self.clusters},
            self.nodes,
            self.workloads,
            {node_class.metadata.name: node_class for node_class in self.classes},
        )
        return tuple(cost_parts(machines.of(self.bill)))

    def rates_by(self, key_of: Callable[[CostPart], str]) -> dict[str, int | None]:
        """Micro-dollars per hour by key; None while the price of one of the machines is unknown."""
        rates: dict[str, int | None] = {}
        for part in self.cost_parts:
            key = key_of(part)
            rate = rates.get(key, 0)
            rates[key] = None if rate is None or not part.machine.is_priced else rate + part.micros
        return rates

    @cached_property
    def requests_by_node(self) -> dict[str, tuple[int, int]]:
        """Requests of bound workloads by node: milli-cores and bytes."""
        # Several tables use these sums, so the snapshot computes the sums once.
        totals: dict[str, tuple[int, int]] = {}
        for workload in self.workloads:
            if workload.status.binding:
                cpu, memory = workload_requests(workload)
                total = totals.get(workload.status.binding.node, NO_REQUESTS)
                totals[workload.status.binding.node] = (total[0] + cpu, total[1] + memory)
        return totals


@dataclass(slots=True)
class UsageTotal:
    """Sums over nodes: usage, allocatable and requests of bound workloads, in milli-cores and bytes."""

    nodes: int = 0
    ready: int = 0
    used_cpu: int = 0
    used_memory: int = 0
    allocatable_cpu: int = 0
    allocatable_memory: int = 0
    requested_cpu: int = 0
    requested_memory: int = 0

    def add(self, node: LatticeNode, used: Usage, requested: tuple[int, int]) -> None:
        self.nodes += 1
        self.ready += is_ready(node)
        self.used_cpu += used.cpu
        self.used_memory += used.memory
        self.allocatable_cpu += node.status.allocatable.get("cpu", 0)
        self.allocatable_memory += node.status.allocatable.get("memory", 0)
        self.requested_cpu += requested[0]
        self.requested_memory += requested[1]

    def figures(self) -> Row:
        return {
            "cpu": {"used": self.used_cpu, "of": self.allocatable_cpu, "asked": self.requested_cpu},
            "memory": {
                "used": self.used_memory,
                "of": self.allocatable_memory,
                "asked": self.requested_memory,
            },
        }


def pool_rows(snapshot: UsageSnapshot) -> list[Row]:
    """One row per pool, and one row per other offer that has clusters or paid machines, such as a region of a
    cloud."""
    totals = _totals_by(snapshot, lambda node: node.spec.pool)
    ledgers = {ledger.metadata.name: ledger for ledger in snapshot.ledgers}
    pools = {pool.metadata.name: pool for pool in snapshot.pools}
    clusters = Counter(cluster.spec.pool for cluster in snapshot.clusters)
    rows = []
    # Clusters may use offers without a pool object, for example a region of a cloud.
    for name in sorted({*pools, *clusters, *snapshot.bill.offer_rates}):
        pool, total = pools.get(name), totals.get(name, UsageTotal())
        row: Row = {
            "name": name,
            "clusters": clusters[name],
            "nodes": total.nodes,
            "readyNodes": total.ready,
            "hourlyMicros": snapshot.bill.offer_rates.get(name, 0),
            "unpricedMachines": snapshot.bill.unpriced_offers.get(name, 0),
            **total.figures(),
        }
        if pool is not None:
            row |= {
                "provider": pool.spec.provider.type,
                "region": pool.spec.provider.region,
                "phase": pool.status.phase,
            }
            row |= {"maxNodes": pool.spec.capacity.max_nodes}
        ledger = ledgers.get(Account(kind="LatticePool", name=name).ledger_name)
        if pool is not None and (ledger is not None or pool.spec.budget is not None):
            # The terms of the pool as stated now: a changed limit shows at once.
            ledger = open_ledger(pool_ledger_spec(pool), ledger, snapshot.now)
        if ledger is not None:
            row["budget"] = budget_fields(ledger, snapshot.now)
        rows.append(row)
    return rows


def budget_fields(ledger: LatticeLedger, now: datetime) -> Row:
    """Budget figures of a ledger in micro-dollars: per hour and for this month.

    `leftHourlyMicros` is the hourly headroom for more machines, or None if the budget rejects no machine.
    `usedMillionths` is the use under the rule that binds, None without a limit.
    """
    verdict, hourly_headroom = judge_budget(ledger, now, ledger.status.phase), headroom(ledger, now)
    status = verdict.status
    return {
        "hourlyMicros": ledger.status.committed_micros,
        "spentMicros": status.spent,
        "projectedMicros": status.projected,
        "limitMicros": status.limit,
        "leftHourlyMicros": hourly_headroom if hourly_headroom < UNLIMITED_HEADROOM else None,
        "usedMillionths": status.utilisation,
        "rule": status.rule.words if status.limit is not None else None,
        "isRefusing": bool(verdict.refused),
        "state": verdict.state.value,
        "message": verdict.message if status.limit is not None else "",
    }


def budget_rows(snapshot: UsageSnapshot) -> list[Row]:
    """One row per ledger, including ledgers of clouds, regions and overflow, with the cost of past months."""
    rows = []
    for ledger in sorted(snapshot.ledgers, key=lambda ledger: ledger.metadata.name):
        account = ledger.spec.budget
        # Not a budget: the ledger keeps the number of the last cluster of a data center.
        if account.kind == "StaticInfrastructure" and account.region:
            continue
        row = {
            "ledger": ledger.metadata.name,
            "kind": account.kind,
            "name": account.name,
            "region": account.region,
            "isHard": ledger.spec.hard,
            "alertMillionths": ledger.spec.alert_millionths,
            **budget_fields(ledger, snapshot.now),
            "pastMicros": ledger.status.past,
        }
        rows.append(row)
    return rows


def cluster_rows(snapshot: UsageSnapshot) -> list[Row]:
    totals = _totals_by(snapshot, lambda node: node.spec.cluster)
    workloads = Counter(workload.spec.cluster for workload in snapshot.workloads)
    ready = Counter(workload.spec.cluster for workload in snapshot.workloads if workload.status.ready)
    rows = []
    for cluster in sorted(snapshot.clusters, key=lambda cluster: cluster.metadata.name):
        name, total = cluster.metadata.name, totals.get(cluster.metadata.name, UsageTotal())
        unpriced = snapshot.bill.unpriced_clusters.get(name, 0)
        rows.append(
            {
                "name": name,
                "pool": cluster.spec.pool,
                "region": cluster.spec.region,
                "nodes": cluster.spec.desired_nodes,
                "readyNodes": total.ready,
                "workloads": workloads[name],
                "readyWorkloads": ready[name],
                # None: the price of one of its machines is unknown; `knownMicros` counts it at its last known price.
                "hourlyMicros": None if unpriced else snapshot.bill.cluster_rates.get(name, 0),
                "knownMicros": snapshot.bill.cluster_rates.get(name, 0),
                "unpricedMachines": unpriced,
                "isPriced": not unpriced,
                "phase": cluster.status.phase,
                **total.figures(),
            }
        )
    return rows


def node_rows(snapshot: UsageSnapshot) -> list[Row]:
    workloads = Counter(
        workload.status.binding.node for workload in snapshot.workloads if workload.status.binding
    )
    rates, rows = snapshot.rates_by(lambda part: part.machine.name), []
    for node in sorted(snapshot.nodes, key=lambda node: node.metadata.name):
        name, heartbeat, total = node.metadata.name, snapshot.presence_of(node.metadata.name), UsageTotal()
        total.add(node, _connected_usage(heartbeat), snapshot.requests_by_node.get(name, NO_REQUESTS))
        rows.append(
            {
                "name": name,
                "pool": node.spec.pool,
                "cluster": node.spec.cluster,
                "region": node.spec.region,
                "class": node.spec.node_class,
                "phase": node.status.phase,
                "isReady": is_ready(node),
                "isConnected": heartbeat is not None and heartbeat.is_connected,
                "unschedulable": node.spec.unschedulable,
                "workloads": workloads[name],
                # None: the price is unknown. A machine that no ledger pays for costs 0.
                "hourlyMicros": rates.get(name, 0),
                "isPriced": rates.get(name, 0) is not None,
                "disk": {
                    "used": _connected_usage(heartbeat).disk,
                    "of": node.status.allocatable.get("storage", 0),
                },
                **total.figures(),
            }
        )
    return rows


def service_rows(snapshot: UsageSnapshot) -> list[Row]:
    used: dict[str, Usage] = {}
    for node in snapshot.nodes:
        if (heartbeat := snapshot.presence_of(node.metadata.name)) is not None:
            # Usage of workloads is reported per node, by workload path.
            used.update(heartbeat.workload_usage)
    totals: dict[str, ReplicaTotal] = {}
    for workload in snapshot.workloads:
        if workload.spec.service:
            total = totals.setdefault(service_path(workload), ReplicaTotal())
            total.add(workload, used.get(path_of(workload), NO_USAGE))
    services = {path_of(service): service for service in snapshot.services}
    rates = snapshot.rates_by(lambda part: part.service)
    return [
        _service_row(service, totals.get(path, ReplicaTotal()), rates.get(path, 0))
        for path, service in sorted(services.items())
    ]


@dataclass(slots=True)
class ReplicaTotal:
    """Sums over the replicas of one service: usage and failed attempts."""

    cpu: int = 0
    memory: int = 0
    failures: int = 0

    def add(self, workload: LatticeWorkload, used: Usage) -> None:
        self.cpu += used.cpu
        self.memory += used.memory
        self.failures += (workload.status.retry.attempts or 0) if workload.status.retry else 0


def _service_row(service: LatticeService, used: ReplicaTotal, rate: int | None) -> Row:
    status = service.status
    health, decision = status.health, status.scheduler_decision
    return {
        "namespace": service.metadata.namespace,
        "name": service.metadata.name,
        "wanted": service.spec.desired_replicas(),
        "replicas": status.replicas or 0,
        "ready": (health.ready or 0) if health else 0,
        "failures": used.failures,
        "pools": sorted({placement.pool for placement in status.placements}),
        "cpu": {"used": used.cpu},
        "memory": {"used": used.memory},
        # None: the price of one of its machines is unknown.
        "hourlyMicros": rate,
        "isPriced": rate is not None,
        "phase": status.phase,
        "verdict": decision.verdict if decision else "",
    }


TABLES: dict[str, Callable[[UsageSnapshot], list[Row]]] = {
    "pools": pool_rows,
    "clusters": cluster_rows,
    "nodes": node_rows,
    "services": service_rows,
    "budgets": budget_rows,
}


def _totals_by(snapshot: UsageSnapshot, key_of: Callable[[LatticeNode], str]) -> dict[str, UsageTotal]:
    totals: dict[str, UsageTotal] = {}
    for node in snapshot.nodes:
        name = node.metadata.name
        totals.setdefault(key_of(node), UsageTotal()).add(
            node,
            _connected_usage(snapshot.presence_of(name)),
            snapshot.requests_by_node.get(name, NO_REQUESTS),
        )
    return totals


def workload_requests(workload: LatticeWorkload) -> tuple[int, int]:
    """Requests of a workload in milli-cores and bytes. Replicas of a service share one cached result."""
    spec = workload.spec
    requests = tuple(
        tuple(container.resources.requests.items())
        for container in spec.containers.values()
        if container.resources
    )
    # Without requests of containers, the requests of the workload's spec count.
    return _parse_requests(requests if any(requests) else (tuple(spec.requests.items()),))


@lru_cache(maxsize=4096)
def _parse_requests(parts: ContainerRequests) -> tuple[int, int]:
    amounts = [parse_amounts(dict(part)) for part in parts]
    return sum(amount.get("cpu", 0) for amount in amounts), sum(amount.get("memory", 0) for amount in amounts)


def _connected_usage(heartbeat: LastHeartbeat | None) -> Usage:
    """The last reported usage of a node; zero for a node whose agent is not connected."""
    return heartbeat.usage if heartbeat is not None and heartbeat.is_connected else NO_USAGE


def is_ready(node: LatticeNode) -> bool:
    return is_true(node.status.conditions, READY_CONDITION)


@dataclass(frozen=True)
class ClusterSummary:
    """Nodes and workloads of one cluster, or of the fleet, with their sums."""

    nodes: Sequence[LatticeNode]
    workloads: Sequence[LatticeWorkload]

    @property
    def ready_nodes(self) -> int:
        return sum(map(is_ready, self.nodes))

    @property
    def draining_nodes(self) -> int:
        return sum(node.status.phase == "Draining" for node in self.nodes)

    @property
    def capacity(self) -> dict[str, int]:
        return _total(node.status.capacity for node in self.nodes)

    @property
    def allocatable(self) -> dict[str, int]:
        return _total(node.status.allocatable for node in self.nodes)

    @property
    def requested(self) -> dict[str, int]:
        """Requests of bound workloads."""
        return _total(workload.spec.request_amounts for workload in self.workloads if workload.status.binding)

    @property
    def workloads_by_state(self) -> dict[str, int]:
        return dict(Counter(str(workload.status.actual_state) for workload in self.workloads))


def summarize_cluster(
    nodes: Iterable[LatticeNode], workloads: Iterable[LatticeWorkload], cluster: str = ""
) -> ClusterSummary:
    """Summarize one cluster, or the fleet if `cluster` is empty.

    A workload belongs to the cluster in its spec, else to the cluster of its node.
    """
    members = [node for node in nodes if not cluster or node.spec.cluster == cluster]
    names = {node.metadata.name for node in members}
    cluster_workloads = []
    for workload in workloads:
        binding = workload.status.binding
        is_on_member = (binding.node if binding else "") in names
        if not cluster or workload.spec.cluster == cluster or (is_on_member and not workload.spec.cluster):
            cluster_workloads.append(workload)
    return ClusterSummary(members, cluster_workloads)


def _total(amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for amount in amounts:
        total.update(amount)
    return dict(total)
