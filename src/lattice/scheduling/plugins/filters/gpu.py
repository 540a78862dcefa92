"""Gpu: the node must have the requested whole GPUs, or the part of one GPU, free in an accepted model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Rows, RowSubset, Table
from lattice.kinds.container import format_amount
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.plugins.reasons import shortfalls_by_node_info, shortfalls_by_value, single_row
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import MILLI_PER_GPU, GpuNeed, WorkloadAsk


@dataclass(frozen=True, slots=True)
class NoGpu:
    """The node has no GPU."""

    need: GpuNeed
    plugin: ClassVar[str] = "Gpu"

    def summary(self) -> str:
        return "without a GPU"

    def detail(self, table: Table, row: int) -> Shortfall:
        return InsufficientGpu(self.need).detail(table, row)

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        return InsufficientGpu(self.need).details(table, rows)


@dataclass(frozen=True, slots=True)
class GpuModelMismatch:
    """The node has no GPU of an accepted model."""

    models: tuple[str, ...]
    plugin: ClassVar[str] = "Gpu"

    def summary(self) -> str:
        return f"without a GPU of model {' or '.join(self.models)}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        return shortfalls_by_node_info(table, rows, lambda info: info.gpus, self._shortfall)

    def _shortfall(self, gpus: tuple[tuple[str, int], ...]) -> Shortfall:
        have, need = sorted({model for model, _ in gpus}), " or ".join(self.models)
        return Shortfall("gpu model", need, ", ".join(have) or "none", need)


@dataclass(frozen=True, slots=True)
class InsufficientGpu:
    """Too few GPUs of the node are wholly free, or no GPU has the requested part free."""

    need: GpuNeed
    plugin: ClassVar[str] = "Gpu"

    def summary(self) -> str:
        if self.need.milli == MILLI_PER_GPU:
            return f"without {self.need.count} gpu free"
        return f"without {format_amount('gpu', self.need.milli)} of one gpu free"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        subset = RowSubset(table, rows)
        if self.need.milli == MILLI_PER_GPU:
            free = free_whole_gpus(subset, self.need)
        else:
            free = largest_free_share(subset, self.need)
        return shortfalls_by_value(free.tolist(), self._shortfall)

    def _shortfall(self, free: int) -> Shortfall:
        """The shortfall of a node with `free` whole GPUs, or `free` thousandths of one GPU."""
        if self.need.milli == MILLI_PER_GPU:
            return Shortfall("gpu", str(self.need.count), str(free), str(self.need.count - free))
        need, have, missing = (
            format_amount("gpu", amount) for amount in (self.need.milli, free, self.need.milli - free)
        )
        return Shortfall("part of one gpu", need, have, missing)


@dataclass(frozen=True, slots=True)
class Gpu:
    name: ClassVar[str] = "Gpu"
    scope: ClassVar[Scope] = "row"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = frozenset(
        {
            ClusterEvent.NODE_ADDED,
            ClusterEvent.NODE_GREW,
            ClusterEvent.NODE_CHANGED,
            ClusterEvent.WORKLOAD_GONE,
        }
    )

    def applies(self, ask: WorkloadAsk) -> bool:
        return ask.demands.gpu is not None

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        need = cast("GpuNeed", ask.demands.gpu)
        # A node without a usable GPU is rejected only for that reason, not also because its GPUs are busy.
        busy: Flags
        if need.milli == MILLI_PER_GPU:
            busy = np.less(free_whole_gpus(rows, need), need.count)
        else:
            busy = np.less(largest_free_share(rows, need), need.milli)
        if not need.models:
            no_gpu = rows.derived((self.name, ()), lambda subset: subset.column("gpu_count") == 0)
            return {NoGpu(need): no_gpu, InsufficientGpu(need): busy & ~no_gpu}

        def lacks_model(subset: Rows) -> Flags:
            has_model = np.zeros(subset.count, np.bool_)
            for model in _present_models(subset, need.models):
                has_model |= subset.column(f"gpu_count:{model}") > 0
            return ~has_model

        mismatch = rows.derived((self.name, need.models), lacks_model)
        return {GpuModelMismatch(need.models): mismatch, InsufficientGpu(need): busy & ~mismatch}


def free_whole_gpus(rows: Rows, need: GpuNeed) -> NDArray[np.int32]:
    """The number of wholly free GPUs of the accepted models, by row."""
    if not need.models:
        return rows.column("gpu_whole")
    free: NDArray[np.int32] = sum(
        (rows.column(f"gpu_whole:{model}") for model in _present_models(rows, need.models)),
        np.zeros(rows.count, np.int32),
    )
    return free


def largest_free_share(rows: Rows, need: GpuNeed) -> NDArray[np.int32]:
    """The most free thousandths of one GPU of the accepted models, by row."""
    if not need.models:
        return rows.column("gpu_best")
    free = np.zeros(rows.count, np.int32)
    for model in _present_models(rows, need.models):
        np.maximum(free, rows.column(f"gpu_best:{model}"), out=free)
    return free


def _present_models(rows: Rows, models: tuple[str, ...]) -> list[str]:
    known_models = cast("NodeTable", rows.table).gpus.models
    return [model for model in models if model in known_models]
