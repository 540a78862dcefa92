"""Proximity: prefer offers near the called and calling services: a shared cluster first, then the zone, then the
region."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.normalization import min_max
from lattice.engine.plugin import Scope
from lattice.engine.table import Doubles, Flags, Floats, Rows, Table
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import Offer
from lattice.placement.plugins.rejection_reasons import fleet_of

SAME_CLUSTER_SCORE = 1.0
# One offer is one place, so it counts as one zone. Offers of one provider in different regions are not near
# each other.
SAME_ZONE_SCORE = 0.75
SAME_REGION_SCORE = 0.5


def _proximity_score(a: Offer, b: Offer) -> float:
    """How near two offers are, from 0 to SAME_ZONE_SCORE."""
    if a is b:
        return SAME_ZONE_SCORE
    if a.region != b.region:
        return 0.0
    return SAME_ZONE_SCORE if a.place.zone and a.place.zone == b.place.zone else SAME_REGION_SCORE


@dataclass(frozen=True, slots=True)
class Proximity:
    """Score plugin: ranks offers by the nearest replica of every neighbour with a latency limit."""

    name: ClassVar[str] = "Proximity"
    # Replicas of neighbours may be in any offer.
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.bound_neighbours)

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """The mean proximity to the nearest replica, over the neighbours that are placed."""
        return _mean_proximity(ask, fleet_of(rows), ask.demand.bound_neighbours)


@dataclass(frozen=True, slots=True)
class Nearness:
    """Score plugin: ranks offers by the nearest replica of every neighbour without a latency limit; one
    preference among others."""

    name: ClassVar[str] = "Nearness"
    # Scores are relative to the nearest and the farthest candidate.
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.preferred_neighbours)

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """The score with every row as a candidate."""
        return self.normalized(ask, rows.table, np.ones(rows.table.count, np.bool_)).astype(np.float32)

    def normalized(self, ask: ReplicaAsk, table: Table, candidates: Flags) -> Doubles:
        """1 for the nearest candidate and 0 for the farthest, by the mean over the neighbours that are
        placed."""
        proximity = _mean_proximity(ask, fleet_of(table), ask.demand.preferred_neighbours)
        return min_max(proximity.astype(np.float64), candidates)


def _mean_proximity(ask: ReplicaAsk, fleet: Fleet, neighbours: Iterable[str]) -> Floats:
    total, counted = np.zeros(fleet.table.count, np.float32), 0
    for service in neighbours:
        places = frozenset(fleet.replicas.offer_rows(service))
        if not places:
            continue
        # Replicas of one service share clusters, so every offer with replicas of the service itself counts as
        # shared.
        shared = places if service == ask.demand.name else _offers_sharing_cluster(ask, fleet, service)
        # Cached, because the score depends only on the offers with replicas, which are the same for many asks.
        key = ("near", places, shared)
        scores = fleet.table.scores.get(key)
        if scores is None:
            best = [
                max(_proximity_score(offer, fleet.offers[row]) for row in places) for offer in fleet.offers
            ]
            scores = fleet.table.scores[key] = np.array(best, np.float32)
            scores[list(shared)] = SAME_CLUSTER_SCORE
        total += scores
        counted += 1
    if counted:
        total /= np.float32(counted)
    return total


def _offers_sharing_cluster(ask: ReplicaAsk, fleet: Fleet, service: str) -> frozenset[int]:
    """Rows of the offers where the replica could join a cluster of the service: clusters are shared under
    equal rules only."""
    rows: set[int] = set()
    for name in fleet.replicas.clusters(service):
        cluster = fleet.clusters[name]
        if cluster.group == fleet.groups.group_of(ask.demand, ask.overflow_source, cluster.offer_row):
            rows.add(cluster.offer_row)
    return frozenset(rows)
