"""OverflowRegion: of the regions that a data center overflows to, those that it names come first, in its order."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.rejection_reasons import fleet_of


@dataclass(frozen=True, slots=True)
class OverflowOrder:
    name: ClassVar[str] = "OverflowRegion"
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.overflow_source)

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        fleet = fleet_of(rows)
        overflow = fleet.offers[fleet.row(ask.overflow_source)].overflow
        named = overflow.regions if overflow else ()
        worth = {region: 1 - position / len(named) for position, region in enumerate(named)}
        return np.array([worth.get(offer.place.region, 0.0) for offer in fleet.offers], np.float32)
