"""What should be said about a pool, a cloud or a data center: is it usable, known, paid for and not too full?"""

from collections.abc import Iterator, Sequence

from lattice.kinds.meta.base import Condition
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.pool import LatticePool
from lattice.placement.model.fleet import Fleet
from lattice.placement.inputs.ledger_math import dollars
from lattice.placement.model.offer import Offer
from lattice.placement.status.pressure import Use, is_pressed, scarcest_in
from lattice.placement.status.service_status import projected_cost
from lattice.placement.model.supply import Finding, cloud_account, pool_account
from lattice.placement.model.world import World

CENT = 10_000  # micro-dollars


def conditions(
    supplier: LatticePool | CloudInfrastructure | StaticInfrastructure, fleet: Fleet, world: World
) -> tuple[Condition, ...]:
    """One of each type that can be told from what is known here; when they changed is not."""
    name = supplier.metadata.name
    offers = [offer for offer in fleet.offers if offer.owner == name and offer.kind == _KINDS[type(supplier)]]
    said = [each for each in world.findings if each.subject == f"{supplier.resource.singular}/{name}"]
    found = [ready(offers, said), _resolved(said), _overlaps(said)]
    if isinstance(supplier, CloudInfrastructure):
        found.append(degraded(offers))
    if not isinstance(supplier, StaticInfrastructure):
        ledger = (pool_account(name) if isinstance(supplier, LatticePool) else cloud_account(name)).ledger
        found.extend(_exceeded(ledger, fleet, world))
    if not isinstance(supplier, CloudInfrastructure):
        found.extend(_pressed(name, fleet) if offers else ())
    return tuple(found)


_KINDS = {LatticePool: "pool", CloudInfrastructure: "cloud", StaticInfrastructure: "static"}


def _condition(kind: str, holds: bool, reason: str, message: str = "") -> Condition:
    return Condition(type=kind, status="True" if holds else "False", reason=reason, message=message)


def _is_usable(offer: Offer) -> bool:
    return bool(offer.types) and not offer.closed


def ready(offers: Sequence[Offer], said: Sequence[Finding]) -> Condition:
    """Something can be placed there, in one region at least."""
    if any(map(_is_usable, offers)):
        return _condition("Ready", True, "Usable")
    closed = next((offer.closed for offer in offers if offer.closed), "")
    told = next((each for each in said if each.type == "Ready"), None)
    if told is not None:
        return _condition("Ready", False, told.reason, told.message)
    return _condition("Ready", False, "Closed", closed or "it has no regions")


def degraded(offers: Sequence[Offer]) -> Condition:
    """Some of its regions are of no use, others are."""
    unusable = sorted(offer.place.region for offer in offers if not _is_usable(offer))
    if unusable and len(unusable) < len(offers):
        return _condition(
            "Degraded", True, "RegionsUnusable", f"nothing can be placed in {', '.join(unusable)}"
        )
    return _condition("Degraded", False, "AllRegionsAlike")


def _resolved(said: Sequence[Finding]) -> Condition:
    found = [each for each in said if each.type == "ReferencesResolved"]
    if not found:
        return _condition("ReferencesResolved", True, "Resolved")
    return _condition("ReferencesResolved", False, found[0].reason, "; ".join(each.message for each in found))


def _overlaps(said: Sequence[Finding]) -> Condition:
    found = [each for each in said if each.type == "Overlaps"]
    if not found:
        return _condition("Overlaps", False, "Distinct")
    return _condition("Overlaps", True, found[0].reason, "; ".join(each.message for each in found))


def _exceeded(ledger: str, fleet: Fleet, world: World) -> Iterator[Condition]:
    budget = fleet.budgets.get(ledger)
    if budget is not None and budget.limit is not None:
        yield budget_exceeded(projected_cost(ledger, fleet, world), budget.limit, is_hard=budget.hard)


def budget_exceeded(projected: int, limit: int, *, is_hard: bool) -> Condition:
    """From 100 percent on, whether that stops anything or not. Micro-dollars."""
    cents = (
        (projected + CENT // 2) // CENT * CENT
    )  # finer words would be other words every second, and each of them would be written
    money = f"{dollars(cents)} projected of {dollars(limit)}"
    if projected < limit:
        return _condition("BudgetExceeded", False, "WithinBudget", money)
    return _condition("BudgetExceeded", True, "HardLimit" if is_hard else "SoftLimit", money)


def _pressed(offer: str, fleet: Fleet) -> Iterator[Condition]:
    row = fleet.table.row_of.get(offer)
    use = None if row is None else scarcest_in(fleet, row)
    if use is not None:
        yield capacity_pressure(use)


def capacity_pressure(use: Use) -> Condition:
    """Of what is scarcest."""
    used, whole = use
    left = (max(0, whole - used) * 200 + whole) // (2 * whole)  # to the nearest percent
    reason = "NearlyFull" if is_pressed(use) else "RoomLeft"
    return _condition("CapacityPressure", is_pressed(use), reason, f"{left}% capacity available")
