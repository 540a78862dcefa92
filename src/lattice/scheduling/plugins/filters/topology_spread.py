"""TopologySpread: with the workload on the node, the domain of the node must have at most maxSkew workloads
more than the emptiest domain."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Table
from lattice.kinds.constraints import Spread
from lattice.scheduling.plugins.cluster_events import TOPOLOGY_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import (
    MAX_NAMED_DOMAINS,
    missing_topology_key,
    shortfalls_by_value,
    single_row,
    unknown_topology_key,
)
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.topology_domains import (
    counts_workload,
    domain_values_per_node,
    min_domain_count,
    spread_counts,
    without_topology_key,
)
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class MaxSkewExceeded:
    """With one more workload, the domain of the node would exceed maxSkew."""

    ask: WorkloadAsk
    spread: Spread
    plugin: ClassVar[str] = "TopologySpread"

    def __eq__(self, reason: object) -> bool:
        return isinstance(reason, MaxSkewExceeded) and (self.spread, self.ask.shape) == (
            reason.spread,
            reason.ask.shape,
        )

    def __hash__(self) -> int:
        return hash(self.spread)

    def summary(self) -> str:
        return f"in a {self.spread.topology_key} where a workload would exceed skew {self.spread.max_skew}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        nodes, key = cast("NodeTable", table), self.spread.topology_key
        topology_counts = spread_counts(nodes, self.ask, self.spread)
        missing_key = missing_topology_key(self.plugin, key)
        if topology_counts is None:
            return missing_key.details(table, rows)
        names, domain_counts = nodes.domain_names(key), topology_counts.by_domain(nodes, key)
        least = min_domain_count(nodes, self.ask, key, domain_counts)
        itself = counts_workload(topology_counts, self.ask)
        emptiest, counts = np.flatnonzero(domain_counts == least), domain_counts.tolist()
        max_skew = self.spread.max_skew
        emptiest_text = f"{key} {names[emptiest[0]]}" if len(emptiest) == 1 else f"the emptiest {key}"

        def shortfall(count: int, where: str) -> Shortfall:
            skew, suffix = count - least, " with this one" if itself else ""
            have = f"{skew} ({count} {where}{suffix}, {least} in {emptiest_text})"
            return Shortfall(f"skew over {key}", f"at most {max_skew}", have, f"{skew - max_skew} fewer")

        def shortfall_of_domain(code: int) -> Shortfall:
            if code < 0:
                return missing_key.shortfall_for(None)
            return shortfall(counts[code] + itself, f"in {key} {names[code]}")

        codes = nodes.domain_codes(key)[rows].tolist()
        if len(set(codes)) > MAX_NAMED_DOMAINS:
            return shortfalls_by_value(
                [counts[code] + itself if code >= 0 else -1 for code in codes],
                lambda count: shortfall(count, "there"),
            )
        return shortfalls_by_value(codes, shortfall_of_domain)


@dataclass(frozen=True, slots=True)
class TopologySpread:
    """The emptiest domain is chosen among the eligible domains: a domain needs a node that takes new
    workloads and that the workload's cluster, node selector and node affinity allow."""

    name: ClassVar[str] = "TopologySpread"
    scope: ClassVar[Scope] = "domain"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = TOPOLOGY_EVENTS | {ClusterEvent.NODE_READY}

    def applies(self, ask: WorkloadAsk) -> bool:
        return any(spread.when_unsatisfiable == "DoNotSchedule" for spread in ask.demands.spread)

    def filter(self, ask: WorkloadAsk, rows: NodeTable) -> Rejections:
        rejections: dict[Reason, Flags] = {}
        for spread in ask.demands.spread:
            if spread.when_unsatisfiable != "DoNotSchedule":
                continue
            key = spread.topology_key
            if not rows.domain_count(key):
                rejections[unknown_topology_key(self.name, key)] = np.ones(rows.count, np.bool_)
                continue
            rejections[missing_topology_key(self.name, key)] = without_topology_key(rows, key)
            topology_counts = spread_counts(rows, ask, spread)
            if topology_counts is None:
                exceeds_max_skew: Flags = np.zeros(rows.count, np.bool_)
            else:
                counts = topology_counts.by_domain(rows, key)
                least = min_domain_count(rows, ask, key, counts)
                max_count = least + spread.max_skew - counts_workload(topology_counts, ask)
                exceeds_max_skew = domain_values_per_node(rows, key, counts > max_count, False)
            rejections[MaxSkewExceeded(ask, spread)] = exceeds_max_skew
        return rejections
