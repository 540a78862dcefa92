"""Proximity: prefer offers near the services that this one talks to: where it may share their cluster, then the offer, zone, region."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import Offer
from lattice.placement.model.rejection_reasons import fleet_of

SAME_CLUSTER_SCORE, SAME_OFFER_SCORE, SAME_ZONE_SCORE, SAME_REGION_SCORE, SAME_PROVIDER_SCORE = (
    1.0,
    0.875,
    0.75,
    0.5,
    0.125,
)


def proximity_score(one: Offer, other: Offer) -> float:
    here, there = one.place, other.place
    if one is other:
        return SAME_OFFER_SCORE
    if one.region == other.region:
        return SAME_ZONE_SCORE if here.zone and here.zone == there.zone else SAME_REGION_SCORE
    return SAME_PROVIDER_SCORE if here.provider and here.provider == there.provider else 0.0


@dataclass(frozen=True, slots=True)
class Proximity:
    name: ClassVar[str] = "Proximity"
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.neighbours)

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """The mean over the neighbours that are placed, of how near their nearest replica is."""
        fleet, total, counted = fleet_of(rows), np.zeros(rows.count, np.float32), 0
        for service in ask.demand.neighbours:
            places = frozenset(fleet.offer_rows_of(service))
            if places:
                total += _scores_to_nearest(
                    fleet,
                    places,
                    places if service == ask.demand.name else _offers_sharing_cluster(ask, fleet, service),
                )
                counted += 1
        if counted:
            total /= np.float32(counted)
        return total


def _offers_sharing_cluster(ask: ReplicaAsk, fleet: Fleet, service: str) -> frozenset[int]:
    """Where it would be put into clusters that the other one is in: services share clusters under equal rules only."""
    clusters = (fleet.clusters[name] for name in fleet.clusters_of(service))
    return frozenset(
        each.offer_row
        for each in clusters
        if each.group == fleet.group_of(ask.demand, ask.overflow_source, each.offer_row)
    )


def _scores_to_nearest(fleet: Fleet, places: frozenset[int], shared: frozenset[int]) -> Floats:
    key = ("near", places, shared)
    found = fleet.table.scores.get(key)
    if found is None:
        best = [max(proximity_score(offer, fleet.offers[row]) for row in places) for offer in fleet.offers]
        found = fleet.table.scores[key] = np.array(best, np.float32)
        found[list(shared)] = SAME_CLUSTER_SCORE
    return found
