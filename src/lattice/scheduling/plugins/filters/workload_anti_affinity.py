"""WorkloadAntiAffinity: no workload that it must be far from in the node's domain, and none there that must be far from it.

A node without the topology key is in no domain: whoever must be far from others there cannot tell, and does not go to it.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Table
from lattice.kinds.constraint import WorkloadTerm
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.plugins.cluster_events import NEIGHBOURS, Change
from lattice.scheduling.table.topology_domains import occupied, outside, rows_by_domain
from lattice.scheduling.table.node_table import NodeTable, Placement
from lattice.scheduling.plugins.reasons import each_once, named, no_such_key, only, without_key
from lattice.scheduling.table.tally import Tally

MOST_NAMED = 100  # domains of which it is told who is there; in more of them they are only counted


@dataclass(frozen=True, slots=True)
class TooNear:
    """In this domain there is one that it must be far from (`mine`), or that must be far from it."""

    term: WorkloadTerm
    mine: bool
    tally: Tally = field(compare=False)  # where those are
    plugin: ClassVar[str] = "WorkloadAntiAffinity"

    def summary(self) -> str:
        who = str(self.term.selector) or "of any kind"
        near = f"in the same {self.term.topology_key}"
        return (
            f"with a workload {who} {near}" if self.mine else f"with a workload {near} that keeps {who} away"
        )

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, only(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        nodes, key = cast("NodeTable", table), self.term.topology_key
        codes, names, counts = (
            nodes.codes(key)[rows].tolist(),
            nodes.domain_names(key),
            self.tally.domains(nodes, key).tolist(),
        )
        who = str(self.term.selector) or "of any kind"
        what = f"workloads {who if self.mine else f'that keep {who} away'} in {key}"
        if len(set(codes)) > MOST_NAMED:
            return each_once(
                [counts[code] for code in codes],
                lambda count: Shortfall(what, "none", f"{count:,}", f"{count:,} fewer"),
            )
        culprits, is_meant = rows_by_domain(nodes, key, self.tally, codes), self._is_meant()

        def tell(code: int) -> Shortfall:
            who = named(table, culprits.get(code, ()), is_meant)
            return Shortfall(
                f"{what} {names[code]}", "none", f"{counts[code]:,}: {who}", f"{counts[code]:,} fewer"
            )

        return each_once(codes, tell)

    def _is_meant(self) -> Callable[[Placement], bool]:
        """Equal shapes are meant alike, and of those there are few."""
        known: dict[Hashable, bool] = {}

        def is_meant(placement: Placement) -> bool:
            shape = placement.ask.shape
            if shape not in known:
                known[shape] = self._means(placement.ask)
            return known[shape]

        return is_meant

    def _means(self, ask: WorkloadAsk) -> bool:
        demands = ask.demands
        if self.mine:
            return self.tally.matches(demands.namespace, demands.service, ask.labels)
        return demands.namespace == self.tally.namespace and self.term in demands.far


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
                found[without_key(self.name, term.topology_key)] = outside(rows, term.topology_key)
                found[TooNear(term, tally=tally, mine=True)] = occupied(rows, term.topology_key, tally)
            else:
                found[no_such_key(self.name, term.topology_key)] = np.ones(rows.count, np.bool_)
        for term, carriers in rows.repulsed_by(ask):
            found[TooNear(term, tally=carriers, mine=False)] = occupied(rows, term.topology_key, carriers)
        return found
