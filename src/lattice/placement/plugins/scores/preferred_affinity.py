"""PreferredAffinity: prefer offers near the targets of preferred affinity, and apart from the targets of
preferred anti-affinity."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.offer import domain_of
from lattice.placement.plugins.filters.affinity import target_rows
from lattice.placement.plugins.rejection_reasons import fleet_of


@dataclass(frozen=True, slots=True)
class PreferredAffinity:
    """Score plugin: the share of the preferred terms that the offer meets, by weight. For the topology keys
    `cluster` and `node` the offer counts as the domain."""

    name: ClassVar[str] = "PreferredAffinity"
    # The replicas in all offers count.
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.preferred_terms)

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        fleet, total = fleet_of(rows), np.zeros(rows.count, np.float32)
        for term in ask.demand.preferred_terms:
            key = "pool" if term.is_local else term.key
            domains = {domain_of(fleet.offers[row], key) for row in target_rows(fleet, term.targets)}
            is_met = [(domain_of(offer, key) in domains) is not term.is_anti for offer in fleet.offers]
            total += np.array(is_met, np.float32) * np.float32(term.weight)
        total /= np.float32(sum(term.weight for term in ask.demand.preferred_terms))
        return total
