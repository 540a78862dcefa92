"""TightestFit: prefer the node with the least free capacity left, idle GPUs included. A CPU workload
therefore goes to the node where it strands the fewest GPUs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows, Table
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class TightestFit:
    name: ClassVar[str] = "TightestFit"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.requests) or ask.demands.gpu is not None

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """1 minus the capacity that the workload would leave free, as a share of the largest node. Half of
        the share is that of the GPUs, the other half that of the requested resource with the least left."""
        total_milli = ask.demands.gpu.total_milli if ask.demands.gpu else 0
        remaining = rows.float_buffer()
        np.subtract(rows.column("gpu_free"), np.int32(total_milli), out=remaining, casting="unsafe")
        remaining *= rows.aggregate(
            "most gpus",
            lambda table: np.float32(1 / max(1, 1000 * int(table.column("gpu_count").max(initial=0)))),
        )
        requests = ask.needs[: len(ask.demands.requests)]
        if requests:
            least, share = rows.float_buffer(), rows.float_buffer()
            least.fill(1)
            for resource, amount in requests:
                np.subtract(rows.free(resource), np.int64(amount), out=share, casting="unsafe")
                share *= rows.aggregate(("largest", resource), _inverse_largest(resource))
                np.minimum(least, share, out=least)
            remaining += least
        remaining *= np.float32(0.5)
        return np.subtract(np.float32(1), remaining, out=remaining)


def _inverse_largest(resource: int) -> Callable[[Table], np.float32]:
    """1 ÷ the largest capacity of a node in the resource."""
    return lambda table: np.float32(1 / max(1, int(table.total(resource).max(initial=0))))
