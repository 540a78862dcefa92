"""Available: the offer must be open, and have a class of machines that a replica fits on at all."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.kinds.constraint import Taint, Toleration
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.machine_catalog import matches_gpu_model, offers_gpu_model, untolerated_taints
from lattice.placement.model.offer import MachineType, Offer
from lattice.placement.model.quotes import any_type
from lattice.placement.model.rejection_reasons import (
    fleet_of,
    format_amount,
    join_sorted,
    offer_at,
    offer_mask,
    select_rows,
)

LOST_OFFER_HINT = "it is gone: declare it again"


@dataclass(frozen=True, slots=True)
class OfferClosed:
    """Nothing new goes there; with what would open it, which is alike for many."""

    reopen_hint: str
    plugin: str = "Available"

    def summary(self) -> str:
        return f"closed ({self.reopen_hint})"

    def detail(self, table: Table, row: int) -> Shortfall:
        return Shortfall(
            "open", "an open pool", offer_at(table, row).closed_reason or "lost", self.reopen_hint
        )


@dataclass(frozen=True, eq=False)
class ReplicaTooLarge:
    """No class of machines there holds one replica, however empty."""

    demand: Demand
    plugin: str = "Available"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReplicaTooLarge) and other.demand.machine_shape == self.demand.machine_shape

    def __hash__(self) -> int:
        return hash(self.demand.machine_shape)

    def summary(self) -> str:
        return "without machines that one replica fits on"

    def detail(self, table: Table, row: int) -> Shortfall:
        """The first resource that no class has enough of; else all that keeps the replica off the class that comes nearest."""
        short = list(_size_shortfalls(self.demand, offer_at(table, row)))
        return short[0] if short else _joined(self.shortfalls(table, row))

    def shortfalls(self, table: Table, row: int) -> list[Shortfall]:
        """Every resource that no class has enough of, and what else keeps the replica off the class that comes nearest."""
        offer, needs = offer_at(table, row), self.demand.effective_needs
        types = offer.types
        if not types:
            return [Shortfall("machines", "a class of machines", "none", "a class of machines")]
        short = list(_size_shortfalls(self.demand, offer))
        large = [
            each
            for each in types
            if all(each.size.get(resource, 0) >= amount for resource, amount in needs.items())
        ]
        bars = min(
            (list(_constraint_shortfalls(self.demand, each, offer)) for each in large or types), key=len
        )
        if short or bars:
            return [*short, *bars]
        wanted = " and ".join(f"{format_amount(name, amount)} {name}" for name, amount in needs.items())
        return [
            Shortfall(
                "machines",
                f"one class with {wanted}",
                f"none of {', '.join(each.name for each in types)}",
                "such a class",
            )
        ]


def _size_shortfalls(demand: Demand, offer: Offer) -> Iterator[Shortfall]:
    for resource, amount in demand.effective_needs.items():
        most = max((each.size.get(resource, 0) for each in offer.types), default=amount)
        if most < amount:
            yield Shortfall(
                f"{resource} on one machine",
                format_amount(resource, amount),
                format_amount(resource, most),
                format_amount(resource, amount - most),
            )


def _constraint_shortfalls(demand: Demand, kind: MachineType, offer: Offer) -> Iterator[Shortfall]:
    """What but their size keeps a replica off machines of a class."""
    for key, value in demand.node_selector:
        if kind.labels.get(key) != value:
            have = f"{key}={kind.labels[key]}" if key in kind.labels else f"no label {key}"
            yield Shortfall(f"label of class {kind.name}", f"{key}={value}", have, f"{key}={value}")
    if not offers_gpu_model(demand, frozenset(offer.limits.gpus)):
        yield Shortfall("gpu model", demand.gpu_model, join_sorted(offer.limits.gpus), demand.gpu_model)
    elif not matches_gpu_model(demand, kind):
        models = {each.gpu_model for each in offer.types if each.gpu_model}
        yield Shortfall(
            "gpu model", demand.gpu_model, join_sorted(models) if models else "none named", demand.gpu_model
        )
    for taint in untolerated_taints(demand, kind):
        tolerated = (
            join_sorted(map(_toleration, demand.tolerations)) if demand.tolerations else "no toleration"
        )
        yield Shortfall(
            f"taint of class {kind.name}",
            f"toleration of {_taint(taint)}",
            tolerated,
            f"toleration of {_taint(taint)}",
        )


def _joined(parts: list[Shortfall]) -> Shortfall:
    return Shortfall(*(" and ".join(dict.fromkeys(words)) for words in zip(*parts, strict=True)))


def _taint(taint: Taint) -> str:
    """`dedicated=db:NoSchedule`."""
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"


def _toleration(each: Toleration) -> str:
    key = each.key or "any taint"
    return f"{key}{f'={each.value}' if each.operator == 'Equal' else ''}{f':{each.effect}' if each.effect else ''}"


@dataclass(frozen=True, slots=True)
class Available:
    name: ClassVar[str] = "Available"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        serves = fleet_of(rows).table.quotes.machine_fit(ask.demand).can_host
        ways = fleet_of(rows).reopen_hints
        closed: dict[Reason, Flags] = {
            OfferClosed(way): offer_mask(rows, ("closed", way), _has_reopen_hint(way)) for way in ways
        }
        return {
            **closed,
            OfferClosed(LOST_OFFER_HINT): rows.column("lost").copy(),
            ReplicaTooLarge(ask.demand): ~select_rows(rows, any_type(serves)),
        }


def _has_reopen_hint(way: str) -> Callable[[Offer], bool]:
    return lambda offer: bool(offer.closed_reason) and offer.reopen_hint == way
