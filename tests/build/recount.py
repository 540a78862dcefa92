"""An independent recount of the bill, machines times the price of now, and every figure that Lattice shows of it."""

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec

from build.control_world import PRICES, ControlWorld
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import BUDGET_CONDITION
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService, ServiceStatus
from lattice.metrics import BUDGET_COMMITTED
from lattice.placement.feed.placement_input import PLACEMENT_KINDS
from lattice.placement.model.world import World
from lattice.placement.plan.plan import FleetState, converge
from lattice.placement.queries.dispatch import answer_query
from lattice.server.live.usage_tables import UsageSnapshot, cluster_rows, pool_rows

MICRO = 1_000_000
PROVIDER = "fake"


def price_of(world: ControlWorld, node_class: str) -> int:
    """Micro-dollars per hour that the class costs now."""
    stored = world.context.cache(LatticeNodeClass).get(f"/{node_class}")
    return int(Decimal(str(stored.spec.cost_per_hour[PROVIDER])) * MICRO) if stored else 0


def existing_machines(world: ControlWorld) -> Counter[tuple[str, str]]:
    """The machines of the cloud by cluster and class. A machine that ended by itself counts until it is deleted."""
    counts: Counter[tuple[str, str]] = Counter()
    for name in sorted(world.cloud._machines):
        node = world.context.cache(LatticeNode).get(f"/{name}")
        if node is not None:
            counts[node.spec.cluster, node.spec.node_class] += 1
    return counts


def pool_of(world: ControlWorld, cluster: str) -> str:
    stored = world.context.cache(LatticeCluster).get(f"/{cluster}")
    return stored.spec.pool if stored else ""


def recounted_bill(world: ControlWorld) -> dict[str, int]:
    """Micro-dollars per hour by pool."""
    bill: Counter[str] = Counter()
    for (cluster, node_class), count in existing_machines(world).items():
        bill[pool_of(world, cluster)] += count * price_of(world, node_class)
    return {pool: micros for pool, micros in sorted(bill.items()) if micros}


def stored_world(world: ControlWorld) -> World:
    """What the faces read: every stored object that placement reads, at this moment."""
    objects: list[Kind] = []
    for kind in PLACEMENT_KINDS:
        objects += world.context.cache(kind).objects()
    stored = World.of(objects, PRICES)
    return replace(stored, now=world.clock.now())


def fresh_plan(world: ControlWorld, *, with_observed: bool = True) -> FleetState:
    """The plan of the same services and rules for an empty fleet: no placements, no clusters, nothing paid. The
    machines of owners are there, in no cluster."""
    objects: list[Kind] = [*world.all(LatticePool), *world.all(LatticePlacementPolicy)]
    for node in world.all(LatticeNode):
        if node.is_joined_machine:
            spec = msgspec.structs.replace(node.spec, cluster="", node_class="")
            objects.append(msgspec.structs.replace(node, spec=spec))
    for node_class in world.all(LatticeNodeClass):
        status = node_class.status if with_observed else type(node_class.status)()
        objects.append(msgspec.structs.replace(node_class, status=status))
    for service in world.all(LatticeService):
        # Machines that did not accept a replica are as known as what machines of a class offer.
        refused = tuple(record for record in service.status.remediation if record.refused and with_observed)
        objects.append(msgspec.structs.replace(service, status=ServiceStatus(remediation=refused)))
    for ledger in world.all(LatticeLedger):
        status = msgspec.structs.replace(ledger.status, machines={}, committed_micros=0)
        objects.append(msgspec.structs.replace(ledger, status=status))
    return converge(replace(World.of(objects, PRICES), now=world.clock.now()))


def machine_count(state: FleetState) -> int:
    return sum(kinds.total() for kinds in state.clusters.values())


