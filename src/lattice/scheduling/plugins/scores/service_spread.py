"""SpreadService: prefer nodes and zones with fewer replicas of the same service."""

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Scope, Score
from lattice.engine.table import Floats, Rows, Table
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.workload_index import EVERYTHING
from lattice.scheduling.table.topology_domains import EvenTiers
from lattice.scheduling.table.node_table import NodeTable

HALF = np.float32(0.5)


@dataclass(frozen=True, slots=True)
class OverNodes:
    """n replicas on the node score 1/(n+1); half of it, if nodes have zones."""

    name: ClassVar[str] = "SpreadService"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.service)

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        table = cast("NodeTable", rows.table)
        tally = table.tally(ask.demands.namespace, EVERYTHING, ask.demands.service)
        here: Floats = rows.pick(tally.per_node(table)).astype(np.float32)
        here += rows.more + 1
        if not rows.fact("zones", _have_zones):
            return np.divide(np.float32(1), here, out=here)
        return np.divide(np.float32(0.5), here, out=here)


def _have_zones(table: Table) -> bool:
    return cast("NodeTable", table).domain_count("zone") > 0


@dataclass(frozen=True, slots=True)
class OverZones:
    """Half for the zone, if nodes have zones: n more than in the emptiest score 1/(n+1)."""

    name: ClassVar[str] = "SpreadService"
    scope: ClassVar[Scope] = "domain"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.service)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        tiers = self.tiers(ask, rows)
        return tiers.values().take(tiers.codes, mode="wrap")  # -1 is the last one

    def tiers(self, ask: WorkloadAsk, table: NodeTable) -> EvenTiers:
        return EvenTiers(table, ask, "zone", HALF)


@dataclass(frozen=True, slots=True)
class SpreadService:
    """What it says of a node alone is kept node by node; the rest is the same all over a zone."""

    name: ClassVar[str] = "SpreadService"
    scope: ClassVar[Scope] = "domain"
    parts: ClassVar[tuple[Score, ...]] = (cast("Score", OverNodes()), cast("Score", OverZones()))

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.service)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        return OverNodes().score(ask, rows) + OverZones().score(ask, rows)
