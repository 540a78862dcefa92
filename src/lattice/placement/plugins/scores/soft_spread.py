"""Even: of regions (zones, providers, pools) that a service would like to be spread over, prefer those that are not ahead of the others."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.rejection_reasons import fleet_of
from lattice.placement.plugins.filters.eligibility import eligible_offers
from lattice.placement.plugins.filters.spread import domain_of, replicas_by_domain


@dataclass(frozen=True, slots=True)
class SoftSpread:
    name: ClassVar[str] = "Even"
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.soft_spread)

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """1 within the skew, the less the further beyond; the mean of all such wishes. Full domains are counted, too."""
        fleet = fleet_of(rows)
        may = eligible_offers(ask, fleet)
        total = np.zeros(rows.count, np.float32)
        for key, skew in ask.demand.soft_spread:
            counts = replicas_by_domain(fleet, ask.demand.name, key, may)
            least = min(counts.values(), default=0)
            beyond = [
                max(0, counts.get(domain_of(offer, key), 0) + 1 - least - skew) for offer in fleet.offers
            ]
            total += 1 - np.array(beyond, np.float32) / np.float32(1 + max(beyond, default=0))
        return total / np.float32(len(ask.demand.soft_spread))
