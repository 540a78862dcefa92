"""Capacity: an existing machine must have the free capacity, or the limits of the offer must allow new
machines."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rows, Table
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.machine_catalog import offers_gpu_model
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.plugins.rejection_reasons import fleet_of, format_amount, join_shortfall, select_rows


@dataclass(frozen=True, eq=False)
class InsufficientCapacity:
    """The offer has no free capacity for the replica, and a limit keeps the offer from adding machines."""

    ask: ReplicaAsk
    plugin: str = "Capacity"

    def __eq__(self, value: object) -> bool:
        # Asks of equal shape share one reason.
        return isinstance(value, InsufficientCapacity) and value.ask.shape == self.ask.shape

    def __hash__(self) -> int:
        return hash(self.ask.shape)

    def summary(self) -> str:
        return f"full for overflow from {self.ask.overflow_source}" if self.ask.overflow_source else "full"

    def detail(self, table: Table, row: int) -> Shortfall:
        """The shortfall of the first limit that the next machines would exceed."""
        return self.shortfalls(table, row)[0]

    def shortfalls(self, table: Table, row: int) -> list[Shortfall]:
        offer = fleet_of(table).offers[row]
        # Affinity may admit only machines and clusters that exist; a cluster may claim a joined machine.
        near = [term for term in self.ask.demand.near_terms if term.is_local]
        if offer.is_manual and not any(term.key == "node" for term in near):
            return [join_shortfall(self.ask.demand, offer)]
        limits = list(exceeded_limits(self.ask, fleet_of(table), row))
        if limits and not offer.is_manual:
            return limits
        if near:
            subject = f"a {near[0].key} with {near[0].text} that takes one more replica"
            return [Shortfall(subject, "1", "none", "1")]
        return [Shortfall("capacity", "1 more machine", "none", "1")]


def exceeded_limits(ask: ReplicaAsk, fleet: Fleet, row: int) -> Iterator[Shortfall]:
    """Every limit that the next machines would exceed: one machine, or the minimum of a new cluster."""
    offer, demand, table = fleet.offers[row], ask.demand, fleet.table
    grows = bool(
        fleet.inventory.growable_clusters(row, fleet.groups.growable(demand, ask.overflow_source, row))
    )
    # A cluster that grows takes one machine; a new cluster starts with its minimum.
    count = 1 if grows else offer.initial_nodes(demand.rules.min_nodes)
    free = {
        name: max(0, int(table.free(table.resource_index[name])[row]))
        for name in ("nodes", "clusters", "cpu", "memory")
    }
    if not grows and ask.overflow_source and not offer.is_static:
        yield from _overflow_shortfall(fleet, ask.overflow_source)
    if not grows and free["clusters"] < 1:
        yield Shortfall(
            "clusters", "1 more", f"{offer.limits.clusters:,} of {offer.limits.clusters:,} in use", "1"
        )
    # GPUs matter only where the offer counts GPUs in total, and has the model at all.
    counted = frozenset(offer.limits.gpus)
    if (
        counted
        and demand.needs.get("gpu")
        and offers_gpu_model(demand, counted)
        and not fleet.table.gpu_resource_for(demand, row)
    ):
        yield _gpu_shortfall(ask, table, row)
    unreserved = fleet.groups.unreserved_nodes_left(row)
    if free["nodes"] < count:
        yield _count_shortfall("nodes", count, free["nodes"], f" of {offer.limits.nodes:,}")
    elif fleet.groups.is_reserved_for_others(demand, row) and (
        short := fleet.groups.unreserved_shortfall(demand, row)
    ):
        name, amount, available = short
        reserved = format_amount(name, offer.reserved_amounts[name])
        yield Shortfall(
            name,
            format_amount(name, amount),
            f"{format_amount(name, max(0, available))} of {format_amount(name, offer.capacity(name))}, {reserved} reserved",
            format_amount(name, amount - max(0, available)),
        )
    elif offer.has_reserve and not demand.may_use_reserve(offer.name) and unreserved < count:
        yield _count_shortfall(
            "nodes",
            count,
            max(0, unreserved),
            f" of {offer.limits.nodes:,}, {offer.reserved_nodes:,} reserved",
        )
    # Cores and memory of a data center come with its machines.
    if offer.is_static and free["nodes"] < count:
        return
    for name in ("cpu", "memory"):
        need = count * _smallest_size(ask, fleet, row, name)
        if need > free[name]:
            subject = f"{name} for {count} more machine{'s' if count > 1 else ''}"
            yield Shortfall(
                subject,
                format_amount(name, need),
                format_amount(name, free[name]),
                format_amount(name, need - free[name]),
            )


def _overflow_shortfall(fleet: Fleet, static: str) -> Iterator[Shortfall]:
    """The limit of a data center on clusters in the cloud that the data center overflows to."""
    overflow, used = fleet.offers[fleet.row(static)].overflow, fleet.inventory.overflow_clusters[static]
    max_clusters = overflow.limits.max_clusters if overflow else None
    if max_clusters is not None and used >= max_clusters:
        yield Shortfall(
            f"overflow clusters of {static}",
            "1 more",
            f"{used:,} of maxClusters {max_clusters:,}",
            f"{used + 1 - max_clusters:,}",
        )


def _smallest_size(ask: ReplicaAsk, fleet: Fleet, row: int, resource: str) -> int:
    """The smallest size among the feasible types, else among all types of the offer; 0 if no type has a size."""
    quotes = fleet.quotes
    can_host = quotes.machine_fit(ask.demand).can_host[:, row]
    sizes = quotes.catalog.size(resource)[
        can_host if can_host.any() else quotes.catalog.is_offered[:, row], row
    ]
    return min((int(size) for size in sizes if size < NO_LIMIT), default=0)


def _count_shortfall(subject: str, need: int, have: int, total: str) -> Shortfall:
    return Shortfall(subject, f"{need:,} more", f"{have:,}{total}", f"{need - have:,}")


def _gpu_shortfall(ask: ReplicaAsk, table: Table, row: int) -> Shortfall:
    fleet, demand = fleet_of(table), ask.demand
    need, limits = demand.needs["gpu"], fleet.offers[row].limits.gpus
    models = [demand.gpu_model] if demand.gpu_model in limits else sorted(limits)
    have = max(int(table.free(table.resource_index[f"gpu:{model}"])[row]) for model in models)
    return Shortfall(
        f"gpu {demand.gpu_model}".strip(),
        format_amount("gpu", need),
        format_amount("gpu", max(0, have)),
        format_amount("gpu", need - max(0, have)),
    )


@dataclass(frozen=True, slots=True)
class Capacity:
    """Filter plugin: rejects offers that have feasible machine types, but neither free capacity nor limits
    that allow new machines."""

    name: ClassVar[str] = "Capacity"
    # The answer follows the usage of the offer.
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        quote = fleet_of(rows).quotes.quote_for(ask)
        return {
            # An offer without a feasible machine type is rejected by Available.
            InsufficientCapacity(ask): select_rows(
                rows, quote.can_host & ~quote.has_free_capacity & ~quote.within_limits
            )
        }
