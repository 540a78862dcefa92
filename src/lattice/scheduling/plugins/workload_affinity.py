"""WorkloadAffinity: for each required term, a matching workload must be in the node's topology domain already."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Table
from lattice.kinds.constraint import WorkloadTerm
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.change import NEIGHBOURS, Change
from lattice.scheduling.domains import occupied, outside
from lattice.scheduling.nodes import NodeTable
from lattice.scheduling.reason import Because, facts_at


@dataclass(frozen=True, slots=True)
class NotNear:
    """Nothing that it must be near to is in this domain."""

    term: WorkloadTerm
    plugin: ClassVar[str] = "WorkloadAffinity"

    def summary(self) -> str:
        return f"without a workload {str(self.term.selector) or 'of any kind'} in the same {self.term.topology_key}"

    def detail(self, table: Table, row: int) -> Shortfall:
        key = self.term.topology_key
        value = facts_at(table, row).labels.get(key)
        if value is None:
            return Shortfall(f"no label {key} on the node, which nearness is measured by")
        return Shortfall(f"no workload {str(self.term.selector) or 'of any kind'} in {key} {value}")


@dataclass(frozen=True, slots=True)
class WorkloadAffinity:
    name: ClassVar[str] = "WorkloadAffinity"
    scope: ClassVar[Scope] = "domain"
    wakes_on: ClassVar[frozenset[Change]] = NEIGHBOURS

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.near)

    def filter(self, ask: WorkloadAsk, rows: NodeTable) -> Rejections:
        found: dict[Reason, Flags] = {}
        for term in ask.demands.near:
            if rows.domain_count(term.topology_key):
                found[NotNear(term)] = _away(ask, rows, term)
            else:
                found[Because(self.name, f"without topology key {term.topology_key}, which no node has")] = np.ones(rows.count, np.bool_)
        return found


def _away(ask: WorkloadAsk, table: NodeTable, term: WorkloadTerm) -> Flags:
    """The first of a group, which nobody is there for but itself, may start wherever the topology key exists."""
    tally, key = table.tally(ask.demands.namespace, term.selector), term.topology_key
    if term.selector.matches(ask.labels) and not tally.domains(table, key).any():
        return outside(table, key)
    return ~occupied(table, key, tally)
