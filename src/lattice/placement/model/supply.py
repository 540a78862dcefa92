"""Compile pools, clouds and data centers into offers and budgets, with findings about objects that cannot
serve as declared."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from lattice.kinds.infrastructure import OVERLAPS_CONDITION, CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import (
    Account,
    LedgerSpec,
    cloud_ledger_spec,
    overflow_ledger_spec,
    pool_ledger_spec,
)
from lattice.kinds.meta.base import SYSTEM_NAMESPACE, Kind
from lattice.kinds.meta.conditions import READY_CONDITION, RESOLVED_CONDITION
from lattice.kinds.node_class import LatticeNodeClass, MachineSize
from lattice.kinds.pool import PRICE_CURRENCY, LatticePool
from lattice.placement.inputs.latency import Place
from lattice.placement.inputs.ledger_math import HOURS_PER_MONTH
from lattice.placement.inputs.observed_machines import PromisedMachine
from lattice.placement.inputs.price_book import Price, PriceBook, price_of
from lattice.placement.model.offer import (
    NO_LIMIT,
    STATIC_MACHINE_TYPE,
    TIE_KEY_BITS,
    Budget,
    Limits,
    MachineType,
    Offer,
    as_observed,
    promised_machine,
)

K = TypeVar("K", bound=Kind)
# The providers that this server can create machines with, and the runtimes of their machines; None: unknown.
Adapters = Mapping[str, frozenset[str] | None]

# Ends the name of a provider that creates no machines, in `World.adapters`.
MANUAL_SUFFIX = "=manual"
OVERLAP_FIX = "give one of the two its own credentials, or delete one of the two"
_SINGULAR = {"pool": "latticepool", "cloud": "cloudinfrastructure", "static": "staticinfrastructure"}


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about an object that users should know; a controller turns a finding into a condition."""

    subject: str  # kind/name
    type: str  # condition type
    reason: str
    message: str
    is_true: bool = False


@dataclass(frozen=True, slots=True)
class Supply:
    """The offers and budgets of a world (all objects that placement reads), with the findings and node
    classes behind them."""

    offers: tuple[Offer, ...]  # by name
    budgets: Mapping[str, Budget]
    findings: tuple[Finding, ...]
    # Every node class of the world, offered or not.
    node_classes: "NodeClasses"


class NodeClasses(dict[str, LatticeNodeClass]):
    """Node classes by name; a class is resolved once for each provider and region, since many pools offer the
    same classes."""

    def __init__(
        self, classes: Iterable[LatticeNodeClass], book: PriceBook, adapters: Adapters | None = None
    ) -> None:
        super().__init__((node_class.metadata.name, node_class) for node_class in classes)
        self._book = book
        self._adapters = adapters
        self._type_cache: dict[tuple[str, str, str], MachineType | None] = {}
        self._observed = {
            (name, record.offer): record
            for name, node_class in self.items()
            for record in node_class.status.observed
            if record.generation == node_class.metadata.generation
        }

    def machine_types(
        self, names: Iterable[str], provider: str, region: str, offer: str = ""
    ) -> tuple[MachineType, ...]:
        """The named classes as the provider sells them in the region, by name; classes without a size on the
        provider are left out. A class whose real machines in the offer have less has their size."""
        resolved = []
        for name in sorted(set(names)):
            if name not in self:
                continue
            key = (name, provider, region)
            if key not in self._type_cache:
                size = self[name].spec.size_on(provider)
                self._type_cache[key] = (
                    None
                    if size is None
                    else _machine_type(
                        self[name],
                        size,
                        price_of(self[name], provider, region, self._book),
                        (self._adapters or {}).get(provider),
                    )
                )
            resolved.append(self._type_cache[key])
        types = tuple(machine_type for machine_type in resolved if machine_type is not None)
        if not self._observed:
            return types
        return tuple(as_observed(kind, self._observed.get((kind.name, offer))) for kind in types)

    def generic_types(self) -> tuple[MachineType, ...]:
        """Classes at their default size, without accelerators: the machines of a data center that states a
        number of machines only."""
        plain = [
            node_class
            for _, node_class in sorted(self.items())
            if not node_class.spec.default_size.gpu and not node_class.spec.default_size.extended
        ]
        return tuple(_machine_type(node_class, node_class.spec.default_size, None) for node_class in plain)


