"""What limits would have to be raised, and by how much, for one more machine in an offer: on capacity, and on money?"""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger, LedgerSpec
from lattice.kinds.pool import LatticePool, PoolBudget
from lattice.kinds.meta.quantity import GIB, MICRO, MILLI, dollars, format_bytes
from lattice.placement.model.edits import Change, Option, respecified, within, written
from lattice.placement.model.fleet import Fleet
from lattice.placement.inputs.ledger_math import dollars as told
from lattice.placement.inputs.ledger_math import limit_needed, opened, per_hour, thirty_days
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.plugins.filters.budget import unpriced_classes
from lattice.placement.model.quotes import gpu_limit, growing
from lattice.placement.model.stand import Stand, set_field
from lattice.placement.model.supply import cloud_account, pool_account
from lattice.placement.model.world import World

MORE = 1 << 20  # machines or clusters: more than anybody needs
MUCH = 10**8 * MICRO  # micro-dollars a month


# --- room ---


def more_room(stand: Stand) -> Iterator[Option]:
    """Every limit that the next machine would pass."""
    fleet, ask, row = stand.fleet, stand.ask, stand.row
    table, demand = fleet.table, ask.demand
    grows = bool(growing(fleet, row, fleet.growing_groups(demand, ask.overflow, row)))
    count = 1 if grows else stand.offer.first_nodes(demand.rules.min_nodes)
    left = {name: int(table.free(table.index[name])[row]) for name in ("nodes", "cpu", "memory", "clusters")}
    if not grows and left["clusters"] < 1:
        yield from _more_clusters(stand)
    if not grows and ask.overflow:
        yield from _overflow_clusters(stand)
    if isinstance(stand.kind, StaticInfrastructure):
        yield from _static_room(stand, left["nodes"] < count)
    elif isinstance(stand.kind, LatticePool):
        yield from (
            _pool_limit(stand, name)
            for name in ("nodes", "cpu", "memory")
            if left[name] < _needed(stand, name, count)
        )


