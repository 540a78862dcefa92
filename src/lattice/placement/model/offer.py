"""Offers and their table. An offer holds the machine types, prices and limits of one pool, cloud region or
data center."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal

import numpy as np

from lattice.engine.table import Flags, Floats, Integers, Table
from lattice.kinds.cloud_budget import DEFAULT_ALERT_MILLIONTHS
from lattice.kinds.constraints import Taint
from lattice.kinds.infrastructure import Reservation
from lattice.kinds.ledger import Account
from lattice.kinds.node_class import ObservedMachine
from lattice.kinds.overflow import Overflow
from lattice.placement.inputs.latency import Place
from lattice.placement.inputs.observed_machines import PromisedMachine, lacks_anything
from lattice.placement.inputs.price_book import Price
from lattice.placement.model.demand import Demand

# An absent limit; the sum of two absent limits still fits in 64 bits.
NO_LIMIT = 1 << 61
# A data center that states its total cores or memory has one machine type with this name, whose size is an
# equal part of the total for each machine.
STATIC_MACHINE_TYPE = "static"
# The lower bits of the rank of an offer come from its name.
TIE_KEY_BITS = 48
NAME_RANK_BITS = 16
# All runtimes that a container may need.
RUNTIMES = frozenset({"container", "process"})
OFFER_RESOURCES = ("nodes", "cpu", "memory", "clusters")


@dataclass(frozen=True, slots=True)
class MachineType:
    """A LatticeNodeClass with the size and price that one offer has for the class."""

    name: str
    # Milli-cores, bytes, milli-GPUs and counts, by resource.
    size: Mapping[str, int]
    # Micro-dollars per hour that decisions and budgets count with; 0 for owned machines and for an unknown
    # price.
    rate: int
    # None: unknown.
    price: Price | None = None
    gpu_model: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    # A machine of an owner, which Lattice neither makes nor removes; it costs nothing.
    is_joined: bool = False
    # None: not known; every runtime is possible.
    runtimes: frozenset[str] | None = None
    # The type as its class states it, if the real machines of the class in the offer have less.
    promised: "MachineType | None" = None
    # Digest of everything but the name; breaks ties between types before the name does.
    tie_key: int = 0

    @property
    def is_priced(self) -> bool:
        return self.price is not None


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper limits on the nodes, milli-cores, bytes of memory and clusters of one offer."""

    nodes: int = NO_LIMIT
    millicores: int = NO_LIMIT
    memory: int = NO_LIMIT
    clusters: int = NO_LIMIT
    nodes_per_cluster: int = NO_LIMIT
    # Milli-GPUs by model. Not empty means that the offer *counts GPUs in total*: it limits each model by one
    # number for the whole offer, not per machine.
    gpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of one account that pays for machines of one or more offers."""

    account: Account
    limit: int | None  # micro-dollars per month
    is_hard: bool = True
    alert_millionths: int = DEFAULT_ALERT_MILLIONTHS
    # Micro-dollars per hour that may be committed in total; NO_LIMIT: the budget rejects no commitment.
    commit_cap: int = NO_LIMIT
    spent_this_month: int = 0  # micro-dollars this calendar month
    # The time from the end of the counted spending to the end of the month; None: the month counts from the
    # present time on.
    month_remaining: timedelta | None = None

    @property
    def name(self) -> str:
        return self.account.ledger_name


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A LatticePool, one region of a CloudInfrastructure, or a StaticInfrastructure, as a candidate for
    replicas.

    Compliance, capabilities and residency are in lower case, as demands are.
    """

    name: str
    kind: Literal["pool", "cloud", "static"]
    owner: str  # name of the object behind the offer
    place: Place
    labels: Mapping[str, tuple[str, ...]]
    compliance: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset()
    residency: frozenset[str] = frozenset()
    types: tuple[MachineType, ...] = ()
    limits: Limits = Limits()
    # Names of the ledgers that pay for every machine of the offer.
    budgets: tuple[str, ...] = ()
    reservation: Reservation | None = None
    # Whole machines, and amounts of cpu and memory, that only services of the reservation may use. An amount
    # that is no multiple of a machine closes only its whole machines; the rest is free capacity among the
    # machines of the other services, which may not use it.
    reserved_nodes: int = 0
    reserved_amounts: Mapping[str, int] = field(default_factory=dict)
    overflow: Overflow | None = None
    # The provider creates no machines: only machines that join serve the offer.
    is_manual: bool = False
    closed_reason: str = ""  # why no new replica is placed
    reopen_hint: str = ""  # the change that opens the offer again
    # Digest of everything but names, of TIE_KEY_BITS bits; breaks ties between offers before the name does.
    tie_key: int = 0

    @property
    def region(self) -> str:
        """The region for spreading; an offer without a region counts as a region of its own."""
        return self.place.region or self.name

    @property
    def is_static(self) -> bool:
        return self.kind == "static"

    @property
    def has_reserve(self) -> bool:
        return self.reserved_nodes > 0 or bool(self.reserved_amounts)

    def capacity(self, resource: str) -> int:
        """The stated amount of cpu or memory, else that of all machines at the largest size; NO_LIMIT if
        neither is limited."""
        stated = self.limits.millicores if resource == "cpu" else self.limits.memory
        if stated < NO_LIMIT:
            return stated
        largest = max((kind.size.get(resource, 0) for kind in self.types), default=0)
        return NO_LIMIT if max(largest, self.limits.nodes) >= NO_LIMIT else self.limits.nodes * largest

    def unreserved(self, resource: str) -> int:
        """The cpu or memory that services outside of the reservation may use."""
        return self.capacity(resource) - self.reserved_amounts.get(resource, 0)

    def initial_nodes(self, min_nodes: int) -> int:
        """Machines that a new cluster starts with: the minimum of the policy, within the limit per cluster of
        the offer."""
        return max(1, min(min_nodes, self.limits.nodes_per_cluster))

    def matches_region(self, region: str) -> bool:
        """Whether a required region names the offer or the region of the offer."""
        return region in (self.name, self.place.region)


