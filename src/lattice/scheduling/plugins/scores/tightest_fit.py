"""TightestFit: prefer the node where least would be left over, idle GPUs included: a CPU job strands the fewest of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows, Table
from lattice.scheduling.table.ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class TightestFit:
    name: ClassVar[str] = "TightestFit"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.requests) or ask.demands.gpu is not None

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """Half for GPUs, half for whichever asked resource would be nearest to running out, measured by the largest node."""
        left = _gpus_left(ask, rows, rows.float_buffer())
        requests = ask.needs[: len(ask.demands.requests)]
        if requests:
            left += _least_left(rows, requests)
        left *= np.float32(0.5)
        return np.subtract(np.float32(1), left, out=left)


def _gpus_left(ask: WorkloadAsk, rows: Rows, out: Floats) -> Floats:
    total = ask.demands.gpu.total_milli if ask.demands.gpu else 0
    np.subtract(rows.column("gpu_free"), np.int32(total), out=out, casting="unsafe")
    out *= rows.aggregate("most gpus", _inverse_most_gpus)
    return out


def _least_left(rows: Rows, requests: tuple[tuple[int, int], ...]) -> Floats:
    least, left = rows.float_buffer(), rows.float_buffer()
    least.fill(1)
    for resource, amount in requests:
        np.subtract(rows.free(resource), np.int64(amount), out=left, casting="unsafe")
        left *= rows.aggregate(("largest", resource), _inverse_largest(resource))
        np.minimum(least, left, out=least)
    return least


def _inverse_largest(resource: int) -> Callable[[Table], np.float32]:
    """1 ÷ the most that any node has of it."""
    return lambda table: np.float32(1 / max(1, int(table.total(resource).max(initial=0))))


def _inverse_most_gpus(table: Table) -> np.float32:
    return np.float32(1 / max(1, 1000 * int(table.column("gpu_count").max(initial=0))))
