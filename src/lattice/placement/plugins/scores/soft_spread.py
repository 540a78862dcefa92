"""Even: among the domains (regions, zones, providers, pools) of a soft spread rule, prefer domains that are
not ahead."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.offer import domain_of
from lattice.placement.plugins.filters.eligibility import eligible_offers
from lattice.placement.plugins.filters.spread import replicas_by_domain
from lattice.placement.plugins.rejection_reasons import fleet_of


@dataclass(frozen=True, slots=True)
class SoftSpread:
    """Score plugin: ranks offers by how far the domain would exceed the skew."""

    name: ClassVar[str] = "Even"
    # The replicas in all domains count.
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.soft_spread)

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """1 while the domain stays within the skew, and lower the further the domain exceeds it; the mean
        over all soft spread rules. Domains without free capacity count as well."""
        fleet = fleet_of(rows)
        eligible = eligible_offers(ask, fleet)
        total = np.zeros(rows.count, np.float32)
        for key, skew in ask.demand.soft_spread:
            counts = replicas_by_domain(fleet, ask.demand.name, key, eligible)
            least = min(counts.values(), default=0)
            excess = [
                max(0, counts.get(domain_of(offer, key), 0) + 1 - least - skew) for offer in fleet.offers
            ]
            total += 1 - np.array(excess, np.float32) / np.float32(1 + max(excess, default=0))
        return total / np.float32(len(ask.demand.soft_spread))
