"""Compute the status of services, pools, clouds and data centers, and the cluster objects, from a fleet."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import msgspec

from lattice.engine.decide import Decision
from lattice.engine.explain import all_rejections
from lattice.kinds.cluster import (
    RESERVE_LABEL,
    ClusterSpec,
    ClusterStatus,
    ClusterUtilization,
    LatticeCluster,
)
from lattice.kinds.infrastructure import (
    ByteUse,
    CloudClusters,
    CloudInfrastructure,
    CloudSpend,
    CloudStatus,
    CountUse,
    StaticClusters,
    StaticInfrastructure,
    StaticStatus,
    StaticUtilization,
)
from lattice.kinds.meta.base import Kind, Metadata
from lattice.kinds.meta.quantity import (
    GIB,
    MILLI,
    approximate_bytes,
    dollars_to_micros,
    format_bytes,
    format_plain_dollars,
)
from lattice.kinds.pool import LatticePool, PoolCluster, PoolSpending, PoolStatus, PoolUsage, PoolUtilization
from lattice.kinds.service import (
    Alternative,
    Health,
    HourlyCost,
    LatticeService,
    SchedulerDecision,
    ServicePlacement,
    ServiceStatus,
    TotalCost,
    service_key,
)
from lattice.lifecycle.service_health import ServiceHealth
from lattice.placement.explain.blockers import at_failure
from lattice.placement.greedy.affinity import planned_nodes
from lattice.placement.greedy.machine_choice import class_counts, machine_counts
from lattice.placement.greedy.place import Placement
from lattice.placement.inputs.bill import Bill
from lattice.placement.inputs.ledger_math import BudgetStatus, rate_per_30_days
from lattice.placement.model.costs import fleet_bill, placed_costs, unpriced_groups
from lattice.placement.model.current_state import OVERFLOW_LABEL
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.inventory import Cluster
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.world import World, placed_counts
from lattice.placement.plugins.filters.overflow import OverflowClosed
from lattice.placement.plugins.rejection_reasons import MissingProperty

PLACED = "Placed"
# Limit of rejected offers that a scheduler decision lists.
MAX_ALTERNATIVES = 50
FOUR_DECIMALS = Decimal("0.0001")


def dollar_amount(micros: int) -> Decimal:
    """Convert micro-dollars to dollars without trailing zeros: 0.384, 414.72."""
    return Decimal(format_plain_dollars(micros))


def total_cost(micros: int) -> TotalCost:
    """Return the hourly and 30-day cost for a rate in micro-dollars per hour."""
    return TotalCost(hourly=dollar_amount(micros), projected30_day=dollar_amount(rate_per_30_days(micros)))


def sum_of_costs(placements: Sequence[ServicePlacement]) -> TotalCost | None:
    """Return the cost of all placements; None while the price of a machine of one of them is unknown."""
    if any(placement.cost is None and placement.replicas for placement in placements):
        return None
    return total_cost(
        sum(
            dollars_to_micros(placement.cost.hourly)
            for placement in placements
            if placement.cost and placement.cost.hourly
        )
    )


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """The placement of a service with its verdict, reason and required infrastructure."""

    placement: Placement
    verdict: str = PLACED
    # Why the service is not placed; for a placed service decision_of writes the reason.
    reason: str = ""
    required: Mapping[str, object] = field(default_factory=dict)
    # The digest of the fleet, see fleet_digest.
    fleet_digest: str = ""


def with_placement(service: LatticeService, fleet: Fleet, result: PlacementResult | None) -> LatticeService:
    """Return the service with placements, costs and scheduler decision in its status; fields that agents
    report stay."""
    name = service_key(service)
    counts, costs = placed_counts(fleet, name), placed_costs(fleet, name)
    unpriced = unpriced_groups(fleet, name)
    machines = planned_nodes(name, fleet)
    placements = tuple(
        ServicePlacement(
            pool=pool,
            cluster=cluster,
            replicas=count,
            node=node_class,
            # Absent while the price is unknown.
            cost=None
            if (pool, cluster, node_class) in unpriced
            else HourlyCost(hourly=dollar_amount(costs[pool, cluster, node_class])),
            machines=machines.get((cluster, node_class)),
        )
        for (pool, cluster, node_class), count in sorted(
            counts.items(), key=lambda entry: (-entry[1], entry[0])
        )
    )
    status = msgspec.structs.replace(
        service.status, placements=placements, total_cost=sum_of_costs(placements)
    )
    if result is not None:
        status = msgspec.structs.replace(status, scheduler_decision=decision_of(result, fleet))
    return msgspec.structs.replace(service, status=status)


def decision_of(result: PlacementResult, fleet: Fleet) -> SchedulerDecision:
    """Return the scheduler decision: a sentence, and every rejected pool with its first reason."""
    placement = result.placement
    last = placement.decisions[-1] if placement.decisions else None
    if (
        last is not None
        and not last.fits
        and any(isinstance(reason, OverflowClosed) for reason in last.reasons)
    ):
        # The reason "overflow is closed" held only until placement opened the overflow. List the reasons of
        # the later decision instead: why the overflow targets reject the replica.
        with at_failure(placement.demand, fleet) as failure:
            return _decision(result, fleet, failure.decision if failure else last)
    return _decision(result, fleet, last)


def _decision(result: PlacementResult, fleet: Fleet, last: Decision | None) -> SchedulerDecision:
    placement = result.placement
    replicas_by_offer = {
        fleet.offers[row].name: count for row, count in fleet.replicas.by_offer(placement.demand.name).items()
    }
    return SchedulerDecision(
        reason=result.reason or placed_reason(placement.demand, replicas_by_offer),
        verdict=result.verdict,
        alternatives=tuple(_alternatives(last, set(replicas_by_offer)))[:MAX_ALTERNATIVES] if last else (),
        required=dict(result.required),
        digest=digest_of(placement.demand, result.fleet_digest),
    )


def placed_reason(demand: Demand, offers: Mapping[str, int]) -> str:
    """Return the sentence of a placed service: its offers by replica count, and the rule that spread the
    replicas."""
    names = sorted(offers, key=lambda name: (-offers[name], name))
    sentence = (
        f"Placed in {' and '.join(names)}"
        if len(names) < 3
        else f"Placed in {', '.join(names[:-1])} and {names[-1]}"
    )
    if demand.regions:
        return f"{sentence} per requiredRegions constraint"
    if demand.min_regions > 1:
        return f"{sentence} per minRegions of {demand.requirements_of('minRegions')[0].source}"
    return sentence


def _alternatives(decision: Decision, used_offers: set[str]) -> Sequence[Alternative]:
    """Return the unused offers that were rejected for a permanent reason. A rejection by the region or spread
    rule is not permanent: it holds for one replica, and another replica may use the offer."""
    alternatives = []
    for name, _ in all_rejections(decision):
        row = decision.table.row_of[name]
        reasons = [reason for reason, mask in decision.reasons.items() if mask[row]]
        permanent_reasons = [reason for reason in reasons if reason.plugin not in ("Region", "Spread")]
        if name in used_offers or not permanent_reasons:
            continue
        reason = permanent_reasons[0]
        if isinstance(reason, MissingProperty) and reason.requirement.kind == "compliance":
            rejected = f"No {reason.requirement.value.upper()} compliance label"
        else:
            rejected = str(reason.detail(decision.table, row))
        alternatives.append(Alternative(pool=name, rejected=rejected))
    return alternatives


def digest_of(demand: Demand, fleet_state: str) -> str:
    """Hash the demand with the state of the fleet: equal digests mean an equal demand on an equal fleet."""
    text = repr(
        (demand.name, demand.replicas, demand.requirements, demand.requests, demand.rules, fleet_state)
    )
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def fleet_digest(fleet: Fleet) -> str:
    """Hash all properties of the fleet that decisions depend on."""
    digest = hashlib.sha256()
    for name in sorted(fleet.clusters):
        cluster = fleet.clusters[name]
        digest.update(
            repr(
                (name, sorted(machine_counts(fleet, cluster).items()), sorted(cluster.used.items()))
            ).encode()
        )
    for row in sorted(fleet.inventory.unclaimed, key=lambda row: fleet.offers[row].name):
        free = fleet.inventory.unclaimed[row]
        names = sorted(fleet.machines.names[machine] for machine in free.machines)
        digest.update(repr((free.name, names, sorted(free.size.items()))).encode())
    for offer in sorted(fleet.offers, key=lambda candidate: candidate.name):
        digest.update(
            repr(
                (
                    offer.name,
                    offer.types,
                    offer.limits,
                    sorted(offer.compliance),
                    sorted(offer.labels.items()),
                )
            ).encode()
        )
    # What a gang lacks depends on all of its services.
    for gang, members in sorted(fleet.gangs.items()):
        demands = [(member.name, member.replicas, member.min_member) for member in members]
        digest.update(repr((gang, demands)).encode())
    return digest.hexdigest()


def cluster_object(cluster: Cluster, fleet: Fleet, previous: LatticeCluster | None = None) -> LatticeCluster:
    """Return the cluster object to write; with `previous`, only its spec changes."""
    offer, resource = fleet.offers[cluster.offer_row], LatticeCluster.resource
    spec = ClusterSpec(
        pool=offer.name,
        infrastructure="" if offer.kind == "pool" else offer.owner,
        provider=offer.place.provider,
        region=offer.place.region,
        zone=offer.place.zone,
        nodes=dict(sorted(class_counts(fleet, cluster).items())),
        min_nodes=cluster.min_nodes,
        max_nodes=None if cluster.max_nodes >= NO_LIMIT else cluster.max_nodes,
        policy_hash=cluster.group.split("/", 1)[0],
        labels=cluster_labels(cluster, fleet, previous),
    )
    # Metadata and status of an existing cluster stay.
    if previous is not None:
        return msgspec.structs.replace(previous, spec=spec)
    metadata = Metadata(name=cluster.name)
    return LatticeCluster(api_version=resource.api_version, kind=resource.kind, metadata=metadata, spec=spec)


def cluster_labels(cluster: Cluster, fleet: Fleet, previous: LatticeCluster | None = None) -> dict[str, str]:
    """Return the labels of the cluster: the overflow label stays from creation on, the reserve label as long
    as the cluster is reserved."""
    labels = {
        OVERFLOW_LABEL: cluster.overflow_source,
        RESERVE_LABEL: fleet.offers[cluster.offer_row].name if cluster.is_reserved else "",
    }
    previous_labels = previous.spec.labels if previous else {}
    return {key: value for key, value in {**previous_labels, **labels}.items() if value}


def cluster_status(cluster: Cluster, fleet: Fleet, previous: ClusterStatus, bill: Bill) -> ClusterStatus:
    """Return the status of the cluster with services, workloads and utilisation from the fleet, and the cost
    from the bill."""
    replicas = sum(fleet.machines.replica_counts[machine].total() for machine in cluster.machines)
    return msgspec.structs.replace(
        previous,
        services=_services_in(cluster, fleet),
        workloads=replicas,
        utilization=ClusterUtilization(
            cores=_share(cluster.used["cpu"], cluster.size["cpu"]),
            memory=_share(cluster.used["memory"], cluster.size["memory"]),
        ),
        cost=cluster_cost(cluster.name, bill),
    )


def cluster_cost(cluster: str, bill: Bill) -> TotalCost | None:
    """Return the cost of the cluster; None while the price of one of its machines is unknown."""
    if bill.unpriced_clusters.get(cluster):
        return None
    return total_cost(bill.cluster_rates.get(cluster, 0))


def _share(used: int, total: int) -> Decimal | None:
    # A total without a limit has no share.
    if total <= 0 or total >= NO_LIMIT:
        return None
    return (Decimal(used) / total).quantize(FOUR_DECIMALS).normalize()


def pool_status(pool: LatticePool, fleet: Fleet, world: World, bill: Bill) -> PoolStatus:
    """Return the status of the pool; allocated is the size of its machines, not the requests of replicas."""
    row = fleet.row(pool.metadata.name)
    allocated = {
        name: int(fleet.table.allocated(fleet.table.resource_index[name])[row])
        for name in ("nodes", "cpu", "memory")
    }
    limits, ledger = fleet.offers[row].limits, fleet.offers[row].budgets[0]
    budget = fleet.ledgers.budgets.get(ledger)
    pool_spending: PoolSpending | None = None
    if budget is not None and budget.limit is not None:
        pool_spending = spending(world.budget_status(ledger, bill.ledger_rates.get(ledger, 0)))
    return msgspec.structs.replace(
        pool.status,
        capacity=PoolUsage(
            allocated_nodes=allocated["nodes"],
            allocated_cores=Decimal(allocated["cpu"]) / MILLI,
            allocated_memory_gi=Decimal(allocated["memory"]) / GIB,
        ),
        utilization=PoolUtilization(
            nodes=_share(allocated["nodes"], limits.nodes),
            cores=_share(allocated["cpu"], limits.millicores),
            memory=_share(allocated["memory"], limits.memory),
        ),
        budget=pool_spending,
        clusters=tuple(
            PoolCluster(name=cluster.name, nodes=len(cluster.machines), services=_services_in(cluster, fleet))
            for _, cluster in sorted(fleet.inventory.clusters_by_offer[row].items())
        ),
        next_cluster_sequence=fleet.inventory.next_cluster_number.get(row, 1),
    )


def _services_in(cluster: Cluster, fleet: Fleet) -> int:
    services: set[str] = set()
    for machine in cluster.machines:
        services.update(fleet.machines.replica_counts[machine])
    return len(services)


def spending(status: BudgetStatus) -> PoolSpending:
    """Return the spending of a budget. `utilization_percent` is a fraction, not a percentage: a use of 8200 under
    the rule that binds and a limit of 10000 give 0.82."""
    return PoolSpending(
        current_month_cost=dollar_amount(status.spent),
        projected_month_cost=dollar_amount(status.projected),
        utilization_percent=budget_share(status),
    )


def budget_share(status: BudgetStatus) -> Decimal | None:
    """Return the use under the rule that binds as a fraction of the limit; None without a limit."""
    if status.limit is None:
        return None
    # A limit of zero counts as used up.
    return _share(status.used, status.limit) if status.limit else Decimal(1)


def cloud_status(cloud: CloudInfrastructure, fleet: Fleet, world: World, bill: Bill) -> CloudStatus:
    """Return the status of the cloud: spend and clusters by region."""
    name = cloud.metadata.name
    rows = {region: fleet.row(f"{name}/{region}") for region in cloud.spec.regions}
    # An offer of a cloud has two budgets: first of the cloud, then of the region.
    spent = {
        region: fleet.ledgers.budgets[fleet.offers[row].budgets[1]].spent_this_month
        for region, row in rows.items()
    }
    clusters = {region: len(fleet.inventory.clusters_by_offer[row]) for region, row in rows.items()}
    cloud_budget = fleet.ledgers.budgets[fleet.offers[next(iter(rows.values()))].budgets[0]] if rows else None
    return msgspec.structs.replace(
        cloud.status,
        current_spend=CloudSpend(
            monthly=dollar_amount(sum(spent.values())),
            by_region={region: dollar_amount(amount) for region, amount in spent.items()},
            projected=dollar_amount(
                world.budget_status(cloud_budget.name, bill.ledger_rates.get(cloud_budget.name, 0)).projected
            )
            if cloud_budget
            else None,
        ),
        clusters=CloudClusters(total=sum(clusters.values()), by_region=clusters),
        next_cluster_sequence={
            region: fleet.inventory.next_cluster_number.get(row, 1) for region, row in rows.items()
        },
    )


def static_status(data_center: StaticInfrastructure, fleet: Fleet) -> StaticStatus:
    """Return the status of the data center; used nodes are existing machines, used cores and memory are their
    sizes."""
    row = fleet.row(data_center.metadata.name)
    table, limits = fleet.table, fleet.offers[row].limits
    used = {
        name: int(table.allocated(table.resource_index[name])[row]) for name in ("nodes", "cpu", "memory")
    }
    memory = None
    if limits.memory < NO_LIMIT:
        memory = ByteUse(
            total=_bytes(limits.memory),
            used=_bytes(used["memory"]),
            available=_bytes(limits.memory - used["memory"]),
        )
    names = tuple(sorted(fleet.inventory.clusters_by_offer[row]))
    return msgspec.structs.replace(
        data_center.status,
        utilization=StaticUtilization(
            nodes=_count_use(used["nodes"], limits.nodes, 1),
            cores=_count_use(used["cpu"], limits.millicores, MILLI) if limits.millicores < NO_LIMIT else None,
            memory=memory,
        ),
        clusters=StaticClusters(total=len(names), names=names),
        next_cluster_sequence=fleet.inventory.next_cluster_number.get(row, 1),
    )


def _count_use(used: int, total: int, unit: int) -> CountUse:
    return CountUse(
        total=Decimal(total) / unit, used=Decimal(used) / unit, available=Decimal(total - used) / unit
    )


def _bytes(count: int) -> str:
    # An exact amount of more than 8 characters is hard to read.
    exact = format_bytes(count)
    return exact if len(exact) <= 8 else approximate_bytes(count)


def objects_to_write(world: World, fleet: Fleet, results: Mapping[str, PlacementResult]) -> list[Kind]:
    """Return all objects that the controllers would write: clusters, and the status of services, pools and
    infrastructure."""
    objects: list[Kind] = []
    bill = fleet_bill(fleet)
    for name in sorted(fleet.clusters):
        previous = world.objects.get((LatticeCluster.resource.kind, "", name))
        cluster = cluster_object(
            fleet.clusters[name], fleet, previous if isinstance(previous, LatticeCluster) else None
        )
        objects.append(
            msgspec.structs.replace(
                cluster, status=cluster_status(fleet.clusters[name], fleet, cluster.status, bill)
            )
        )
    for name, service in world.services.items():
        objects.append(with_placement(service, fleet, results.get(name)))
    # A pool or data center without an offer has no row in the fleet.
    offered = {(offer.kind, offer.owner) for offer in fleet.offers}
    for resource in world.objects.values():
        if isinstance(resource, LatticePool) and ("pool", resource.metadata.name) in offered:
            objects.append(
                msgspec.structs.replace(resource, status=pool_status(resource, fleet, world, bill))
            )
        elif isinstance(resource, CloudInfrastructure):
            objects.append(
                msgspec.structs.replace(resource, status=cloud_status(resource, fleet, world, bill))
            )
        elif isinstance(resource, StaticInfrastructure) and ("static", resource.metadata.name) in offered:
            objects.append(msgspec.structs.replace(resource, status=static_status(resource, fleet)))
    return objects


def status_with_health(service: LatticeService, health: ServiceHealth, replicas: int) -> ServiceStatus:
    """Return the service status with the health of its replicas; `replicas` counts all, also those that are
    being deleted.

    Placements and the scheduler decision stay, since another controller writes these fields; the caller sets
    the transition times of the conditions.
    """
    return msgspec.structs.replace(
        service.status,
        wanted_replicas=health.desired,
        replicas=replicas,
        updated_replicas=health.updated,
        has_been_available=health.has_been_available,
        health=Health(
            available=health.running,
            ready=health.ready,
            failures=health.failures,
            restarts=health.restarts,
        ),
        phase=health.phase,
        total_cost=sum_of_costs(service.status.placements),
        observed_generation=service.metadata.generation,
        conditions=health.conditions(),
    )
