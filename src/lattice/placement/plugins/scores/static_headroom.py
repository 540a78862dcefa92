"""Suited: among data centers, prefer free capacity in the proportion of cores to memory that the replica
uses."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows, RowSubset
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.plugins.rejection_reasons import fleet_of

# Free share that a mismatch of one whole ratio outweighs: measured in bench.q3 on fleets of 300 services.
MISMATCH_WEIGHT = 1.5
# A larger mismatch counts as this much free share.
MAX_MISMATCH = 3.0


@dataclass(frozen=True, slots=True)
class StaticHeadroom:
    """Score plugin: ranks data centers by free capacity that suits the replica; every other offer scores 0."""

    name: ClassVar[str] = "Suited"
    # The score depends on the usage of the offer alone.
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """The suitability of a data center; 0 for rented machines."""
        fleet = fleet_of(rows)
        score = np.zeros(rows.count, np.float32)
        pairs = (
            enumerate(rows.rows.tolist())
            if isinstance(rows, RowSubset)
            else ((row, row) for row in fleet.table.static_rows)
        )
        for position, row in pairs:
            if fleet.offers[row].is_static:
                score[position] = _suitability(fleet, row, ask.demand.needs)
        return score


def _suitability(fleet: Fleet, row: int, needs: dict[str, int]) -> float:
    """The free share of the scarcer of cores and memory, less the distance between the ratio of free memory to
    free cores and the ratio that the replica needs, in units of the ratio of the whole data center; mapped to
    0..1.

    A replica that uses cores and memory as they are free leaves no rest of one without the other.
    """
    offer = fleet.offers[row]
    free: list[float] = []
    sizes: list[int] = []
    for name, limit in (("cpu", offer.limits.millicores), ("memory", offer.limits.memory)):
        capacity = limit
        if limit >= NO_LIMIT:
            # Without a stated limit, the largest machine type times the number of machines is the capacity.
            largest = max((kind.size.get(name, 0) for kind in offer.types), default=0)
            capacity = offer.limits.nodes * largest
        if 0 < capacity < NO_LIMIT and needs.get(name):
            used = sum(cluster.used[name] for cluster in fleet.inventory.clusters_by_offer[row].values())
            free.append(max(0.0, 1 - used / capacity))
            sizes.append(capacity)
    if not free:
        return 0.0
    mismatch = 0.0
    if len(free) == 2 and free[0]:
        mismatch = abs(free[1] / free[0] - (needs["memory"] / sizes[1]) / (needs["cpu"] / sizes[0]))
    return (MAX_MISMATCH + min(free) - min(MAX_MISMATCH, MISMATCH_WEIGHT * mismatch)) / (MAX_MISMATCH + 1)
