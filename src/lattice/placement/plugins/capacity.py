"""Capacity: there must be room on a machine that is there, or for a new one within the offer's limits."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rows, Table
from lattice.placement.demand import ReplicaAsk
from lattice.placement.offer import NO_LIMIT
from lattice.placement.quote import gpu_limit, growing
from lattice.placement.reason import fleet_of, of_rows, show


@dataclass(frozen=True, eq=False)
class Full:
    ask: ReplicaAsk
    plugin: str = "Capacity"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Full) and other.ask.shape == self.ask.shape

    def __hash__(self) -> int:
        return hash(self.ask.shape)

    def summary(self) -> str:
        return "full"

    def detail(self, table: Table, row: int) -> Shortfall:
        """The limit that is in the way first."""
        fleet, demand = fleet_of(table), self.ask.demand
        offer = fleet.offers[row]
        grows = bool(growing(fleet, row, fleet.group_of(demand, self.ask.overflow)))
        count = 1 if grows else offer.first_nodes(demand.rules.min_nodes)
        left = {name: int(table.free(table.index[name])[row]) for name in ("nodes", "clusters", "cpu", "memory")}
        if not grows and left["clusters"] < 1:
            return Shortfall("clusters", "1 more", f"{offer.limits.clusters} of {offer.limits.clusters} in use", "1")
        if offer.limits.gpus and demand.needs.get("gpu") and not gpu_limit(fleet, demand, row):
            return _gpus(self.ask, table, row)
        if left["nodes"] < count:
            return _short("nodes", count, left["nodes"], f" of {offer.limits.nodes:,}")
        kept = offer.limits.nodes - offer.reserved_nodes - fleet.open_nodes[row]
        if offer.reserved_nodes and offer.name not in demand.admitted and kept < count:
            return _short("nodes", count, max(0, kept), f" of {offer.limits.nodes:,}, {offer.reserved_nodes} reserved")
        serving = fleet.table.quotes.serving(demand).serves[:, row]
        sizes = fleet.table.quotes.catalogue
        for name in ("cpu", "memory"):
            needed = [
                int(size) * count for size, serves in zip(sizes.size(name)[:, row], serving, strict=True) if serves and size < NO_LIMIT
            ]
            if needed and min(needed) > left[name]:
                have, need = show(name, left[name]), show(name, min(needed))
                return Shortfall(
                    f"{name} for {count} more machine{'s' if count > 1 else ''}", need, have, show(name, min(needed) - left[name])
                )
        return (
            Shortfall("clusters", "a new cluster", "as many as the overflow may have")
            if self.ask.overflow
            else Shortfall("room", "1 more machine", "none")
        )


def _short(what: str, need: int, have: int, of: str) -> Shortfall:
    return Shortfall(what, f"{need:,} more", f"{have:,}{of}", f"{need - have:,}")


def _gpus(ask: ReplicaAsk, table: Table, row: int) -> Shortfall:
    fleet, demand = fleet_of(table), ask.demand
    need, limits = demand.needs["gpu"], fleet.offers[row].limits.gpus
    models = [demand.gpu_model] if demand.gpu_model in limits else sorted(limits)
    have = max(int(table.free(table.index[f"gpu:{model}"])[row]) for model in models)
    return Shortfall(f"gpu {demand.gpu_model}".strip(), show("gpu", need), show("gpu", max(0, have)), show("gpu", need - max(0, have)))


@dataclass(frozen=True, slots=True)
class Capacity:
    name: ClassVar[str] = "Capacity"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        quote = fleet_of(rows).table.quotes.of(ask)
        return {Full(ask): of_rows(rows, quote.serves & ~quote.has_room & ~quote.fits)}
