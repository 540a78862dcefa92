"""The budgets of offers, the rates committed to ledgers, and the headroom of every offer."""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.placement.model.offer import NO_LIMIT, Budget, OfferTable
from lattice.placement.model.supply import overflow_account


class OfferLedgers:
    """Ledgers that pay for machines of offers. All rates are micro-dollars per hour.

    `overflow` names the data center whose overflow a machine in the cloud serves; "" for every other machine.

    A rate is committed when a machine is added and released when the machine is removed, so the undo journal of
    machines covers the ledgers too.
    """

    def __init__(self, table: OfferTable, budgets: Mapping[str, Budget]) -> None:
        self._table = table
        self.budgets = dict(budgets)
        self.committed: Counter[str] = Counter()  # by ledger
        # The number of existing machines without a known price, by the ledger that pays for them.
        self.unpriced_machines: Counter[str] = Counter()
        self._offers_by_ledger: dict[str, list[int]] = {}
        for row, offer in enumerate(table.offers):
            for name in offer.budgets:
                self._offers_by_ledger.setdefault(name, []).append(row)
        rows = range(len(table.offers))
        # The rate that may still be committed, by row of the offer.
        self.headroom_by_offer: Integers = np.array([self.headroom(row) for row in rows], np.int64)
        self.is_budgeted: Flags = np.array([self.has_limit(row) for row in rows], np.bool_)

    def commit_cap(self, ledger: str) -> int:
        budget = self.budgets.get(ledger)
        return NO_LIMIT if budget is None else budget.commit_cap

    def headroom(self, row: int, overflow: str = "") -> int:
        """The rate that may still be committed in the offer, over all ledgers that pay; may be negative."""
        return min(
            (self.commit_cap(ledger) - self.committed[ledger] for ledger in self.paying_for(row, overflow)),
            default=NO_LIMIT,
        )

    def paying_for(self, row: int, overflow: str = "") -> tuple[str, ...]:
        """Names of the ledgers that pay for a machine of the offer: the ledgers of the offer, and the
        overflow ledger of the data center `overflow`, if given."""
        own = self._table.offers[row].budgets
        return (*own, overflow_account(overflow).ledger_name) if overflow else own

    def has_limit(self, row: int, overflow: str = "") -> bool:
        """Whether a ledger of the offer has a limit, hard or soft; machines then need a known price."""
        return any(
            self.budgets[ledger].limit is not None
            for ledger in self.paying_for(row, overflow)
            if ledger in self.budgets
        )

    def is_shared(self, ledger: str) -> bool:
        """Whether the ledger pays for machines of two or more offers."""
        return len(self._offers_by_ledger.get(ledger, ())) > 1

    def unpriced_ledger(self, row: int, overflow: str = "") -> str:
        """The name of a hard budget of the offer that already pays for machines of unknown price, which makes
        its headroom unknown; "" if there is none."""
        for ledger in self.paying_for(row, overflow):
            if self.unpriced_machines[ledger] and self.commit_cap(ledger) < NO_LIMIT:
                return ledger
        return ""

    def add_unpriced_machine(self, row: int, overflow: str) -> None:
        """Count an existing machine without a known price. Callers do not count machines that placement only
        tries out."""
        self.unpriced_machines.update(self.paying_for(row, overflow))

    def commit_withdrawn(self, ledger: str, rate: int, unpriced: int) -> None:
        """Count existing machines that a ledger pays for and no offer has any more: their rate, and how many of them
        have no known price."""
        self.committed[ledger] += rate
        self.unpriced_machines[ledger] += unpriced
        for row in self._offers_by_ledger.get(ledger, ()):
            self.headroom_by_offer[row] = self.headroom(row)

    def commit(self, row: int, overflow: str, rate: int) -> None:
        """Commit the rate to all ledgers that pay for the offer; a negative rate releases."""
        if not rate:
            return
        if overflow:
            self._table.touch_overflow_targets(overflow)
        for ledger in self.paying_for(row, overflow):
            self.committed[ledger] += rate
            # Without a cap the headroom of the offers that share the ledger stays as it is.
            if self.commit_cap(ledger) < NO_LIMIT:
                for sharing_row in self._offers_by_ledger.get(ledger, ()):
                    self.headroom_by_offer[sharing_row] = self.headroom(sharing_row)
                    if sharing_row != row:
                        self._table.touch(sharing_row)

    def replace_budgets(self, budgets: Iterable[Budget]) -> set[int]:
        """Replace budgets of the same names; return the rows of the offers that the budgets pay for."""
        affected: set[int] = set()
        for budget in budgets:
            self.budgets[budget.name] = budget
            affected.update(self._offers_by_ledger.get(budget.name, ()))
        return affected

    def refresh(self, row: int) -> None:
        """Recompute what is derived from the offer and its budgets after one of them was replaced."""
        self.headroom_by_offer[row] = self.headroom(row)
        self.is_budgeted[row] = self.has_limit(row)
