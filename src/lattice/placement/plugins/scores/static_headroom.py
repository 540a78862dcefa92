"""Suited: of data centers, prefer the one that has most left of what the replica takes most of."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows, RowSubset
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.rejection_reasons import fleet_of


@dataclass(frozen=True, slots=True)
class StaticHeadroom:
    name: ClassVar[str] = "Suited"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """The free share of cores and memory, each weighed by how much of it one replica takes; 0 for what is rented."""
        fleet = fleet_of(rows)
        score = np.zeros(rows.count, np.float32)
        pairs = (
            enumerate(rows.rows.tolist())
            if isinstance(rows, RowSubset)
            else ((row, row) for row in fleet.static_rows)
        )
        for position, row in pairs:
            if fleet.offers[row].is_static:
                score[position] = _free_share(fleet, row, ask.demand.needs)
        return score


def _free_share(fleet: Fleet, row: int, needs: dict[str, int]) -> float:
    weights, shares = 0.0, 0.0
    for name, limit in (
        ("cpu", fleet.offers[row].limits.milli),
        ("memory", fleet.offers[row].limits.memory),
    ):
        whole = limit if limit < NO_LIMIT else _capacity_by_machines(fleet, row, name)
        if 0 < whole < NO_LIMIT and needs.get(name):
            used = sum(cluster.used[name] for cluster in fleet.clusters_by_offer[row].values())
            weight = needs[name] / whole
            weights += weight
            shares += weight * max(0.0, 1 - used / whole)
    return shares / weights if weights else 0.0


def _capacity_by_machines(fleet: Fleet, row: int, name: str) -> int:
    offer = fleet.offers[row]
    return offer.limits.nodes * max((each.size.get(name, 0) for each in offer.types), default=0)
