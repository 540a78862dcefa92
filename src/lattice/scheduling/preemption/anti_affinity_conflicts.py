"""Workloads that must be evicted because of required anti-affinity, theirs or that of the asking workload."""

from dataclasses import dataclass, field

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.kinds.constraints import WorkloadTerm
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.topology_domains import domain_values_per_node, without_topology_key
from lattice.scheduling.table.workload_ask import WorkloadAsk
from lattice.scheduling.table.workload_index import TopologyCounts

TermCounts = dict[WorkloadTerm, TopologyCounts]  # terms with the counts of the workloads in conflict


@dataclass(frozen=True, slots=True)
class AntiAffinityConflicts:
    """Required anti-affinity between the asking workload and the placed workloads.

    `own_terms` are terms of the asking workload; `existing_terms` are terms of placed workloads that match
    the asking workload.
    """

    table: NodeTable
    ask: WorkloadAsk
    own_terms: TermCounts = field(default_factory=dict)
    existing_terms: TermCounts = field(default_factory=dict)

    def min_victims(self, fewest: Integers) -> Integers:
        """Raise a lower bound of the number of victims, by row, to the number of conflicting workloads on the
        node."""
        for term, counts in (*self.own_terms.items(), *self.existing_terms.items()):
            has_domain = self.table.domain_codes(term.topology_key) >= 0
            np.maximum(fewest, np.where(has_domain, counts.per_node(self.table), 0), out=fewest)
        return fewest

    def unresolvable_rows(self) -> Flags:
        """Rows whose domain has a conflicting workload on a different node, and rows without the topology key
        of an own term."""
        unresolvable: Flags = np.zeros(self.table.count, np.bool_)
        for term in self.own_terms:
            unresolvable |= without_topology_key(self.table, term.topology_key)
        for term, counts in (*self.own_terms.items(), *self.existing_terms.items()):
            if self.table.domain_count(term.topology_key):
                in_domain = domain_values_per_node(
                    self.table, term.topology_key, counts.by_domain(self.table, term.topology_key), 0
                )
                unresolvable |= in_domain > counts.per_node(self.table)
        return unresolvable

    def conflicting_names(self, row: int) -> frozenset[str]:
        """Names of the workloads on the node that must be evicted."""
        own_terms = self._violated_terms(row, self.own_terms)
        existing_terms = set(self._violated_terms(row, self.existing_terms))
        if not own_terms and not existing_terms:
            return frozenset()
        names = set()
        for placement in self.table.placements_by_row[row].values():
            ask, namespace = placement.ask, self.ask.demands.namespace
            matches_own = any(ask.matches_term(term, namespace) for term in own_terms)
            keeps_away = any(
                term in existing_terms and self.ask.matches_term(term, ask.demands.namespace)
                for term in ask.demands.anti_affinity_terms
            )
            if matches_own or keeps_away:
                names.add(ask.name)
        return frozenset(names)

    def _violated_terms(self, row: int, terms: TermCounts) -> list[WorkloadTerm]:
        """Terms with a conflicting workload on the node, if the node has the topology key."""
        return [
            term
            for term, counts in terms.items()
            if counts.per_node(self.table)[row] and self.table.domain_codes(term.topology_key)[row] >= 0
        ]


def anti_affinity_conflicts(table: NodeTable, ask: WorkloadAsk) -> AntiAffinityConflicts:
    own = {
        term: table.topology_counts(term.namespace or ask.demands.namespace, term.selector)
        for term in ask.demands.anti_affinity_terms
    }
    return AntiAffinityConflicts(table, ask, own, dict(table.anti_affinity_against(ask)))
