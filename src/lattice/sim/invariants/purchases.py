"""Invariants of purchases and of the book: no machine is bought without a prospect, replicas that wait together are
answered together, and at rest every ledger states the machines that exist at the price of now."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import BUDGET_CONDITION
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.conditions import READY_CONDITION, find_condition, is_true
from lattice.kinds.node import NODE_CLASS_LABEL, NOT_JOINED, LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.sim.invariants.context import CONTROLLERS, CheckerContext, Findings
from lattice.sim.invariants.history import ObjectChange, node_of
from lattice.sim.invariants.money import projected_micros
from lattice.sim.world.store import CommitRecord

# Placement may not know yet what a machine offers that joined less than this before a purchase: it waits for
# free capacity before it buys.
OBSERVED_AFTER_S = 12.0
# Idle machines of one class in a pool beside which no further machine of the class is bought.
MAX_IDLE_MACHINES = 3
MICRO = 1_000_000
# Cluster and node class.
Cell = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a replica asks of a machine. An exclusive replica shares its machine with no other of its service."""

    amounts: tuple[tuple[str, int], ...]
    runtime: str
    is_exclusive: bool = False


@dataclass
class PurchaseChecks:
    """Checks every purchase: a commit of a controller that raises the desired machines of a cluster.

    Call `check` with the state before each commit, in order: it also remembers what joined machines offered.
    """

    context: CheckerContext

    def __post_init__(self) -> None:
        # By pool and class: the time at which a machine joined first, its node, and what it offered last.
        self._offered: dict[tuple[str, str], dict[str, tuple[float, LatticeNode]]] = {}
        # The last change of each class: what machines offered before says nothing about the class as it is now.
        self._class_changed_at: dict[str, float] = {}

    def check(self, record: CommitRecord, changes: list[ObjectChange]) -> Findings:
        """I-41: no machine is bought for replicas that the joined machines of the class cannot take. I-42: not more
        machines are in flight than the waiting replicas of the cluster need."""
        for change in changes:
            old, new = change.old, change.new
            if isinstance(new, LatticeNodeClass) and (
                not isinstance(old, LatticeNodeClass) or old.metadata.generation != new.metadata.generation
            ):
                self._class_changed_at[new.metadata.name] = record.at
            if isinstance(new, LatticeNode) and _has_joined(new) and new.spec.cluster:
                machines = self._offered.setdefault((new.spec.pool, new.spec.node_class), {})
                joined_at, _ = machines.get(new.metadata.uid, (record.at, new))
                machines[new.metadata.uid] = (joined_at, new)
            if isinstance(change.new, LatticeCluster) and record.origin == CONTROLLERS:
                for node_class, count in sorted(change.new.spec.nodes.items()):
                    if count > (change.old.spec.nodes.get(node_class, 0) if change.old else 0):
                        yield from self._check_purchase(record, changes, change.new, node_class)

    def _check_purchase(
        self, record: CommitRecord, changes: list[ObjectChange], cluster: LatticeCluster, node_class: str
    ) -> Findings:
        since = self.context.unseen_since(record)
        cell = (cluster.metadata.name, node_class)
        waiting = waiting_shapes(self.context, cell, changes, since)
        # Machines of the cell that had joined at any time since `since` and were not being removed.
        paths = {
            path
            for path, node in self.context.snapshot.nodes.items()
            if (node.spec.cluster, node.spec.node_class) == cell
        }
        joined = sum(
            any(
                _has_joined(node) and not node.metadata.deletion_timestamp
                for node in self.context.snapshot.versions(LatticeNode, path, since)
            )
            for path in paths
        )
        in_flight = cluster.spec.nodes[node_class] - joined
        size = self._class_size(node_class, since)
        # A cluster keeps `minNodes` machines whatever its replicas need.
        needed = max(machines_needed(waiting, size), cluster.spec.min_nodes - joined)
        words = (
            f"{cluster.metadata.name} desires {cluster.spec.nodes[node_class]} machines of class {node_class}"
        )
        if in_flight > needed:
            yield (
                "I-42",
                (
                    f"{words} and {joined} have joined: {in_flight} are to come, and the {len(waiting)} waiting replicas"
                    f" need {needed}"
                ),
            )
        yield from self._check_prospect(record, cluster, node_class, waiting, words)

    def _check_prospect(
        self, record: CommitRecord, cluster: LatticeCluster, node_class: str, waiting: list[Shape], words: str
    ) -> Findings:
        known_since = max(self._class_changed_at.get(node_class, 0.0), 0.0)
        nodes = [
            node
            for joined_at, node in self._offered.get((cluster.spec.pool, node_class), {}).values()
            if known_since < joined_at <= record.at - OBSERVED_AFTER_S
        ]
        if nodes and waiting and not any(_takes(node, shape) for node in nodes for shape in waiting):
            node = nodes[-1]
            yield (
                "I-41",
                (
                    f"{words}, but machine {node.metadata.name} of that class offers {node.status.allocatable} and"
                    f" {', '.join(node.status.runtimes)}, which none of the {len(waiting)} waiting replicas fits on"
                ),
            )
        stored = self.context.snapshot.nodes
        used = {node_of(workload) for workload in self.context.snapshot.workloads.values()}
        idle = [
            node.metadata.name
            for node in nodes
            if stored.get(f"/{node.metadata.name}") is node
            and node.metadata.name not in used
            and not (node.spec.unschedulable or node.metadata.deletion_timestamp)
            and all(
                is_true(version.status.conditions, READY_CONDITION)
                for version in self.context.snapshot.versions(
                    LatticeNode, f"/{node.metadata.name}", record.at - OBSERVED_AFTER_S
                )
            )
        ]
        if len(idle) >= MAX_IDLE_MACHINES:
            yield "I-41", f"{words} while {', '.join(sorted(idle))} of that class are idle"

    def _class_size(self, node_class: str, since: float) -> Mapping[str, int]:
        """The smallest amounts of the class that the buyer may have known."""
        sizes = [
            version.spec.default_size
            for version in self.context.snapshot.versions(LatticeNodeClass, f"/{node_class}", since)
        ]
        return {
            "cpu": min((size.millicores for size in sizes), default=0),
            "memory": min((size.memory for size in sizes), default=0),
        }


