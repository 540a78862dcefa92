"""Find the thresholds that an object crosses between two versions of its status: budget alert, budget limit and
capacity pressure.

The status is the memory: a crossing is reported in the commit that writes the new status, so that no restart and
no new leader reports it again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lattice.kinds.cloud_budget import RegionBudget
from lattice.kinds.infrastructure import (
    ALERT_CONDITION,
    BUDGET_CONDITION,
    PRESSURE_CONDITION,
    CloudStatus,
)
from lattice.kinds.meta.base import Status
from lattice.kinds.meta.conditions import find_condition
from lattice.placement.inputs.ledger_math import BudgetState
from lattice.placement.status.budget_conditions import REGION_EXCEEDED

CROSSING_CONDITIONS = (ALERT_CONDITION, BUDGET_CONDITION, PRESSURE_CONDITION)
# Appended to the reason of a crossing back to normal.
CLEARED_SUFFIX = "Cleared"


@dataclass(frozen=True, slots=True)
class Crossing:
    """One threshold crossed: upwards, or back to normal. `region` is a region of a cloud, or empty."""

    condition: str
    is_up: bool
    message: str
    region: str = ""

    @property
    def reason(self) -> str:
        """The reason of the event."""
        return self.condition if self.is_up else f"{self.condition}{CLEARED_SUFFIX}"


def find_crossings(previous_status: Status, after: Status) -> Iterator[Crossing]:
    """Yield the crossings between two versions of the status, those of the object before those of its regions."""
    for kind in CROSSING_CONDITIONS:
        current = find_condition(after.conditions, kind)
        was_beyond, is_beyond = _is_beyond(previous_status, kind), _is_beyond(after, kind)
        if was_beyond != is_beyond:
            yield Crossing(kind, is_beyond, current.message if current is not None else "no limit")
    if isinstance(previous_status, CloudStatus) and isinstance(after, CloudStatus):
        yield from _region_crossings(previous_status.region_budgets, after.region_budgets)


def _is_beyond(status: Status, kind: str) -> bool:
    """Report whether the object itself is beyond the threshold. A budget that is exceeded in regions only is a
    crossing of the regions."""
    condition = find_condition(status.conditions, kind)
    return condition is not None and condition.status == "True" and condition.reason != REGION_EXCEEDED


def _region_crossings(
    previous_budgets: Mapping[str, RegionBudget], after: Mapping[str, RegionBudget]
) -> Iterator[Crossing]:
    for region in sorted({*previous_budgets, *after}):
        previous, current = previous_budgets.get(region, RegionBudget()), after.get(region, RegionBudget())
        for kind in (ALERT_CONDITION, BUDGET_CONDITION):
            was_beyond, is_beyond = _is_region_beyond(previous, kind), _is_region_beyond(current, kind)
            if was_beyond != is_beyond:
                message = f"region {region}: {current.message or 'no limit'}"
                yield Crossing(kind, is_beyond, message, region)


def _is_region_beyond(budget: RegionBudget, kind: str) -> bool:
    if kind == BUDGET_CONDITION:
        return budget.phase == BudgetState.EXCEEDED
    # A status that an earlier version wrote states the phase only.
    if budget.is_alerting is None:
        return budget.phase in (BudgetState.ALERT, BudgetState.EXCEEDED)
    return budget.is_alerting
