"""Pools, clouds and data centers -> offers and budgets, and what is wrong with them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import (
    Account,
    LedgerSpec,
    cloud_ledger_spec,
    overflow_ledger_spec,
    pool_ledger_spec,
)
from lattice.kinds.meta.base import Kind
from lattice.kinds.node_class import LatticeNodeClass, MachineSize
from lattice.kinds.pool import LatticePool
from lattice.placement.inputs.latency import Place
from lattice.placement.inputs.ledger_math import HOURS_PER_MONTH
from lattice.placement.inputs.price_book import Price, PriceBook, price_of
from lattice.placement.model.offer import NO_LIMIT, STATIC_MACHINE_TYPE, Budget, Limits, MachineType, Offer

DEFAULT_SECRET_NAMESPACE = "lattice-system"  # noqa: S105
PRICE_CURRENCY = "USD"  # what prices are in
OVERLAP_FIX = "give it credentials of its own, or delete one of the two"
_SINGULAR = {"pool": "latticepool", "cloud": "cloudinfrastructure", "static": "staticinfrastructure"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about an object that users should know: the stuff of conditions."""

    subject: str  # kind/name
    type: str  # of the condition
    reason: str
    message: str
    is_true: bool = False


@dataclass(frozen=True, slots=True)
class Supply:
    offers: tuple[Offer, ...]  # by name
    budgets: Mapping[str, Budget]
    findings: tuple[Finding, ...]
    node_classes: "NodeClasses"  # all there are, offered or not


class NodeClasses(dict[str, LatticeNodeClass]):
    """By name. Many pools offer the same ones: each is looked at once for a provider and region."""

    def __init__(self, found: Iterable[LatticeNodeClass], book: PriceBook) -> None:
        super().__init__((each.metadata.name, each) for each in found)
        self._book = book
        self._type_cache: dict[tuple[str, str, str], MachineType | None] = {}

    def machine_types(self, names: Iterable[str], provider: str, region: str) -> tuple[MachineType, ...]:
        made = (self._resolve_type(name, provider, region) for name in sorted(set(names)) if name in self)
        return tuple(each for each in made if each is not None)

    def generic_types(self) -> tuple[MachineType, ...]:
        """Of no provider: what any place that says how many machines it has, but not which, is taken to have; no accelerators."""
        found = (
            each
            for _, each in sorted(self.items())
            if not each.spec.default_size.gpu and not each.spec.default_size.extended
        )
        return tuple(_machine_type(each, each.spec.default_size, None) for each in found)

    def _resolve_type(self, name: str, provider: str, region: str) -> MachineType | None:
        key = (name, provider, region)
        if key not in self._type_cache:
            size = self[name].spec.size_on(provider)
            self._type_cache[key] = (
                None
                if size is None
                else _machine_type(self[name], size, price_of(self[name], provider, region, self._book))
            )
        return self._type_cache[key]


def compile_supply(
    objects: Iterable[Kind], book: PriceBook, adapters: frozenset[str] | None = None
) -> Supply:
    """Every object takes part as far as it can. `adapters`: providers that machines can be had from; None means all of them."""
    kept = list(objects)
    classes = NodeClasses((each for each in kept if isinstance(each, LatticeNodeClass)), book)
    pools = [each for each in kept if isinstance(each, LatticePool)]
    clouds = [each for each in kept if isinstance(each, CloudInfrastructure)]
    statics = [each for each in kept if isinstance(each, StaticInfrastructure)]
    offers = [
        *(_pool_offer(each, classes) for each in pools),
        *(offer for each in clouds for offer in _cloud_offers(each, classes)),
        *(_static_offer(each, classes) for each in statics),
    ]
    offers, namesakes = _drop_duplicate_names(offers)
    doubles = dict(_overlaps(pools, clouds))
    offers = [
        replace(each, closed_reason=doubles[each.name].message, reopen_hint=OVERLAP_FIX)
        if each.name in doubles
        else each
        for each in offers
    ]
    made_here = (
        f"name a provider of this server's --providers: {', '.join(sorted(adapters or ())) or 'none yet'}"
    )
    offers = [
        each
        if each.closed_reason or _has_adapter(each, adapters)
        else replace(each, closed_reason=_no_adapter_message(each), reopen_hint=made_here)
        for each in offers
    ]
    budgets = [
        *map(_pool_budget, pools),
        *(b for each in clouds for b in _cloud_budgets(each)),
        *map(_overflow_budget, statics),
    ]
    findings = [
        *namesakes,
        *doubles.values(),
        *_missing_class_findings(pools, classes),
        *_foreign_currency_findings(pools),
        *_overflow_findings(statics, clouds),
        *_unknown_region_findings(statics, clouds),
        *_no_machine_findings(offers),
        *_missing_adapter_findings(offers, adapters),
    ]
    return Supply(
        tuple(sorted(offers, key=lambda each: each.name)),
        {each.name: each for each in budgets},
        tuple(sorted(findings, key=lambda each: (each.subject, each.type, each.message))),
        classes,
    )


