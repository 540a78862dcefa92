"""TopologySpread: placing it there must not make its domain fuller than the emptiest one by more than maxSkew."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Table
from lattice.kinds.constraint import Spread
from lattice.scheduling.plugins.cluster_events import TOPOLOGY_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import (
    missing_topology_key,
    shortfalls_by_value,
    single_row,
    unknown_topology_key,
)
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.topology_domains import (
    counts_itself,
    domain_values_per_node,
    min_domain_count,
    spread_counts,
    without_topology_key,
)

MAX_NAMED_DOMAINS = 100  # domains that are told apart by name; more of them only by how many are there


@dataclass(frozen=True, slots=True)
class MaxSkewExceeded:
    """One more in this domain would be too many."""

    ask: WorkloadAsk
    spread: Spread
    plugin: ClassVar[str] = "TopologySpread"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MaxSkewExceeded) and (self.spread, self.ask.shape) == (
            other.spread,
            other.ask.shape,
        )

    def __hash__(self) -> int:
        return hash(self.spread)

    def summary(self) -> str:
        return f"in a {self.spread.topology_key} that is {self.spread.max_skew} or more ahead of the emptiest"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        nodes, key = cast("NodeTable", table), self.spread.topology_key
        tally, nowhere = spread_counts(nodes, self.ask, self.spread), missing_topology_key(self.plugin, key)
        if tally is None:
            return nowhere.details(table, rows)
        names, counts = nodes.domain_names(key), tally.by_domain(nodes, key)
        least, itself = min_domain_count(nodes, self.ask, key, counts), counts_itself(tally, self.ask)
        emptiest, there, most = np.flatnonzero(counts == least), counts.tolist(), self.spread.max_skew
        other = f"{key} {names[emptiest[0]]}" if len(emptiest) == 1 else f"the emptiest {key}"

        def tell(code: int) -> Shortfall:
            if code < 0:
                return nowhere.shortfall_for(None)
            return skewed(there[code] + itself, f"in {key} {names[code]}")

        def skewed(here: int, where: str) -> Shortfall:
            have = f"{here - least} ({here} {where}{' with this one' if itself else ''}, {least} in {other})"
            return Shortfall(f"skew over {key}", f"at most {most}", have, f"{here - least - most} fewer")

        codes = nodes.domain_codes(key)[rows].tolist()
        if len(set(codes)) > MAX_NAMED_DOMAINS:
            return shortfalls_by_value(
                [there[code] + itself if code >= 0 else -1 for code in codes],
                lambda here: skewed(here, "there"),
            )
        return shortfalls_by_value(codes, tell)


@dataclass(frozen=True, slots=True)
class TopologySpread:
    """The emptiest domain is sought among those with a node that is ready and that selector and affinity allow."""

    name: ClassVar[str] = "TopologySpread"
    scope: ClassVar[Scope] = "domain"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = TOPOLOGY_EVENTS | {ClusterEvent.NODE_READY}

    def applies(self, ask: WorkloadAsk) -> bool:
        return any(each.when_unsatisfiable == "DoNotSchedule" for each in ask.demands.spread)

    def filter(self, ask: WorkloadAsk, rows: NodeTable) -> Rejections:
        found: dict[Reason, Flags] = {}
        for spread in ask.demands.spread:
            if spread.when_unsatisfiable != "DoNotSchedule":
                continue
            key = spread.topology_key
            if not rows.domain_count(key):
                found[unknown_topology_key(self.name, key)] = np.ones(rows.count, np.bool_)
                continue
            found[missing_topology_key(self.name, key)] = without_topology_key(rows, key)
            found[MaxSkewExceeded(ask, spread)] = _exceeds_max_skew(ask, rows, spread)
        return found


def _exceeds_max_skew(ask: WorkloadAsk, table: NodeTable, spread: Spread) -> Flags:
    tally, key = spread_counts(table, ask, spread), spread.topology_key
    if tally is None:
        return np.zeros(table.count, np.bool_)
    counts = tally.by_domain(table, key)
    most = min_domain_count(table, ask, key, counts) + spread.max_skew - counts_itself(tally, ask)
    return domain_values_per_node(table, key, counts > most, False)
