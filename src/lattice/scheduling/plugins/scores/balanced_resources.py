"""BalancedResources: prefer nodes whose requested resources would be used evenly."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.scheduling.table.utilisation import requested_count, share_with_workload
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class BalancedResources:
    name: ClassVar[str] = "BalancedResources"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: WorkloadAsk) -> bool:
        return requested_count(ask) > 1

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """1 minus the difference between the fullest and the emptiest requested resource, with the workload
        on the node."""
        count = requested_count(ask)
        high, share = share_with_workload(ask, rows, 0, rows.float_buffer()), rows.float_buffer()
        if count == 2:
            high -= share_with_workload(ask, rows, 1, share)
            np.abs(high, out=high)
            return np.subtract(np.float32(1), high, out=high)
        low = rows.float_buffer()
        np.copyto(low, high)
        for number in range(1, count):
            share_with_workload(ask, rows, number, share)
            np.maximum(high, share, out=high)
            np.minimum(low, share, out=low)
        high -= low
        return np.subtract(np.float32(1), high, out=high)
