"""WorkloadAffinity: for each required term, the node has the topology key and a matching workload is in its domain already."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Table
from lattice.kinds.constraint import WorkloadTerm
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.plugins.cluster_events import NEIGHBOURS, Change
from lattice.scheduling.table.topology_domains import occupied, outside
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.plugins.reasons import each_value, no_such_key, only, without_key
from lattice.scheduling.table.tally import Tally


@dataclass(frozen=True, slots=True)
class NotNear:
    """Nothing that it must be near to is in this domain."""

    term: WorkloadTerm
    tally: Tally = field(compare=False)  # where those are that it must be near to
    plugin: ClassVar[str] = "WorkloadAffinity"

    def summary(self) -> str:
        return f"without a workload {str(self.term.selector) or 'of any kind'} in the same {self.term.topology_key}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, only(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        key, who = self.term.topology_key, str(self.term.selector) or "of any kind"
        elsewhere = int(self.tally.per_node(cast("NodeTable", table)).sum())
        have = f"none, {elsewhere:,} elsewhere" if elsewhere else "none anywhere"

        def tell(value: str | None) -> Shortfall:
            return Shortfall(f"workloads {who} in {key} {value}", "1 or more", have, "1")

        return each_value(table, key, rows, tell)


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
                tally = rows.tally(ask.demands.namespace, term.selector)
                found[without_key(self.name, term.topology_key)] = outside(rows, term.topology_key)
                found[NotNear(term, tally)] = _away(ask, rows, term, tally)
            else:
                found[no_such_key(self.name, term.topology_key)] = np.ones(rows.count, np.bool_)
        return found


def _away(ask: WorkloadAsk, table: NodeTable, term: WorkloadTerm, tally: Tally) -> Flags:
    """In a domain, and nobody there. The first of a group, for whom only it could be there, may start wherever the topology key exists."""
    key = term.topology_key
    if term.selector.matches(ask.labels) and not tally.domains(table, key).any():
        return np.zeros(table.count, np.bool_)
    return ~occupied(table, key, tally, elsewhere=True)
