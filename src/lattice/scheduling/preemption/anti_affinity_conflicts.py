"""Who must leave a node because the newcomer cannot bear them near, or they cannot bear it?"""

from dataclasses import dataclass, field

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.kinds.constraint import WorkloadTerm
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable, Placement
from lattice.scheduling.table.topology_domains import domain_values_per_node, without_topology_key
from lattice.scheduling.table.workload_index import TopologyCounts

TermCounts = dict[WorkloadTerm, TopologyCounts]  # with where those are whom they concern


@dataclass(frozen=True, slots=True)
class AntiAffinityConflicts:
    """By required anti-affinity: `own` terms mean others, `carried` ones are of others and mean it."""

    table: NodeTable
    ask: WorkloadAsk
    own_terms: TermCounts = field(default_factory=dict)
    existing_terms: TermCounts = field(default_factory=dict)

    def min_victims(self, fewest: Integers) -> Integers:
        """So many must go, per row, if for other reasons so many must."""
        for term, tally in (*self.own_terms.items(), *self.existing_terms.items()):
            here = np.where(self.table.domain_codes(term.topology_key) >= 0, tally.per_node(self.table), 0)
            np.maximum(fewest, here, out=fewest)
        return fewest

    def unresolvable_rows(self) -> Flags:
        """Rows with such a one in the domain, but on another node; and those in no domain of a term of its own."""
        beyond: Flags = np.zeros(self.table.count, np.bool_)
        for term in self.own_terms:
            beyond |= without_topology_key(self.table, term.topology_key)
        for term, tally in (*self.own_terms.items(), *self.existing_terms.items()):
            if self.table.domain_count(term.topology_key):
                near = domain_values_per_node(
                    self.table, term.topology_key, tally.by_domain(self.table, term.topology_key), 0
                )
                beyond |= near > tally.per_node(self.table)
        return beyond

    def conflicting_names(self, row: int) -> frozenset[str]:
        """Names of those on this node who must go."""
        own, carried = (
            self._violated_terms(row, self.own_terms),
            set(self._violated_terms(row, self.existing_terms)),
        )
        if not own and not carried:
            return frozenset()
        here = (
            each
            for each in self.table.placements_by_row[row].values()
            if each.ask.demands.namespace == self.ask.demands.namespace
        )
        return frozenset(
            each.ask.name
            for each in here
            if _matches_any(each, own) or not carried.isdisjoint(each.ask.demands.far)
        )

    def _violated_terms(self, row: int, terms: TermCounts) -> list[WorkloadTerm]:
        """Whom they concern is here, and the node is in a domain."""
        return [
            term
            for term, tally in terms.items()
            if tally.per_node(self.table)[row] and self.table.domain_codes(term.topology_key)[row] >= 0
        ]


def _matches_any(placement: Placement, terms: list[WorkloadTerm]) -> bool:
    return any(term.selector.matches(placement.ask.labels) for term in terms)


def anti_affinity_conflicts(table: NodeTable, ask: WorkloadAsk) -> AntiAffinityConflicts:
    own = {term: table.topology_counts(ask.demands.namespace, term.selector) for term in ask.demands.far}
    return AntiAffinityConflicts(table, ask, own, dict(table.anti_affinity_against(ask)))