def pool_account(pool: str) -> Account:
    return Account(kind="LatticePool", name=pool)


def cloud_account(cloud: str, region: str = "") -> Account:
    return Account(kind="CloudInfrastructure", name=cloud, region=region)


def overflow_account(static: str) -> Account:
    return Account(kind="StaticInfrastructure", name=static)


def static_account(static: str) -> Account:
    """Of nothing that costs: its ledger keeps the number of the last cluster."""
    return Account(kind="StaticInfrastructure", name=static, region="clusters")


def _lower(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word.lower() for word in words)


def _pool_offer(pool: LatticePool, classes: NodeClasses) -> Offer:
    name, spec, provider = pool.metadata.name, pool.spec, pool.spec.provider
    labels = spec.labels or pool.metadata.labels or {}
    listed = {key: (value,) if isinstance(value, str) else tuple(value) for key, value in labels.items()}
    place = Place(name, provider.type, provider.region, provider.zone)
    currency = _currency(pool)
    is_foreign = currency != PRICE_CURRENCY
    return Offer(
        name=name,
        kind="pool",
        owner=name,
        place=place,
        labels=_with_location_labels(listed, place),
        compliance=_lower(spec.compliance),
        capabilities=_lower(spec.capabilities),
        residency=_lower(spec.data_residency),
        types=classes.machine_types(spec.node_classes, provider.type, provider.region),
        limits=Limits(
            nodes=_limit(spec.capacity.max_nodes),
            milli=_limit(spec.capacity.max_millicores),
            memory=_limit(spec.capacity.max_memory_bytes),
        ),
        budgets=(pool_account(name).ledger_name,),
        closed_reason=f"budget is in {currency}, prices are in {PRICE_CURRENCY}" if is_foreign else "",
        reopen_hint=f"state the budget in {PRICE_CURRENCY}" if is_foreign else "",
    )


def _cloud_offers(cloud: CloudInfrastructure, classes: NodeClasses) -> Iterator[Offer]:
    name, spec = cloud.metadata.name, cloud.spec
    for region, stated in spec.regions.items():
        place = Place(f"{name}/{region}", spec.provider, region, "")
        labels = {key: (value,) for key, value in (cloud.metadata.labels or {}).items()}
        yield Offer(
            name=place.name,
            kind="cloud",
            owner=name,
            place=place,
            labels=_with_location_labels(labels, place),
            compliance=_lower(spec.compliance_of(region)),
            capabilities=_lower(spec.capabilities_of(region)),
            residency=_lower([stated.data_residency] if stated.data_residency else []),
            types=classes.machine_types(classes, spec.provider, region),
            limits=Limits(
                clusters=_limit(spec.max_clusters_of(region)),
                nodes_per_cluster=_limit(spec.max_nodes_per_cluster_of(region)),
            ),
            budgets=(cloud_account(name).ledger_name, cloud_account(name, region).ledger_name),
        )


def _static_offer(static: StaticInfrastructure, classes: NodeClasses) -> Offer:
    name, spec = static.metadata.name, static.spec
    location, capacity = spec.location, spec.capacity
    place = Place(name, spec.provider, location.region or location.name, location.zone, location.name)
    labels = {key: (value,) for key, value in (static.metadata.labels or {}).items()}
    types = _static_types(static, classes)
    reserved = spec.reservation.reserved if spec.reservation else None
    return Offer(
        name=name,
        kind="static",
        owner=name,
        place=place,
        labels=_with_location_labels(labels, place),
        compliance=_lower(spec.compliance),
        capabilities=_lower(spec.capabilities),
        residency=_lower([spec.data_residency] if spec.data_residency else []),
        types=types,
        limits=Limits(
            nodes=capacity.nodes,
            milli=_limit(capacity.millicores),
            memory=_limit(capacity.memory_bytes),
            gpus={each.type: each.count * 1000 for each in capacity.accelerators},
        ),
        reservation=spec.reservation,
        reserved_nodes=_nodes_for(reserved.millicores, reserved.memory_bytes, reserved.nodes or 0, types)
        if reserved
        else 0,
        overflow=spec.overflow,
    )


