"""Spread: no region (zone, provider, pool) may get further ahead of the emptiest one than the skew allows."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.placement.model.demand import ReplicaAsk, Requirement
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import Offer
from lattice.placement.model.rejection_reasons import fleet_of
from lattice.placement.plugins.filters.eligibility import eligible_offers


def domain_of(offer: Offer, key: str) -> str:
    match key:
        case "region":
            return offer.region
        case "zone":
            return f"{offer.region}/{offer.place.zone}"
        case "provider":
            return offer.place.provider
    return offer.name


def replicas_by_domain(fleet: Fleet, service: str, key: str, may: Flags) -> dict[str, int]:
    """Of a service, in the domains that it may go to: where replicas are left over from other requirements nothing is compared with."""
    counts = {domain_of(fleet.offers[row], key): 0 for row in np.flatnonzero(may).tolist()}
    for row, replicas in fleet.replicas_by_offer(service).items():
        domain = domain_of(fleet.offers[row], key)
        if domain in counts:
            counts[domain] += replicas
    return counts


@dataclass(frozen=True, slots=True)
class SkewExceeded:
    requirement: Requirement
    counts: tuple[tuple[str, int], ...]
    plugin: str = "Spread"

    def summary(self) -> str:
        return f"in a {self.requirement.value} that is ahead of the others"

    def detail(self, table: Table, row: int) -> Shortfall:
        counts, key = dict(self.counts), self.requirement.value
        here = counts.get(domain_of(fleet_of(table).offers[row], key), 0)
        least = min(counts, key=lambda name: (counts[name], name))
        have = f"{here + 1} here against {counts[least]} in {least}"
        return Shortfall(
            f"skew over {key}",
            f"at most {self.requirement.amount}",
            have,
            f"{here + 1 - counts[least] - self.requirement.amount}",
        )


@dataclass(frozen=True, slots=True)
class Spread:
    name: ClassVar[str] = "Spread"
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.spread)

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        """Counted are all domains that the service may go to by its other requirements, full ones included."""
        fleet = fleet_of(rows)
        may = eligible_offers(ask, fleet)
        found: dict[Reason, Flags] = {}
        for each in ask.demand.spread:
            counts = replicas_by_domain(fleet, ask.demand.name, each.value, may)
            least = min(counts.values(), default=0)
            ahead = {domain for domain, count in counts.items() if count + 1 - least > each.amount}
            mask = np.array([domain_of(offer, each.value) in ahead for offer in fleet.offers], np.bool_)
            found[SkewExceeded(each, tuple(sorted(counts.items())))] = mask
        return found
