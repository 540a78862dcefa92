"""LeastTaken: prefer the node with the least allocated share."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.scheduling.table.utilisation import mean_share_with_workload
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class LeastAllocated:
    name: ClassVar[str] = "LeastTaken"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """1 minus the mean allocated share of the requested resources, with the workload on the node. For a
        workload without requests, the mean is over cpu and memory."""
        mean = mean_share_with_workload(ask, rows)
        return np.subtract(np.float32(1), mean, out=mean)
