"""Suited: among data centers, prefer the most free capacity of the resource that the replica uses most."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows, RowSubset
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.plugins.rejection_reasons import fleet_of


@dataclass(frozen=True, slots=True)
class StaticHeadroom:
    """Score plugin: ranks data centers by weighted free capacity; every other offer scores 0."""

    name: ClassVar[str] = "Suited"
    # The score depends on the usage of the offer alone.
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """The free share of cores and memory, weighted by the share that one replica takes; 0 for rented
        machines."""
        fleet = fleet_of(rows)
        score = np.zeros(rows.count, np.float32)
        pairs = (
            enumerate(rows.rows.tolist())
            if isinstance(rows, RowSubset)
            else ((row, row) for row in fleet.table.static_rows)
        )
        for position, row in pairs:
            if fleet.offers[row].is_static:
                score[position] = _free_share(fleet, row, ask.demand.needs)
        return score


def _free_share(fleet: Fleet, row: int, needs: dict[str, int]) -> float:
    offer = fleet.offers[row]
    weights, shares = 0.0, 0.0
    for name, limit in (("cpu", offer.limits.millicores), ("memory", offer.limits.memory)):
        capacity = limit
        if limit >= NO_LIMIT:
            # Without a stated limit, the largest machine type times the number of machines is the capacity.
            largest = max((kind.size.get(name, 0) for kind in offer.types), default=0)
            capacity = offer.limits.nodes * largest
        if 0 < capacity < NO_LIMIT and needs.get(name):
            used = sum(cluster.used[name] for cluster in fleet.inventory.clusters_by_offer[row].values())
            weight = needs[name] / capacity
            weights += weight
            shares += weight * max(0.0, 1 - used / capacity)
    return shares / weights if weights else 0.0
