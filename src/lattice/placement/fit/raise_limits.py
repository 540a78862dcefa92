"""Options for changes by the platform team that raise limits of an offer or state unknown prices."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from lattice.kinds.infrastructure import CloudInfrastructure, StaticCapacity, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger, LedgerSpec
from lattice.kinds.meta.quantity import (
    GIB,
    MICRO,
    MILLI,
    format_bytes,
    format_dollars,
    format_per_hour,
    micros_to_dollars,
)
from lattice.kinds.pool import LatticePool, PoolBudget
from lattice.placement.inputs.ledger_math import (
    open_ledger,
    rate_per_30_days,
    required_limit,
)
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.object_changes import (
    ChangeOption,
    ObjectChange,
    RejectedCandidate,
    change_at_path,
    platform_change,
    with_fields,
    with_spec,
)
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.supply import cloud_account, pool_account
from lattice.placement.model.world import World
from lattice.placement.plugins.filters.budget import unpriced_classes

# Upper end of the search for an increase in machines or clusters, above all real needs.
MAX_COUNT_INCREASE = 1 << 20
# Upper end of the search for an increase of a budget, in micro-dollars per month.
MAX_BUDGET_INCREASE_MICROS = 10**8 * MICRO
# Upper end of the search for an increase in GPUs of one model.
MAX_GPU_INCREASE = 4096


def capacity_options(candidate: RejectedCandidate) -> Iterator[ChangeOption]:
    """Yield an option for every limit that the next machine would exceed."""
    fleet, ask, row = candidate.fleet, candidate.ask, candidate.row
    table, demand = fleet.table, ask.demand
    can_grow = bool(
        fleet.inventory.growable_clusters(row, fleet.groups.growable(demand, ask.overflow_source, row))
    )
    # A new cluster starts with several machines.
    count = 1 if can_grow else candidate.offer.initial_nodes(demand.rules.min_nodes)
    free = {
        name: int(table.free(table.resource_index[name])[row])
        for name in ("nodes", "cpu", "memory", "clusters")
    }
    if not can_grow and free["clusters"] < 1:
        yield from _more_clusters(candidate)
    if not can_grow and ask.overflow_source:
        yield from _overflow_clusters(candidate)
    if isinstance(candidate.supply_object, StaticInfrastructure):
        offer = candidate.offer
        if demand.needs.get("gpu") and offer.limits.gpus and not table.gpu_resource_for(demand, row):
            yield from _more_gpus(candidate)
        if free["nodes"] < count or (offer.has_reserve and offer.name not in demand.usable_reserves):
            yield from _more_machines(candidate)
    elif isinstance(candidate.supply_object, LatticePool):
        for name in ("nodes", "cpu", "memory"):
            if free[name] < _needed(candidate, name, count):
                yield _pool_limit(candidate, name)


def _needed(candidate: RejectedCandidate, name: str, count: int) -> int:
    """Return how much of the resource `count` new machines of the smallest type that fits would use."""
    if name == "nodes":
        return count
    quotes = candidate.fleet.quotes
    can_host, sizes = (
        quotes.machine_fit(candidate.demand).can_host[:, candidate.row],
        quotes.catalog.size(name)[:, candidate.row],
    )
    needed = [
        int(size) * count
        for size, can_host_replica in zip(sizes, can_host, strict=True)
        if can_host_replica and size < NO_LIMIT
    ]
    return min(needed, default=0)


# By resource: the attribute of the Python class, the field in manifests, the unit.
_POOL_LIMITS = {
    "nodes": ("max_nodes", "maxNodes", 1),
    "cpu": ("max_cores", "maxCores", MILLI),
    "memory": ("max_memory_gi", "maxMemoryGi", GIB),
}


def _pool_limit(candidate: RejectedCandidate, resource: str) -> ChangeOption:
    field, name, unit = _POOL_LIMITS[resource]
    current_limit = int(getattr(candidate.supply_object.spec.capacity, field))
    table, row = candidate.fleet.table, candidate.row

    def build(strength: int) -> ObjectChange:
        new_limit = current_limit + strength
        sentence = f"raise {name} of {candidate.offer.name} by {strength:,} to {new_limit:,}"
        value = new_limit if resource == "nodes" else Decimal(new_limit)
        return platform_change(
            candidate,
            f"spec.capacity.{name}",
            sentence,
            lambda kind: with_spec(kind, capacity=with_fields(kind.spec.capacity, **{field: value})),
        )

    def measure(_: Fleet) -> int:
        return -(-int(table.allocated(table.resource_index[resource])[row]) // unit) - current_limit

    return ChangeOption((*_name(candidate), name), build, MAX_COUNT_INCREASE, measure)


def _name(candidate: RejectedCandidate) -> tuple[str, ...]:
    return (candidate.offer.kind, candidate.offer.name)


def _more_clusters(candidate: RejectedCandidate) -> Iterator[ChangeOption]:
    """Yield options to raise the cluster limit of a cloud region.

    A quota that the region states replaces the cloud's default.
    """
    if not isinstance(candidate.supply_object, CloudInfrastructure):
        return
    region, spec = candidate.region, candidate.supply_object.spec
    # A quota of the region replaces the default, so only one of the two binds.
    if spec.regions[region].quotas.max_clusters is not None:
        limit_name = f"maxClusters of {candidate.offer.name}"
        path = f"spec.regions.{region}.quotas.maxClusters"

        def with_quota(cloud: CloudInfrastructure, new_limit: int) -> Any:
            region_spec = cloud.spec.regions[region]
            quotas = with_fields(region_spec.quotas, max_clusters=new_limit)
            return with_spec(
                cloud, regions={**cloud.spec.regions, region: with_fields(region_spec, quotas=quotas)}
            )

        yield _cluster_limit_option(candidate, limit_name, path, with_quota)
    elif spec.defaults.max_clusters_per_region is not None:
        limit_name = f"maxClustersPerRegion of {candidate.offer.owner}"
        path = "spec.defaults.maxClustersPerRegion"

        def with_default(cloud: CloudInfrastructure, new_limit: int) -> Any:
            defaults = with_fields(cloud.spec.defaults, max_clusters_per_region=new_limit)
            return with_spec(cloud, defaults=defaults)

        yield _cluster_limit_option(candidate, limit_name, path, with_default)


def _cluster_limit_option(
    candidate: RejectedCandidate, limit_name: str, path: str, rewrite: Callable[[Any, int], Any]
) -> ChangeOption:
    current_limit, table, row = candidate.offer.limits.clusters, candidate.fleet.table, candidate.row

    def build(strength: int) -> ObjectChange:
        new_limit = current_limit + strength
        return platform_change(
            candidate,
            path,
            f"raise {limit_name} by {strength:,} to {new_limit:,}",
            lambda kind: rewrite(kind, new_limit),
        )

    return ChangeOption(
        (*_name(candidate), path),
        build,
        MAX_COUNT_INCREASE,
        lambda _: int(table.allocated(table.resource_index["clusters"])[row]) - current_limit,
    )


def _overflow_clusters(candidate: RejectedCandidate) -> Iterator[ChangeOption]:
    data_center = candidate.world.objects.get(("StaticInfrastructure", "", candidate.ask.overflow_source))
    if not isinstance(data_center, StaticInfrastructure) or data_center.spec.overflow is None:
        return
    current_limit = data_center.spec.overflow.limits.max_clusters
    name = candidate.ask.overflow_source
    # The limit does not bind yet, so a higher limit would change nothing.
    if current_limit is None or candidate.fleet.inventory.overflow_clusters[name] < current_limit:
        return

    def build(strength: int) -> ObjectChange:
        new_limit = current_limit + strength

        def rewrite(kind: Any) -> Any:
            overflow = kind.spec.overflow
            return with_spec(
                kind,
                overflow=with_fields(overflow, limits=with_fields(overflow.limits, max_clusters=new_limit)),
            )

        sentence = f"raise maxClusters of the overflow of {name} by {strength:,} to {new_limit:,}"
        return change_at_path(data_center, "platform", "spec.overflow.limits.maxClusters", sentence, rewrite)

    yield ChangeOption(
        ("overflow", name, "maxClusters"),
        build,
        MAX_COUNT_INCREASE,
        lambda fleet: fleet.inventory.overflow_clusters[name] - current_limit,
    )


def _more_machines(candidate: RejectedCandidate) -> Iterator[ChangeOption]:
    capacity: StaticCapacity = candidate.supply_object.spec.capacity
    current_count = capacity.nodes
    # Without machines there is no size to copy.
    if current_count < 1:
        return

    def build(strength: int) -> ObjectChange:
        plural = "s" if strength > 1 else ""
        sentence = (
            f"add {strength:,} machine{plural} like the existing {current_count:,} in {candidate.offer.name}"
        )
        return platform_change(
            candidate,
            "spec.capacity",
            sentence,
            lambda kind: with_spec(kind, capacity=_scaled(kind.spec.capacity, strength)),
        )

    yield ChangeOption((*_name(candidate), "machines"), build, max(64, 4 * candidate.demand.replicas))


def _scaled(capacity: StaticCapacity, increase: int) -> StaticCapacity:
    """Return the capacity with more machines; cores, memory and storage grow in proportion."""
    current_count, new_count = capacity.nodes, capacity.nodes + increase
    fields: dict[str, Any] = {"nodes": new_count}
    if capacity.millicores is not None:
        fields["cores"] = Decimal(capacity.millicores // current_count * new_count).scaleb(-3)
    if capacity.memory_bytes is not None:
        fields["memory"] = format_bytes(capacity.memory_bytes // current_count * new_count)
    if capacity.storage_bytes is not None:
        fields["storage"] = format_bytes(capacity.storage_bytes // current_count * new_count)
    scaled: StaticCapacity = with_fields(capacity, **fields)
    return scaled


def _more_gpus(candidate: RejectedCandidate) -> Iterator[ChangeOption]:
    limits = candidate.offer.limits.gpus
    model = candidate.demand.gpu_model or max(sorted(limits), key=lambda name: limits[name])
    if model not in limits:
        return
    current_count = limits[model] // MILLI

    def rewritten(kind: Any, new_count: int) -> Any:
        listed = tuple(
            with_fields(accelerator, count=new_count) if accelerator.type == model else accelerator
            for accelerator in kind.spec.capacity.accelerators
        )
        return with_spec(kind, capacity=with_fields(kind.spec.capacity, accelerators=listed))

    def build(strength: int) -> ObjectChange:
        sentence = f"add {strength:,} {model} to the existing {current_count:,} in {candidate.offer.name}"
        return platform_change(
            candidate,
            "spec.capacity.accelerators",
            sentence,
            lambda kind: rewritten(kind, current_count + strength),
        )

    yield ChangeOption((*_name(candidate), "accelerators", model), build, MAX_GPU_INCREASE)


def all_limit_options(candidate: RejectedCandidate) -> list[ChangeOption]:
    """Return options for the capacity limits of a pool, the cluster limits of a cloud region and all budgets,
    whether or not the next machine would exceed the limit."""
    options: list[ChangeOption] = []
    if isinstance(candidate.supply_object, LatticePool):
        options += [
            _pool_limit(candidate, name)
            for name, limit in _POOL_LIMITS.items()
            if getattr(candidate.supply_object.spec.capacity, limit[0]) is not None
        ]
    if candidate.offer.limits.clusters < NO_LIMIT:
        options += _more_clusters(candidate)
    fleet = candidate.fleet
    for ledger in fleet.ledgers.paying_for(candidate.row, candidate.ask.overflow_source):
        if fleet.ledgers.commit_cap(ledger) < NO_LIMIT:
            options.append(_budget(candidate, ledger))
    return options


def budget_options(candidate: RejectedCandidate) -> Iterator[ChangeOption]:
    """Yield an option for every budget that the next machine would exceed."""
    fleet = candidate.fleet
    quotes = fleet.quotes
    can_host, is_priced = (
        quotes.machine_fit(candidate.demand).can_host[:, candidate.row],
        quotes.catalog.is_priced[:, candidate.row],
    )
    # Without a price the machine cannot be weighed against a budget.
    if not (can_host & is_priced).any():
        return
    growing_clusters = fleet.inventory.growable_clusters(
        candidate.row, fleet.groups.growable(candidate.demand, candidate.ask.overflow_source, candidate.row)
    )
    rate = int(quotes.catalog.rate[:, candidate.row][can_host & is_priced].min())
    need = rate * (1 if growing_clusters else candidate.offer.initial_nodes(candidate.demand.rules.min_nodes))
    for ledger in fleet.ledgers.paying_for(candidate.row, candidate.ask.overflow_source):
        if fleet.ledgers.commit_cap(ledger) - fleet.ledgers.committed[ledger] < need:
            yield _budget(candidate, ledger)


def _budget(candidate: RejectedCandidate, ledger: str) -> ChangeOption:
    payer, region, payer_name = _payer(candidate, ledger)
    budget = candidate.fleet.ledgers.budgets[ledger]
    current_limit = budget.limit or 0

    def build(strength: int) -> ObjectChange:
        new_limit = current_limit + strength
        sentence = (
            f"raise the budget of {payer_name} by {format_dollars(strength)} a month"
            f" to {format_dollars(new_limit)}"
        )
        path = {
            "LatticePool": "spec.budget.maxMonthlyCost",
            "StaticInfrastructure": "spec.overflow.limits.maxMonthlySpend",
        }.get(
            payer.resource.kind, f"spec.regions.{region}.budget.monthly" if region else "spec.budget.monthly"
        )
        return change_at_path(
            payer,
            "platform",
            path,
            sentence,
            lambda resource: _with_budget(resource, region, micros_to_dollars(new_limit)),
        )

    def measure(fleet: Fleet) -> int:
        return _limit_for(candidate.world, fleet, ledger) - current_limit

    return ChangeOption(("budget", ledger), build, MAX_BUDGET_INCREASE_MICROS, measure)


def _limit_for(world: World, fleet: Fleet, ledger: str) -> int:
    """Return the monthly limit in micro-dollars that covers the rate committed now."""
    budget, rate = fleet.ledgers.budgets[ledger], fleet.ledgers.committed[ledger]
    if world.now is None:
        return rate_per_30_days(rate)
    stored_ledger = world.objects.get(("LatticeLedger", "", ledger))
    spec = LedgerSpec(
        budget=budget.account,
        limit_micros=budget.limit,
        hard=budget.is_hard,
        alert_millionths=budget.alert_millionths,
    )
    ledger_now = open_ledger(
        spec, stored_ledger if isinstance(stored_ledger, LatticeLedger) else None, world.now
    )
    return required_limit(ledger_now, rate - ledger_now.status.committed_micros, world.now)


def price_options(candidate: RejectedCandidate) -> Iterator[ChangeOption]:
    """Yield an option to state the price of an unpriced class that fits, up to the price that the budgets
    allow.

    Yields nothing if a running machine has an unknown price, since the option would not change that price.
    """
    fleet, provider = candidate.fleet, candidate.offer.place.provider
    names = unpriced_classes(candidate.ask, fleet, candidate.row)
    node_class = candidate.world.objects.get(("LatticeNodeClass", "", names[0])) if names else None
    max_rate = min(
        fleet.ledgers.headroom(candidate.row, candidate.ask.overflow_source), MAX_BUDGET_INCREASE_MICROS
    )
    if (
        node_class is None
        or max_rate < 1
        or any(not machine_type.is_priced for machine_type in fleet.machines.machine_type.values())
    ):
        return

    def build(strength: int) -> ObjectChange:
        # A stronger option states a lower price.
        micros = max_rate + 1 - strength
        sentence = (
            f"declare costPerHour.{provider} of class {names[0]}: its price is unknown, and the limit allows at "
            f"most {format_per_hour(micros)}"
        )
        return change_at_path(
            node_class,
            "platform",
            f"spec.costPerHour.{provider}",
            sentence,
            lambda resource: with_spec(
                resource, cost_per_hour={**resource.spec.cost_per_hour, provider: micros_to_dollars(micros)}
            ),
        )

    yield ChangeOption(("price", names[0], provider), build, max_rate)


def _payer(candidate: RejectedCandidate, ledger: str) -> tuple[Any, str, str]:
    """Return the object whose budget has the ledger, the region of the budget or an empty string, and the
    name for messages."""
    offer, objects = candidate.offer, candidate.world.objects
    if offer.kind == "pool" and ledger == pool_account(offer.owner).ledger_name:
        return candidate.supply_object, "", offer.name
    if offer.kind == "cloud" and ledger == cloud_account(offer.owner).ledger_name:
        return candidate.supply_object, "", offer.owner
    if offer.kind == "cloud" and ledger == cloud_account(offer.owner, offer.place.region).ledger_name:
        return candidate.supply_object, offer.place.region, offer.name
    return (
        objects["StaticInfrastructure", "", candidate.ask.overflow_source],
        "",
        f"the overflow of {candidate.ask.overflow_source}",
    )


def _with_budget(kind: Any, region: str, limit: Decimal) -> Any:
    match kind:
        case LatticePool():
            return with_spec(
                kind, budget=with_fields(kind.spec.budget or PoolBudget(), max_monthly_cost=limit)
            )
        case StaticInfrastructure():
            limits = kind.spec.overflow.limits if kind.spec.overflow else None
            return with_spec(
                kind,
                overflow=with_fields(kind.spec.overflow, limits=with_fields(limits, max_monthly_spend=limit)),
            )
    if not region:
        return with_spec(kind, budget=with_fields(kind.spec.budget, monthly=limit))
    region_spec = kind.spec.regions[region]
    return with_spec(
        kind,
        regions={
            **kind.spec.regions,
            region: with_fields(region_spec, budget=with_fields(region_spec.budget, monthly=limit)),
        },
    )