def _static_types(static: StaticInfrastructure, classes: NodeClasses) -> tuple[MachineType, ...]:
    """What is there divided by the number of machines; without cores and memory, the classes that its provider can make. All free.

    Where no provider is named either, nothing is known but how many machines there are: any class may be among them.
    """
    capacity, spec = static.spec.capacity, static.spec
    if capacity.millicores is None and capacity.memory_bytes is None:
        made = (
            classes.machine_types(classes, spec.provider, spec.location.region)
            if spec.provider
            else classes.generic_types()
        )
        models = {each.type for each in capacity.accelerators}
        told = models.pop() if len(models) == 1 else ""  # the place may say what its classes do not
        return tuple(replace(as_owned(each), gpu_model=each.gpu_model or told) for each in made)
    nodes = max(1, capacity.nodes)
    size = {
        "cpu": _per_machine(capacity.millicores, nodes),
        "memory": _per_machine(capacity.memory_bytes, nodes),
        "storage": _per_machine(capacity.storage_bytes, nodes),
    }
    if capacity.accelerators:
        size["gpu"] = NO_LIMIT  # how many there are is a limit of the place, not of one machine
    return (MachineType(STATIC_MACHINE_TYPE, size, 0, Price(0, "owned", "")),)


def as_owned(kind: MachineType) -> MachineType:
    """Nobody is paid for it."""
    return replace(kind, rate=0, price=kind.price or Price(0, "owned", ""))


def _per_machine(whole: int | None, nodes: int) -> int:
    return NO_LIMIT if whole is None else whole // nodes