def compile_supply(objects: Iterable[Kind], book: PriceBook, adapters: Adapters | None = None) -> Supply:
    """Compile the supply of a world; an object with a mistake still takes part as far as possible, with a
    finding.

    `adapters` are the providers of this server with the runtimes of their machines, by NAME, or NAME=manual for
    a provider whose machines only join; None means every provider, with every runtime, and none of them is
    manual.
    """
    kinds = list(objects)
    classes = NodeClasses(of_kind(kinds, LatticeNodeClass), book, adapters)
    pools = of_kind(kinds, LatticePool)
    clouds = of_kind(kinds, CloudInfrastructure)
    statics = of_kind(kinds, StaticInfrastructure)
    offers = [_pool_offer(pool, classes) for pool in pools]
    for cloud in clouds:
        offers += _cloud_offers(cloud, classes)
    offers += [_static_offer(static, classes) for static in statics]
    offers, duplicates = _drop_duplicate_names(offers)
    overlaps = dict(_overlaps(pools, clouds))
    names = sorted(adapter.removesuffix(MANUAL_SUFFIX) for adapter in adapters or ())
    adapter_hint = f"name a provider of this server's --providers: {', '.join(names) or 'none yet'}"
    for position, offer in enumerate(offers):
        if offer.place.provider + MANUAL_SUFFIX in (adapters or ()):
            # Lattice makes no machine here: what joins is what there is.
            offer = offers[position] = replace(offer, types=(), is_manual=True)
        if offer.name in overlaps:
            message = overlaps[offer.name].message
            offers[position] = replace(offer, closed_reason=message, reopen_hint=OVERLAP_FIX)
        elif not offer.closed_reason and not _has_adapter(offer, adapters):
            message = no_adapter_message(offer.place.provider)
            offers[position] = replace(offer, closed_reason=message, reopen_hint=adapter_hint)
    budgets = {budget.name: budget for budget in _budgets(pools, clouds, statics)}
    round_trips = {
        static.metadata.name: sorted(static.spec.network.latency_ms.values()) for static in statics
    }
    offers = [
        replace(offer, tie_key=_tie_key(offer, budgets, round_trips.get(offer.name, []))) for offer in offers
    ]
    findings = [
        *duplicates,
        *overlaps.values(),
        *_pool_findings(pools, classes),
        *_overflow_findings(statics, clouds),
        *_offer_findings(offers, adapters),
    ]
    return Supply(
        tuple(sorted(offers, key=lambda offer: offer.name)),
        budgets,
        tuple(sorted(findings, key=lambda finding: (finding.subject, finding.type, finding.message))),
        classes,
    )


def _tie_key(offer: Offer, budgets: Mapping[str, Budget], round_trips: Sequence[int]) -> int:
    """A digest of everything in the offer that placement reads, except for names of objects; `round_trips` are
    the declared milliseconds to other places."""
    place, overflow = offer.place, offer.overflow
    paying = [budgets[name] for name in offer.budgets if name in budgets]
    properties = (
        offer.kind,
        (place.provider, place.region, place.zone),
        sorted((key, sorted(values)) for key, values in offer.labels.items()),
        sorted(offer.compliance),
        sorted(offer.capabilities),
        sorted(offer.residency),
        sorted((kind.tie_key, kind.rate) for kind in offer.types),
        offer.limits,
        [(budget.limit, budget.is_hard) for budget in paying],
        offer.reservation,
        overflow and (overflow.enabled, overflow.regions, overflow.trigger_millionths, overflow.limits),
        bool(offer.closed_reason),
        *round_trips,
    )
    return digest(properties, TIE_KEY_BITS)


