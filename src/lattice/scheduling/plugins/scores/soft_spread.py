"""SoftSpread: prefer domains that are not ahead of the emptiest one, for spread constraints that are wishes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.topology_domains import evenness, spread_counts


@dataclass(frozen=True, slots=True)
class SoftSpread:
    name: ClassVar[str] = "SoftSpread"
    scope: ClassVar[Scope] = "domain"

    def applies(self, ask: WorkloadAsk) -> bool:
        return any(each.when_unsatisfiable == "ScheduleAnyway" for each in ask.demands.spread)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        """The mean over the constraints; 0 for a node without the topology key."""
        wishes = [each for each in ask.demands.spread if each.when_unsatisfiable == "ScheduleAnyway"]
        total = np.zeros(rows.count, np.float32)
        for each in wishes:
            tally = spread_counts(rows, ask, each)
            if tally is not None:
                total += evenness(rows, ask, each.topology_key, tally)
        total *= np.float32(1 / len(wishes))
        return total
