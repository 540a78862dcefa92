"""WorkloadAffinity: for each required term, the node has the topology key and a matching workload is in its domain already."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Table
from lattice.kinds.constraint import WorkloadTerm
from lattice.scheduling.plugins.cluster_events import TOPOLOGY_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import (
    missing_topology_key,
    shortfalls_by_label,
    shortfalls_by_value,
    single_row,
    unknown_topology_key,
    workload_names,
)
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable, Placement
from lattice.scheduling.table.topology_domains import occupied, rows_by_domain, without_topology_key
from lattice.scheduling.table.workload_index import TopologyCounts

MAX_NAMED_DOMAINS = 100  # domains of which it is told who is there; in more of them they are only counted


@dataclass(frozen=True, slots=True)
class AffinityUnmet:
    """Nothing that it must be near to is in this domain."""

    term: WorkloadTerm
    counts: TopologyCounts = field(compare=False)  # where those are that it must be near to
    plugin: ClassVar[str] = "WorkloadAffinity"

    def summary(self) -> str:
        return f"without a workload {str(self.term.selector) or 'of any kind'} in the same {self.term.topology_key}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        key, who = self.term.topology_key, str(self.term.selector) or "of any kind"
        elsewhere = int(self.counts.per_node(cast("NodeTable", table)).sum())
        have = f"none, {elsewhere:,} elsewhere" if elsewhere else "none anywhere"

        def tell(value: str | None) -> Shortfall:
            return Shortfall(f"workloads {who} in {key} {value}", "1 or more", have, "1")

        return shortfalls_by_label(table, key, rows, tell)


@dataclass(frozen=True, slots=True)
class WorkloadAffinity:
    name: ClassVar[str] = "WorkloadAffinity"
    scope: ClassVar[Scope] = "domain"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = TOPOLOGY_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.near)

    def filter(self, ask: WorkloadAsk, rows: NodeTable) -> Rejections:
        found: dict[Reason, Flags] = {}
        for term in ask.demands.near:
            if rows.domain_count(term.topology_key):
                tally = rows.topology_counts(ask.demands.namespace, term.selector)
                found[missing_topology_key(self.name, term.topology_key)] = without_topology_key(
                    rows, term.topology_key
                )
                found[AffinityUnmet(term, tally)] = _unmet_rows(ask, rows, term, tally)
            else:
                found[unknown_topology_key(self.name, term.topology_key)] = np.ones(rows.count, np.bool_)
        return found


def _unmet_rows(ask: WorkloadAsk, table: NodeTable, term: WorkloadTerm, tally: TopologyCounts) -> Flags:
    """In a domain, and nobody there. The first of a group, for whom only it could be there, may start wherever the topology key exists."""
    key = term.topology_key
    if term.selector.matches(ask.labels) and not tally.by_domain(table, key).any():
        return np.zeros(table.count, np.bool_)
    return ~occupied(table, key, tally, default=True)


@dataclass(frozen=True, slots=True)
class AntiAffinityViolated:
    """In this domain there is one that it must be far from (`mine`), or that must be far from it."""

    term: WorkloadTerm
    is_own_term: bool
    counts: TopologyCounts = field(compare=False)  # where those are
    plugin: ClassVar[str] = "WorkloadAntiAffinity"

    def summary(self) -> str:
        who = str(self.term.selector) or "of any kind"
        near = f"in the same {self.term.topology_key}"
        return (
            f"with a workload {who} {near}"
            if self.is_own_term
            else f"with a workload {near} that keeps {who} away"
        )

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        nodes, key = cast("NodeTable", table), self.term.topology_key
        codes, names, counts = (
            nodes.domain_codes(key)[rows].tolist(),
            nodes.domain_names(key),
            self.counts.by_domain(nodes, key).tolist(),
        )
        who = str(self.term.selector) or "of any kind"
        what = f"workloads {who if self.is_own_term else f'that keep {who} away'} in {key}"
        if len(set(codes)) > MAX_NAMED_DOMAINS:
            return shortfalls_by_value(
                [counts[code] for code in codes],
                lambda count: Shortfall(what, "none", f"{count:,}", f"{count:,} fewer"),
            )
        culprits, is_meant = rows_by_domain(nodes, key, self.counts, codes), self._cached_conflict_check()

        def tell(code: int) -> Shortfall:
            who = workload_names(table, culprits.get(code, ()), is_meant)
            return Shortfall(
                f"{what} {names[code]}", "none", f"{counts[code]:,}: {who}", f"{counts[code]:,} fewer"
            )

        return shortfalls_by_value(codes, tell)

    def _cached_conflict_check(self) -> Callable[[Placement], bool]:
        """Equal shapes are meant alike, and of those there are few."""
        known: dict[Hashable, bool] = {}

        def is_meant(placement: Placement) -> bool:
            shape = placement.ask.shape
            if shape not in known:
                known[shape] = self._conflicts_with(placement.ask)
            return known[shape]

        return is_meant

    def _conflicts_with(self, ask: WorkloadAsk) -> bool:
        demands = ask.demands
        if self.is_own_term:
            return self.counts.matches(demands.namespace, demands.service, ask.labels)
        return demands.namespace == self.counts.namespace and self.term in demands.far


@dataclass(frozen=True, slots=True)
class WorkloadAntiAffinity:
    """Answers nothing at all, at no cost, while no placed workload repels the asked one and it repels none."""

    name: ClassVar[str] = "WorkloadAntiAffinity"
    scope: ClassVar[Scope] = "domain"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = TOPOLOGY_EVENTS - {ClusterEvent.WORKLOAD_ADDED}

    def applies(self, ask: WorkloadAsk) -> bool:
        return True  # whatever it asks for itself, a placed workload may keep it away

    def filter(self, ask: WorkloadAsk, rows: NodeTable) -> Rejections:
        found: dict[Reason, Flags] = {}
        for term in ask.demands.far:
            if rows.domain_count(term.topology_key):
                tally = rows.topology_counts(ask.demands.namespace, term.selector)
                found[missing_topology_key(self.name, term.topology_key)] = without_topology_key(
                    rows, term.topology_key
                )
                found[AntiAffinityViolated(term, counts=tally, is_own_term=True)] = occupied(
                    rows, term.topology_key, tally
                )
            else:
                found[unknown_topology_key(self.name, term.topology_key)] = np.ones(rows.count, np.bool_)
        for term, carriers in rows.anti_affinity_against(ask):
            found[AntiAffinityViolated(term, counts=carriers, is_own_term=False)] = occupied(
                rows, term.topology_key, carriers
            )
        return found