def waiting_shapes(
    context: CheckerContext, cell: Cell, changes: Iterable[ObjectChange], since: float
) -> list[Shape]:
    """The shapes of the replicas in the cell that need a machine: placed ones without a workload, and workloads that were
    unbound, or on a machine that is leaving, at any time since `since`."""
    snapshot, shapes = context.snapshot, []
    services: dict[str, list[LatticeService]] = {
        path: snapshot.versions(LatticeService, path, since) for path in snapshot.services
    }
    for change in changes:
        if isinstance(change.new, LatticeService):
            services.setdefault(change.key.path, []).append(change.new)
    for path, versions in sorted(services.items()):
        if not versions:
            continue
        placed = max(
            sum(
                placement.replicas or 0
                for placement in version.status.placements
                if (placement.cluster, placement.node) == cell
            )
            for version in versions
        )
        service_shapes = {_shape_of_service(version) for version in versions}
        largest = max(service_shapes, key=lambda shape: (shape.is_exclusive, shape.amounts))
        is_rolling = False
        for workload in snapshot.replicas_of(path):
            if cell_of(workload) != cell or workload.metadata.deletion_timestamp:
                continue
            placed -= 1
            is_current = all(_is_current(workload, version) for version in versions)
            is_rolling |= not is_current
            if not _is_settled(context, workload, since):
                shapes.append(_shape_of_workload(workload))
            # The replica needs another machine once its update reaches it.
            elif not is_current:
                shapes.append(largest)
        # The surge replica of an update.
        shapes += [largest] * (max(0, placed) + is_rolling)
    return shapes


def _is_current(workload: LatticeWorkload, service: LatticeService) -> bool:
    """The replica has the containers and the requests of the service."""
    requests = dict(_shape_of_workload(workload).amounts)
    service_requests = dict(_shape_of_service(service).amounts)
    return workload.spec.containers == service.spec.containers and all(
        requests.get(name, 0) == service_requests.get(name, 0) for name in ("cpu", "memory")
    )


