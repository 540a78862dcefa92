"""TopologySpread: placing it there must not make its domain fuller than the emptiest one by more than maxSkew."""

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Table
from lattice.kinds.constraint import Spread
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.change import NEIGHBOURS, Change
from lattice.scheduling.domains import counts_itself, fewest, outside, over_nodes, spread_tally
from lattice.scheduling.nodes import NodeTable
from lattice.scheduling.reason import Because


@dataclass(frozen=True, slots=True)
class Uneven:
    """One more in this domain would be too many."""

    ask: WorkloadAsk
    spread: Spread
    plugin: ClassVar[str] = "TopologySpread"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uneven) and (self.spread, self.ask.shape) == (other.spread, other.ask.shape)

    def __hash__(self) -> int:
        return hash(self.spread)

    def summary(self) -> str:
        return f"in a {self.spread.topology_key} that is {self.spread.max_skew} or more ahead of the emptiest"

    def detail(self, table: Table, row: int) -> Shortfall:
        nodes, key = cast("NodeTable", table), self.spread.topology_key
        tally = spread_tally(nodes, self.ask, self.spread)
        code = int(nodes.codes(key)[row])
        if tally is None or code < 0:
            return Shortfall(self.summary())
        counts = tally.domains(nodes, key)
        least, own = fewest(nodes, self.ask, key, counts), int(counts_itself(tally, self.ask))
        most = least + self.spread.max_skew
        what = f"workloads in {key} {nodes.domain_names(key)[code]}, the emptiest has {least}"
        return Shortfall(what, f"at most {most}", f"{int(counts[code]) + own} with this one")


@dataclass(frozen=True, slots=True)
class TopologySpread:
    """The emptiest domain is sought among those with a node that is ready and that selector and affinity allow."""

    name: ClassVar[str] = "TopologySpread"
    scope: ClassVar[Scope] = "domain"
    wakes_on: ClassVar[frozenset[Change]] = NEIGHBOURS | {Change.NODE_READY}

    def applies(self, ask: WorkloadAsk) -> bool:
        return any(each.when_unsatisfiable == "DoNotSchedule" for each in ask.demands.spread)

    def filter(self, ask: WorkloadAsk, rows: NodeTable) -> Rejections:
        found: dict[Reason, Flags] = {}
        for spread in ask.demands.spread:
            if spread.when_unsatisfiable != "DoNotSchedule":
                continue
            key = spread.topology_key
            if not rows.domain_count(key):
                found[Because(self.name, f"without topology key {key}, which no node has")] = np.ones(rows.count, np.bool_)
                continue
            found[Because(self.name, f"without topology key {key}", key, key)] = outside(rows, key)
            found[Uneven(ask, spread)] = _too_many(ask, rows, spread)
        return found


def _too_many(ask: WorkloadAsk, table: NodeTable, spread: Spread) -> Flags:
    tally, key = spread_tally(table, ask, spread), spread.topology_key
    if tally is None:
        return np.zeros(table.count, np.bool_)
    counts = tally.domains(table, key)
    most = fewest(table, ask, key, counts) + spread.max_skew - counts_itself(tally, ask)
    return over_nodes(table, key, counts > most, False)