def digest(properties: object, bits: int) -> int:
    """A number of so many bits that is equal for equal properties."""
    hashed = hashlib.blake2b(repr(properties).encode(), digest_size=bits // 8)
    return int.from_bytes(hashed.digest(), "big")


def of_kind(objects: Iterable[Kind], kind: type[K]) -> list[K]:
    return [candidate for candidate in objects if isinstance(candidate, kind)]


def pool_account(pool: str) -> Account:
    return Account(kind="LatticePool", name=pool)


def cloud_account(cloud: str, region: str = "") -> Account:
    return Account(kind="CloudInfrastructure", name=cloud, region=region)


def overflow_account(static: str) -> Account:
    return Account(kind="StaticInfrastructure", name=static)


def static_account(static: str) -> Account:
    """The account of a data center. Its machines cost nothing: the ledger of the account only keeps the
    number of the last cluster, so that no number is used twice."""
    return Account(kind="StaticInfrastructure", name=static, region="clusters")


def _lower(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word.lower() for word in words)


def _pool_offer(pool: LatticePool, classes: NodeClasses) -> Offer:
    name, spec, provider = pool.metadata.name, pool.spec, pool.spec.provider
    place = Place(name, provider.type, provider.region, provider.zone)
    currency = _currency(pool)
    is_foreign = currency != PRICE_CURRENCY
    return Offer(
        name=name,
        kind="pool",
        owner=name,
        place=place,
        labels=_with_location_labels(spec.labels or pool.metadata.labels, place),
        compliance=_lower(spec.compliance),
        capabilities=_lower(spec.capabilities),
        residency=_lower(spec.data_residency),
        types=classes.machine_types(spec.node_classes, provider.type, provider.region, name),
        limits=Limits(
            nodes=_limit(spec.capacity.max_nodes),
            millicores=_limit(spec.capacity.max_millicores),
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
        yield Offer(
            name=place.name,
            kind="cloud",
            owner=name,
            place=place,
            labels=_with_location_labels(cloud.metadata.labels, place),
            compliance=_lower(spec.compliance_of(region)),
            capabilities=_lower(spec.capabilities_of(region)),
            residency=_lower([stated.data_residency] if stated.data_residency else []),
            types=classes.machine_types(classes, spec.provider, region, place.name),
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
    types = _static_types(static, classes)
    reserved_nodes = 0
    reserved_amounts: dict[str, int] = {}
    if spec.reservation:
        reserved = spec.reservation.reserved
        reserved_nodes = reserved.nodes or 0
        # The whole machines of a reservation of cores or memory stay empty of other services, so that a large
        # replica fits when the reservation is needed.
        for resource, amount in (("cpu", reserved.millicores), ("memory", reserved.memory_bytes)):
            largest = max((kind.size.get(resource, 0) for kind in types), default=0)
            if amount and largest:
                reserved_amounts[resource] = amount
                reserved_nodes = max(reserved_nodes, amount // largest)
    return Offer(
        name=name,
        kind="static",
        owner=name,
        place=place,
        labels=_with_location_labels(static.metadata.labels, place),
        compliance=_lower(spec.compliance),
        capabilities=_lower(spec.capabilities),
        residency=_lower([spec.data_residency] if spec.data_residency else []),
        types=types,
        limits=Limits(
            nodes=capacity.nodes,
            millicores=_limit(capacity.millicores),
            memory=_limit(capacity.memory_bytes),
            gpus={accelerator.type: accelerator.count * 1000 for accelerator in capacity.accelerators},
        ),
        reservation=spec.reservation,
        reserved_nodes=reserved_nodes,
        reserved_amounts=reserved_amounts,
        overflow=spec.overflow,
    )


def _static_types(static: StaticInfrastructure, classes: NodeClasses) -> tuple[MachineType, ...]:
    """The machine types of a data center, all owned, at a rate of 0.

    Stated cores and memory are divided by the number of machines into one type. Without cores and memory, the
    types are the classes of the provider; without a provider, any generic class may be among the machines.
    """
    capacity, spec = static.spec.capacity, static.spec
    if capacity.millicores is None and capacity.memory_bytes is None:
        types = (
            classes.machine_types(classes, spec.provider, spec.location.region, static.metadata.name)
            if spec.provider
            else classes.generic_types()
        )
        # The data center may name the GPU model that the classes leave open.
        models = {accelerator.type for accelerator in capacity.accelerators}
        only_model = models.pop() if len(models) == 1 else ""
        return tuple(replace(as_owned(kind), gpu_model=kind.gpu_model or only_model) for kind in types)
    record = next(iter(static.status.observed), None)
    is_current = record is not None and record.generation == static.metadata.generation
    return (as_observed(stated_static_type(static), record if is_current else None),)


def stated_static_type(static: StaticInfrastructure) -> MachineType:
    """The one machine type of a data center that states its cores or memory in total."""
    capacity = static.spec.capacity
    nodes = max(1, capacity.nodes)
    size = {
        "cpu": _per_machine(capacity.millicores, nodes),
        "memory": _per_machine(capacity.memory_bytes, nodes),
        "storage": _per_machine(capacity.storage_bytes, nodes),
    }
    if capacity.accelerators:
        # The number of GPUs is a limit of the offer, not of one machine.
        size["gpu"] = NO_LIMIT
    return MachineType(STATIC_MACHINE_TYPE, size, 0, Price(0, "owned", ""))


def as_owned(kind: MachineType) -> MachineType:
    """The machine type at a rate of 0, as owned machines cost nothing."""
    return replace(kind, rate=0, price=kind.price or Price(0, "owned", ""))


def promised_class(node_class: LatticeNodeClass, provider: str) -> PromisedMachine:
    """The machine that a class states on a provider, or by default if it has no entry for the provider."""
    size = node_class.spec.size_on(provider) or node_class.spec.default_size
    return promised_machine(_machine_type(node_class, size, None))


def _per_machine(total: int | None, nodes: int) -> int:
    return NO_LIMIT if total is None else total // nodes


def _machine_type(
    node_class: LatticeNodeClass,
    size: MachineSize,
    price: Price | None,
    provider_runtimes: frozenset[str] | None = None,
) -> MachineType:
    amounts = {
        "cpu": size.millicores,
        "memory": size.memory,
        "storage": size.storage,
        "gpu": size.gpu,
        **size.extended,
    }
    spec = node_class.spec
    runtimes = provider_runtimes
    if spec.runtimes is not None:
        stated = frozenset[str](spec.runtimes)
        runtimes = stated if provider_runtimes is None else stated & provider_runtimes
    return MachineType(
        node_class.metadata.name,
        amounts,
        price.micros if price else 0,
        price,
        spec.resources.gpu_model,
        dict(spec.labels),
        spec.taints,
        runtimes=runtimes,
        tie_key=digest(
            (
                sorted(amounts.items()),
                price and price.micros,
                spec.resources.gpu_model,
                sorted(spec.labels.items()),
                spec.taints,
                sorted(runtimes or ()),
            ),
            TIE_KEY_BITS,
        ),
    )


def _with_location_labels(
    labels: Mapping[str, str | Sequence[str]] | None, place: Place
) -> dict[str, tuple[str, ...]]:
    """The values of every label, with region, zone and provider as defaults."""
    listed: dict[str, tuple[str, ...]] = {}
    for key, location in (("region", place.region), ("zone", place.zone), ("provider", place.provider)):
        if location:
            listed[key] = (location,)
    for key, value in (labels or {}).items():
        listed[key] = (value,) if isinstance(value, str) else tuple(value)
    return listed


def _limit(stated: int | None) -> int:
    return NO_LIMIT if stated is None else stated


def _currency(pool: LatticePool) -> str:
    return pool.spec.budget.currency if pool.spec.budget else PRICE_CURRENCY


def _budgets(
    pools: list[LatticePool], clouds: list[CloudInfrastructure], statics: list[StaticInfrastructure]
) -> Iterator[Budget]:
    for pool in pools:
        yield _budget(pool_ledger_spec(pool))
    for cloud in clouds:
        # The budget of the whole cloud, then the nested budgets of the regions.
        for region in ("", *cloud.spec.regions):
            nested = cloud_ledger_spec(cloud, region)
            if nested is not None:
                yield _budget(nested)
    for static in statics:
        overflow = overflow_ledger_spec(static)
        unlimited = Budget(overflow_account(static.metadata.name), None)
        yield unlimited if overflow is None else _budget(overflow)


def _budget(stated: LedgerSpec) -> Budget:
    """A budget before any spending is counted: the cap is the hourly rate that spends the limit in 30
    days."""
    limit = stated.limit_micros
    cap = limit // HOURS_PER_MONTH if limit is not None and stated.hard else NO_LIMIT
    return Budget(stated.budget, limit, stated.hard, stated.alert_millionths, cap)


def _pool_findings(pools: list[LatticePool], classes: Mapping[str, LatticeNodeClass]) -> Iterator[Finding]:
    for pool in pools:
        absent = [name for name in pool.spec.node_classes if name not in classes]
        if absent:
            message = f"no LatticeNodeClass {', '.join(absent)}"
            yield Finding(_subject(pool), RESOLVED_CONDITION, "NodeClassNotFound", message)
        currency = _currency(pool)
        if currency != PRICE_CURRENCY:
            message = (
                f"budget is in {currency}, prices are in {PRICE_CURRENCY}: nothing new is put here; "
                f"state the budget in {PRICE_CURRENCY}"
            )
            yield Finding(_subject(pool), READY_CONDITION, "ForeignCurrency", message)


def _overlaps(pools: list[LatticePool], clouds: list[CloudInfrastructure]) -> Iterator[tuple[str, Finding]]:
    """Offers of a pool and a cloud with equal provider, region and credentials: the later object is not
    offered, since capacity would count twice."""
    for pool in pools:
        login = pool.spec.provider.credentials
        pool_login = (
            pool.spec.provider.type,
            f"{SYSTEM_NAMESPACE}/{login.secret_ref}" if login else "",
        )
        for cloud in clouds:
            ref, region = cloud.spec.credentials_ref, pool.spec.provider.region
            cloud_login = (cloud.spec.provider, f"{ref.namespace}/{ref.name}" if ref else "")
            if pool_login != cloud_login or region not in cloud.spec.regions:
                continue
            first, later = sorted(
                (pool, cloud), key=lambda kind: (kind.metadata.creation_timestamp or "", kind.metadata.name)
            )
            offer = pool.metadata.name if later is pool else f"{cloud.metadata.name}/{region}"
            message = f"{_subject(first)} already offers {pool_login[0]} {region} with the same credentials"
            yield offer, Finding(_subject(later), OVERLAPS_CONDITION, "SameSupply", message, is_true=True)


def _subject(kind: Kind) -> str:
    return f"{kind.resource.singular}/{kind.metadata.name}"


def _overflow_findings(
    statics: list[StaticInfrastructure], clouds: list[CloudInfrastructure]
) -> Iterator[Finding]:
    """Overflow targets that are missing or form a cycle, and overflow regions that the target cloud does not offer.

    A disabled overflow is checked as well, before a user enables the overflow.
    """
    regions = {cloud.metadata.name: cloud.spec.regions for cloud in clouds}
    targets: dict[str, str] = {}
    for static in statics:
        if static.spec.overflow and static.spec.overflow.target:
            targets[static.metadata.name] = static.spec.overflow.target
    for static in statics:
        name, overflow = static.metadata.name, static.spec.overflow
        if overflow is None or name not in targets:
            continue
        target = targets[name]
        if target in regions:
            offered = regions[target]
            absent = [region for region in overflow.regions if region not in offered]
            if not absent:
                continue
            reason = "OverflowRegionNotFound"
            message = (
                f"{target} has no region {', '.join(absent)} to overflow to; "
                f"its regions are: {', '.join(sorted(offered)) or 'none'}"
            )
        elif _is_overflow_cycle(name, targets):
            reason = "OverflowCycle"
            message = f"overflow to {target} leads back to {name}; name a CloudInfrastructure"
        else:
            reason = "OverflowTargetNotFound"
            message = f"no CloudInfrastructure {target} to overflow to"
        yield Finding(_subject(static), RESOLVED_CONDITION, reason, message)


def _is_overflow_cycle(name: str, targets: Mapping[str, str]) -> bool:
    visited, target = set(), targets.get(name)
    while target is not None and target not in visited:
        if target == name:
            return True
        visited.add(target)
        target = targets.get(target)
    return False


def _drop_duplicate_names(offers: list[Offer]) -> tuple[list[Offer], list[Finding]]:
    """Keep one offer per name, the pool before the data center, with a finding about the dropped offer."""
    by_name: dict[str, Offer] = {}
    findings = []
    for offer in sorted(offers, key=lambda offer: (offer.name, offer.kind)):
        first = by_name.setdefault(offer.name, offer)
        if first is not offer:
            message = f"{_SINGULAR[first.kind]}/{first.owner} is offered under this name; rename one of them"
            findings.append(
                Finding(f"{_SINGULAR[offer.kind]}/{offer.owner}", READY_CONDITION, "NameTaken", message)
            )
    return list(by_name.values()), findings


def _has_adapter(offer: Offer, adapters: Adapters | None) -> bool:
    return adapters is None or offer.is_manual or offer.place.provider in adapters


def _offer_findings(offers: list[Offer], adapters: Adapters | None) -> Iterator[Finding]:
    for offer in offers:
        subject = f"{_SINGULAR[offer.kind]}/{offer.owner}"
        if not offer.types and not offer.is_manual:
            where = f" in {offer.place.region}" if offer.kind == "cloud" else ""
            message = f"no node class is available{where} on provider {offer.place.provider or '(none)'}"
            yield Finding(subject, READY_CONDITION, "NoNodeClass", message)
        if not _has_adapter(offer, adapters):
            yield Finding(
                subject, READY_CONDITION, "ProviderUnavailable", no_adapter_message(offer.place.provider)
            )


def no_adapter_message(provider: str) -> str:
    return f"no adapter for provider {provider or 'unnamed'} is configured"
