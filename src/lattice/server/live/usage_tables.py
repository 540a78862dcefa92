"""What is used, by pool, cluster, node and service: as measured now, beside what there is, what is asked for and what it costs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.container import parse_amounts
from lattice.kinds.ledger import Account, LatticeLedger
from lattice.kinds.meta.quantity import Quantity, dollars_to_micros
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.inputs.ledger_math import UNLIMITED_HEADROOM, budget_status, headroom
from lattice.presence import LastHeartbeat, Usage

Row = dict[str, Any]
NO_USAGE = Usage()
NO_REQUESTS = (0, 0)
ContainerRequests = tuple[tuple[tuple[str, Quantity], ...], ...]  # what each container asks for, as written


@dataclass(frozen=True)
class Fleet:
    """All there is at one moment, and what was heard of the nodes."""

    now: datetime
    pools: Sequence[LatticePool] = ()
    clusters: Sequence[LatticeCluster] = ()
    nodes: Sequence[LatticeNode] = ()
    services: Sequence[LatticeService] = ()
    workloads: Sequence[LatticeWorkload] = ()
    ledgers: Sequence[LatticeLedger] = ()
    presence_of: Callable[[str], LastHeartbeat | None] = lambda node: None

    @cached_property
    def requests_by_node(self) -> dict[str, tuple[int, int]]:
        """Milli-cores and bytes by node, asked for by what is bound there."""
        found: dict[str, tuple[int, int]] = {}
        for each in self.workloads:
            if each.status.binding:
                cpu, memory = requested_by(each)
                before = found.get(each.status.binding.node, NO_REQUESTS)
                found[each.status.binding.node] = (before[0] + cpu, before[1] + memory)
        return found


@dataclass(slots=True)
class UsageTotal:
    """Over some nodes: milli-cores and bytes that are used, that there are, and that what is bound there asks for."""

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


def pool_rows(fleet: Fleet) -> list[Row]:
    """Every pool, and every other offer that machines were made from."""
    sums = _totals_by(fleet, lambda node: node.spec.pool)
    books = {each.metadata.name: each for each in fleet.ledgers}
    known = {each.metadata.name: each for each in fleet.pools}
    clusters = Counter(each.spec.pool for each in fleet.clusters)
    rows = []
    for name in sorted({*known, *(each.spec.pool for each in fleet.clusters)}):
        pool, total = known.get(name), sums.get(name, UsageTotal())
        row: Row = {
            "name": name,
            "clusters": clusters[name],
            "nodes": total.nodes,
            "readyNodes": total.ready,
            **total.figures(),
        }
        if pool is not None:
            row |= {
                "provider": pool.spec.provider.type,
                "region": pool.spec.provider.region,
                "phase": pool.status.phase,
            }
            row |= {"maxNodes": pool.spec.capacity.max_nodes}
        if (book := books.get(Account(kind="LatticePool", name=name).ledger_name)) is not None:
            row["budget"] = budget_fields(book, fleet.now)
        rows.append(row)
    return rows


def budget_fields(book: LatticeLedger, now: datetime) -> Row:
    """Micro-dollars: per hour, and of this month; `left`: what more machines may cost, None where none is refused."""
    stands, left = budget_status(book, now), headroom(book, now)
    return {
        "hourlyMicros": book.status.committed_micros,
        "spentMicros": stands.spent,
        "projectedMicros": stands.projected,
        "limitMicros": stands.limit,
        "leftHourlyMicros": left if left < UNLIMITED_HEADROOM else None,
        "state": stands.state.value,
    }


def budget_rows(fleet: Fleet) -> list[Row]:
    """Every account book, also that of a cloud, of a region and of overflow; and what the months before have cost."""
    return [
        _ledger_row(each, fleet.now) for each in sorted(fleet.ledgers, key=lambda each: each.metadata.name)
    ]


def _ledger_row(book: LatticeLedger, now: datetime) -> Row:
    account = book.spec.budget
    return {
        "ledger": book.metadata.name,
        "kind": account.kind,
        "name": account.name,
        "region": account.region,
        "isHard": book.spec.hard,
        "alertMillionths": book.spec.alert_millionths,
        **budget_fields(book, now),
        "pastMicros": book.status.past,
    }


def cluster_rows(fleet: Fleet) -> list[Row]:
    sums = _totals_by(fleet, lambda node: node.spec.cluster)
    workloads = Counter(each.spec.cluster for each in fleet.workloads)
    ready = Counter(each.spec.cluster for each in fleet.workloads if each.status.ready)
    rows = []
    for each in sorted(fleet.clusters, key=lambda each: each.metadata.name):
        name, total, cost = each.metadata.name, sums.get(each.metadata.name, UsageTotal()), each.status.cost
        rows.append(
            {
                "name": name,
                "pool": each.spec.pool,
                "region": each.spec.region,
                "nodes": each.spec.desired_nodes,
                "readyNodes": total.ready,
                "workloads": workloads[name],
                "readyWorkloads": ready[name],
                "hourlyMicros": dollars_to_micros(cost.hourly)
                if cost is not None and cost.hourly is not None
                else None,
                "phase": each.status.phase,
                **total.figures(),
            }
        )
    return rows


def node_rows(fleet: Fleet) -> list[Row]:
    workloads = Counter(each.status.binding.node for each in fleet.workloads if each.status.binding)
    rows = []
    for each in sorted(fleet.nodes, key=lambda each: each.metadata.name):
        name, heard, total = each.metadata.name, fleet.presence_of(each.metadata.name), UsageTotal()
        total.add(each, _connected_usage(heard), fleet.requests_by_node.get(name, NO_REQUESTS))
        rows.append(
            {
                "name": name,
                "pool": each.spec.pool,
                "cluster": each.spec.cluster,
                "region": each.spec.region,
                "class": each.spec.node_class,
                "phase": each.status.phase,
                "isReady": is_ready(each),
                "isConnected": heard is not None and heard.is_connected,
                "unschedulable": each.spec.unschedulable,
                "workloads": workloads[name],
                "disk": {
                    "used": _connected_usage(heard).disk,
                    "of": each.status.allocatable.get("storage", 0),
                },
                **total.figures(),
            }
        )
    return rows


def service_rows(fleet: Fleet) -> list[Row]:
    used: dict[str, Usage] = {}
    for node in fleet.nodes:
        if (heard := fleet.presence_of(node.metadata.name)) is not None:
            used.update(heard.workload_usage)
    sums: dict[str, ReplicaTotal] = {}
    for workload in fleet.workloads:
        if workload.spec.service:
            space, name = workload.metadata.namespace, workload.metadata.name
            total = sums.setdefault(f"{space}/{workload.spec.service}", ReplicaTotal())
            total.add(workload, used.get(f"{space}/{name}", NO_USAGE))
    paths = {f"{each.metadata.namespace}/{each.metadata.name}": each for each in fleet.services}
    return [_service(each, sums.get(path, ReplicaTotal())) for path, each in sorted(paths.items())]


@dataclass(slots=True)
class ReplicaTotal:
    """Over those of one service."""

    cpu: int = 0
    memory: int = 0
    failures: int = 0

    def add(self, workload: LatticeWorkload, used: Usage) -> None:
        self.cpu += used.cpu
        self.memory += used.memory
        self.failures += (workload.status.retry.attempts or 0) if workload.status.retry else 0


def _service(service: LatticeService, used: ReplicaTotal) -> Row:
    status = service.status
    health, cost, decision = status.health, status.total_cost, status.scheduler_decision
    return {
        "namespace": service.metadata.namespace,
        "name": service.metadata.name,
        "wanted": service.spec.desired_replicas(),
        "replicas": status.replicas or 0,
        "ready": (health.ready or 0) if health else 0,
        "failures": used.failures,
        "pools": sorted({each.pool for each in status.placements}),
        "cpu": {"used": used.cpu},
        "memory": {"used": used.memory},
        "hourlyMicros": dollars_to_micros(cost.hourly)
        if cost is not None and cost.hourly is not None
        else None,
        "phase": status.phase,
        "verdict": decision.verdict if decision else "",
    }


TABLES: dict[str, Callable[[Fleet], list[Row]]] = {
    "pools": pool_rows,
    "clusters": cluster_rows,
    "nodes": node_rows,
    "services": service_rows,
    "budgets": budget_rows,
}


def _totals_by(fleet: Fleet, by: Callable[[LatticeNode], str]) -> dict[str, UsageTotal]:
    sums: dict[str, UsageTotal] = {}
    for node in fleet.nodes:
        name = node.metadata.name
        sums.setdefault(by(node), UsageTotal()).add(
            node, _connected_usage(fleet.presence_of(name)), fleet.requests_by_node.get(name, NO_REQUESTS)
        )
    return sums


def requested_by(workload: LatticeWorkload) -> tuple[int, int]:
    """Milli-cores and bytes. Replicas of a service ask for the same: read once, not ten thousand times."""
    spec = workload.spec
    stated = tuple(
        tuple(each.resources.requests.items()) for each in spec.containers.values() if each.resources
    )
    return _parse_requests(stated if any(stated) else (tuple(spec.requests.items()),))


@lru_cache(maxsize=4096)
def _parse_requests(parts: ContainerRequests) -> tuple[int, int]:
    each = [parse_amounts(dict(part)) for part in parts]
    return sum(found.get("cpu", 0) for found in each), sum(found.get("memory", 0) for found in each)


def _connected_usage(heard: LastHeartbeat | None) -> Usage:
    """What a node said last says nothing of one that is gone."""
    return heard.usage if heard is not None and heard.is_connected else NO_USAGE


def is_ready(node: LatticeNode) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)


@dataclass(frozen=True)
class ClusterSummary:
    """Of one cluster, or of all."""

    nodes: Sequence[LatticeNode]
    workloads: Sequence[LatticeWorkload]

    @property
    def ready_nodes(self) -> int:
        return sum(map(is_ready, self.nodes))

    @property
    def draining_nodes(self) -> int:
        return sum(each.status.phase == "Draining" for each in self.nodes)

    @property
    def capacity(self) -> dict[str, int]:
        return _total(each.status.capacity for each in self.nodes)

    @property
    def allocatable(self) -> dict[str, int]:
        return _total(each.status.allocatable for each in self.nodes)

    @property
    def requested(self) -> dict[str, int]:
        """By the workloads that are bound."""
        return _total(each.spec.request_amounts for each in self.workloads if each.status.binding)

    @property
    def workloads_by_state(self) -> dict[str, int]:
        return dict(Counter(str(each.status.actual_state) for each in self.workloads))


def summarize_cluster(
    nodes: Iterable[LatticeNode], workloads: Iterable[LatticeWorkload], cluster: str = ""
) -> ClusterSummary:
    """A workload is of the cluster that it is confined to, or else of that of its node."""
    members = [each for each in nodes if not cluster or each.spec.cluster == cluster]
    names = {each.metadata.name for each in members}
    found = [
        each
        for each in workloads
        if not cluster or each.spec.cluster == cluster or (_node(each) in names and not each.spec.cluster)
    ]
    return ClusterSummary(members, found)


def _node(workload: LatticeWorkload) -> str:
    return workload.status.binding.node if workload.status.binding else ""


def _total(amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in amounts:
        total.update(each)
    return dict(total)
