"""Everything that rules an offer out, told to people: also what nobody looked at because something else had ruled it out already."""

from collections.abc import Iterator
from typing import cast

from lattice.engine.decide import Decision
from lattice.engine.plugin import Reason, Shortfall
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.plugins.filters.budget import OverBudget, Unpriced, overdrawn, unpriced_classes
from lattice.placement.plugins.filters.capacity import Full, reached
from lattice.placement.plugins.filters.overflow import NotTheTarget
from lattice.placement.model.reasons import fleet_of

Told = tuple[str, Shortfall]  # filter, and what it misses


def refused(decision: Decision, row: int) -> list[Told]:
    """Nothing: the offer is not ruled out. Only while the fleet is as it was when deciding."""
    reasons = [reason for reason, mask in decision.reasons.items() if mask[row]]
    return told(reasons, cast("ReplicaAsk", decision.ask), fleet_of(decision.table), row) if reasons else []


def told(reasons: list[Reason], ask: ReplicaAsk, fleet: Fleet, row: int) -> list[Told]:
    found = [(reason.plugin, short) for reason in reasons for short in _shortfalls(reason, fleet, row)]
    asked = next((each.ask for each in reasons if isinstance(each, Full | OverBudget | Unpriced)), ask)
    return [*found, *_moot(reasons, asked, fleet, row)]


def _shortfalls(reason: Reason, fleet: Fleet, row: int) -> list[Shortfall]:
    several = getattr(reason, "shortfalls", None)
    return several(fleet.table, row) if several else [reason.detail(fleet.table, row)]


def _moot(reasons: list[Reason], ask: ReplicaAsk, fleet: Fleet, row: int) -> Iterator[Told]:
    """Limits are looked at only where a class of machines would do, budgets only where the limits allow a machine more."""
    ignoring = ask.demand.ignoring
    if fleet.table.quotes.of(ask).has_room[row] or any(isinstance(each, NotTheTarget) for each in reasons):
        return
    if "capacity" not in ignoring and not any(isinstance(each, Full) for each in reasons):
        yield from (("Capacity", each) for each in reached(ask, fleet, row))
    if "budget" not in ignoring and not any(isinstance(each, OverBudget | Unpriced) for each in reasons):
        yield from (("Budget", each) for each in overdrawn(ask, fleet, row))
        if "prices" not in ignoring and _is_blind(ask, fleet, row):
            yield "Budget", Unpriced(ask).detail(fleet.table, row)


def _is_blind(ask: ReplicaAsk, fleet: Fleet, row: int) -> bool:
    """A budget applies, and of the classes that would do none has a price."""
    quotes = fleet.table.quotes
    serving = quotes.serving(ask.demand).serves[:, row]
    blind = (
        fleet.is_limited(row, ask.overflow)
        and bool(serving.any())
        and not (serving & quotes.catalogue.is_priced[:, row]).any()
    )
    return bool(quotes.unknown_in(row, ask.overflow)) or (blind and bool(unpriced_classes(ask, fleet, row)))
