"""WorkloadAffinity and WorkloadAntiAffinity: for every required affinity term, the topology domain of the
node must have a workload that matches the term; no workload in the domain may conflict by required
anti-affinity."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Table
from lattice.kinds.constraints import WorkloadTerm
from lattice.scheduling.plugins.cluster_events import TOPOLOGY_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import (
    MAX_NAMED_DOMAINS,
    missing_topology_key,
    shortfalls_by_label,
    shortfalls_by_value,
    single_row,
    unknown_topology_key,
    workload_names,
)
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.topology_domains import in_occupied_domain, rows_by_domain, without_topology_key
from lattice.scheduling.table.workload_ask import WorkloadAsk
from lattice.scheduling.table.workload_index import TopologyCounts


@dataclass(frozen=True, slots=True)
class AffinityUnmet:
    """The domain of the node has no workload that matches the affinity term."""

    term: WorkloadTerm
    counts: TopologyCounts = field(compare=False)  # of the matching workloads
    plugin: ClassVar[str] = "WorkloadAffinity"

    def summary(self) -> str:
        selector = str(self.term.selector) or "of any kind"
        return f"without a workload {selector} in the same {self.term.topology_key}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        key, selector = self.term.topology_key, str(self.term.selector) or "of any kind"
        elsewhere = int(self.counts.per_node(cast("NodeTable", table)).sum())
        have = f"none, {elsewhere:,} elsewhere" if elsewhere else "none anywhere"

        def shortfall(domain: str | None) -> Shortfall:
            return Shortfall(f"workloads {selector} in {key} {domain}", "1 or more", have, "1")

        return shortfalls_by_label(table, key, rows, shortfall)


@dataclass(frozen=True, slots=True)
class WorkloadAffinity:
    name: ClassVar[str] = "WorkloadAffinity"
    scope: ClassVar[Scope] = "domain"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = TOPOLOGY_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.affinity_terms)

    def filter(self, ask: WorkloadAsk, rows: NodeTable) -> Rejections:
        rejections: dict[Reason, Flags] = {}
        for term in ask.demands.affinity_terms:
            key = term.topology_key
            if rows.domain_count(key):
                counts = rows.topology_counts(term.namespace or ask.demands.namespace, term.selector)
                rejections[missing_topology_key(self.name, key)] = without_topology_key(rows, key)
                # If no placed workload matches and the asking workload matches its own term, the filter
                # accepts every node with the topology key, because otherwise no workload could be the first.
                if ask.matches_term(term) and not counts.by_domain(rows, key).any():
                    unmet: Flags = np.zeros(rows.count, np.bool_)
                else:
                    unmet = ~in_occupied_domain(rows, key, counts, default=True)
                rejections[AffinityUnmet(term, counts)] = unmet
            else:
                rejections[unknown_topology_key(self.name, key)] = np.ones(rows.count, np.bool_)
        return rejections


@dataclass(frozen=True, slots=True)
class AntiAffinityViolated:
    """The domain of the node has a workload that matches an anti-affinity term of the asking workload
    (`is_own_term`), or a workload with an anti-affinity term that matches the asking workload."""

    term: WorkloadTerm
    is_own_term: bool
    counts: TopologyCounts = field(compare=False)  # of the conflicting workloads
    plugin: ClassVar[str] = "WorkloadAntiAffinity"

    def summary(self) -> str:
        selector = str(self.term.selector) or "of any kind"
        domain = f"in the same {self.term.topology_key}"
        if self.is_own_term:
            return f"with a workload {selector} {domain}"
        return f"with a workload {domain} whose anti-affinity excludes workloads {selector}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        nodes, key = cast("NodeTable", table), self.term.topology_key
        codes, names, counts = (
            nodes.domain_codes(key)[rows].tolist(),
            nodes.domain_names(key),
            self.counts.by_domain(nodes, key).tolist(),
        )
        selector = str(self.term.selector) or "of any kind"
        subject = f"workloads {selector if self.is_own_term else f'whose anti-affinity excludes workloads {selector}'} in {key}"
        if len(set(codes)) > MAX_NAMED_DOMAINS:
            return shortfalls_by_value(
                [counts[code] for code in codes],
                lambda count: Shortfall(subject, "none", f"{count:,}", f"{count:,} fewer"),
            )
        rows_in_conflict, is_conflicting = (
            rows_by_domain(nodes, key, self.counts, codes),
            self._conflict_check(),
        )

        def shortfall(code: int) -> Shortfall:
            workloads = workload_names(table, rows_in_conflict.get(code, ()), is_conflicting)
            have = f"{counts[code]:,}: {workloads}"
            return Shortfall(f"{subject} {names[code]}", "none", have, f"{counts[code]:,} fewer")

        return shortfalls_by_value(codes, shortfall)

    def _conflict_check(self) -> Callable[[Placement], bool]:
        """Return a check for one placement. The check caches its results by shape, because workloads of equal
        shape have equal conflicts, and shapes are few."""
        conflict_by_shape: dict[Hashable, bool] = {}

        def is_conflicting(placement: Placement) -> bool:
            ask, demands = placement.ask, placement.ask.demands
            if ask.shape not in conflict_by_shape:
                if self.is_own_term:
                    conflicts = self.counts.matches(demands.namespace, demands.service, ask.labels)
                else:
                    target = self.term.namespace or demands.namespace
                    conflicts = target == self.counts.namespace and self.term in demands.anti_affinity_terms
                conflict_by_shape[ask.shape] = conflicts
            return conflict_by_shape[ask.shape]

        return is_conflicting


@dataclass(frozen=True, slots=True)
class WorkloadAntiAffinity:
    """Reject nodes by required anti-affinity. The filter costs nothing while neither the asking workload nor
    a placed workload has a term that applies."""

    name: ClassVar[str] = "WorkloadAntiAffinity"
    scope: ClassVar[Scope] = "domain"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = TOPOLOGY_EVENTS - {ClusterEvent.WORKLOAD_ADDED}

    def applies(self, ask: WorkloadAsk) -> bool:
        return True  # an anti-affinity term of a placed workload may match any workload

    def filter(self, ask: WorkloadAsk, rows: NodeTable) -> Rejections:
        rejections: dict[Reason, Flags] = {}
        for term in ask.demands.anti_affinity_terms:
            key = term.topology_key
            if rows.domain_count(key):
                counts = rows.topology_counts(term.namespace or ask.demands.namespace, term.selector)
                rejections[missing_topology_key(self.name, key)] = without_topology_key(rows, key)
                reason = AntiAffinityViolated(term, counts=counts, is_own_term=True)
                rejections[reason] = in_occupied_domain(rows, key, counts)
            else:
                rejections[unknown_topology_key(self.name, key)] = np.ones(rows.count, np.bool_)
        for term, counts in rows.anti_affinity_against(ask):
            reason = AntiAffinityViolated(term, counts=counts, is_own_term=False)
            rejections[reason] = in_occupied_domain(rows, term.topology_key, counts)
        return rejections
