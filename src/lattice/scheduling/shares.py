"""How full a node would be of each thing that is asked for."""

from collections.abc import Iterator

import numpy as np

from lattice.engine.table import Floats, Rows, Table
from lattice.scheduling.ask import WHOLE_GPU, WorkloadAsk


def asked_count(ask: WorkloadAsk) -> int:
    """Resources that the workload asks for; slots and ports that come with any workload are not among them."""
    return len(ask.demands.requests) + (ask.demands.gpu is not None)


def shares_after(ask: WorkloadAsk, rows: Rows) -> Iterator[Floats]:
    """Share taken of each asked resource with the workload there. One buffer, refilled: use each before taking the next."""
    share = rows.floats()
    for resource, amount in ask.needs[: len(ask.demands.requests)]:
        np.multiply(rows.inverse(resource), np.float32(amount), out=share)
        share += rows.share(resource)
        yield share
    if ask.demands.gpu is not None:
        np.subtract(np.int32(ask.demands.gpu.total), rows.column("gpu_free"), out=share, casting="unsafe")
        share *= rows.memo("gpu inverse", _gpu_inverse)
        share += np.float32(1)
        yield share


def _gpu_inverse(table: Table) -> Floats:
    milli = table.column("gpu_count") * np.float32(WHOLE_GPU)
    inverse: Floats = np.divide(np.float32(1), milli, out=np.zeros(table.count, np.float32), where=milli > 0)
    return inverse


def mean_after(ask: WorkloadAsk, rows: Rows) -> Floats:
    """The mean of those shares."""
    total: Floats | None = None
    for share in shares_after(ask, rows):
        if total is None:
            total = rows.floats()
            np.copyto(total, share)
        else:
            total += share
    if total is None:  # asks for nothing: as full as it is now
        total = np.add(rows.share(0), rows.share(1), out=rows.floats())
        total *= np.float32(0.5)
        return total
    total *= np.float32(1 / asked_count(ask))
    return total
