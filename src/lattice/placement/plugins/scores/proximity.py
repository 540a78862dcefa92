"""Proximity: prefer offers near the called and calling services: a shared cluster first, then the offer, zone
and region."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import Offer
from lattice.placement.plugins.rejection_reasons import fleet_of

SAME_CLUSTER_SCORE = 1.0
SAME_OFFER_SCORE = 0.875
SAME_ZONE_SCORE = 0.75
SAME_REGION_SCORE = 0.5
SAME_PROVIDER_SCORE = 0.125


def _proximity_score(a: Offer, b: Offer) -> float:
    """How near two offers are, from 0 to SAME_OFFER_SCORE."""
    place_a, place_b = a.place, b.place
    if a is b:
        return SAME_OFFER_SCORE
    if a.region == b.region:
        return SAME_ZONE_SCORE if place_a.zone and place_a.zone == place_b.zone else SAME_REGION_SCORE
    return SAME_PROVIDER_SCORE if place_a.provider and place_a.provider == place_b.provider else 0.0


@dataclass(frozen=True, slots=True)
class Proximity:
    """Score plugin: ranks offers by the nearest replica of every neighbour."""

    name: ClassVar[str] = "Proximity"
    # Replicas of neighbours may be in any offer.
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.neighbours)

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """The mean proximity to the nearest replica, over the neighbours that are placed."""
        fleet, total, counted = fleet_of(rows), np.zeros(rows.count, np.float32), 0
        for service in ask.demand.neighbours:
            places = frozenset(fleet.replicas.offer_rows(service))
            if places:
                # Replicas of one service share clusters, so every offer with replicas of the service itself
                # counts as shared.
                is_own = service == ask.demand.name
                shared = places if is_own else _offers_sharing_cluster(ask, fleet, service)
                # Cached, because the score depends only on the offers with replicas, which are the same for
                # many asks.
                key = ("near", places, shared)
                scores = fleet.table.scores.get(key)
                if scores is None:
                    best = [
                        max(_proximity_score(offer, fleet.offers[row]) for row in places)
                        for offer in fleet.offers
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
