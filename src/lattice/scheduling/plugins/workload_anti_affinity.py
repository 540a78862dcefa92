"""WorkloadAntiAffinity: no workload that it must be far from in the node's domain, and none there that must be far from it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Table
from lattice.kinds.constraint import WorkloadTerm
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.change import NEIGHBOURS, Change
from lattice.scheduling.domains import occupied
from lattice.scheduling.nodes import NodeTable
from lattice.scheduling.reason import Because, facts_at


@dataclass(frozen=True, slots=True)
class TooNear:
    """In this domain there is one that it must be far from (`mine`), or that must be far from it."""

    term: WorkloadTerm
    mine: bool
    plugin: ClassVar[str] = "WorkloadAntiAffinity"

    def summary(self) -> str:
        who = str(self.term.selector) or "of any kind"
        near = f"in the same {self.term.topology_key}"
        return f"with a workload {who} {near}" if self.mine else f"with a workload {near} that keeps {who} away"

    def detail(self, table: Table, row: int) -> Shortfall:
        where = f"{self.term.topology_key} {facts_at(table, row).labels.get(self.term.topology_key, '')}"
        who = str(self.term.selector) or "of any kind"
        return Shortfall(f"a workload {who} is in {where}" if self.mine else f"a workload in {where} keeps {who} away")


@dataclass(frozen=True, slots=True)
class WorkloadAntiAffinity:
    """Answers nothing at all, at no cost, while no placed workload repels the asked one and it repels none."""

    name: ClassVar[str] = "WorkloadAntiAffinity"
    scope: ClassVar[Scope] = "domain"
    wakes_on: ClassVar[frozenset[Change]] = NEIGHBOURS - {Change.WORKLOAD_ADDED}

    def applies(self, ask: WorkloadAsk) -> bool:
        return True  # whatever it asks for itself, a placed workload may keep it away

    def filter(self, ask: WorkloadAsk, rows: NodeTable) -> Rejections:
        found: dict[Reason, Flags] = {}
        for term in ask.demands.far:
            if rows.domain_count(term.topology_key):
                tally = rows.tally(ask.demands.namespace, term.selector)
                found[TooNear(term, mine=True)] = occupied(rows, term.topology_key, tally)
            else:
                found[Because(self.name, f"without topology key {term.topology_key}, which no node has")] = np.ones(rows.count, np.bool_)
        for term, carriers in rows.repulsed_by(ask):
            found[TooNear(term, mine=False)] = occupied(rows, term.topology_key, carriers)
        return found
