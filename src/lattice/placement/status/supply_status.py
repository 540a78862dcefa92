"""Compute the status of all supply objects with their conditions: pools, clouds, data centers, node classes
and clusters."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

import msgspec

from lattice.kinds.cluster import ClusterUtilization, LatticeCluster
from lattice.kinds.core import Secret
from lattice.kinds.infrastructure import (
    BUDGET_CONDITION,
    CREDENTIALS_CONDITION,
    DEGRADED_CONDITION,
    PRESSURE_CONDITION,
    CloudInfrastructure,
    CloudStatus,
    StaticInfrastructure,
)
from lattice.kinds.meta.base import Condition, Kind, Status, path_of
from lattice.kinds.meta.conditions import READY_CONDITION
from lattice.kinds.meta.quantity import CENT_MICROS, dollars_to_micros
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool, PoolStatus
from lattice.kinds.workload import LatticeWorkload, WorkloadSpec, service_path
from lattice.placement.inputs.bill import Bill
from lattice.placement.model.costs import fleet_bill
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.world import World
from lattice.placement.status.budget_conditions import budget_verdicts, region_budgets
from lattice.placement.status.fleet_status import (
    FOUR_DECIMALS,
    cloud_status,
    cluster_cost,
    cluster_status,
    pool_status,
    static_status,
)
from lattice.placement.status.supply_conditions import (
    credentials_condition,
    credentials_source,
    supply_conditions,
)

SupplyObject = LatticePool | CloudInfrastructure | StaticInfrastructure
# Looks up a secret by namespace and name.
SecretLookup = Callable[[str, str], Secret | None]
FAILING_CONDITIONS = ((READY_CONDITION, "False"), (CREDENTIALS_CONDITION, "False"))
WARNING_CONDITIONS = ((BUDGET_CONDITION, "True"), (DEGRADED_CONDITION, "True"), (PRESSURE_CONDITION, "True"))
# A change of spend is minor below projected spend / 1000.
MINOR_SPEND_DIVISOR = 1000


@dataclass(frozen=True, slots=True)
class ClusterUsage:
    """Services, workloads and requested resources of one cluster."""

    services: int = 0
    workloads: int = 0
    requested: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrialState:
    """A world with its trial fleet, and the bill of its machines."""

    world: World
    fleet: Fleet
    bill: Bill


def usage_by_cluster(workloads: Iterable[LatticeWorkload]) -> dict[str, ClusterUsage]:
    """Sum up the usage by cluster. Replicas of one service and revision have equal requests, so their request
    is read once."""
    services: dict[str, set[str]] = {}
    workload_counts, requested = Counter[str](), dict[str, Counter[str]]()
    shapes, shape_counts = dict[tuple[str, str, str], WorkloadSpec](), Counter[tuple[str, str, str]]()
    for workload in workloads:
        spec, owner = workload.spec, service_path(workload)
        # Workloads without a service have shapes of their own.
        shape = (
            spec.cluster,
            owner,
            spec.revision if owner else path_of(workload),
        )
        workload_counts[spec.cluster] += 1
        shape_counts[shape] += 1
        shapes[shape] = spec
        if owner:
            services.setdefault(spec.cluster, set()).add(owner)
    for shape, spec in shapes.items():
        amounts = {name: amount * shape_counts[shape] for name, amount in spec.request_amounts.items()}
        requested.setdefault(spec.cluster, Counter()).update(amounts)
    return {
        name: ClusterUsage(len(services.get(name, ())), count, requested[name])
        for name, count in workload_counts.items()
    }


def supply_statuses(
    world: World, fleet: Fleet, secrets: SecretLookup, usages: Mapping[str, ClusterUsage]
) -> Iterator[tuple[Kind, Status]]:
    """Yield all supply objects with their new status. The writer of a status sets the transition times of
    conditions."""
    bill = world.recorded_bill or fleet_bill(fleet)
    trial = TrialState(world, fleet, bill)
    offered = {(offer.kind, offer.owner) for offer in fleet.offers}
    machines_by_class: Counter[str] = Counter()
    for cluster in fleet.clusters.values():
        machines_by_class.update(fleet.machines.machine_type[row].name for row in cluster.machines)
    for resource in world.objects.values():
        name = resource.metadata.name
        match resource:
            case LatticePool() if ("pool", name) in offered:
                status = pool_status(resource, fleet, world, bill)
                # Services by cluster are counted from workloads, not from the planned fleet.
                clusters = (
                    msgspec.structs.replace(
                        pool_cluster, services=usages.get(pool_cluster.name, ClusterUsage()).services
                    )
                    for pool_cluster in status.clusters
                )
                status = msgspec.structs.replace(status, clusters=tuple(clusters))
                yield resource, _with_conditions(resource, status, trial, secrets)
            case CloudInfrastructure():
                cloud = msgspec.structs.replace(
                    cloud_status(resource, fleet, world, bill),
                    region_budgets=region_budgets(budget_verdicts(resource, world, bill)),
                )
                yield (
                    resource,
                    _with_conditions(resource, cloud, trial, secrets),
                )
            case StaticInfrastructure() if ("static", name) in offered:
                yield (
                    resource,
                    _with_conditions(resource, static_status(resource, fleet), trial, secrets),
                )
            case LatticeNodeClass():
                yield resource, msgspec.structs.replace(resource.status, nodes=machines_by_class[name])
            case LatticeCluster() if name in fleet.clusters:
                cluster = fleet.clusters[name]
                usage = usages.get(name, ClusterUsage())
                shares = {
                    key: _share(usage.requested.get(key, 0), cluster.size[key]) for key in ("cpu", "memory")
                }
                utilization = ClusterUtilization(cores=shares["cpu"], memory=shares["memory"])
                yield (
                    resource,
                    msgspec.structs.replace(
                        cluster_status(cluster, fleet, resource.status, bill),
                        services=usage.services,
                        workloads=usage.workloads,
                        utilization=utilization,
                    ),
                )
            # The offer of the cluster is gone, but its machines still cost money.
            case LatticeCluster():
                yield resource, msgspec.structs.replace(resource.status, cost=cluster_cost(name, bill))


def _with_conditions(
    supplier: SupplyObject, status: Status, trial: TrialState, secrets: SecretLookup
) -> Status:
    source = credentials_source(supplier)
    secret = secrets(source.namespace, source.secret_name) if source else None
    conditions = (
        *supply_conditions(supplier, trial.fleet, trial.world, trial.bill),
        credentials_condition(source, secret),
    )
    return msgspec.structs.replace(
        status,
        conditions=conditions,
        phase=_supply_phase(conditions),
        observed_generation=supplier.metadata.generation,
    )


def _supply_phase(conditions: Iterable[Condition]) -> str:
    """Return the phase: the reason of a failing condition, the type of a warning condition, or Ready."""
    by_type = {condition.type: condition for condition in conditions}
    for kind, status in FAILING_CONDITIONS:
        condition = by_type.get(kind)
        if condition is not None and condition.status == status:
            return condition.reason
    for kind, status in WARNING_CONDITIONS:
        condition = by_type.get(kind)
        if condition is not None and condition.status == status:
            return kind
    return "Ready"


def _share(used: int, total: int) -> Decimal | None:
    # A total without a limit has no share.
    if total <= 0 or total >= NO_LIMIT:
        return None
    return (Decimal(used) / total).quantize(FOUR_DECIMALS).normalize()


def without_minor_spend(before: Status, after: Status) -> Status:
    """Return the new status, but with the previous spend if the change is minor, so that spending that grows
    slowly causes no writes.

    A change is minor up to a tenth of a percent of the projected spend, or up to a cent.
    """
    if isinstance(before, PoolStatus) and isinstance(after, PoolStatus) and before.budget and after.budget:
        previous_budget, new_budget = before.budget, after.budget
        # The use depends on the limit too: a changed limit shows at once.
        if (
            _is_minor_share(previous_budget.utilization_percent, new_budget.utilization_percent)
            and _is_minor_change(
                previous_budget.current_month_cost,
                new_budget.current_month_cost,
                new_budget.projected_month_cost,
            )
            and _is_minor_change(
                previous_budget.projected_month_cost,
                new_budget.projected_month_cost,
                new_budget.projected_month_cost,
            )
        ):
            return msgspec.structs.replace(after, budget=previous_budget)
    if (
        isinstance(before, CloudStatus)
        and isinstance(after, CloudStatus)
        and before.current_spend
        and after.current_spend
    ):
        previous_spend, new_spend = before.current_spend, after.current_spend
        if _is_minor_change(
            previous_spend.monthly, new_spend.monthly, new_spend.projected
        ) and _is_minor_change(previous_spend.projected, new_spend.projected, new_spend.projected):
            return msgspec.structs.replace(after, current_spend=previous_spend)
    return after


def _is_minor_share(old: Decimal | None, new: Decimal | None) -> bool:
    """Report whether two shares of a limit differ by at most 1 / MINOR_SPEND_DIVISOR of the larger share, apart from
    rounding."""
    if old is None or new is None:
        return old is new
    shares = Decimal(str(old)), Decimal(str(new))
    return abs(shares[0] - shares[1]) <= max(shares) / MINOR_SPEND_DIVISOR + FOUR_DECIMALS


def _is_minor_change(old: object, new: object, projected: object) -> bool:
    amounts = [0 if amount is None else dollars_to_micros(amount) for amount in (old, new, projected)]  # type: ignore[arg-type]
    # In the last minutes of a month, or after the first machine of a month, a cent is a large share of the
    # projected spend.
    return abs(amounts[0] - amounts[1]) <= max(amounts[2] // MINOR_SPEND_DIVISOR, CENT_MICROS)
