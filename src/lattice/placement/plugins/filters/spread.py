"""Spread: no domain (region, zone, provider or pool) may exceed the emptiest domain by more replicas than the
skew."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.placement.model.demand import ReplicaAsk, Requirement
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import domain_of
from lattice.placement.plugins.filters.eligibility import eligible_offers
from lattice.placement.plugins.rejection_reasons import fleet_of


def replicas_by_domain(fleet: Fleet, service: str, key: str, eligible: Flags) -> dict[str, int]:
    """Replicas of a service by eligible domain; replicas in other domains, left from earlier requirements, do
    not count."""
    counts = {domain_of(fleet.offers[row], key): 0 for row in np.flatnonzero(eligible).tolist()}
    for row, replicas in fleet.replicas.by_offer(service).items():
        domain = domain_of(fleet.offers[row], key)
        if domain in counts:
            counts[domain] += replicas
    return counts


@dataclass(frozen=True, slots=True)
class SkewExceeded:
    """One more replica in the domain of the offer would exceed the skew."""

    requirement: Requirement
    counts: tuple[tuple[str, int], ...]
    plugin: str = "Spread"

    def summary(self) -> str:
        return f"in a {self.requirement.value} where a replica would exceed skew {self.requirement.amount}"

    def detail(self, table: Table, row: int) -> Shortfall:
        counts, key = dict(self.counts), self.requirement.value
        replicas = counts.get(domain_of(fleet_of(table).offers[row], key), 0)
        least = min(counts, key=lambda name: (counts[name], name))
        have = f"{replicas + 1} here with this replica, {counts[least]} in {least}"
        return Shortfall(
            f"skew over {key}",
            f"at most {self.requirement.amount}",
            have,
            f"{replicas + 1 - counts[least] - self.requirement.amount}",
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """Filter plugin: rejects offers in domains that are ahead of the emptiest eligible domain."""

    name: ClassVar[str] = "Spread"
    # The replicas in all domains count.
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.spread)

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        """Every domain that is eligible by the other requirements counts, full domains included."""
        fleet = fleet_of(rows)
        eligible = eligible_offers(ask, fleet)
        rejections: dict[Reason, Flags] = {}
        for requirement in ask.demand.spread:
            counts = replicas_by_domain(fleet, ask.demand.name, requirement.value, eligible)
            least = min(counts.values(), default=0)
            ahead = {domain for domain, count in counts.items() if count + 1 - least > requirement.amount}
            mask = np.array(
                [domain_of(offer, requirement.value) in ahead for offer in fleet.offers], np.bool_
            )
            rejections[SkewExceeded(requirement, tuple(sorted(counts.items())))] = mask
        return rejections
