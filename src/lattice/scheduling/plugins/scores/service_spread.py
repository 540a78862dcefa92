"""SpreadService (class ServiceSpread): prefer nodes and zones with fewer replicas of the same service."""

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Scope, Score
from lattice.engine.table import Floats, Rows
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.topology_domains import EvenDomainScores
from lattice.scheduling.table.workload_ask import WorkloadAsk
from lattice.scheduling.table.workload_index import MATCH_ALL

ZONE_SHARE = np.float32(0.5)


@dataclass(frozen=True, slots=True)
class NodeSpread:
    """n replicas on the node score 1/(n+1), or half of that if nodes have zones."""

    name: ClassVar[str] = "SpreadService"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.service)

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        table = cast("NodeTable", rows.table)
        counts = table.topology_counts(ask.demands.namespace, MATCH_ALL, ask.demands.service)
        replicas: Floats = rows.select(counts.per_node(table)).astype(np.float32)
        replicas += rows.extra_asks + 1
        if not rows.aggregate("zones", lambda table: cast("NodeTable", table).domain_count("zone") > 0):
            return np.divide(np.float32(1), replicas, out=replicas)
        return np.divide(np.float32(0.5), replicas, out=replicas)


@dataclass(frozen=True, slots=True)
class ZoneSpread:
    """The other half of the score if nodes have zones: a zone with n more replicas than the emptiest zone
    scores 0.5/(n+1)."""

    name: ClassVar[str] = "SpreadService"
    scope: ClassVar[Scope] = "domain"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.service)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        zone_scores = self.domain_scores(ask, rows)
        # Code -1, a node without a zone, selects the last value.
        return zone_scores.values().take(zone_scores.codes, mode="wrap")

    def domain_scores(self, ask: WorkloadAsk, table: NodeTable) -> EvenDomainScores:
        return EvenDomainScores(table, ask, "zone", ZONE_SHARE)


@dataclass(frozen=True, slots=True)
class ServiceSpread:
    """The sum of node and zone spread. The parts differ in scope: the engine caches node spread by row, while
    zone spread is equal on all nodes of a zone."""

    name: ClassVar[str] = "SpreadService"
    scope: ClassVar[Scope] = "domain"
    parts: ClassVar[tuple[Score, ...]] = (cast("Score", NodeSpread()), cast("Score", ZoneSpread()))

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.service)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        return NodeSpread().score(ask, rows) + ZoneSpread().score(ask, rows)
