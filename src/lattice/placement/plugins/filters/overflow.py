"""Overflow: where a data center could take the replica, the cloud is open only past its trigger, and only its target is."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rows, Table
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.plugins.filters.feasible import eligible
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import Offer
from lattice.placement.plugins.filters.region import Region
from lattice.placement.model.reasons import fleet_of, mask_of

MICROS = 1_000_000


@dataclass(frozen=True, slots=True)
class Gated:
    static: str
    with_reserve: bool = True  # what is kept for others counts as room
    is_past: bool = False  # its trigger is reached: it has room all the same, or overflows to elsewhere
    is_enabled: bool = True
    plugin: str = "Overflow"

    def summary(self) -> str:
        if not self.is_enabled:
            return f"closed, since overflow of {self.static} is not enabled"
        return (
            f"closed by the overflow rule of {self.static}"
            if self.is_past
            else f"closed while {self.static} is not full"
        )

    def detail(self, table: Table, row: int) -> Shortfall:
        fleet = fleet_of(table)
        at = fleet.row(self.static)
        overflow, used = fleet.offers[at].overflow, utilisation(fleet, at, with_reserve=self.with_reserve)
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
class NotTheTarget:
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


def utilisation(fleet: Fleet, row: int, *, with_reserve: bool = True) -> int:
    """Millionths taken of cores or memory, whichever is more, by what replicas ask for; where neither is stated, of machines.

    `with_reserve`: counted is all that is there; else only what is not kept for others. A place without machines is full.
    """
    offer = fleet.offers[row]
    nodes = _nodes(offer, with_reserve)
    if nodes <= 0:
        return MICROS
    used = {
        name: sum(cluster.used[name] for cluster in fleet.in_offer[row].values())
        for name in ("cpu", "memory")
    }
    limits = {"cpu": offer.limits.milli, "memory": offer.limits.memory}
    usable = {
        name: limit * nodes // offer.limits.nodes for name, limit in limits.items() if 0 < limit < 1 << 60
    }
    if not usable:
        return _opened(fleet, row, with_reserve) * MICROS // nodes
    return max(used[name] * MICROS // max(1, limit) for name, limit in usable.items())


def _nodes(offer: Offer, with_reserve: bool) -> int:
    return offer.limits.nodes - (0 if with_reserve else offer.reserved_nodes)


def _opened(fleet: Fleet, row: int, with_reserve: bool) -> int:
    """Machines with replicas on them; without the reserve, those of clusters that are not kept for anybody."""
    counted = (cluster for cluster in fleet.in_offer[row].values() if with_reserve or not cluster.is_kept)
    return sum(1 for cluster in counted for machine in cluster.machines if fleet.machines.holds[machine])


def able(ask: ReplicaAsk, fleet: Fleet) -> list[int]:
    """Data centers with an overflow rule that could take this replica, were there room."""
    holding = fleet.spilling
    if not holding or "overflow" in ask.demand.ignoring:
        return []
    may = eligible(ask, fleet)
    for mask in Region().filter(ask, fleet.table).values():
        may &= ~mask
    return sorted((row for row in holding if may[row]), key=lambda row: fleet.offers[row].name)


def _is_past(fleet: Fleet, row: int, ask: ReplicaAsk) -> bool:
    """Is the trigger reached, of what this service may use?"""
    offer = fleet.offers[row]
    if offer.overflow is None or not offer.overflow.enabled:
        return False
    return (
        utilisation(fleet, row, with_reserve=ask.demand.may_use(offer.name))
        >= offer.overflow.trigger_millionths
    )


def sources(ask: ReplicaAsk, fleet: Fleet) -> list[str]:
    """Of those, the ones that may overflow now."""
    return [fleet.offers[row].name for row in able(ask, fleet) if _is_past(fleet, row, ask)]


@dataclass(frozen=True, slots=True)
class Overflow:
    name: ClassVar[str] = "Overflow"
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        fleet = fleet_of(rows)
        if ask.overflow:
            overflow = fleet.offers[fleet.row(ask.overflow)].overflow
            target = overflow.target if overflow else ""
            outside = mask_of(
                rows, ("outside", target), lambda offer: offer.is_static or offer.owner != target
            )
            return {NotTheTarget(ask.overflow, target): outside}
        gates = able(ask, fleet)
        if not gates:
            return {}
        static, overflow = fleet.offers[gates[0]].name, fleet.offers[gates[0]].overflow
        is_enabled = overflow is not None and overflow.enabled
        gate = Gated(static, ask.demand.may_use(static), _is_past(fleet, gates[0], ask), is_enabled)
        return {gate: mask_of(rows, "metered", lambda offer: not offer.is_static)}
