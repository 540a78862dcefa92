"""NodeAffinity: the node's labels must satisfy at least one required term, of it every expression."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rows, Table
from lattice.kinds.constraint import NodeTerm
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.change import NEW_NODES, Change
from lattice.scheduling.labels import matching_any
from lattice.scheduling.reason import facts_at


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
        labels = facts_at(table, row).labels
        keys = sorted({each.key for term in self.terms for each in term.match_expressions})
        have = ", ".join(f"{key}={labels[key]}" for key in keys if key in labels)
        return Shortfall("labels", self.wanted, have or "none of them")


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    name: ClassVar[str] = "NodeAffinity"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[Change]] = NEW_NODES

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.node_terms)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        terms = ask.demands.node_terms
        return {NoTerm(terms): rows.memo((self.name, terms), lambda table: ~matching_any(table, terms))}
