"""Exact checks that the resources of a node suffice for a workload."""

from collections.abc import Iterable

import numpy as np

from lattice.errors import Invalid
from lattice.kinds.container import format_amount
from lattice.scheduling.table.table_view import ResourceView
from lattice.scheduling.table.workload_ask import GPU, MILLI_PER_GPU, GpuNeed, WorkloadAsk

# The maximum of any capacity or request: 8 PiB, 9 * 10^12 cores. A larger amount is a typing mistake, and
# amounts up to 2^53 are exact as floats.
MAX_AMOUNT = 1 << 53
# The maximum of the allocated amount of a node, whatever its capacity, so that sums and differences still fit
# into 64 bits.
MAX_ALLOCATED = 1 << 62


def unfit_reason(ask: WorkloadAsk, table: ResourceView, row: int) -> str:
    """A message that names the first resource of which the node has too little for the workload; "" if the
    workload fits."""
    if row < 0 or not table.column("alive")[row]:
        return "the node was deleted"
    for resource, amount in table.needs_on(ask, row):
        free = int(table.free(resource)[row])
        if amount > free:
            name = table.resources[resource]
            return (
                f"node {table.names[row]} has {format_amount(name, free)} {name} free, "
                f"{format_amount(name, amount)} needed"
            )
    gpu = ask.demands.gpu
    if gpu and not has_free_gpus(gpu, table, row):
        free_milli = table.gpus.free(row, gpu.models)
        if gpu.milli == MILLI_PER_GPU:
            shortage = f"{np.count_nonzero(free_milli >= MILLI_PER_GPU)} gpu free, {gpu.count}"
        else:
            most_free = format_amount(GPU, max(0, int(free_milli.max(initial=0))))
            shortage = f"{most_free} of one gpu free, {format_amount(GPU, gpu.milli)}"
        return f"node {table.names[row]} has {shortage} needed"
    in_use = table.ports.in_use(row) if ask.demands.host_ports else ()
    taken_port = next((port for port in ask.demands.host_ports if port in in_use), None)
    return f"port {taken_port[0]}/{taken_port[1]} of node {table.names[row]} is in use" if taken_port else ""


def has_free_gpus(need: GpuNeed, table: ResourceView, row: int) -> bool:
    """Whether the node has enough free GPUs of the accepted models."""
    return int(np.count_nonzero(table.gpus.free(row, need.models) >= need.milli)) >= need.count


def overflow_reason(ask: WorkloadAsk, table: ResourceView, row: int) -> str:
    """Why the workload cannot be added to the allocated amounts of the node even if the node may be
    overcommitted: the node is gone, or a sum would exceed MAX_ALLOCATED. "" if it can be added."""
    if row < 0 or not table.column("alive")[row]:
        return "the node was deleted"
    for resource, amount in ask.needs:
        allocated = int(table.allocated(resource)[row]) + amount
        if allocated > MAX_ALLOCATED:
            return (
                f"node {table.names[row]} would have {allocated} {table.resources[resource]} allocated,"
                f" above the maximum of {MAX_ALLOCATED}"
            )
    return ""


def validate_amounts(name: str, amounts: Iterable[tuple[str, int]]) -> None:
    """Raise Invalid for a capacity or request below 0 or above MAX_AMOUNT."""
    for resource, amount in amounts:
        if not 0 <= amount <= MAX_AMOUNT:
            raise Invalid(
                f"{resource} must be from 0 to 2^53, got {amount}",
                where=name,
                fix="write the intended amount with its unit",
            )
