"""The status of everything that supplies machines, with what is wrong with it: pools, clouds, data centers, node classes, clusters."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

import msgspec

from lattice.kinds.cluster import ClusterUtilization, LatticeCluster
from lattice.kinds.core import Secret
from lattice.kinds.infrastructure import CloudInfrastructure, CloudStatus, StaticInfrastructure
from lattice.kinds.meta.base import Condition, Kind, Status
from lattice.kinds.meta.quantity import dollars_to_micros
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool, PoolStatus
from lattice.kinds.workload import LatticeWorkload, WorkloadSpec
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.world import World
from lattice.placement.status.service_status import cloud_status, cluster_status, pool_status, static_status
from lattice.placement.status.supply_conditions import (
    credentials_condition,
    credentials_source,
    supply_conditions,
)

SupplyObject = LatticePool | CloudInfrastructure | StaticInfrastructure
SUPPLY_OBJECTS = (LatticePool, CloudInfrastructure, StaticInfrastructure)
SecretLookup = Callable[[str, str], Secret | None]  # namespace, name
FOUR_DECIMALS = Decimal("0.0001")
FAILING_CONDITIONS = (("Ready", "False"), ("CredentialsValid", "False"))
WARNING_CONDITIONS = (("BudgetExceeded", "True"), ("Degraded", "True"), ("CapacityPressure", "True"))
TENTH_OF_PERCENT = 1000
CENT_MICROS = 10_000  # micro-dollars: in the last minutes of a month, or of its first machine, less than that is a large part of it


@dataclass(frozen=True, slots=True)
class ClusterUsage:
    """What runs in one cluster."""

    services: int = 0
    workloads: int = 0
    requested: Mapping[str, int] = field(default_factory=dict)


def usage_by_cluster(workloads: Iterable[LatticeWorkload]) -> dict[str, ClusterUsage]:
    """By cluster. Replicas of one service and revision ask for the same: that is added up once."""
    services: dict[str, set[str]] = {}
    count, requested = Counter[str](), dict[str, Counter[str]]()
    shapes, alike = dict[tuple[str, str, str], WorkloadSpec](), Counter[tuple[str, str, str]]()
    for each in workloads:
        spec, owner = each.spec, f"{each.metadata.namespace}/{each.spec.service}" if each.spec.service else ""
        shape = (
            spec.cluster,
            owner,
            spec.revision if owner else f"{each.metadata.namespace}/{each.metadata.name}",
        )
        count[spec.cluster] += 1
        alike[shape] += 1
        shapes[shape] = spec
        if owner:
            services.setdefault(spec.cluster, set()).add(owner)
    for shape, spec in shapes.items():
        amounts = {name: amount * alike[shape] for name, amount in spec.request_amounts.items()}
        requested.setdefault(spec.cluster, Counter()).update(amounts)
    return {
        name: ClusterUsage(len(services.get(name, ())), number, requested[name])
        for name, number in count.items()
    }


def supply_statuses(
    world: World, fleet: Fleet, secrets: SecretLookup, used: Mapping[str, ClusterUsage]
) -> Iterator[tuple[Kind, Status]]:
    """Each object with the status that it should have; when conditions changed is the writer's to say."""
    offered = {(offer.kind, offer.owner) for offer in fleet.offers}
    kinds = Counter(
        fleet.machines.machine_type[row].name
        for cluster in fleet.clusters.values()
        for row in cluster.machines
    )
    for each in world.objects.values():
        name = each.metadata.name
        match each:
            case LatticePool() if ("pool", name) in offered:
                yield (
                    each,
                    _with_conditions(
                        each, _with_services(pool_status(each, fleet, world), used), fleet, world, secrets
                    ),
                )
            case CloudInfrastructure():
                yield each, _with_conditions(each, cloud_status(each, fleet, world), fleet, world, secrets)
            case StaticInfrastructure() if ("static", name) in offered:
                yield each, _with_conditions(each, static_status(each, fleet), fleet, world, secrets)
            case LatticeNodeClass():
                yield each, msgspec.structs.replace(each.status, nodes=kinds[name])
            case LatticeCluster() if name in fleet.clusters:
                cluster = fleet.clusters[name]
                found, use = cluster_status(cluster, fleet, each.status), used.get(name, ClusterUsage())
                shares = {
                    key: _share(use.requested.get(key, 0), cluster.size[key]) for key in ("cpu", "memory")
                }
                utilization = ClusterUtilization(cores=shares["cpu"], memory=shares["memory"])
                yield (
                    each,
                    msgspec.structs.replace(
                        found, services=use.services, workloads=use.workloads, utilization=utilization
                    ),
                )


def _with_services(status: PoolStatus, used: Mapping[str, ClusterUsage]) -> PoolStatus:
    clusters = (
        msgspec.structs.replace(each, services=used.get(each.name, ClusterUsage()).services)
        for each in status.clusters
    )
    return msgspec.structs.replace(status, clusters=tuple(clusters))


def _with_conditions(
    supplier: SupplyObject, status: Status, fleet: Fleet, world: World, secrets: SecretLookup
) -> Status:
    login = credentials_source(supplier)
    secret = secrets(login.namespace, login.secret_name) if login else None
    found = (*supply_conditions(supplier, fleet, world), credentials_condition(login, secret))
    return msgspec.structs.replace(
        status, conditions=found, phase=supply_phase(found), observed_generation=supplier.metadata.generation
    )


def supply_phase(found: Iterable[Condition]) -> str:
    """One word: the first thing that is wrong, or Ready."""
    said = {each.type: each for each in found}
    for kind, status in FAILING_CONDITIONS:
        if (each := said.get(kind)) is not None and each.status == status:
            return each.reason
    for kind, status in WARNING_CONDITIONS:
        if (each := said.get(kind)) is not None and each.status == status:
            return kind
    return "Ready"


def _share(used: int, whole: int) -> Decimal | None:
    return (
        None
        if whole <= 0 or whole >= NO_LIMIT
        else (Decimal(used) / whole).quantize(FOUR_DECIMALS).normalize()
    )


def without_minor_spend(before: Status, after: Status) -> Status:
    """Without the trickle of money: what was spent since is taken over once it is a tenth of a percent of the month, and a cent."""
    if isinstance(before, PoolStatus) and isinstance(after, PoolStatus) and before.budget and after.budget:
        old, new = before.budget, after.budget
        if _is_minor_change(
            old.current_month_cost, new.current_month_cost, new.projected_month_cost
        ) and _is_minor_change(old.projected_month_cost, new.projected_month_cost, new.projected_month_cost):
            return msgspec.structs.replace(after, budget=old)
    if (
        isinstance(before, CloudStatus)
        and isinstance(after, CloudStatus)
        and before.current_spend
        and after.current_spend
    ):
        past, now = before.current_spend, after.current_spend
        if _is_minor_change(past.monthly, now.monthly, now.projected) and _is_minor_change(
            past.projected, now.projected, now.projected
        ):
            return msgspec.structs.replace(after, current_spend=past)
    return after


def _is_minor_change(old: object, new: object, whole: object) -> bool:
    amounts = [0 if each is None else dollars_to_micros(each) for each in (old, new, whole)]  # type: ignore[arg-type]
    return abs(amounts[0] - amounts[1]) <= max(amounts[2] // TENTH_OF_PERCENT, CENT_MICROS)
