"""Status of services and supply, and the clusters that follow, as a fleet says they are."""

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
from lattice.kinds.meta.base import Condition, Kind, Metadata
from lattice.kinds.meta.quantity import (
    GIB,
    MILLI,
    approximate_bytes,
    dollars_to_micros,
    format_bytes,
    format_dollars,
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
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.explain.blockers import at_failure
from lattice.placement.greedy.machine_choice import class_counts
from lattice.placement.greedy.place import Placement
from lattice.placement.inputs.ledger_math import rate_per_30_days
from lattice.placement.model.costs import placed_costs
from lattice.placement.model.current_state import OVERFLOW_LABEL
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Cluster, Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.rejection_reasons import MissingProperty
from lattice.placement.model.world import World, placed_counts
from lattice.placement.plugins.filters.overflow import OverflowClosed

PLACED = "Placed"
SHOWN_ALTERNATIVES = 50
FOUR_DECIMALS = Decimal("0.0001")


def dollar_amount(micros: int) -> Decimal:
    """Without needless zeros: 0.384, 414.72."""
    return Decimal(format_dollars(micros))


def total_cost(micros: int) -> TotalCost:
    return TotalCost(hourly=dollar_amount(micros), projected30_day=dollar_amount(rate_per_30_days(micros)))


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """What is said about a service: how it was placed, or why it was not."""

    placement: Placement
    verdict: str = PLACED
    reason: str = ""  # where it was not; where it was, one is made
    required: Mapping[str, object] = field(default_factory=dict)
    fleet_digest: str = ""  # of the fleet, see state_of


def with_placement(service: LatticeService, fleet: Fleet, answer: PlacementResult | None) -> LatticeService:
    """The service with where it is, what that costs and why; what its agents report stays."""
    name = service_key(service)
    counts, costs = placed_counts(fleet, name), placed_costs(fleet, name)
    placements = tuple(
        ServicePlacement(
            pool=pool,
            cluster=cluster,
            replicas=count,
            node=kind,
            cost=HourlyCost(hourly=dollar_amount(costs[pool, cluster, kind])),
        )
        for (pool, cluster, kind), count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    )
    status = msgspec.structs.replace(
        service.status, placements=placements, total_cost=total_cost(sum(costs.values()))
    )
    if answer is not None:
        status = msgspec.structs.replace(status, scheduler_decision=decision_of(answer, fleet))
    return msgspec.structs.replace(service, status=status)


def decision_of(answer: PlacementResult, fleet: Fleet) -> SchedulerDecision:
    """A sentence, and each pool that was ruled out with its first reason."""
    placement = answer.placement
    last = placement.decisions[-1] if placement.decisions else None
    if (
        last is not None
        and not last.fits
        and any(isinstance(reason, OverflowClosed) for reason in last.reasons)
    ):
        with at_failure(
            placement.demand, fleet
        ) as failure:  # what overflow targets said counts, not that they were not asked first
            return _decision(answer, fleet, failure.decision if failure else last)
    return _decision(answer, fleet, last)


def _decision(answer: PlacementResult, fleet: Fleet, last: Decision | None) -> SchedulerDecision:
    placement = answer.placement
    where = {
        fleet.offers[row].name: count for row, count in fleet.replicas_by_offer(placement.demand.name).items()
    }
    return SchedulerDecision(
        reason=answer.reason or placed_because(placement.demand, where),
        verdict=answer.verdict,
        alternatives=tuple(_alternatives(last, set(where)))[:SHOWN_ALTERNATIVES] if last else (),
        required=dict(answer.required),
        digest=digest_of(placement.demand, answer.fleet_digest),
    )


def placed_because(demand: Demand, offers: Mapping[str, int]) -> str:
    names = sorted(offers, key=lambda name: (-offers[name], name))
    where = (
        f"Placed in {' and '.join(names)}"
        if len(names) < 3
        else f"Placed in {', '.join(names[:-1])} and {names[-1]}"
    )
    if demand.regions:
        return f"{where} per requiredRegions constraint"
    if demand.min_regions > 1:
        return f"{where} per minRegions of {demand.requirements_of('minRegions')[0].source}"
    return where


def _alternatives(decision: Decision, taken: set[str]) -> Sequence[Alternative]:
    """Only what rules a pool out for good, not where one replica had to go."""
    found = []
    for name, _ in all_rejections(decision):
        row = decision.table.row_of[name]
        reasons = [reason for reason, mask in decision.reasons.items() if mask[row]]
        lasting = [reason for reason in reasons if reason.plugin not in ("Region", "Spread")]
        if name not in taken and lasting:
            found.append(Alternative(pool=name, rejected=_rejected(lasting[0], decision, row)))
    return found


def _rejected(reason: object, decision: Decision, row: int) -> str:
    if isinstance(reason, MissingProperty) and reason.requirement.kind == "compliance":
        return f"No {reason.requirement.value.upper()} compliance label"
    return str(reason.detail(decision.table, row))  # type: ignore[attr-defined]


def digest_of(demand: Demand, state: str) -> str:
    """Equal digests: the same demand on the same supply with the same things in it."""
    seen = repr((demand.name, demand.replicas, demand.requirements, demand.requests, demand.rules, state))
    return hashlib.sha256(seen.encode()).hexdigest()[:24]


def fleet_digest(fleet: Fleet) -> str:
    """One text for everything that decisions look at."""
    seen = hashlib.sha256()
    for name in sorted(fleet.clusters):
        cluster = fleet.clusters[name]
        seen.update(
            repr((name, sorted(class_counts(fleet, cluster).items()), sorted(cluster.used.items()))).encode()
        )
    for offer in sorted(fleet.offers, key=lambda each: each.name):
        seen.update(
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
    return seen.hexdigest()


def cluster_object(cluster: Cluster, fleet: Fleet, before: LatticeCluster | None = None) -> LatticeCluster:
    """As it should be written; what is known about its nodes stays."""
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
        labels=cluster_labels(cluster, fleet, before),
    )
    if before is not None:
        return msgspec.structs.replace(before, spec=spec)
    metadata = Metadata(name=cluster.name)
    return LatticeCluster(api_version=resource.api_version, kind=resource.kind, metadata=metadata, spec=spec)


def cluster_labels(cluster: Cluster, fleet: Fleet, before: LatticeCluster | None = None) -> dict[str, str]:
    """What it is for: that it overflows, from its first day on; that it is kept, as long as it is."""
    found = {
        OVERFLOW_LABEL: cluster.overflow_source,
        RESERVE_LABEL: fleet.offers[cluster.offer_row].name if cluster.is_reserved else "",
    }
    known = before.spec.labels if before else {}
    return {key: value for key, value in {**known, **found}.items() if value}


def cluster_status(cluster: Cluster, fleet: Fleet, before: ClusterStatus) -> ClusterStatus:
    rate = sum(fleet.machines.machine_type[machine].rate for machine in cluster.machines)
    holds = [fleet.machines.replica_counts[machine] for machine in cluster.machines]
    used = {name: _share(cluster.used[name], cluster.size[name]) for name in ("cpu", "memory")}
    return msgspec.structs.replace(
        before,
        services=len({service for held in holds for service in held}),
        workloads=sum(sum(held.values()) for held in holds),
        utilization=ClusterUtilization(cores=used["cpu"], memory=used["memory"]),
        cost=total_cost(rate),
    )


def _share(used: int, whole: int) -> Decimal | None:
    return (
        None
        if whole <= 0 or whole >= NO_LIMIT
        else (Decimal(used) / whole).quantize(FOUR_DECIMALS).normalize()
    )


def pool_status(pool: LatticePool, fleet: Fleet, world: World) -> PoolStatus:
    """Allocated is what machines have, not what replicas ask for."""
    row = fleet.row(pool.metadata.name)
    taken = {
        name: int(fleet.table.allocated(fleet.table.resource_index[name])[row])
        for name in ("nodes", "cpu", "memory")
    }
    limits = fleet.offers[row].limits
    return msgspec.structs.replace(
        pool.status,
        capacity=PoolUsage(
            allocated_nodes=taken["nodes"],
            allocated_cores=Decimal(taken["cpu"]) / MILLI,
            allocated_memory_gi=Decimal(taken["memory"]) / GIB,
        ),
        utilization=PoolUtilization(
            nodes=_share(taken["nodes"], limits.nodes),
            cores=_share(taken["cpu"], limits.milli),
            memory=_share(taken["memory"], limits.memory),
        ),
        budget=_spending(fleet.offers[row].budgets[0], fleet, world),
        clusters=tuple(
            PoolCluster(name=each.name, nodes=len(each.machines), services=_services_in(each, fleet))
            for _, each in sorted(fleet.clusters_by_offer[row].items())
        ),
        next_cluster_sequence=fleet.next_cluster_number.get(row, 1),
    )


def _services_in(cluster: Cluster, fleet: Fleet) -> int:
    return len(
        {service for machine in cluster.machines for service in fleet.machines.replica_counts[machine]}
    )


def _spending(ledger: str, fleet: Fleet, world: World) -> PoolSpending | None:
    budget = fleet.budgets.get(ledger)
    if budget is None or budget.limit is None:
        return None
    projected = projected_cost(ledger, fleet, world)
    return spending(budget.spent_this_month, projected, budget.limit)


def spending(spent: int, projected: int, limit: int) -> PoolSpending:
    """utilizationPercent is a fraction of the budget that is projected: 8200 of 10000 is 0.82."""
    return PoolSpending(
        current_month_cost=dollar_amount(spent),
        projected_month_cost=dollar_amount(projected),
        utilization_percent=_share(projected, limit) if limit else Decimal(1),
    )


def projected_cost(ledger: str, fleet: Fleet, world: World) -> int:
    """Micro-dollars of this calendar month: spent, and the present rate until it ends; without a clock, of 30 days."""
    return world.projected_spend(ledger, fleet.committed[ledger])


def cloud_status(cloud: CloudInfrastructure, fleet: Fleet, world: World) -> CloudStatus:
    name = cloud.metadata.name
    rows = {region: fleet.row(f"{name}/{region}") for region in cloud.spec.regions}
    spent = {
        region: fleet.budgets[fleet.offers[row].budgets[1]].spent_this_month for region, row in rows.items()
    }
    clusters = {region: len(fleet.clusters_by_offer[row]) for region, row in rows.items()}
    whole = fleet.budgets[fleet.offers[next(iter(rows.values()))].budgets[0]] if rows else None
    return msgspec.structs.replace(
        cloud.status,
        current_spend=CloudSpend(
            monthly=dollar_amount(sum(spent.values())),
            by_region={region: dollar_amount(amount) for region, amount in spent.items()},
            projected=dollar_amount(projected_cost(whole.name, fleet, world)) if whole else None,
        ),
        clusters=CloudClusters(total=sum(clusters.values()), by_region=clusters),
        next_cluster_sequence={region: fleet.next_cluster_number.get(row, 1) for region, row in rows.items()},
    )


def static_status(static: StaticInfrastructure, fleet: Fleet) -> StaticStatus:
    """Nodes in use are machines that were made; cores and memory in use are what these have."""
    row = fleet.row(static.metadata.name)
    table, limits = fleet.table, fleet.offers[row].limits
    taken = {
        name: int(table.allocated(table.resource_index[name])[row]) for name in ("nodes", "cpu", "memory")
    }
    names = tuple(sorted(fleet.clusters_by_offer[row]))
    return msgspec.structs.replace(
        static.status,
        utilization=StaticUtilization(
            nodes=_count_use(taken["nodes"], limits.nodes, 1),
            cores=_count_use(taken["cpu"], limits.milli, MILLI) if limits.milli < NO_LIMIT else None,
            memory=_byte_use(taken["memory"], limits.memory) if limits.memory < NO_LIMIT else None,
        ),
        clusters=StaticClusters(total=len(names), names=names),
        next_cluster_sequence=fleet.next_cluster_number.get(row, 1),
    )


def _count_use(used: int, total: int, unit: int) -> CountUse:
    return CountUse(
        total=Decimal(total) / unit, used=Decimal(used) / unit, available=Decimal(total - used) / unit
    )


def _byte_use(used: int, total: int) -> ByteUse:
    return ByteUse(total=_bytes(total), used=_bytes(used), available=_bytes(total - used))


def _bytes(count: int) -> str:
    exact = format_bytes(count)
    return exact if len(exact) <= 8 else approximate_bytes(count)


def objects_to_write(world: World, fleet: Fleet, answers: Mapping[str, PlacementResult]) -> list[Kind]:
    """Everything that Lattice would write: clusters, and the status of services, pools and infrastructure."""
    found: list[Kind] = []
    for name in sorted(fleet.clusters):
        before = world.objects.get((LatticeCluster.resource.kind, "", name))
        made = cluster_object(
            fleet.clusters[name], fleet, before if isinstance(before, LatticeCluster) else None
        )
        found.append(
            msgspec.structs.replace(made, status=cluster_status(fleet.clusters[name], fleet, made.status))
        )
    for name, service in world.services.items():
        found.append(with_placement(service, fleet, answers.get(name)))
    offered = {(offer.kind, offer.owner) for offer in fleet.offers}
    for each in world.objects.values():
        if isinstance(each, LatticePool) and ("pool", each.metadata.name) in offered:
            found.append(msgspec.structs.replace(each, status=pool_status(each, fleet, world)))
        elif isinstance(each, CloudInfrastructure):
            found.append(msgspec.structs.replace(each, status=cloud_status(each, fleet, world)))
        elif isinstance(each, StaticInfrastructure) and ("static", each.metadata.name) in offered:
            found.append(msgspec.structs.replace(each, status=static_status(each, fleet)))
    return found


def status_with_health(service: LatticeService, replicas: Sequence[LatticeWorkload]) -> ServiceStatus:
    """The status with what its replicas say; where they are and why is somebody else's to write. `last_transition_time` too."""
    available = ready = 0
    failed: list[LatticeWorkload] = []
    for each in replicas:
        status = each.status
        if status.actual_state == "Pending" or each.metadata.deletion_timestamp:
            continue
        if status.actual_state == "Running":
            available += 1
            ready += bool(status.ready)
        elif status.actual_state == "Failed":
            failed.append(each)
    wanted = sum(each.replicas or 0 for each in service.status.placements)
    phase = _phase(service, wanted, ready, len(failed))
    return msgspec.structs.replace(
        service.status,
        replicas=len(replicas),
        health=Health(available=available, ready=ready),
        phase=phase,
        total_cost=total_cost(
            sum(
                dollars_to_micros(each.cost.hourly)
                for each in service.status.placements
                if each.cost and each.cost.hourly
            )
        ),
        observed_generation=service.metadata.generation,
        conditions=(_ready(service, wanted, ready, failed),),
    )


def _phase(service: LatticeService, wanted: int, ready: int, failed: int) -> str:
    if service.metadata.deletion_timestamp:
        return "Deleting"
    if not wanted and service.spec.desired_replicas():
        decided = service.status.scheduler_decision
        return "Unschedulable" if decided is not None and decided.verdict not in ("", "Placed") else "Pending"
    if failed:
        return "Degraded" if ready else "Failed"
    return "Running" if ready >= wanted and wanted >= service.spec.desired_replicas() else "Progressing"


def _ready(service: LatticeService, wanted: int, ready: int, failed: Sequence[LatticeWorkload]) -> Condition:
    needed = max(wanted, service.spec.desired_replicas())
    message = f"{ready:,} of {needed:,} replicas are ready"
    if failed:
        first = failed[0]
        message += f"; {first.metadata.name} failed: {first.status.failure_reason or 'no reason was told'}"
    is_ready = ready >= needed
    reason = "ReplicasReady" if is_ready else "ReplicaFailed" if failed else "ReplicasMissing"
    return Condition(type="Ready", status="True" if is_ready else "False", reason=reason, message=message)
