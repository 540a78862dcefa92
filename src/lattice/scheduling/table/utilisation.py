"""Utilisation of a node, per requested resource, with the workload on the node."""

import numpy as np

from lattice.engine.table import Floats, Rows
from lattice.scheduling.table.workload_ask import MILLI_PER_GPU, WorkloadAsk


def requested_count(ask: WorkloadAsk) -> int:
    """The number of resources that the workload requests. Workload slots and ports do not count."""
    return len(ask.demands.requests) + (ask.demands.gpu is not None)


def share_with_workload(ask: WorkloadAsk, rows: Rows, number: int, out: Floats) -> Floats:
    """The allocated share of the requested resource at index `number`, with the workload on the node; the
    last index stands for GPUs."""
    if number == len(ask.demands.requests):
        total = ask.demands.gpu.total_milli if ask.demands.gpu else 0
        np.subtract(np.int32(total), rows.column("gpu_free"), out=out, casting="unsafe")
        out *= rows.derived("gpu inverse", _gpu_inverse)
        out += np.float32(1)
        return out
    resource, amount = ask.needs[number]
    np.multiply(rows.inverse(resource), np.float32(amount), out=out)
    out += rows.share(resource)
    return out


def _gpu_inverse(rows: Rows) -> Floats:
    milli = rows.column("gpu_count") * np.float32(MILLI_PER_GPU)
    inverse: Floats = np.divide(np.float32(1), milli, out=np.zeros(rows.count, np.float32), where=milli > 0)
    return inverse


def mean_share_with_workload(ask: WorkloadAsk, rows: Rows) -> Floats:
    """The mean of the shares of the requested resources; for a workload without requests, the mean of current
    cpu and memory shares."""
    count, total = requested_count(ask), rows.float_buffer()
    if not count:
        np.add(rows.share(0), rows.share(1), out=total)
        # cpu and memory are the resources 0 and 1.
        count = 2
    else:
        share_with_workload(ask, rows, 0, total)
        share_buffer = rows.float_buffer()
        for number in range(1, count):
            total += share_with_workload(ask, rows, number, share_buffer)
    total *= np.float32(1 / count)
    return total
