"""NodeAffinity: the node's labels must satisfy at least one required term, of it every expression."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rowids, Rows, Table
from lattice.kinds.constraint import NodeTerm
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.change import NEW_NODES, Change
from lattice.scheduling.labels import matching_any
from lattice.scheduling.reason import each_once, facts_at, only, written


@dataclass(frozen=True, slots=True)
class NoTerm:
    """None of the terms holds."""

    terms: tuple[NodeTerm, ...]
    plugin: ClassVar[str] = "NodeAffinity"

    def summary(self) -> str:
        return f"without labels {self.wanted}"

    @property
    def wanted(self) -> str:
        return " or ".join(" and ".join(str(each) for each in term.match_expressions) or "of any kind" for term in self.terms)

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, only(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        keys, wanted = tuple(dict.fromkeys(each.key for term in self.terms for each in term.match_expressions)), self.wanted
        labels = [facts_at(table, row).labels for row in rows.tolist()]
        values = [tuple(map(each.get, keys)) for each in labels]
        return each_once(values, lambda have: Shortfall("labels", wanted, ", ".join(map(written, keys, have))))


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    name: ClassVar[str] = "NodeAffinity"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[Change]] = NEW_NODES

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.node_terms)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        terms = ask.demands.node_terms
        return {NoTerm(terms): ~matching_any(rows, terms)}
