"""Compute the budget conditions of pools, clouds and data centers, and the budget status of cloud regions."""

from collections.abc import Mapping, Sequence

from lattice.kinds.cloud_budget import RegionBudget
from lattice.kinds.infrastructure import (
    ALERT_CONDITION,
    BUDGET_CONDITION,
    CloudInfrastructure,
    StaticInfrastructure,
)
from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.conditions import is_true
from lattice.kinds.meta.quantity import format_dollars
from lattice.kinds.pool import LatticePool
from lattice.placement.inputs.bill import Bill
from lattice.placement.inputs.ledger_math import (
    BudgetState,
    BudgetVerdict,
    judge_budget,
    percent_text,
)
from lattice.placement.model.supply import cloud_account, overflow_account, pool_account
from lattice.placement.model.world import World
from lattice.placement.status.fleet_status import budget_share

# The reason of BudgetExceeded while only budgets of regions are exceeded.
REGION_EXCEEDED = "RegionExceeded"
BudgetOwner = LatticePool | CloudInfrastructure | StaticInfrastructure


def budget_verdicts(supplier: BudgetOwner, world: World, bill: Bill) -> dict[str, BudgetVerdict]:
    """Return the verdicts about the budgets of the object that have a limit: by region of a cloud, and "" for the
    budget of the object itself or of its overflow."""
    name = supplier.metadata.name
    if isinstance(supplier, LatticePool):
        accounts = {"": pool_account(name)}
    elif isinstance(supplier, CloudInfrastructure):
        accounts = {region: cloud_account(name, region) for region in ("", *supplier.spec.regions)}
    else:
        accounts = {"": overflow_account(name)}
    verdicts = {}
    for region, account in accounts.items():
        budget = world.supply.budgets.get(account.ledger_name)
        if budget is not None and budget.limit is not None:
            ledger = world.ledger_with_rate(budget.name, bill.ledger_rates.get(budget.name, 0))
            verdicts[region] = judge_budget(ledger, world.budget_time, _previous_state(supplier, region))
    return verdicts


def _previous_state(supplier: BudgetOwner, region: str) -> str:
    """Return the state that the status shows, so that a state within rounding of its threshold stays."""
    if region and isinstance(supplier, CloudInfrastructure):
        shown = supplier.status.region_budgets.get(region)
        return shown.phase if shown is not None and shown.is_alerting is not False else ""
    conditions = supplier.status.conditions
    if not is_true(conditions, ALERT_CONDITION):
        return ""
    exceeded = next((condition for condition in conditions if condition.type == BUDGET_CONDITION), None)
    is_over = exceeded is not None and exceeded.reason in ("HardLimit", "SoftLimit")
    return BudgetState.EXCEEDED if is_over else BudgetState.ALERT


def budget_conditions(supplier: BudgetOwner, verdicts: Mapping[str, BudgetVerdict]) -> Sequence[Condition]:
    """Return BudgetExceeded and BudgetAlert; the conditions of a limit that was removed become False."""
    if not verdicts:
        return [
            _no_limit(kind)
            for kind in (BUDGET_CONDITION, ALERT_CONDITION)
            if is_true(supplier.status.conditions, kind)
        ]
    # A region's budget nests in the budget of its cloud: both hold.
    exceeded = {region: verdict for region, verdict in verdicts.items() if verdict.is_exceeded}
    shown = exceeded or {region: verdict for region, verdict in verdicts.items() if not region} or verdicts
    region, first = next(iter(shown.items()))
    conditions = [
        Condition(
            type=BUDGET_CONDITION,
            status="True" if exceeded else "False",
            reason=REGION_EXCEEDED if exceeded and region else first.reason,
            message="; ".join(
                (f"region {region}: {verdict.message}" if region else verdict.message)
                for region, verdict in shown.items()
            ),
        )
    ]
    own = verdicts.get("")
    if own is not None:
        # Return whether the use under the rule that binds reaches the alert threshold.
        status = own.status
        is_alerting = status.state is not BudgetState.OK
        message = (
            f"{percent_text(status.utilisation)} of {format_dollars(status.limit or 0)} by the {status.rule.words}; "
            f"the alert threshold is {percent_text(status.alert_millionths)}"
        )
        conditions.append(
            Condition(
                type=ALERT_CONDITION,
                status="True" if is_alerting else "False",
                reason="ThresholdReached" if is_alerting else "BelowThreshold",
                message=message,
            )
        )
    # Only regions have a limit any more.
    elif is_true(supplier.status.conditions, ALERT_CONDITION):
        conditions.append(_no_limit(ALERT_CONDITION))
    return conditions


def _no_limit(kind: str) -> Condition:
    return Condition(type=kind, status="False", reason="NoLimit", message="no budget limit")


def region_budgets(verdicts: Mapping[str, BudgetVerdict]) -> dict[str, RegionBudget]:
    """Return the budget status of the regions that have a limit."""
    return {
        region: RegionBudget(
            phase=verdict.state.value,
            # A refused purchase alone is no alert: the use may be far below the threshold.
            is_alerting=verdict.status.state is not BudgetState.OK,
            utilization_percent=budget_share(verdict.status),
            message=verdict.message,
        )
        for region, verdict in verdicts.items()
        if region
    }
