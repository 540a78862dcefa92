"""Available: the offer must be open, and have a class of machines that a replica fits on at all."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rows, Table
from lattice.placement.demand import Demand, ReplicaAsk
from lattice.placement.quote import any_of, has_wanted_gpu
from lattice.placement.reason import fleet_of, mask_of, of_rows, offer_at, show


@dataclass(frozen=True, slots=True)
class Closed:
    plugin: str = "Available"

    def summary(self) -> str:
        return "closed"

    def detail(self, table: Table, row: int) -> Shortfall:
        return Shortfall("open", "an open offer", offer_at(table, row).closed or "lost")


@dataclass(frozen=True, eq=False)
class TooBig:
    """No class of machines there holds one replica, however empty."""

    demand: Demand
    plugin: str = "Available"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TooBig) and other.demand.machine_shape == self.demand.machine_shape

    def __hash__(self) -> int:
        return hash(self.demand.machine_shape)

    def summary(self) -> str:
        return "without machines that one replica fits on"

    def detail(self, table: Table, row: int) -> Shortfall:
        """The first resource that no class has enough of; else the class that comes nearest fails in several."""
        types, needs = offer_at(table, row).types, self.demand.effective_needs
        if not types:
            return Shortfall("machines", "a class of machines", "none")
        for resource, amount in needs.items():
            most = max(each.size.get(resource, 0) for each in types)
            if most < amount:
                return Shortfall(f"{resource} on one machine", show(resource, amount), show(resource, most), show(resource, amount - most))
        if not any(each.gpu_model or has_wanted_gpu(self.demand, each) for each in types):
            return Shortfall("gpu model", self.demand.gpu_model, "none named")
        wanted = " and ".join(f"{show(name, amount)} {name}" for name, amount in needs.items())
        return Shortfall(
            "machines", f"one class with {wanted}, that the service may use", f"none of {', '.join(each.name for each in types)}"
        )


@dataclass(frozen=True, slots=True)
class Available:
    name: ClassVar[str] = "Available"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        serves = fleet_of(rows).table.quotes.serving(ask.demand).serves
        closed = mask_of(rows, "closed", lambda offer: bool(offer.closed)) | rows.column("lost")
        return {Closed(): closed, TooBig(ask.demand): ~of_rows(rows, any_of(serves))}
