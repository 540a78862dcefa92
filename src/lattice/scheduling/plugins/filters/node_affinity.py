"""NodeAffinity: the node's labels must satisfy at least one required term, of it every expression."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rowids, Rows, Table
from lattice.kinds.constraint import NodeTerm
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import label_text, shortfalls_by_node_info, single_row
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.label_match import matching_any


@dataclass(frozen=True, slots=True)
class NodeAffinityUnmet:
    """None of the terms holds."""

    terms: tuple[NodeTerm, ...]
    plugin: ClassVar[str] = "NodeAffinity"

    def summary(self) -> str:
        return f"without labels {self.required_text}"

    @property
    def required_text(self) -> str:
        return " or ".join(
            " and ".join(str(each) for each in term.match_expressions) or "of any kind" for term in self.terms
        )

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        keys, wanted = (
            tuple(dict.fromkeys(each.key for term in self.terms for each in term.match_expressions)),
            self.required_text,
        )

        def tell(have: tuple[str | None, ...]) -> Shortfall:
            labels = {key: value for key, value in zip(keys, have, strict=True) if value is not None}
            return Shortfall(
                "labels", wanted, ", ".join(map(label_text, keys, have)), self._unmet_text(labels)
            )

        return shortfalls_by_node_info(table, rows, lambda facts: tuple(map(facts.labels.get, keys)), tell)

    def _unmet_text(self, labels: Mapping[str, str]) -> str:
        """Of each term, what does not hold."""
        failing = (
            [str(each) for each in term.match_expressions if not each.matches(labels)] for term in self.terms
        )
        return " or ".join(" and ".join(each) for each in failing)


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    name: ClassVar[str] = "NodeAffinity"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.node_terms)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        terms = ask.demands.node_terms
        return {NodeAffinityUnmet(terms): ~matching_any(rows, terms)}
