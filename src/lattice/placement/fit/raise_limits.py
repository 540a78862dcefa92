"""What limits would have to be raised, and by how much, for one more machine in an offer: on capacity, and on money?"""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger, LedgerSpec
from lattice.kinds.meta.quantity import GIB, MICRO, MILLI, format_bytes, micros_to_dollars
from lattice.kinds.pool import LatticePool, PoolBudget
from lattice.placement.inputs.ledger_math import format_dollars as told
from lattice.placement.inputs.ledger_math import (
    format_per_hour,
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
from lattice.placement.model.quotes import gpu_resource_for, growable_clusters
from lattice.placement.model.supply import cloud_account, pool_account
from lattice.placement.model.world import World
from lattice.placement.plugins.filters.budget import unpriced_classes

MAX_COUNT_INCREASE = 1 << 20  # machines or clusters: more than anybody needs
MAX_BUDGET_INCREASE_MICROS = 10**8 * MICRO  # micro-dollars a month


# --- room ---


def capacity_options(stand: RejectedCandidate) -> Iterator[ChangeOption]:
    """Every limit that the next machine would pass."""
    fleet, ask, row = stand.fleet, stand.ask, stand.row
    table, demand = fleet.table, ask.demand
    grows = bool(growable_clusters(fleet, row, fleet.growable_groups(demand, ask.overflow_source, row)))
    count = 1 if grows else stand.offer.initial_nodes(demand.rules.min_nodes)
    left = {
        name: int(table.free(table.resource_index[name])[row])
        for name in ("nodes", "cpu", "memory", "clusters")
    }
    if not grows and left["clusters"] < 1:
        yield from _more_clusters(stand)
    if not grows and ask.overflow_source:
        yield from _overflow_clusters(stand)
    if isinstance(stand.supply_object, StaticInfrastructure):
        yield from _static_capacity_options(stand, left["nodes"] < count)
    elif isinstance(stand.supply_object, LatticePool):
        yield from (
            _pool_limit(stand, name)
            for name in ("nodes", "cpu", "memory")
            if left[name] < _needed(stand, name, count)
        )


def _needed(stand: RejectedCandidate, name: str, count: int) -> int:
    if name == "nodes":
        return count
    quotes = stand.fleet.table.quotes
    serving, sizes = (
        quotes.machine_fit(stand.demand).can_host[:, stand.row],
        quotes.catalog.size(name)[:, stand.row],
    )
    needed = [
        int(size) * count for size, serves in zip(sizes, serving, strict=True) if serves and size < NO_LIMIT
    ]
    return min(needed, default=0)


_POOL_LIMITS = {  # field, as written, unit
    "nodes": ("max_nodes", "maxNodes", 1),
    "cpu": ("max_cores", "maxCores", MILLI),
    "memory": ("max_memory_gi", "maxMemoryGi", GIB),
}


def _pool_limit(stand: RejectedCandidate, resource: str) -> ChangeOption:
    field, name, unit = _POOL_LIMITS[resource]
    stated = getattr(stand.supply_object.spec.capacity, field)
    before = int(stated)
    table, row = stand.fleet.table, stand.row

    def made(strength: int) -> ObjectChange:
        after = before + strength
        sentence = f"raise {name} of {stand.offer.name} by {strength:,} to {after:,}"
        value = after if resource == "nodes" else Decimal(after)
        return platform_change(
            stand,
            f"spec.capacity.{name}",
            sentence,
            lambda kind: with_spec(kind, capacity=with_fields(kind.spec.capacity, **{field: value})),
        )

    def measure(_: Fleet) -> int:
        return -(-int(table.allocated(table.resource_index[resource])[row]) // unit) - before

    return ChangeOption((*_name(stand), name), made, MAX_COUNT_INCREASE, measure)


def _name(stand: RejectedCandidate) -> tuple[str, ...]:
    return (stand.offer.kind, stand.offer.name)


def _more_clusters(stand: RejectedCandidate) -> Iterator[ChangeOption]:
    """The smaller of the region's quota and the default holds; where they are equal, both are raised."""
    if not isinstance(stand.supply_object, CloudInfrastructure):
        return
    before, spec, region = stand.offer.limits.clusters, stand.supply_object.spec, stand.region
    if spec.regions[region].quotas.max_clusters == before:
        words, path = f"maxClusters of {stand.offer.name}", f"spec.regions.{region}.quotas.maxClusters"
        yield _cluster_limit_option(stand, words, path, lambda kind, after: _with_quota(kind, region, after))
    if spec.defaults.max_clusters_per_region == before:
        words, path = f"maxClustersPerRegion of {stand.offer.owner}", "spec.defaults.maxClustersPerRegion"
        yield _cluster_limit_option(stand, words, path, _with_default_clusters)


def _cluster_limit_option(
    stand: RejectedCandidate, words: str, path: str, rewrite: Callable[[Any, int], Any]
) -> ChangeOption:
    before, table, row = stand.offer.limits.clusters, stand.fleet.table, stand.row

    def made(strength: int) -> ObjectChange:
        after = before + strength
        return platform_change(
            stand, path, f"raise {words} by {strength:,} to {after:,}", lambda kind: rewrite(kind, after)
        )

    return ChangeOption(
        (*_name(stand), path),
        made,
        MAX_COUNT_INCREASE,
        lambda _: int(table.allocated(table.resource_index["clusters"])[row]) - before,
    )


def _with_quota(cloud: CloudInfrastructure, region: str, after: int) -> Any:
    stated = cloud.spec.regions[region]
    return with_spec(
        cloud,
        regions={
            **cloud.spec.regions,
            region: with_fields(stated, quotas=with_fields(stated.quotas, max_clusters=after)),
        },
    )


def _with_default_clusters(cloud: CloudInfrastructure, after: int) -> Any:
    return with_spec(cloud, defaults=with_fields(cloud.spec.defaults, max_clusters_per_region=after))


def _overflow_clusters(stand: RejectedCandidate) -> Iterator[ChangeOption]:
    static = stand.world.objects.get(("StaticInfrastructure", "", stand.ask.overflow_source))
    if not isinstance(static, StaticInfrastructure) or static.spec.overflow is None:
        return
    before = static.spec.overflow.limits.max_clusters
    name = stand.ask.overflow_source
    if before is None or stand.fleet.overflow_clusters[name] < before:
        return

    def made(strength: int) -> ObjectChange:
        after = before + strength

        def rewrite(kind: Any) -> Any:
            overflow = kind.spec.overflow
            return with_spec(
                kind, overflow=with_fields(overflow, limits=with_fields(overflow.limits, max_clusters=after))
            )

        sentence = f"raise maxClusters of the overflow of {name} by {strength:,} to {after:,}"
        return change_at_path(static, "platform", "spec.overflow.limits.maxClusters", sentence, rewrite)

    yield ChangeOption(
        ("overflow", name, "maxClusters"),
        made,
        MAX_COUNT_INCREASE,
        lambda fleet: fleet.overflow_clusters[name] - before,
    )


def _static_capacity_options(stand: RejectedCandidate, lacks_nodes: bool) -> Iterator[ChangeOption]:
    """More machines like those that are there, fewer that are reserved, or more GPUs."""
    offer, fleet, demand = stand.offer, stand.fleet, stand.demand
    if demand.needs.get("gpu") and offer.limits.gpus and not gpu_resource_for(fleet, demand, stand.row):
        yield from _more_gpus(stand)
    if lacks_nodes or (offer.reserved_nodes and offer.name not in demand.usable_reserves):
        yield from _more_machines(stand)


def _more_machines(stand: RejectedCandidate) -> Iterator[ChangeOption]:
    capacity = stand.supply_object.spec.capacity
    before = capacity.nodes
    if before < 1:
        return

    def made(strength: int) -> ObjectChange:
        sentence = (
            f"add {strength:,} machine{'s' if strength > 1 else ''} like the {before:,} in {stand.offer.name}"
        )
        return platform_change(
            stand,
            "spec.capacity",
            sentence,
            lambda kind: with_spec(kind, capacity=_scaled(kind.spec.capacity, strength)),
        )

    yield ChangeOption((*_name(stand), "machines"), made, max(64, 4 * stand.demand.replicas))


def _scaled(capacity: Any, more: int) -> Any:
    """As many cores and bytes for each as the others have."""
    before, after = capacity.nodes, capacity.nodes + more
    fields: dict[str, Any] = {"nodes": after}
    if capacity.milli is not None:
        fields["cores"] = Decimal(capacity.milli // before * after).scaleb(-3)
    if capacity.memory_bytes is not None:
        fields["memory"] = format_bytes(capacity.memory_bytes // before * after)
    if capacity.storage_bytes is not None:
        fields["storage"] = format_bytes(capacity.storage_bytes // before * after)
    return with_fields(capacity, **fields)


def _more_gpus(stand: RejectedCandidate) -> Iterator[ChangeOption]:
    limits = stand.offer.limits.gpus
    model = stand.demand.gpu_model or max(sorted(limits), key=lambda name: limits[name])
    if model not in limits:
        return
    before = limits[model] // MILLI

    def rewritten(kind: Any, after: int) -> Any:
        listed = tuple(
            with_fields(each, count=after) if each.type == model else each
            for each in kind.spec.capacity.accelerators
        )
        return with_spec(kind, capacity=with_fields(kind.spec.capacity, accelerators=listed))

    def made(strength: int) -> ObjectChange:
        sentence = f"add {strength:,} {model} to the {before:,} in {stand.offer.name}"
        return platform_change(
            stand, "spec.capacity.accelerators", sentence, lambda kind: rewritten(kind, before + strength)
        )

    yield ChangeOption((*_name(stand), "accelerators", model), made, 4096)


def all_limit_options(stand: RejectedCandidate) -> list[ChangeOption]:
    """That machines of the offer may come to, however far it is: on how many they are, and on what they cost."""
    found: list[ChangeOption] = []
    if isinstance(stand.supply_object, LatticePool):
        found += [
            _pool_limit(stand, name)
            for name, limit in _POOL_LIMITS.items()
            if getattr(stand.supply_object.spec.capacity, limit[0]) is not None
        ]
    if stand.offer.limits.clusters < NO_LIMIT:
        found += _more_clusters(stand)
    fleet = stand.fleet
    return [
        *found,
        *(
            _budget(stand, each)
            for each in fleet.ledgers(stand.row, stand.ask.overflow_source)
            if fleet.commit_cap(each) < NO_LIMIT
        ),
    ]


# --- money ---


def budget_options(stand: RejectedCandidate) -> Iterator[ChangeOption]:
    """Every budget that the next machine would pass."""
    fleet = stand.fleet
    quotes = fleet.table.quotes
    serving, priced = (
        quotes.machine_fit(stand.demand).can_host[:, stand.row],
        quotes.catalog.is_priced[:, stand.row],
    )
    if not (serving & priced).any():
        return
    grows = growable_clusters(
        fleet, stand.row, fleet.growable_groups(stand.demand, stand.ask.overflow_source, stand.row)
    )
    rate = min(
        int(each)
        for each, serves in zip(quotes.catalog.rate[:, stand.row], serving & priced, strict=True)
        if serves
    )
    need = rate * (1 if grows else stand.offer.initial_nodes(stand.demand.rules.min_nodes))
    for ledger in fleet.ledgers(stand.row, stand.ask.overflow_source):
        if fleet.commit_cap(ledger) - fleet.committed[ledger] < need:
            yield _budget(stand, ledger)


def _budget(stand: RejectedCandidate, ledger: str) -> ChangeOption:
    kind, region, words = _payer(stand, ledger)
    budget = stand.fleet.budgets[ledger]
    before = budget.limit or 0

    def made(strength: int) -> ObjectChange:
        after = before + strength
        sentence = f"raise the budget of {words} by {told(strength)} a month to {told(after)}"
        path = {
            "LatticePool": "spec.budget.maxMonthlyCost",
            "StaticInfrastructure": "spec.overflow.limits.maxMonthlySpend",
        }.get(
            kind.resource.kind, f"spec.regions.{region}.budget.monthly" if region else "spec.budget.monthly"
        )
        return change_at_path(
            kind,
            "platform",
            path,
            sentence,
            lambda each: _with_budget(each, region, micros_to_dollars(after)),
        )

    def measure(fleet: Fleet) -> int:
        return _limit_for(stand.world, fleet, ledger) - before

    return ChangeOption(("budget", ledger), made, MAX_BUDGET_INCREASE_MICROS, measure)


def _limit_for(world: World, fleet: Fleet, ledger: str) -> int:
    """Of one month, so that what is committed now is within it."""
    budget, rate = fleet.budgets[ledger], fleet.committed[ledger]
    if world.now is None:
        return rate_per_30_days(rate)
    known = world.objects.get(("LatticeLedger", "", ledger))
    stated = LedgerSpec(
        budget=budget.account,
        limit_micros=budget.limit,
        hard=budget.is_hard,
        alert_millionths=budget.alert_millionths,
    )
    counted = open_ledger(stated, known if isinstance(known, LatticeLedger) else None, world.now)
    return required_limit(counted, rate - counted.status.committed_micros, world.now)


def price_options(stand: RejectedCandidate) -> Iterator[ChangeOption]:
    """For a class that would do and has none: at most so much that the budgets allow it. What runs already stays as unknown as it is."""
    fleet, provider = stand.fleet, stand.offer.place.provider
    names = unpriced_classes(stand.ask, fleet, stand.row)
    kind = stand.world.objects.get(("LatticeNodeClass", "", names[0])) if names else None
    highest = min(fleet.headroom(stand.row, stand.ask.overflow_source), MAX_BUDGET_INCREASE_MICROS)
    if (
        kind is None
        or highest < 1
        or any(not each.is_priced for each in fleet.machines.machine_type.values())
    ):
        return

    def made(strength: int) -> ObjectChange:
        micros = highest + 1 - strength
        sentence = (
            f"say what class {names[0]} costs on {provider}, if that is {format_per_hour(micros)} at most"
        )
        return change_at_path(
            kind,
            "platform",
            f"spec.costPerHour.{provider}",
            sentence,
            lambda each: _with_price(each, provider, micros_to_dollars(micros)),
        )

    yield ChangeOption(("price", names[0], provider), made, highest)


def _with_price(kind: Any, provider: str, hourly: Decimal) -> Any:
    return with_spec(kind, cost_per_hour={**kind.spec.cost_per_hour, provider: hourly})


def _payer(stand: RejectedCandidate, ledger: str) -> tuple[Any, str, str]:
    offer, objects = stand.offer, stand.world.objects
    if offer.kind == "pool" and ledger == pool_account(offer.owner).ledger_name:
        return stand.supply_object, "", offer.name
    if offer.kind == "cloud" and ledger == cloud_account(offer.owner).ledger_name:
        return stand.supply_object, "", offer.owner
    if offer.kind == "cloud" and ledger == cloud_account(offer.owner, offer.place.region).ledger_name:
        return stand.supply_object, offer.place.region, offer.name
    return (
        objects["StaticInfrastructure", "", stand.ask.overflow_source],
        "",
        f"the overflow of {stand.ask.overflow_source}",
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
    stated = kind.spec.regions[region]
    return with_spec(
        kind,
        regions={
            **kind.spec.regions,
            region: with_fields(stated, budget=with_fields(stated.budget, monthly=limit)),
        },
    )
