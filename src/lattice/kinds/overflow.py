"""The overflow of services from owned to rented capacity: its target, trigger and limits."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import Part
from lattice.kinds.meta.quantity import (
    Amount,
    dollars_to_micros,
    share_to_millionths,
    threshold_problems,
)

# The share of the capacity in use at which overflow begins by default, in millionths.
OVERFLOW_TRIGGER_MILLIONTHS = 900_000


class OverflowTrigger(Part):
    """When overflow begins."""

    capacity_threshold: (
        Annotated[
            Amount,
            Meta(
                description=(
                    "Share of the capacity in use at which overflow begins: 0.9, or 90 for 90 percent "
                    "(the default)."
                )
            ),
        ]
        | None
    ) = None


class OverflowLimits(Part):
    """Limits of overflow; an absent field sets no limit."""

    max_clusters: (
        Annotated[int, Meta(ge=0, description="Maximum number of overflow clusters in the cloud.")] | None
    ) = None
    max_monthly_spend: (
        Annotated[Amount, Meta(description="Maximum spending of overflow per month, in US dollars.")] | None
    ) = None

    @property
    def spend_micros(self) -> int | None:
        return None if self.max_monthly_spend is None else dollars_to_micros(self.max_monthly_spend)


class Overflow(Part):
    """The overflow of a site: the cloud that takes services, when overflow begins, and its limits."""

    enabled: Annotated[
        bool, Meta(description="Whether services may overflow to the cloud; false by default.")
    ] = False
    target: Annotated[str, Meta(description="Name of the CloudInfrastructure that takes the services.")] = ""
    regions: Annotated[
        tuple[str, ...], Meta(description="Regions of the target to try first, in this order.")
    ] = ()
    trigger: Annotated[OverflowTrigger, Meta(description="When overflow begins.")] = OverflowTrigger()
    limits: Annotated[OverflowLimits, Meta(description="Limits of overflow.")] = OverflowLimits()

    @property
    def trigger_millionths(self) -> int:
        threshold = self.trigger.capacity_threshold
        return OVERFLOW_TRIGGER_MILLIONTHS if threshold is None else share_to_millionths(threshold)

    def problems(self, path: str) -> Iterator[Cause]:
        if self.enabled and not self.target:
            yield Cause(
                f"{path}.target",
                "must name a CloudInfrastructure when overflow is enabled",
                "FieldValueRequired",
            )
        yield from threshold_problems(f"{path}.trigger.capacityThreshold", self.trigger.capacity_threshold)
