"""Affinity: a replica must be near the targets of its affinity terms, and apart from the targets of
anti-affinity terms, its own and those of others."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.placement.affinity.terms import AffinityTerm
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import domain_of
from lattice.placement.plugins.rejection_reasons import FixedReason, fleet_of

# Limit of domains that a shortfall names.
MAX_NAMED_DOMAINS = 3


def target_rows(fleet: Fleet, targets: Iterable[str]) -> list[int]:
    """Rows of the offers with replicas of the targets."""
    rows: set[int] = set()
    for target in targets:
        rows.update(fleet.replicas.offer_rows(target))
    return sorted(rows)


@dataclass(frozen=True, slots=True)
class AffinityUnmet:
    """No target of the affinity term is in the domain of the offer."""

    term: AffinityTerm
    plugin: str = "Affinity"

    def summary(self) -> str:
        return f"without {self.term.text} in the same {self.term.key}"

    def detail(self, table: Table, row: int) -> Shortfall:
        fleet = fleet_of(table)
        offers = [fleet.offers[target] for target in target_rows(fleet, self.term.targets)]
        key = "pool" if self.term.is_local else self.term.key
        domains = sorted({domain_of(offer, key) for offer in offers})
        suffix = f" and {len(domains) - MAX_NAMED_DOMAINS} more" if len(domains) > MAX_NAMED_DOMAINS else ""
        have = f"only in {', '.join(domains[:MAX_NAMED_DOMAINS])}{suffix}" if domains else "none"
        if self.term.is_local and fleet.offers[row] in offers:
            have = f"none in a {self.term.key} that this service may use"
        return Shortfall(f"{self.term.text} in the same {self.term.key}", "1 or more", have, "1")


@dataclass(frozen=True, slots=True)
class AntiAffinityViolated:
    """A target of an anti-affinity term is in the domain of the offer."""

    term: AffinityTerm
    plugin: str = "Affinity"

    def summary(self) -> str:
        if self.term.is_own:
            return f"with {self.term.text} in the same {self.term.key}"
        return f"in the same {self.term.key} as {self.term.text}, whose anti-affinity excludes this service"

    def detail(self, table: Table, row: int) -> Shortfall:
        fleet, key = fleet_of(table), self.term.key
        domain = domain_of(fleet.offers[row], key)
        count = 0
        for target in self.term.targets:
            for target_row, replicas in fleet.replicas.by_offer(target).items():
                count += replicas if domain_of(fleet.offers[target_row], key) == domain else 0
        subject = f"{self.term.text} in {key} {domain}"
        return Shortfall(subject, "none", f"{count:,}", f"{count:,} fewer")


@dataclass(frozen=True, slots=True)
class Affinity:
    """Filter plugin: rejects offers by required affinity and anti-affinity.

    Clusters and machines of an offer are chosen by the same terms (`ClusterGroups`); for the topology keys
    `cluster` and `node` the filter only rejects offers where no cluster has a target.
    """

    name: ClassVar[str] = "Affinity"
    # The replicas in all offers count.
    scope: ClassVar[Scope] = "table"
    # True: anti-affinity of a service to itself is left out, because it restricts one replica and not the
    # service.
    ignores_own_replicas: bool = False

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.required_terms)

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        fleet, demand = fleet_of(rows), ask.demand
        rejections: dict[Reason, Flags] = {}
        for term in demand.required_terms:
            if not term.is_anti:
                if fleet.groups.is_first_target(demand, term):
                    continue
                if not fleet.groups.is_waiting_for(demand, term):
                    near = _rows_near(ask, fleet, term, target_rows(fleet, term.targets))
                    rejections[AffinityUnmet(term)] = ~near
                elif "dependencies" not in demand.ignored_limits:
                    rejections[waiting_reason(term)] = np.ones(rows.count, np.bool_)
            elif not term.is_local:
                # A target may leave, as a dependency may come.
                is_ignored = "dependencies" in demand.ignored_limits and demand.name not in term.targets
                if is_ignored:
                    continue
                targets = [
                    target
                    for target in term.targets
                    if target != demand.name or not self.ignores_own_replicas
                ]
                rejections[AntiAffinityViolated(term)] = _in_domain_of(
                    fleet, term.key, target_rows(fleet, targets)
                )
        return rejections


def waiting_reason(term: AffinityTerm) -> FixedReason:
    """The reason of every offer while no target of the affinity term is placed."""
    return FixedReason(
        "Affinity",
        f"waiting for {term.text}, which is not placed",
        f"{term.text} in the same {term.key}",
        "1 or more",
        "not placed" if term.targets else "not defined",
        f"a replica of {term.text}",
    )


def _in_domain_of(fleet: Fleet, key: str, rows: list[int]) -> Flags:
    """Mask of the offers in the domain of any of the rows."""
    domains = {domain_of(fleet.offers[row], key) for row in rows}
    return np.array([domain_of(offer, key) in domains for offer in fleet.offers], np.bool_)


def _rows_near(ask: ReplicaAsk, fleet: Fleet, term: AffinityTerm, rows: list[int]) -> Flags:
    """Mask of the offers in the domain of a target; for a local key, of the offers with a target in a cluster
    that the service may use."""
    if not term.is_local:
        return _in_domain_of(fleet, term.key, rows)
    near: Flags = np.zeros(fleet.table.count, np.bool_)
    accepting = fleet.groups.accepting(ask.demand, ask.overflow_source)
    for target in term.targets:
        for name in fleet.replicas.clusters(target):
            cluster = fleet.clusters[name]
            if cluster.group in accepting:
                near[cluster.offer_row] = True
    return near
