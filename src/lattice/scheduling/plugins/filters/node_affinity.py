"""NodeAffinity: the node's labels must match every expression of at least one required term."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rowids, Rows, Table
from lattice.kinds.constraints import NodeTerm
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import label_text, shortfalls_by_node_info, single_row
from lattice.scheduling.table.label_match import rows_matching_any
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class NodeAffinityUnmet:
    """The node matches none of the required terms."""

    terms: tuple[NodeTerm, ...]
    plugin: ClassVar[str] = "NodeAffinity"

    def summary(self) -> str:
        return f"without labels {self.required_text}"

    @property
    def required_text(self) -> str:
        return " or ".join(
            " and ".join(map(str, term.match_expressions)) or "of any kind" for term in self.terms
        )

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        expressions = chain.from_iterable(term.match_expressions for term in self.terms)
        keys = tuple(dict.fromkeys(expression.key for expression in expressions))
        need = self.required_text

        def shortfall(values: tuple[str | None, ...]) -> Shortfall:
            labels = {key: value for key, value in zip(keys, values, strict=True) if value is not None}
            unmet = []
            for term in self.terms:
                failing = [
                    expression for expression in term.match_expressions if not expression.matches(labels)
                ]
                unmet.append(" and ".join(map(str, failing)))
            return Shortfall("labels", need, ", ".join(map(label_text, keys, values)), " or ".join(unmet))

        return shortfalls_by_node_info(table, rows, lambda info: tuple(map(info.labels.get, keys)), shortfall)


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    name: ClassVar[str] = "NodeAffinity"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.node_terms)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        terms = ask.demands.node_terms
        return {NodeAffinityUnmet(terms): ~rows_matching_any(rows, terms)}