def domain_of(offer: Offer, key: str) -> str:
    """The domain of the offer by the topology key."""
    match key:
        case "region":
            return offer.region
        case "zone":
            # Zone names repeat between regions.
            return f"{offer.region}/{offer.place.zone}"
        case "provider":
            return offer.place.provider
    return offer.name


class OfferTable(Table):
    """Table of offers, a row per offer: limits and usage in machines, cores, memory, clusters and GPUs, and
    indexes over the offers."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        super().__init__(OFFER_RESOURCES)
        # The offer counts as deleted: every replica is rejected.
        self.add_column("lost", np.bool_)
        unsorted = list(offers)
        self._tie_keys = {offer.name: offer.tie_key for offer in unsorted}
        self.offers = sorted(unsorted, key=lambda offer: (self.rank_of(offer.name), offer.name))
        for offer in self.offers:
            self.add(offer.name, _totals(offer))
        self.nodes_per_cluster: Integers = np.array(
            [offer.limits.nodes_per_cluster for offer in self.offers], np.int64
        )
        # Masks over properties of the offers, with the predicate that recomputes a row when an offer is replaced.
        self.masks: dict[object, tuple[Callable[[Offer], bool], Flags]] = {}
        self.scores: dict[object, Floats] = {}
        self._index_offers()

    def rank_of(self, name: str) -> int:
        """The rank by everything but the name first, so that the name decides only between equal offers."""
        name_rank = super().rank_of(name) & ((1 << NAME_RANK_BITS) - 1)
        return self._tie_keys[name] << NAME_RANK_BITS | name_rank

    def _index_offers(self) -> None:
        self.static_rows: list[int] = []
        self.overflow_rows: list[int] = []
        reserving, hints = set(), set()
        for row, offer in enumerate(self.offers):
            if offer.has_reserve:
                reserving.add(offer.name)
            if offer.is_static:
                self.static_rows.append(row)
            if offer.overflow is not None:
                self.overflow_rows.append(row)
            if offer.closed_reason:
                hints.add(offer.reopen_hint)
        self.offers_with_reserve, self.reopen_hints = frozenset(reserving), sorted(hints)

    def replace(self, offer: Offer) -> set[int]:
        """Replace the offer of the same name; return the rows of the offer and of its overflow targets, old and
        new."""
        row = self.row_of[offer.name]
        previous = self.offers[row]
        affected = {row, *self.overflow_targets(previous), *self.overflow_targets(offer)}
        self.offers[row] = offer
        self.resize(offer.name, _totals(offer))
        self.nodes_per_cluster[row] = offer.limits.nodes_per_cluster
        # The cached masks still describe the previous offer.
        for holds, mask in self.masks.values():
            mask[row] = holds(offer)
        # Only static offers have a reserve or an overflow. The replacement of any other offer can only change
        # the set of reopen hints.
        if offer.is_static or offer.reopen_hint != previous.reopen_hint:
            self._index_offers()
        return affected

    def overflow_targets(self, static: Offer) -> list[int]:
        """Rows of the regions that the data center overflows to; the rows share the limits of the overflow."""
        overflow = static.overflow
        if overflow is None:
            return []
        return [row for row, offer in enumerate(self.offers) if offer.owner == overflow.target]

    def touch_overflow_targets(self, static: str) -> None:
        """Mark the overflow targets of the data center as changed; a deleted data center has none."""
        if static in self.row_of:
            for row in self.overflow_targets(self.offers[self.row_of[static]]):
                self.touch(row)

    def gpu_resource_for(self, demand: Demand, row: int) -> str:
        """The resource of the offer that counts the GPUs of a replica: the resource of the required model, or
        without a required model, of the model with the most GPUs left.

        An empty string means that no model has enough GPUs left.
        """
        need, limits = demand.effective_needs["gpu"], self.offers[row].limits.gpus
        models = [demand.gpu_model] if demand.gpu_model else sorted(limits)
        free = {
            model: int(self.free(self.resource_index[f"gpu:{model}"])[row])
            for model in models
            if model in limits
        }
        best = max(free, key=lambda model: free[model], default="")
        is_enough = best and (free[best] >= need or "capacity" in demand.ignored_limits)
        return f"gpu:{best}" if is_enough else ""


def _totals(offer: Offer) -> dict[str, int]:
    limits = offer.limits
    totals = {
        "nodes": limits.nodes,
        "cpu": limits.millicores,
        "memory": limits.memory,
        "clusters": limits.clusters,
    }
    return totals | {f"gpu:{model}": count for model, count in limits.gpus.items()}


def promised_machine(kind: MachineType) -> PromisedMachine:
    """The machine type as stated, without amounts that have no limit."""
    sizes = {name: amount for name, amount in kind.size.items() if amount < NO_LIMIT}
    return PromisedMachine(sizes, kind.gpu_model, kind.runtimes)


def as_observed(kind: MachineType, record: ObservedMachine | None) -> MachineType:
    """The machine type that a purchase may count on: of every resource the smaller of the stated and the
    observed amount."""
    if record is None or not lacks_anything(promised_machine(kind), record):
        return kind
    size = {
        name: amount if amount >= NO_LIMIT else min(amount, record.allocatable.get(name, 0))
        for name, amount in kind.size.items()
    }
    models = [entry.model for entry in record.gpus]
    gpu_model = kind.gpu_model
    if gpu_model and models and gpu_model not in models:
        gpu_model = models[0] if len(models) == 1 else ""
    runtimes = kind.runtimes
    if record.runtimes:
        runtimes = frozenset(record.runtimes) if runtimes is None else runtimes & set(record.runtimes)
    return replace(kind, size=size, gpu_model=gpu_model, runtimes=runtimes, promised=kind)
