"""The budget of a cloud or of one of its regions, and the use of the budget of a region."""

from typing import Annotated

from msgspec import Meta

from lattice.kinds.meta.base import Part
from lattice.kinds.meta.quantity import Amount, dollars_to_micros, share_to_millionths

# By default an alert is raised when spending reaches this part of the budget, in millionths.
DEFAULT_ALERT_MILLIONTHS = 800_000


class CloudBudget(Part):
    """Budget per month, in US dollars. Two limits follow: the hourly rate times 720 hours (30 days), and the
    projected spending of the calendar month."""

    monthly: Annotated[Amount, Meta(description="Maximum spending per month.")] | None = None
    alert_threshold: (
        Annotated[
            Amount,
            Meta(
                description="Share of the budget that raises an alert, as 0.8 or 80 (percent); 0.8 by default."
            ),
        ]
        | None
    ) = None
    hard_limit: (
        Annotated[
            bool,
            Meta(
                description=(
                    "true: Lattice provisions nothing beyond the budget; false: it only warns. Absent "
                    "means false; for a region, absent means the setting of the whole cloud."
                )
            ),
        ]
        | None
    ) = None

    @property
    def limit_micros(self) -> int | None:
        return None if self.monthly is None else dollars_to_micros(self.monthly)

    @property
    def alert_millionths(self) -> int:
        return (
            DEFAULT_ALERT_MILLIONTHS
            if self.alert_threshold is None
            else share_to_millionths(self.alert_threshold)
        )


class RegionBudget(Part):
    """Use of the budget of one region."""

    phase: Annotated[
        str,
        Meta(
            description="Ok, Alert (at the alert threshold) or Exceeded (also while a purchase is refused)."
        ),
    ] = ""
    is_alerting: (
        Annotated[bool, Meta(description="Whether the use is at or beyond the alert threshold.")] | None
    ) = None
    utilization_percent: (
        Annotated[
            Amount,
            Meta(description="Use as a share of the limit under the rule that binds, 0.82 for 82 percent."),
        ]
        | None
    ) = None
    message: Annotated[str, Meta(description="Rule that binds, amounts, and refused purchases.")] = ""
