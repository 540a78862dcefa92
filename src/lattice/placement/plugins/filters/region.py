"""Region: a replica must be placed in its required region, or in a region without a replica of the service."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.plugins.rejection_reasons import offer_at, offer_mask


@dataclass(frozen=True, slots=True)
class NotInRequiredRegion:
    """The offer is outside of the region where a replica is required."""

    region: str
    plugin: str = "Region"

    def summary(self) -> str:
        return f"not in {self.region}, where a replica is required"

    def detail(self, table: Table, row: int) -> Shortfall:
        return Shortfall("region", self.region, offer_at(table, row).region, self.region)


@dataclass(frozen=True, slots=True)
class RegionAlreadyUsed:
    """The region of the offer already has a replica, and the service needs a further region."""

    regions: frozenset[str]
    plugin: str = "Region"

    def summary(self) -> str:
        return "in regions that already have a replica"

    def detail(self, table: Table, row: int) -> Shortfall:
        return Shortfall(
            "region",
            f"a region other than {', '.join(sorted(self.regions))}",
            offer_at(table, row).region,
            "another region",
        )


@dataclass(frozen=True, slots=True)
class Region:
    """Filter plugin: rejects offers outside of the required region, and offers in excluded regions."""

    name: ClassVar[str] = "Region"
    # The regions are not part of the shape of an ask, so no answer is cached by shape.
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        rejections: dict[Reason, Flags] = {}
        if ask.region:
            rejections[NotInRequiredRegion(ask.region)] = offer_mask(
                rows, ("is in", ask.region), lambda offer: not offer.matches_region(ask.region)
            )
        if ask.excluded_regions:
            rejections[RegionAlreadyUsed(ask.excluded_regions)] = offer_mask(
                rows, ("regions", ask.excluded_regions), lambda offer: offer.region in ask.excluded_regions
            )
        return rejections
