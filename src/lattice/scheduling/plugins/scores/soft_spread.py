"""SoftSpread: prefer domains close to the emptiest domain, for spread constraints that are not required."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.topology_domains import evenness, spread_counts
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class SoftSpread:
    name: ClassVar[str] = "SoftSpread"
    scope: ClassVar[Scope] = "domain"

    def applies(self, ask: WorkloadAsk) -> bool:
        return any(spread.when_unsatisfiable == "ScheduleAnyway" for spread in ask.demands.spread)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        """The mean evenness over the constraints; 0 for a node without the topology key."""
        soft_spreads = [
            spread for spread in ask.demands.spread if spread.when_unsatisfiable == "ScheduleAnyway"
        ]
        total = np.zeros(rows.count, np.float32)
        for spread in soft_spreads:
            counts = spread_counts(rows, ask, spread)
            if counts is not None:
                total += evenness(rows, ask, spread.topology_key, counts)
        total *= np.float32(1 / len(soft_spreads))
        return total
