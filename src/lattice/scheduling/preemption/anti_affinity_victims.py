"""Who must leave a node because the newcomer cannot bear them near, or they cannot bear it?"""

from dataclasses import dataclass, field

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.kinds.constraint import WorkloadTerm
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.topology_domains import outside, over_nodes
from lattice.scheduling.table.node_table import NodeTable, Placement
from lattice.scheduling.table.tally import Tally

Terms = dict[WorkloadTerm, Tally]  # with where those are whom they concern


@dataclass(frozen=True, slots=True)
class Apart:
    """By required anti-affinity: `own` terms mean others, `carried` ones are of others and mean it."""

    table: NodeTable
    ask: WorkloadAsk
    own: Terms = field(default_factory=dict)
    carried: Terms = field(default_factory=dict)

    def at_least(self, fewest: Integers) -> Integers:
        """So many must go, per row, if for other reasons so many must."""
        for term, tally in (*self.own.items(), *self.carried.items()):
            here = np.where(self.table.codes(term.topology_key) >= 0, tally.per_node(self.table), 0)
            np.maximum(fewest, here, out=fewest)
        return fewest

    def out_of_reach(self) -> Flags:
        """Rows with such a one in the domain, but on another node; and those in no domain of a term of its own."""
        beyond: Flags = np.zeros(self.table.count, np.bool_)
        for term in self.own:
            beyond |= outside(self.table, term.topology_key)
        for term, tally in (*self.own.items(), *self.carried.items()):
            if self.table.domain_count(term.topology_key):
                near = over_nodes(
                    self.table, term.topology_key, tally.domains(self.table, term.topology_key), 0
                )
                beyond |= near > tally.per_node(self.table)
        return beyond

    def in_the_way(self, row: int) -> frozenset[str]:
        """Names of those on this node who must go."""
        own, carried = self._terms_on(row, self.own), set(self._terms_on(row, self.carried))
        if not own and not carried:
            return frozenset()
        here = (
            each
            for each in self.table.on_row[row].values()
            if each.ask.demands.namespace == self.ask.demands.namespace
        )
        return frozenset(
            each.ask.name
            for each in here
            if _is_meant(each, own) or not carried.isdisjoint(each.ask.demands.far)
        )

    def _terms_on(self, row: int, terms: Terms) -> list[WorkloadTerm]:
        """Whom they concern is here, and the node is in a domain."""
        return [
            term
            for term, tally in terms.items()
            if tally.per_node(self.table)[row] and self.table.codes(term.topology_key)[row] >= 0
        ]


def _is_meant(placement: Placement, terms: list[WorkloadTerm]) -> bool:
    return any(term.selector.matches(placement.ask.labels) for term in terms)


def kept_apart(table: NodeTable, ask: WorkloadAsk) -> Apart:
    own = {term: table.tally(ask.demands.namespace, term.selector) for term in ask.demands.far}
    return Apart(table, ask, own, dict(table.repulsed_by(ask)))