def differing_figures(world: ControlWorld) -> list[str]:
    """Every figure that differs from the recount, in words; empty if all agree."""
    bill, machines = recounted_bill(world), existing_machines(world)
    total = sum(bill.values())
    wrong: list[str] = []

    def expect(face: str, shown: object, recounted: object) -> None:
        if shown != recounted:
            wrong.append(f"{face} shows {shown}, the recount is {recounted}")

    _expect_ledgers(world, machines, expect)
    clusters = {cluster.metadata.name: cluster for cluster in world.all(LatticeCluster)}
    rates: Counter[str] = Counter()
    for (cluster, node_class), count in machines.items():
        rates[cluster] += count * price_of(world, node_class)
    top = UsageSnapshot(
        world.clock.now(),
        world.all(LatticePool),
        world.all(LatticeCluster),
        world.all(LatticeNode),
        ledgers=world.all(LatticeLedger),
    )
    top_clusters = {row["name"]: row for row in cluster_rows(top)}
    for name, stored in clusters.items():
        cost = stored.status.cost
        shown = int(cost.hourly * MICRO) if cost and cost.hourly is not None else 0
        expect(f"the status of cluster {name}", shown, rates[name])
        expect(f"lattice top clusters, row {name}", top_clusters[name]["hourlyMicros"] or 0, rates[name])
    for row in pool_rows(top):
        if "budget" in row:
            expect(
                f"lattice top pools, row {row['name']}",
                row["budget"]["hourlyMicros"],
                bill.get(row["name"], 0),
            )
    nodes = Counter(node_class for (_, node_class), count in machines.items() for _ in range(count))
    for stored_class in world.all(LatticeNodeClass):
        name = stored_class.metadata.name
        expect(f"the status of class {name}", stored_class.status.nodes or 0, nodes[name])
    _expect_pools(world, machines, bill, expect)
    stored = stored_world(world)
    for by in ("pool", "service"):
        document = answer_query({"ask": "cost", "by": by}, stored)
        expect(f"lattice cost --by {by}, total", document["total"]["hourlyMicros"], total)
        rows = {row["name"]: row["hourlyMicros"] for row in document["rows"] if row["hourlyMicros"]}
        if by == "pool":
            expect("lattice cost --by pool", rows, bill)
        else:
            expect("lattice cost --by service, sum of the rows", sum(rows.values()), total)
    expect("the present of the plan", sum(FleetState.current(stored).offer_rates.values()), total)
    pending = answer_query({"ask": "plan"}, stored)
    expect("lattice plan, total before", _first(pending["total"]), total)
    # A plan counts no replicas of an earlier template that run on because the present one has no place.
    if not any(map(_runs_unplaced_replicas, world.all(LatticeService))):
        expect("lattice plan, total after, without a change", _last(pending["total"]), total)
    return wrong


def _runs_unplaced_replicas(service: LatticeService) -> bool:
    running = service.status.health.available if service.status.health else 0
    return (running or 0) > sum(placement.replicas or 0 for placement in service.status.placements)


def _first(change: dict[str, Any]) -> int:
    return int(change["before"]["hourlyMicros"])


def _last(change: dict[str, Any]) -> int:
    return int(change["after"]["hourlyMicros"])


def _expect_ledgers(world: ControlWorld, machines: Counter[tuple[str, str]], expect: Any) -> None:
    expected: dict[str, Counter[tuple[str, str, int]]] = {}
    for (cluster, node_class), count in machines.items():
        ledger = f"pool.{pool_of(world, cluster)}"
        expected.setdefault(ledger, Counter())[cluster, node_class, price_of(world, node_class)] += count
    for ledger in world.all(LatticeLedger):
        name, lots = ledger.metadata.name, Counter[tuple[str, str, int]]()
        for cluster, several in ledger.status.machines.items():
            for lot in several:
                lots[cluster, lot.node_class, lot.micros] += lot.count
        recounted = expected.get(name, Counter())
        expect(f"ledger {name}", dict(lots), dict(recounted))
        rate = sum(count * micros for (_, _, micros), count in recounted.items())
        expect(f"ledger {name}, committed", ledger.status.committed_micros, rate)
        series = BUDGET_COMMITTED.labels(name, ledger.spec.budget.name)._value.get()
        expect(f"metric of ledger {name}", round(series * MICRO), rate)


def _expect_pools(
    world: ControlWorld, machines: Counter[tuple[str, str]], bill: dict[str, int], expect: Any
) -> None:
    over_budget = False
    for pool in world.all(LatticePool):
        name, status = pool.metadata.name, pool.status
        count = sum(number for (cluster, _), number in machines.items() if pool_of(world, cluster) == name)
        expect(
            f"the status of pool {name}, machines",
            (status.capacity.allocated_nodes or 0) if status.capacity else 0,
            count,
        )
        limit = pool.spec.budget.limit_micros if pool.spec.budget else None
        exceeded = find_condition(status.conditions, BUDGET_CONDITION)
        is_exceeded = exceeded is not None and exceeded.status == "True"
        over_budget |= is_exceeded
        # The limit also holds for 30 days at the rate of now.
        if limit is not None and bill.get(name, 0) * 720 >= limit > 0:
            expect(f"condition BudgetExceeded of pool {name}", is_exceeded, True)
    for service in world.all(LatticeService):
        decision = service.status.scheduler_decision
        if decision is not None and decision.verdict == "OverBudget":
            expect(f"BudgetExceeded on a pool while {service.metadata.name} is OverBudget", over_budget, True)
