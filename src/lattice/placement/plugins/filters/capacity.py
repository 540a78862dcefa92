"""Capacity: there must be room on a machine that is there, or for a new one within the offer's limits."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rows, Table
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.machine_catalog import offers_gpu_model
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.quotes import gpu_resource_for, growable_clusters
from lattice.placement.model.rejection_reasons import fleet_of, format_amount, select_rows


@dataclass(frozen=True, eq=False)
class InsufficientCapacity:
    ask: ReplicaAsk
    plugin: str = "Capacity"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InsufficientCapacity) and other.ask.shape == self.ask.shape

    def __hash__(self) -> int:
        return hash(self.ask.shape)

    def summary(self) -> str:
        return (
            f"full for what overflows from {self.ask.overflow_source}" if self.ask.overflow_source else "full"
        )

    def detail(self, table: Table, row: int) -> Shortfall:
        """The limit that is in the way first."""
        return self.shortfalls(table, row)[0]

    def shortfalls(self, table: Table, row: int) -> list[Shortfall]:
        return list(exceeded_limits(self.ask, fleet_of(table), row)) or [
            Shortfall("room", "1 more machine", "none", "1")
        ]


def exceeded_limits(ask: ReplicaAsk, fleet: Fleet, row: int) -> Iterator[Shortfall]:
    """Every limit that one more machine would pass, or as many as a new cluster begins with."""
    offer, demand, table = fleet.offers[row], ask.demand, fleet.table
    grows = bool(growable_clusters(fleet, row, fleet.growable_groups(demand, ask.overflow_source, row)))
    count = 1 if grows else offer.initial_nodes(demand.rules.min_nodes)
    left = {
        name: max(0, int(table.free(table.resource_index[name])[row]))
        for name in ("nodes", "clusters", "cpu", "memory")
    }
    if not grows and ask.overflow_source and not offer.is_static:
        yield from _overflow_shortfall(fleet, ask.overflow_source)
    if not grows and left["clusters"] < 1:
        yield Shortfall(
            "clusters", "1 more", f"{offer.limits.clusters:,} of {offer.limits.clusters:,} in use", "1"
        )
    counted = frozenset(offer.limits.gpus)
    if (
        counted
        and demand.needs.get("gpu")
        and offers_gpu_model(demand, counted)
        and not gpu_resource_for(fleet, demand, row)
    ):
        yield _gpus(ask, table, row)
    open_left = fleet.unreserved_nodes_left(row)
    if left["nodes"] < count:
        yield _count_shortfall("nodes", count, left["nodes"], f" of {offer.limits.nodes:,}")
    elif offer.reserved_nodes and not demand.may_use_reserve(offer.name) and open_left < count:
        yield _count_shortfall(
            "nodes",
            count,
            max(0, open_left),
            f" of {offer.limits.nodes:,}, {offer.reserved_nodes:,} reserved",
        )
    if offer.is_static and left["nodes"] < count:  # cores and memory come with its machines
        return
    for name in ("cpu", "memory"):
        need = count * _smallest(ask, fleet, row, name)
        if need > left[name]:
            what = f"{name} for {count} more machine{'s' if count > 1 else ''}"
            yield Shortfall(
                what,
                format_amount(name, need),
                format_amount(name, left[name]),
                format_amount(name, need - left[name]),
            )


def _overflow_shortfall(fleet: Fleet, static: str) -> Iterator[Shortfall]:
    """The limit of a data center on clusters elsewhere."""
    overflow, used = fleet.offers[fleet.row(static)].overflow, fleet.overflow_clusters[static]
    most = overflow.limits.max_clusters if overflow else None
    if most is not None and used >= most:
        yield Shortfall(
            f"overflow clusters of {static}",
            "1 more",
            f"{used:,} of maxClusters {most:,}",
            f"{used + 1 - most:,}",
        )


def _smallest(ask: ReplicaAsk, fleet: Fleet, row: int, resource: str) -> int:
    """Of the classes that would do; where none does, of all that are there. 0: without a size."""
    quotes = fleet.table.quotes
    serving = quotes.machine_fit(ask.demand).can_host[:, row]
    sizes = quotes.catalog.size(resource)[
        serving if serving.any() else quotes.catalog.is_offered[:, row], row
    ]
    return min((int(size) for size in sizes if size < NO_LIMIT), default=0)


def _count_shortfall(what: str, need: int, have: int, of: str) -> Shortfall:
    return Shortfall(what, f"{need:,} more", f"{have:,}{of}", f"{need - have:,}")


def _gpus(ask: ReplicaAsk, table: Table, row: int) -> Shortfall:
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
    name: ClassVar[str] = "Capacity"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        quote = fleet_of(rows).table.quotes.quote_for(ask)
        return {
            InsufficientCapacity(ask): select_rows(
                rows, quote.can_host & ~quote.has_free_capacity & ~quote.within_limits
            )
        }