def _nodes_for(milli: int, memory: int, nodes: int, types: tuple[MachineType, ...]) -> int:
    """Whole machines that hold a reserve, so that it is there in one piece when it is needed."""
    largest = {name: max((each.size.get(name, 0) for each in types), default=0) for name in ("cpu", "memory")}
    needed = [nodes]
    for name, amount in (("cpu", milli), ("memory", memory)):
        if amount and largest[name]:
            needed.append(-(-amount // largest[name]))
    return max(needed)


def _machine_type(node_class: LatticeNodeClass, size: MachineSize, price: Price | None) -> MachineType:
    amounts = {
        "cpu": size.millicores,
        "memory": size.memory,
        "storage": size.storage,
        "gpu": size.gpu,
        **size.extended,
    }
    spec = node_class.spec
    return MachineType(
        node_class.metadata.name,
        amounts,
        price.micros if price else 0,
        price,
        spec.resources.gpu_model,
        dict(spec.labels),
        spec.taints,
    )


def _with_location_labels(labels: Mapping[str, tuple[str, ...]], place: Place) -> dict[str, tuple[str, ...]]:
    known = {"region": place.region, "zone": place.zone, "provider": place.provider}
    return {key: (value,) for key, value in known.items() if value} | dict(labels)


def _limit(stated: int | None) -> int:
    return NO_LIMIT if stated is None else stated


def _currency(pool: LatticePool) -> str:
    return pool.spec.budget.currency if pool.spec.budget else PRICE_CURRENCY


def _pool_budget(pool: LatticePool) -> Budget:
    """One in another currency is no number of dollars: nothing is compared with it, and the pool is closed."""
    stated = pool_ledger_spec(pool)
    return _budget(stated) if _currency(pool) == PRICE_CURRENCY else Budget(stated.budget, None)


def _cloud_budgets(cloud: CloudInfrastructure) -> Iterator[Budget]:
    """One for the whole and one for each region inside it."""
    for region in ("", *cloud.spec.regions):
        stated = cloud_ledger_spec(cloud, region)
        if stated is not None:
            yield _budget(stated)


def _overflow_budget(static: StaticInfrastructure) -> Budget:
    stated = overflow_ledger_spec(static)
    return Budget(overflow_account(static.metadata.name), None) if stated is None else _budget(stated)


def _budget(stated: LedgerSpec) -> Budget:
    """Of what is spent already nothing is known here."""
    limit = stated.limit_micros
    cap = limit // HOURS_PER_MONTH if limit is not None and stated.hard else NO_LIMIT
    return Budget(stated.budget, limit, stated.hard, stated.alert_millionths, cap)


def _foreign_currency_findings(pools: list[LatticePool]) -> Iterator[Finding]:
    for pool in pools:
        currency = _currency(pool)
        if currency != PRICE_CURRENCY:
            message = f"budget is in {currency}, prices are in {PRICE_CURRENCY}: nothing new is put here; state the budget in {PRICE_CURRENCY}"
            yield Finding(_subject(pool), "Ready", "ForeignCurrency", message)


def _overlaps(pools: list[LatticePool], clouds: list[CloudInfrastructure]) -> Iterator[tuple[str, Finding]]:
    """The same provider, region and login, declared by two kinds: the later one is not offered, or capacity would count twice."""
    for pool in pools:
        login = pool.spec.provider.credentials
        own = (pool.spec.provider.type, f"{DEFAULT_SECRET_NAMESPACE}/{login.secret_ref}" if login else "")
        for cloud in clouds:
            ref, region = cloud.spec.credentials_ref, pool.spec.provider.region
            theirs = (cloud.spec.provider, f"{ref.namespace}/{ref.name}" if ref else "")
            if own != theirs or region not in cloud.spec.regions:
                continue
            first, later = sorted(
                (pool, cloud), key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.name)
            )
            offer = pool.metadata.name if later is pool else f"{cloud.metadata.name}/{region}"
            message = f"{_subject(first)} already offers {own[0]} {region} with the same credentials"
            yield offer, Finding(_subject(later), "Overlaps", "SameSupply", message, is_true=True)


def _subject(kind: Kind) -> str:
    return f"{kind.resource.singular}/{kind.metadata.name}"


def _missing_class_findings(
    pools: list[LatticePool], classes: Mapping[str, LatticeNodeClass]
) -> Iterator[Finding]:
    for pool in pools:
        absent = [name for name in pool.spec.node_classes if name not in classes]
        if absent:
            message = f"no LatticeNodeClass {', '.join(absent)}"
            yield Finding(_subject(pool), "ReferencesResolved", "NodeClassNotFound", message)


def _overflow_findings(
    statics: list[StaticInfrastructure], clouds: list[CloudInfrastructure]
) -> Iterator[Finding]:
    """Also of one that is not enabled: whoever enables it should not be surprised."""
    known = {each.metadata.name for each in clouds}
    targets = {
        each.metadata.name: each.spec.overflow.target
        for each in statics
        if each.spec.overflow and each.spec.overflow.target
    }
    for static in statics:
        name = static.metadata.name
        target = targets.get(name)
        if target is None or target in known:
            continue
        if _is_overflow_cycle(name, targets):
            yield Finding(
                _subject(static),
                "ReferencesResolved",
                "OverflowCycle",
                f"overflow to {target} leads back to {name}; name a CloudInfrastructure",
            )
        else:
            yield Finding(
                _subject(static),
                "ReferencesResolved",
                "OverflowTargetNotFound",
                f"no CloudInfrastructure {target} to overflow to",
            )


def _unknown_region_findings(
    statics: list[StaticInfrastructure], clouds: list[CloudInfrastructure]
) -> Iterator[Finding]:
    """Regions to overflow to that the target does not have: nothing would prefer them, and nobody would know why."""
    known = {each.metadata.name: each.spec.regions for each in clouds}
    for static in statics:
        overflow = static.spec.overflow
        if overflow is None or overflow.target not in known:
            continue
        there = known[overflow.target]
        if absent := [each for each in overflow.regions if each not in there]:
            message = f"{overflow.target} has no region {', '.join(absent)} to overflow to, but {', '.join(sorted(there)) or 'none'}"
            yield Finding(_subject(static), "ReferencesResolved", "OverflowRegionNotFound", message)


def _is_overflow_cycle(name: str, targets: Mapping[str, str]) -> bool:
    seen, at = set(), targets.get(name)
    while at is not None and at not in seen:
        if at == name:
            return True
        seen.add(at)
        at = targets.get(at)
    return False


def _drop_duplicate_names(offers: list[Offer]) -> tuple[list[Offer], list[Finding]]:
    """A pool and a data center may have one name, but it can mean only one of them: the pool."""
    kept: dict[str, Offer] = {}
    found = []
    for each in sorted(offers, key=lambda each: (each.name, each.kind)):
        first = kept.setdefault(each.name, each)
        if first is not each:
            message = f"{_SINGULAR[first.kind]}/{first.owner} is offered under this name; rename one of them"
            found.append(Finding(f"{_SINGULAR[each.kind]}/{each.owner}", "Ready", "NameTaken", message))
    return list(kept.values()), found


def _has_adapter(offer: Offer, adapters: frozenset[str] | None) -> bool:
    return adapters is None or offer.place.provider in adapters


def _missing_adapter_findings(offers: list[Offer], adapters: frozenset[str] | None) -> Iterator[Finding]:
    for each in offers:
        if not _has_adapter(each, adapters):
            yield Finding(
                f"{_SINGULAR[each.kind]}/{each.owner}",
                "Ready",
                "ProviderUnavailable",
                _no_adapter_message(each),
            )


def _no_adapter_message(offer: Offer) -> str:
    return f"no adapter here makes machines of provider {offer.place.provider or 'unnamed'}"


def _no_machine_findings(offers: list[Offer]) -> Iterator[Finding]:
    for each in offers:
        if not each.types:
            where = f" in {each.place.region}" if each.kind == "cloud" else ""
            message = f"no node class is available{where} on provider {each.place.provider or '(none)'}"
            yield Finding(f"{_SINGULAR[each.kind]}/{each.owner}", "Ready", "NoNodeClass", message)