def cell_of(workload: LatticeWorkload) -> Cell:
    return (workload.spec.cluster, workload.spec.constraints.node_selector.get(NODE_CLASS_LABEL, ""))


def _is_settled(context: CheckerContext, workload: LatticeWorkload, since: float) -> bool:
    """The replica was bound all the time to a node that stays."""
    path = f"{workload.metadata.namespace}/{workload.metadata.name}"
    for version in context.snapshot.versions(LatticeWorkload, path, since):
        if not node_of(version):
            return False
    for node in context.snapshot.versions(LatticeNode, f"/{node_of(workload)}", since):
        if node.metadata.deletion_timestamp or node.spec.unschedulable or node.spec.taints:
            return False
    return f"/{node_of(workload)}" in context.snapshot.nodes


def _shape_of_workload(workload: LatticeWorkload) -> Shape:
    amounts = {name: amount for name, amount in workload.spec.request_amounts.items() if amount}
    container = next(iter(workload.spec.containers.values()))
    is_exclusive = bool(workload.spec.constraints.spread)
    return Shape(tuple(sorted(amounts.items())), "container" if container.image else "process", is_exclusive)


def _shape_of_service(service: LatticeService) -> Shape:
    resources = service.spec.placement.resources
    amounts = {
        "cpu": int(Decimal(str(resources.cores or 0)) * 1000),
        "memory": int(Decimal(str(resources.memory_gi or 0)) * (1 << 30)),
    }
    container = next(iter(service.spec.containers.values()))
    return Shape(
        tuple(sorted(amounts.items())),
        "container" if container.image else "process",
        bool(service.spec.spread),
    )


def machines_needed(shapes: Iterable[Shape], size: Mapping[str, int]) -> int:
    """Machines of the size for the shapes, by first fit in the worse of two orders: small replicas may have got
    their machines before large ones came. An exclusive shape takes a machine of its own."""
    ordered = sorted(shapes, key=lambda shape: sorted(shape.amounts, reverse=True))
    return max(_first_fit(ordered, size), _first_fit(ordered[::-1], size))


def _first_fit(shapes: Iterable[Shape], size: Mapping[str, int]) -> int:
    free: list[dict[str, int]] = []
    alone = 0
    for shape in shapes:
        if shape.is_exclusive:
            alone += 1
            continue
        for machine in free:
            if all(machine.get(name, 0) >= amount for name, amount in shape.amounts if name in size):
                break
        else:
            free.append(machine := dict(size))
        for name, amount in shape.amounts:
            if name in size:
                machine[name] -= amount
    return len(free) + alone


def _takes(node: LatticeNode, shape: Shape) -> bool:
    """The machine, when empty, has the resources and the runtime of the shape."""
    offers = node.status.allocatable
    has_runtime = not node.status.runtimes or shape.runtime in node.status.runtimes
    return has_runtime and all(offers.get(name, 0) >= amount for name, amount in shape.amounts)


def _has_joined(node: LatticeNode) -> bool:
    ready = find_condition(node.status.conditions, READY_CONDITION)
    return bool(node.status.agent_version) and ready is not None and ready.reason != NOT_JOINED


