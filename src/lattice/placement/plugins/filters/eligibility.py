"""Where could a service go by what it demands of a place, whatever is full, spent or closed there?"""

import numpy as np

from lattice.engine.table import Flags
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.plugins.filters.available import Available
from lattice.placement.plugins.filters.capabilities import Capabilities
from lattice.placement.plugins.filters.compliance import Compliance
from lattice.placement.plugins.filters.latency import Latency
from lattice.placement.plugins.filters.pool_selector import PoolSelector
from lattice.placement.plugins.filters.residency import Residency

ELIGIBILITY_FILTERS = (Available(), PoolSelector(), Compliance(), Capabilities(), Residency(), Latency())


def eligible_offers(ask: ReplicaAsk, fleet: Fleet) -> Flags:
    may: Flags = np.ones(fleet.table.count, np.bool_)
    for each in ELIGIBILITY_FILTERS:
        if each.applies(ask):
            for mask in each.filter(ask, fleet.table).values():
                may &= ~mask
    return may
