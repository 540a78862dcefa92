"""Overflow: an eligible data center with an overflow rule closes all rented offers (pools and cloud regions).
Its overflow target opens once its trigger is reached and no data center can take the replica."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rows, Table
from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.plugins.filters.eligibility import eligible_offers_in_region
from lattice.placement.plugins.rejection_reasons import fleet_of, offer_mask


@dataclass(frozen=True, slots=True)
class OverflowClosed:
    """The overflow rule of a data center closes the rented offers for the replica."""

    static: str
    # Utilisation counts the reserved machines too.
    includes_reserve: bool = True
    # The trigger is reached, but the data center still has free capacity or overflows to another cloud.
    is_triggered: bool = False
    is_enabled: bool = True
    plugin: str = "Overflow"

    def summary(self) -> str:
        if not self.is_enabled:
            return f"closed because overflow of {self.static} is not enabled"
        return (
            f"closed by the overflow rule of {self.static}"
            if self.is_triggered
            else f"closed while {self.static} is not full"
        )

    def detail(self, table: Table, row: int) -> Shortfall:
        fleet = fleet_of(table)
        static_row = fleet.row(self.static)
        overflow, used = (
            fleet.offers[static_row].overflow,
            offer_utilisation(fleet, static_row, includes_reserve=self.includes_reserve),
        )
        if overflow is None or not overflow.enabled:
            return Shortfall(f"overflow of {self.static}", "enabled: true", "enabled: false", "enabled: true")
        trigger = overflow.trigger_millionths
        if used >= trigger and fleet.offers[row].owner == overflow.target:
            return Shortfall(
                f"overflow of {self.static}",
                "no free capacity in data centers",
                "free capacity in one of them",
                "a full data center",
            )
        if used >= trigger:
            return Shortfall(
                f"overflow of {self.static}",
                f"target {overflow.target}",
                fleet.offers[row].owner,
                f"target: {fleet.offers[row].owner}",
            )
        return Shortfall(
            f"overflow of {self.static}",
            _percent(trigger),
            f"{_percent(used)} in use",
            _percent(trigger - used),
        )


@dataclass(frozen=True, slots=True)
class NotOverflowTarget:
    """The replica overflows from a data center, and the offer is not in the target cloud of the data center."""

    static: str
    target: str
    plugin: str = "Overflow"

    def summary(self) -> str:
        return f"not the overflow target of {self.static}"

    def detail(self, table: Table, row: int) -> Shortfall:
        owner = fleet_of(table).offers[row].owner
        return Shortfall(f"overflow of {self.static}", f"target {self.target}", owner, f"target: {owner}")


def _percent(millionths: int) -> str:
    return f"{millionths / 10_000:g} %"


def offer_utilisation(fleet: Fleet, row: int, *, includes_reserve: bool = True) -> int:
    """The utilisation of a data center in millionths: the larger of the shares of cores and memory that
    replicas request; without stated cores and memory, the share of machines with replicas.

    With `includes_reserve` the reserved machines count; otherwise only the unreserved part counts. An offer
    without machines is full.
    """
    offer = fleet.offers[row]
    nodes = offer.limits.nodes - (0 if includes_reserve else offer.reserved_nodes)
    if nodes <= 0:
        return MILLIONTHS
    used = {"cpu": 0, "memory": 0}
    for cluster in fleet.inventory.clusters_by_offer[row].values():
        for name in used:
            used[name] += cluster.used[name]
    limits = {"cpu": offer.limits.millicores, "memory": offer.limits.memory}
    # Without the reserve, limits shrink by the reserved machines or by the reserved amount.
    usable = {}
    for name, limit in limits.items():
        if 0 < limit < 1 << 60:
            reserved = 0 if includes_reserve else offer.reserved_amounts.get(name, 0)
            usable[name] = min(limit * nodes // offer.limits.nodes, limit - reserved)
    if not usable:
        counts, used_nodes = fleet.machines.replica_counts, 0
        for cluster in fleet.inventory.clusters_by_offer[row].values():
            if includes_reserve or not cluster.is_reserved:
                used_nodes += sum(1 for machine in cluster.machines if counts[machine])
        return used_nodes * MILLIONTHS // nodes
    return max(used[name] * MILLIONTHS // max(1, limit) for name, limit in usable.items())


def overflow_candidates(ask: ReplicaAsk, fleet: Fleet) -> list[int]:
    """Rows of the data centers with an overflow rule that are eligible for the replica, full or not."""
    overflow_rows = fleet.table.overflow_rows
    if not overflow_rows or "overflow" in ask.demand.ignored_limits:
        return []
    eligible = eligible_offers_in_region(ask, fleet)
    # Rows are in tie order.
    return [row for row in overflow_rows if eligible[row]]


def _is_triggered(fleet: Fleet, row: int, ask: ReplicaAsk) -> bool:
    """Whether the part of the data center that the service may use has reached the overflow trigger."""
    offer = fleet.offers[row]
    if offer.overflow is None or not offer.overflow.enabled:
        return False
    return (
        offer_utilisation(fleet, row, includes_reserve=ask.demand.may_use_reserve(offer.name))
        >= offer.overflow.trigger_millionths
    )


def overflow_sources(ask: ReplicaAsk, fleet: Fleet) -> list[str]:
    """Names of the overflow candidates whose trigger is reached."""
    return [
        fleet.offers[row].name for row in overflow_candidates(ask, fleet) if _is_triggered(fleet, row, ask)
    ]


@dataclass(frozen=True, slots=True)
class Overflow:
    """Filter plugin: rejects rented offers while an eligible data center has an overflow rule; for a replica
    that overflows, rejects every offer outside of the overflow target."""

    name: ClassVar[str] = "Overflow"
    # The utilisation of one data center decides about every rented offer.
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        fleet = fleet_of(rows)
        if ask.overflow_source:
            overflow = fleet.offers[fleet.row(ask.overflow_source)].overflow
            target = overflow.target if overflow else ""
            outside = offer_mask(
                rows, ("outside", target), lambda offer: offer.is_static or offer.owner != target
            )
            return {NotOverflowTarget(ask.overflow_source, target): outside}
        candidates = overflow_candidates(ask, fleet)
        if not candidates:
            return {}
        # Of several data centers, the first in tie order gives the reason.
        static, overflow = fleet.offers[candidates[0]].name, fleet.offers[candidates[0]].overflow
        is_enabled = overflow is not None and overflow.enabled
        closed = OverflowClosed(
            static, ask.demand.may_use_reserve(static), _is_triggered(fleet, candidates[0], ask), is_enabled
        )
        return {closed: offer_mask(rows, "metered", lambda offer: not offer.is_static)}
