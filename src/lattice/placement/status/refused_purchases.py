"""Find the purchases that hard limits refuse now, by ledger: the ledger remembers them until the purchase succeeds
or no service wants it any more."""

from collections.abc import Iterable, Iterator, Mapping

from lattice.kinds.ledger import LatticeLedger, Refusal
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.placement.greedy.commit_stages import StagedDecision
from lattice.placement.greedy.place import Placement
from lattice.placement.inputs.ledger_math import BudgetRejection, refuse, required_limit, tightest_rule
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.world import World
from lattice.placement.plugins.filters.budget import OverBudget, exceeding_ledgers

# By ledger; the purchases of a ledger are by service.
RefusedPurchases = Mapping[str, tuple[Refusal, ...]]


def refused_purchases(
    decided: StagedDecision, rejections: Mapping[str, Iterable[BudgetRejection]]
) -> RefusedPurchases:
    """Return the refusals of a decision: of placement, where nothing but the budget of an offer rejects a replica,
    of machines for unschedulable and surge replicas, and of the commits that a ledger rejected, by service."""
    by_ledger: dict[str, dict[str, Refusal]] = {}
    for name, placement in decided.placements.items():
        if placement.missing:
            for ledger, need in _over_budget(placement, decided.fleet):
                refusal = _refusal(decided, name, ledger, need)
                smallest = by_ledger.setdefault(ledger, {}).setdefault(name, refusal)
                if refusal.need_micros < smallest.need_micros:
                    by_ledger[ledger][name] = refusal
    for ledger, rates in decided.refused_rates.items():
        for name, rate in rates.items():
            by_ledger.setdefault(ledger, {}).setdefault(name, _refusal(decided, name, ledger, rate))
    at = format_timestamp(decided.world.budget_time)
    for name, rejected in rejections.items():
        for rejection in rejected:
            by_ledger.setdefault(rejection.ledger, {})[name] = Refusal(
                service=name,
                rule=rejection.rule.value,
                need_micros=rejection.need,
                have_micros=rejection.have,
                limit_needed_micros=rejection.limit + rejection.raise_by,
                at=at,
            )
    return {ledger: tuple(by_service.values()) for ledger, by_service in by_ledger.items()}


def _refusal(decided: StagedDecision, service: str, ledger: str, need: int) -> Refusal:
    """The refusal of a machine of the rate `need`, at the amounts that the decision commits."""
    ledgers = decided.fleet.ledgers
    committed, cap = ledgers.committed[ledger], ledgers.commit_cap(ledger)
    counted, now = decided.world.ledger_with_rate(ledger, committed), decided.world.budget_time
    return Refusal(
        service=service,
        rule=tightest_rule(counted, now).value,
        need_micros=need,
        have_micros=max(0, cap - committed) if cap < NO_LIMIT else 0,
        limit_needed_micros=required_limit(counted, need, now),
        at=format_timestamp(now),
    )


def changed_refusals(
    refused: RefusedPurchases, ledgers: Iterable[LatticeLedger], world: World
) -> Iterator[tuple[str, tuple[Refusal, ...]]]:
    """Yield the ledgers whose recorded refusals differ, with the refusals to record."""
    stored = {ledger.metadata.name: ledger for ledger in ledgers}
    for name in sorted({*refused, *(name for name, ledger in stored.items() if ledger.status.refused)}):
        refusals, ledger = refused.get(name, ()), stored.get(name)
        is_new = ledger is None and bool(refusals) and name in world.supply.budgets
        if is_new or (
            ledger is not None and refuse(ledger, refusals).status.refused != ledger.status.refused
        ):
            yield name, refusals


def _over_budget(placement: Placement, fleet: Fleet) -> Iterator[tuple[str, int]]:
    """Yield ledger and need of the offers that only their budgets close to the failed replica."""
    failed = placement.decisions[-1] if placement.decisions else None
    if failed is None or failed.fits:
        return
    for reason, rejected in failed.reasons.items():
        if not isinstance(reason, OverBudget):
            continue
        other_masks = [mask for candidate, mask in failed.reasons.items() if candidate is not reason]
        for row in rejected.nonzero()[0]:
            if not any(mask[row] for mask in other_masks):
                yield from exceeding_ledgers(reason.ask, fleet, int(row))