def _needed(stand: Stand, name: str, count: int) -> int:
    if name == "nodes":
        return count
    quotes = stand.fleet.table.quotes
    serving, sizes = (
        quotes.serving(stand.demand).serves[:, stand.row],
        quotes.catalogue.size(name)[:, stand.row],
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


def _pool_limit(stand: Stand, resource: str) -> Option:
    field, name, unit = _POOL_LIMITS[resource]
    stated = getattr(stand.kind.spec.capacity, field)
    before = int(stated)
    table, row = stand.fleet.table, stand.row

    def made(strength: int) -> Change:
        after = before + strength
        sentence = f"raise {name} of {stand.offer.name} by {strength:,} to {after:,}"
        value = after if resource == "nodes" else Decimal(after)
        return set_field(
            stand,
            f"spec.capacity.{name}",
            sentence,
            lambda kind: respecified(kind, capacity=within(kind.spec.capacity, **{field: value})),
        )

    def measure(_: Fleet) -> int:
        return -(-int(table.taken(table.index[resource])[row]) // unit) - before

    return Option((*_name(stand), name), made, MORE, measure)


def _name(stand: Stand) -> tuple[str, ...]:
    return (stand.offer.kind, stand.offer.name)


def _more_clusters(stand: Stand) -> Iterator[Option]:
    """The smaller of the region's quota and the default holds; where they are equal, both are raised."""
    if not isinstance(stand.kind, CloudInfrastructure):
        return
    before, spec, region = stand.offer.limits.clusters, stand.kind.spec, stand.region
    if spec.regions[region].quotas.max_clusters == before:
        words, path = f"maxClusters of {stand.offer.name}", f"spec.regions.{region}.quotas.maxClusters"
        yield _clusters(stand, words, path, lambda kind, after: _with_quota(kind, region, after))
    if spec.defaults.max_clusters_per_region == before:
        words, path = f"maxClustersPerRegion of {stand.offer.owner}", "spec.defaults.maxClustersPerRegion"
        yield _clusters(stand, words, path, _with_default_clusters)


def _clusters(stand: Stand, words: str, path: str, rewrite: Callable[[Any, int], Any]) -> Option:
    before, table, row = stand.offer.limits.clusters, stand.fleet.table, stand.row

    def made(strength: int) -> Change:
        after = before + strength
        return set_field(
            stand, path, f"raise {words} by {strength:,} to {after:,}", lambda kind: rewrite(kind, after)
        )

    return Option(
        (*_name(stand), path), made, MORE, lambda _: int(table.taken(table.index["clusters"])[row]) - before
    )


def _with_quota(cloud: CloudInfrastructure, region: str, after: int) -> Any:
    stated = cloud.spec.regions[region]
    return respecified(
        cloud,
        regions={
            **cloud.spec.regions,
            region: within(stated, quotas=within(stated.quotas, max_clusters=after)),
        },
    )


def _with_default_clusters(cloud: CloudInfrastructure, after: int) -> Any:
    return respecified(cloud, defaults=within(cloud.spec.defaults, max_clusters_per_region=after))


def _overflow_clusters(stand: Stand) -> Iterator[Option]:
    static = stand.world.objects.get(("StaticInfrastructure", "", stand.ask.overflow))
    if not isinstance(static, StaticInfrastructure) or static.spec.overflow is None:
        return
    before = static.spec.overflow.limits.max_clusters
    name = stand.ask.overflow
    if before is None or stand.fleet.overflow_clusters[name] < before:
        return

    def made(strength: int) -> Change:
        after = before + strength

        def rewrite(kind: Any) -> Any:
            overflow = kind.spec.overflow
            return respecified(
                kind, overflow=within(overflow, limits=within(overflow.limits, max_clusters=after))
            )

        sentence = f"raise maxClusters of the overflow of {name} by {strength:,} to {after:,}"
        return written(static, "platform", "spec.overflow.limits.maxClusters", sentence, rewrite)

    yield Option(
        ("overflow", name, "maxClusters"), made, MORE, lambda fleet: fleet.overflow_clusters[name] - before
    )


def _static_room(stand: Stand, lacks_nodes: bool) -> Iterator[Option]:
    """More machines like those that are there, fewer that are reserved, or more GPUs."""
    offer, fleet, demand = stand.offer, stand.fleet, stand.demand
    if demand.needs.get("gpu") and offer.limits.gpus and not gpu_limit(fleet, demand, stand.row):
        yield from _more_gpus(stand)
    if lacks_nodes or (offer.reserved_nodes and offer.name not in demand.admitted):
        yield from _more_machines(stand)


def _more_machines(stand: Stand) -> Iterator[Option]:
    capacity = stand.kind.spec.capacity
    before = capacity.nodes
    if before < 1:
        return

    def made(strength: int) -> Change:
        sentence = (
            f"add {strength:,} machine{'s' if strength > 1 else ''} like the {before:,} in {stand.offer.name}"
        )
        return set_field(
            stand,
            "spec.capacity",
            sentence,
            lambda kind: respecified(kind, capacity=_scaled(kind.spec.capacity, strength)),
        )

    yield Option((*_name(stand), "machines"), made, max(64, 4 * stand.demand.replicas))


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
    return within(capacity, **fields)


def _more_gpus(stand: Stand) -> Iterator[Option]:
    limits = stand.offer.limits.gpus
    model = stand.demand.gpu_model or max(sorted(limits), key=lambda name: limits[name])
    if model not in limits:
        return
    before = limits[model] // MILLI

    def rewritten(kind: Any, after: int) -> Any:
        listed = tuple(
            within(each, count=after) if each.type == model else each
            for each in kind.spec.capacity.accelerators
        )
        return respecified(kind, capacity=within(kind.spec.capacity, accelerators=listed))

    def made(strength: int) -> Change:
        sentence = f"add {strength:,} {model} to the {before:,} in {stand.offer.name}"
        return set_field(
            stand, "spec.capacity.accelerators", sentence, lambda kind: rewritten(kind, before + strength)
        )

    yield Option((*_name(stand), "accelerators", model), made, 4096)


def every_limit(stand: Stand) -> list[Option]:
    """That machines of the offer may come to, however far it is: on how many they are, and on what they cost."""
    found: list[Option] = []
    if isinstance(stand.kind, LatticePool):
        found += [
            _pool_limit(stand, name)
            for name, limit in _POOL_LIMITS.items()
            if getattr(stand.kind.spec.capacity, limit[0]) is not None
        ]
    if stand.offer.limits.clusters < NO_LIMIT:
        found += _more_clusters(stand)
    fleet = stand.fleet
    return [
        *found,
        *(
            _budget(stand, each)
            for each in fleet.ledgers(stand.row, stand.ask.overflow)
            if fleet.cap(each) < NO_LIMIT
        ),
    ]


# --- money ---


def more_money(stand: Stand) -> Iterator[Option]:
    """Every budget that the next machine would pass."""
    fleet = stand.fleet
    quotes = fleet.table.quotes
    serving, priced = (
        quotes.serving(stand.demand).serves[:, stand.row],
        quotes.catalogue.is_priced[:, stand.row],
    )
    if not (serving & priced).any():
        return
    grows = growing(fleet, stand.row, fleet.growing_groups(stand.demand, stand.ask.overflow, stand.row))
    rate = min(
        int(each)
        for each, serves in zip(quotes.catalogue.rate[:, stand.row], serving & priced, strict=True)
        if serves
    )
    need = rate * (1 if grows else stand.offer.first_nodes(stand.demand.rules.min_nodes))
    for ledger in fleet.ledgers(stand.row, stand.ask.overflow):
        if fleet.cap(ledger) - fleet.committed[ledger] < need:
            yield _budget(stand, ledger)


def _budget(stand: Stand, ledger: str) -> Option:
    kind, region, words = _payer(stand, ledger)
    budget = stand.fleet.budgets[ledger]
    before = budget.limit or 0

    def made(strength: int) -> Change:
        after = before + strength
        sentence = f"raise the budget of {words} by {told(strength)} a month to {told(after)}"
        path = {
            "LatticePool": "spec.budget.maxMonthlyCost",
            "StaticInfrastructure": "spec.overflow.limits.maxMonthlySpend",
        }.get(
            kind.resource.kind, f"spec.regions.{region}.budget.monthly" if region else "spec.budget.monthly"
        )
        return written(
            kind, "platform", path, sentence, lambda each: _with_budget(each, region, dollars(after))
        )

    def measure(fleet: Fleet) -> int:
        return _limit_for(stand.world, fleet, ledger) - before

    return Option(("budget", ledger), made, MUCH, measure)


def _limit_for(world: World, fleet: Fleet, ledger: str) -> int:
    """Of one month, so that what is committed now is within it."""
    budget, rate = fleet.budgets[ledger], fleet.committed[ledger]
    if world.now is None:
        return thirty_days(rate)
    known = world.objects.get(("LatticeLedger", "", ledger))
    stated = LedgerSpec(
        budget=budget.account, limit_micros=budget.limit, hard=budget.hard, alert_millionths=budget.alert
    )
    counted = opened(stated, known if isinstance(known, LatticeLedger) else None, world.now)
    return limit_needed(counted, rate - counted.status.committed_micros, world.now)


def price(stand: Stand) -> Iterator[Option]:
    """For a class that would do and has none: at most so much that the budgets allow it. What runs already stays as unknown as it is."""
    fleet, provider = stand.fleet, stand.offer.place.provider
    names = unpriced_classes(stand.ask, fleet, stand.row)
    kind = stand.world.objects.get(("LatticeNodeClass", "", names[0])) if names else None
    highest = min(fleet.headroom(stand.row, stand.ask.overflow), MUCH)
    if kind is None or highest < 1 or any(not each.is_priced for each in fleet.machines.kind.values()):
        return

    def made(strength: int) -> Change:
        micros = highest + 1 - strength
        sentence = f"say what class {names[0]} costs on {provider}, if that is {per_hour(micros)} at most"
        return written(
            kind,
            "platform",
            f"spec.costPerHour.{provider}",
            sentence,
            lambda each: _with_price(each, provider, dollars(micros)),
        )

    yield Option(("price", names[0], provider), made, highest)


def _with_price(kind: Any, provider: str, hourly: Decimal) -> Any:
    return respecified(kind, cost_per_hour={**kind.spec.cost_per_hour, provider: hourly})


def _payer(stand: Stand, ledger: str) -> tuple[Any, str, str]:
    offer, objects = stand.offer, stand.world.objects
    if offer.kind == "pool" and ledger == pool_account(offer.owner).ledger:
        return stand.kind, "", offer.name
    if offer.kind == "cloud" and ledger == cloud_account(offer.owner).ledger:
        return stand.kind, "", offer.owner
    if offer.kind == "cloud" and ledger == cloud_account(offer.owner, offer.place.region).ledger:
        return stand.kind, offer.place.region, offer.name
    return (
        objects["StaticInfrastructure", "", stand.ask.overflow],
        "",
        f"the overflow of {stand.ask.overflow}",
    )


def _with_budget(kind: Any, region: str, limit: Decimal) -> Any:
    match kind:
        case LatticePool():
            return respecified(kind, budget=within(kind.spec.budget or PoolBudget(), max_monthly_cost=limit))
        case StaticInfrastructure():
            limits = kind.spec.overflow.limits if kind.spec.overflow else None
            return respecified(
                kind, overflow=within(kind.spec.overflow, limits=within(limits, max_monthly_spend=limit))
            )
    if not region:
        return respecified(kind, budget=within(kind.spec.budget, monthly=limit))
    stated = kind.spec.regions[region]
    return respecified(
        kind,
        regions={**kind.spec.regions, region: within(stated, budget=within(stated.budget, monthly=limit))},
    )
