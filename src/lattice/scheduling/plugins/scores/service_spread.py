"""SpreadService: prefer nodes and zones with fewer replicas of the same service."""

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Scope, Score
from lattice.engine.table import Floats, Rows, Table
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.topology_domains import EvenDomainScores
from lattice.scheduling.table.workload_index import MATCH_ALL

ZONE_SHARE = np.float32(0.5)


@dataclass(frozen=True, slots=True)
class NodeSpread:
    """n replicas on the node score 1/(n+1); half of it, if nodes have zones."""

    name: ClassVar[str] = "SpreadService"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.service)

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        table = cast("NodeTable", rows.table)
        tally = table.topology_counts(ask.demands.namespace, MATCH_ALL, ask.demands.service)
        here: Floats = rows.select(tally.per_node(table)).astype(np.float32)
        here += rows.extra_asks + 1
        if not rows.aggregate("zones", _have_zones):
            return np.divide(np.float32(1), here, out=here)
        return np.divide(np.float32(0.5), here, out=here)


def _have_zones(table: Table) -> bool:
    return cast("NodeTable", table).domain_count("zone") > 0


@dataclass(frozen=True, slots=True)
class ZoneSpread:
    """Half for the zone, if nodes have zones: n more than in the emptiest score 1/(n+1)."""

    name: ClassVar[str] = "SpreadService"
    scope: ClassVar[Scope] = "domain"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.service)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        tiers = self.domain_scores(ask, rows)
        return tiers.values().take(tiers.codes, mode="wrap")  # -1 is the last one

    def domain_scores(self, ask: WorkloadAsk, table: NodeTable) -> EvenDomainScores:
        return EvenDomainScores(table, ask, "zone", ZONE_SHARE)


@dataclass(frozen=True, slots=True)
class ServiceSpread:
    """What it says of a node alone is kept node by node; the rest is the same all over a zone."""

    name: ClassVar[str] = "SpreadService"
    scope: ClassVar[Scope] = "domain"
    parts: ClassVar[tuple[Score, ...]] = (cast("Score", NodeSpread()), cast("Score", ZoneSpread()))

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.service)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        return NodeSpread().score(ask, rows) + ZoneSpread().score(ask, rows)
