"""Overflow: where a data center could take the replica, the cloud is open only past its trigger, and only its target is."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rows, Table
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import Offer
from lattice.placement.model.rejection_reasons import fleet_of, offer_mask
from lattice.placement.plugins.filters.eligibility import eligible_offers
from lattice.placement.plugins.filters.region import Region

MILLIONTHS = 1_000_000


@dataclass(frozen=True, slots=True)
class OverflowClosed:
    static: str
    includes_reserve: bool = True  # what is kept for others counts as room
    is_triggered: bool = False  # its trigger is reached: it has room all the same, or overflows to elsewhere
    is_enabled: bool = True
    plugin: str = "Overflow"

    def summary(self) -> str:
        if not self.is_enabled:
            return f"closed, since overflow of {self.static} is not enabled"
        return (
            f"closed by the overflow rule of {self.static}"
            if self.is_triggered
            else f"closed while {self.static} is not full"
        )

    def detail(self, table: Table, row: int) -> Shortfall:
        fleet = fleet_of(table)
        at = fleet.row(self.static)
        overflow, used = (
            fleet.offers[at].overflow,
            offer_utilisation(fleet, at, includes_reserve=self.includes_reserve),
        )
        if overflow is None or not overflow.enabled:
            return Shortfall(f"overflow of {self.static}", "enabled: true", "enabled: false", "enabled: true")
        trigger = overflow.trigger_millionths
        if used >= trigger and fleet.offers[row].owner == overflow.target:
            return Shortfall(
                f"overflow of {self.static}",
                "no room in data centers",
                "room in one of them",
                "a full data center",
            )
        if used >= trigger:
            return Shortfall(
                f"overflow of {self.static}",
                f"its target {overflow.target}",
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
    static: str
    target: str
    plugin: str = "Overflow"

    def summary(self) -> str:
        return f"not where {self.static} overflows to"

    def detail(self, table: Table, row: int) -> Shortfall:
        owner = fleet_of(table).offers[row].owner
        return Shortfall(f"overflow of {self.static}", f"its target {self.target}", owner, f"target: {owner}")


def _percent(millionths: int) -> str:
    return f"{millionths / 10_000:g} %"


def offer_utilisation(fleet: Fleet, row: int, *, includes_reserve: bool = True) -> int:
    """Millionths taken of cores or memory, whichever is more, by what replicas ask for; where neither is stated, of machines.

    `with_reserve`: counted is all that is there; else only what is not kept for others. A place without machines is full.
    """
    offer = fleet.offers[row]
    nodes = _nodes(offer, includes_reserve)
    if nodes <= 0:
        return MILLIONTHS
    used = {
        name: sum(cluster.used[name] for cluster in fleet.clusters_by_offer[row].values())
        for name in ("cpu", "memory")
    }
    limits = {"cpu": offer.limits.milli, "memory": offer.limits.memory}
    usable = {
        name: limit * nodes // offer.limits.nodes for name, limit in limits.items() if 0 < limit < 1 << 60
    }
    if not usable:
        return _nodes_in_use(fleet, row, includes_reserve) * MILLIONTHS // nodes
    return max(used[name] * MILLIONTHS // max(1, limit) for name, limit in usable.items())


def _nodes(offer: Offer, with_reserve: bool) -> int:
    return offer.limits.nodes - (0 if with_reserve else offer.reserved_nodes)


def _nodes_in_use(fleet: Fleet, row: int, with_reserve: bool) -> int:
    """Machines with replicas on them; without the reserve, those of clusters that are not kept for anybody."""
    counted = (
        cluster
        for cluster in fleet.clusters_by_offer[row].values()
        if with_reserve or not cluster.is_reserved
    )
    return sum(
        1 for cluster in counted for machine in cluster.machines if fleet.machines.replica_counts[machine]
    )


def overflow_candidates(ask: ReplicaAsk, fleet: Fleet) -> list[int]:
    """Data centers with an overflow rule that could take this replica, were there room."""
    holding = fleet.overflow_rows
    if not holding or "overflow" in ask.demand.ignored_limits:
        return []
    may = eligible_offers(ask, fleet)
    for mask in Region().filter(ask, fleet.table).values():
        may &= ~mask
    return sorted((row for row in holding if may[row]), key=lambda row: fleet.offers[row].name)


def _is_triggered(fleet: Fleet, row: int, ask: ReplicaAsk) -> bool:
    """Is the trigger reached, of what this service may use?"""
    offer = fleet.offers[row]
    if offer.overflow is None or not offer.overflow.enabled:
        return False
    return (
        offer_utilisation(fleet, row, includes_reserve=ask.demand.may_use_reserve(offer.name))
        >= offer.overflow.trigger_millionths
    )


def overflow_sources(ask: ReplicaAsk, fleet: Fleet) -> list[str]:
    """Of those, the ones that may overflow now."""
    return [
        fleet.offers[row].name for row in overflow_candidates(ask, fleet) if _is_triggered(fleet, row, ask)
    ]


@dataclass(frozen=True, slots=True)
class Overflow:
    name: ClassVar[str] = "Overflow"
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
        gates = overflow_candidates(ask, fleet)
        if not gates:
            return {}
        static, overflow = fleet.offers[gates[0]].name, fleet.offers[gates[0]].overflow
        is_enabled = overflow is not None and overflow.enabled
        gate = OverflowClosed(
            static, ask.demand.may_use_reserve(static), _is_triggered(fleet, gates[0], ask), is_enabled
        )
        return {gate: offer_mask(rows, "metered", lambda offer: not offer.is_static)}
