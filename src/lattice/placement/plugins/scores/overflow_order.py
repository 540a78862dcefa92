"""OverflowRegion: among the regions that a data center overflows to, prefer the named regions, in the stated
order."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.plugins.rejection_reasons import fleet_of


@dataclass(frozen=True, slots=True)
class OverflowOrder:
    """Score plugin: ranks overflow regions by their position in the overflow rule."""

    name: ClassVar[str] = "OverflowRegion"
    # Scores are computed for all offers at once.
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.overflow_source)

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        fleet = fleet_of(rows)
        overflow = fleet.offers[fleet.row(ask.overflow_source)].overflow
        named = overflow.regions if overflow else ()
        # The first named region scores 1, an unnamed region 0.
        scores = {region: 1 - position / len(named) for position, region in enumerate(named)}
        return np.array([scores.get(offer.place.region, 0.0) for offer in fleet.offers], np.float32)
