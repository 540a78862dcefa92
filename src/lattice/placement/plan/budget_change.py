"""The use of one budget before and after a change."""

from dataclasses import dataclass

from lattice.kinds.meta.quantity import MILLIONTHS


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """The use of one budget before and after the change, in micro-dollars per month: the spending projected to
    the end of the month, and the use under the rule that binds."""

    ledger: str
    subject: str
    limit: int
    projected_before: int
    projected_after: int
    used_before: int
    used_after: int
    alert_millionths: int
    hard: bool
    # None: the budget had no limit before.
    limit_before: int | None = None
    # Micro-dollars per hour for additional machines after the change; None: the budget rejects no machine.
    headroom: int | None = None
    # Micro-dollars per hour of the cheapest machine with a known price that the budget pays for.
    cheapest_machine_rate: int | None = None

    @property
    def is_exhausted(self) -> bool:
        """Report whether the budget rejects the next machine.

        The headroom is a rate over 30 days, so a budget can be exhausted long before the projection of this
        month reaches the limit.
        """
        return (
            self.headroom is not None
            and self.cheapest_machine_rate is not None
            and self.headroom < self.cheapest_machine_rate
        )

    @property
    def was_exceeded(self) -> bool:
        return self.limit_before is not None and self.used_before > self.limit_before

    @property
    def was_alerting(self) -> bool:
        return (
            self.limit_before is not None
            and self.used_before * MILLIONTHS >= self.limit_before * self.alert_millionths
        )

    def percent(self, used: int) -> int:
        """Return the use in percent of the limit, rounded down as everywhere: 99.6 % is not the whole limit."""
        return used * 100 // self.limit if self.limit else 100
