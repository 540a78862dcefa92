"""Offers that a service may use by its requirements, whether full, over budget or not."""

import numpy as np

from lattice.engine.table import Flags
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.plugins.filters.affinity import Affinity
from lattice.placement.plugins.filters.available import Available
from lattice.placement.plugins.filters.capabilities import Capabilities
from lattice.placement.plugins.filters.compliance import Compliance
from lattice.placement.plugins.filters.latency import Latency
from lattice.placement.plugins.filters.pool_selector import PoolSelector
from lattice.placement.plugins.filters.region import Region
from lattice.placement.plugins.filters.residency import Residency

ELIGIBILITY_FILTERS = (
    Available(),
    PoolSelector(),
    Compliance(),
    Capabilities(),
    Residency(),
    Latency(),
    Affinity(ignores_own_replicas=True),
)


def eligible_offers(ask: ReplicaAsk, fleet: Fleet) -> Flags:
    """Mask of the offers that pass every eligibility filter for the ask."""
    eligible: Flags = np.ones(fleet.table.count, np.bool_)
    for plugin in ELIGIBILITY_FILTERS:
        if plugin.applies(ask):
            for mask in plugin.filter(ask, fleet.table).values():
                eligible &= ~mask
    return eligible


def eligible_offers_in_region(ask: ReplicaAsk, fleet: Fleet) -> Flags:
    """Mask of the eligible offers that are also in a region where the replica may be.

    Region is not an eligibility filter, because it restricts one replica and not the service: the domains of
    a spread and the check of existing placements use the eligible offers of all regions.
    """
    eligible = eligible_offers(ask, fleet)
    for mask in Region().filter(ask, fleet.table).values():
        eligible &= ~mask
    return eligible