def check_final_book(context: CheckerContext) -> Findings:
    """I-43: at rest every ledger states the existing machines at the price of now, and so do clusters, classes and pools."""
    snapshot, machines = context.snapshot, Counter[Cell]()
    for owner, kind, count in context.world.cloud.machine_counts(context.world.loop.time()):
        machines[owner, kind] += count
    machines += Counter()
    prices = {
        node_class.metadata.name: int(Decimal(str(price)) * MICRO)
        for node_class in snapshot.objects[LatticeNodeClass.resource.id].values()
        if (price := node_class.spec.cost_per_hour.get("fake")) is not None
    }
    yield from _final_ledgers(context, machines, prices)
    for cluster in snapshot.clusters.values():
        name, cost = cluster.metadata.name, cluster.status.cost
        recount = sum(
            count * prices.get(kind, 0) for (owner, kind), count in machines.items() if owner == name
        )
        shown = int(cost.hourly * MICRO) if cost is not None and cost.hourly is not None else 0
        if shown != recount:
            yield (
                "I-43",
                f"the status of {name} states {shown} micro-dollars per hour, its machines cost {recount}",
            )
    for pool in snapshot.pools.values():
        name, capacity = pool.metadata.name, pool.status.capacity
        recount = sum(
            count
            for (owner, _), count in machines.items()
            if (stored := snapshot.clusters.get(f"/{owner}")) is not None and stored.spec.pool == name
        )
        shown = (capacity.allocated_nodes or 0) if capacity is not None else 0
        if shown != recount:
            yield "I-43", f"the status of pool {name} states {shown} machines, and {recount} exist"
    for cluster in snapshot.clusters.values():
        used = {node_of(workload) for workload in snapshot.workloads.values()}
        idle = [
            node.metadata.name
            for node in snapshot.nodes.values()
            if node.spec.cluster == cluster.metadata.name and node.metadata.name not in used
        ]
        spare = sum(cluster.spec.nodes.values()) - max(cluster.spec.min_nodes, 1)
        if idle and spare > 0:
            yield (
                "I-42",
                f"{', '.join(idle)} of {cluster.metadata.name} are idle at rest and were not given back",
            )


def _final_ledgers(context: CheckerContext, machines: Counter[Cell], prices: Mapping[str, int]) -> Findings:
    expected: dict[str, Counter[tuple[str, str, int]]] = {}
    for (cluster, node_class), count in machines.items():
        stored = context.snapshot.clusters.get(f"/{cluster}")
        if stored is not None:
            recounted = expected.setdefault(stored.spec.pool, Counter())
            recounted[cluster, node_class, prices.get(node_class, 0)] += count
    for ledger in context.snapshot.ledgers.values():
        lots: Counter[tuple[str, str, int]] = Counter()
        for cluster, several in ledger.status.machines.items():
            lots.update({(cluster, lot.node_class, lot.micros): lot.count for lot in several})
        recounted = expected.get(ledger.spec.budget.name, Counter())
        if lots != recounted:
            yield (
                "I-43",
                f"{ledger.metadata.name} pays for {_words(lots)}, but {_words(recounted)} exist at the price of now",
            )


def _words(lots: Counter[tuple[str, str, int]]) -> str:
    items = [
        f"{count} {node_class} in {cluster} at {micros}"
        for (cluster, node_class, micros), count in sorted(lots.items())
    ]
    return ", ".join(items) or "nothing"


def check_budget_condition(
    context: CheckerContext, record: CommitRecord, changes: list[ObjectChange]
) -> Findings:
    """I-43: a pool whose budget is used up by its ledger says so: a written status without BudgetExceeded belongs to a
    ledger that was within its limit at some time that the writer may have seen."""
    for change in changes:
        if not isinstance(change.new, LatticePool) or record.origin != CONTROLLERS:
            continue
        pool, since = change.new, context.unseen_since(record) - OBSERVED_AFTER_S
        exceeded = find_condition(pool.status.conditions, BUDGET_CONDITION)
        if pool.spec.budget is None or exceeded is None or exceeded.status == "True":
            continue
        limits = [
            int(Decimal(str(version.spec.budget.max_monthly_cost)) * MICRO)
            for version in context.snapshot.versions(LatticePool, f"/{pool.metadata.name}", since)
            if version.spec.budget is not None
        ]
        projected = [
            projected_micros(ledger.status)
            for path in context.snapshot.ledgers
            for ledger in context.snapshot.versions(LatticeLedger, path, since)
            if ledger.spec.budget.kind == LatticePool.resource.kind
            and ledger.spec.budget.name == pool.metadata.name
        ]
        if limits and projected and min(projected) >= max(limits) > 0:
            yield (
                "I-43",
                (
                    f"pool {pool.metadata.name} is projected at {min(projected)} of {max(limits)} micro-dollars,"
                    " and its condition BudgetExceeded is not True"
                ),
            )
