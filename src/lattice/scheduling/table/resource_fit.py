"""Is there room for a workload on a node? Counted exactly, within what can be counted at all."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from lattice.errors import Invalid
from lattice.kinds.container import format_amount
from lattice.scheduling.table.ask import GPU, MILLI_PER_GPU, GpuNeed, WorkloadAsk

if TYPE_CHECKING:
    from lattice.scheduling.table.node_table import NodeTable

MAX_AMOUNT = (
    1 << 53
)  # of any resource, to have or to ask for: 8 PiB, 10^12 cores. More is a slip of the hand; so many are exact as floats, too
MAX_ALLOCATED = (
    1 << 62
)  # that a node may have taken in all, whatever it has: sums and differences of it still fit into 64 bits


def unfit_reason(ask: WorkloadAsk, table: "NodeTable", row: int) -> str:
    """What there is no room for on a node, counted exactly; "" if there is room for all of it."""
    if row < 0 or not table.column("alive")[row]:
        return "the node is gone"
    for resource, amount in table.needs_on(ask, row):
        free = int(table.free(resource)[row])
        if amount > free:
            name = table.resources[resource]
            return f"node {table.names[row]} has {format_amount(name, free)} {name} free, {format_amount(name, amount)} needed"
    if ask.demands.gpu and not has_gpus(ask.demands.gpu, table, row):
        return f"node {table.names[row]} has {_gpu_shortage(ask.demands.gpu, table, row)} needed"
    in_use = table.ports.in_use(row) if ask.demands.host_ports else ()
    taken = next((port for port in ask.demands.host_ports if port in in_use), None)
    return f"port {taken[0]}/{taken[1]} of node {table.names[row]} is taken" if taken else ""


def has_gpus(need: GpuNeed, table: "NodeTable", row: int) -> bool:
    return int(np.count_nonzero(table.gpus.free(row, need.models) >= need.milli)) >= need.count


def _gpu_shortage(need: GpuNeed, table: "NodeTable", row: int) -> str:
    free = table.gpus.free(row, need.models)
    if need.milli == MILLI_PER_GPU:
        return f"{np.count_nonzero(free >= MILLI_PER_GPU)} gpu free, {need.count}"
    return f"{format_amount(GPU, max(0, int(free.max(initial=0))))} of one gpu free, {format_amount(GPU, need.milli)}"


def overflow_reason(ask: WorkloadAsk, table: "NodeTable", row: int) -> str:
    """Why it cannot even be counted on a node, however overfull that may be; "" if it can."""
    if row < 0 or not table.column("alive")[row]:
        return "the node is gone"
    for resource, amount in ask.needs:
        taken = int(table.allocated(resource)[row])
        if taken + amount > MAX_ALLOCATED:
            return f"node {table.names[row]} would have {taken + amount} {table.resources[resource]} taken, more than can be counted"
    return ""


def validate_amounts(name: str, amounts: Iterable[tuple[str, int]]) -> None:
    for resource, amount in amounts:
        if not 0 <= amount <= MAX_AMOUNT:
            raise Invalid(
                f"{resource} must be from 0 to 2^53, got {amount}",
                where=name,
                fix="write the amount that is meant, with its unit",
            )
