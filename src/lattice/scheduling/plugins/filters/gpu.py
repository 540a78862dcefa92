"""Gpu: whole GPUs, or a part of a single one, of a model that will do."""

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
from lattice.scheduling.table.ask import MILLI_PER_GPU, GpuNeed, WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable


@dataclass(frozen=True, slots=True)
class NoGpu:
    """It has none at all."""

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
    """None of its GPUs is of a model that was named."""

    models: tuple[str, ...]
    plugin: ClassVar[str] = "Gpu"

    def summary(self) -> str:
        return f"without a GPU of model {' or '.join(self.models)}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        return shortfalls_by_node_info(table, rows, lambda facts: facts.gpus, self._shortfall)

    def _shortfall(self, gpus: tuple[tuple[str, int], ...]) -> Shortfall:
        have = sorted({model for model, _ in gpus})
        return Shortfall(
            "gpu model", " or ".join(self.models), ", ".join(have) or "none", " or ".join(self.models)
        )


@dataclass(frozen=True, slots=True)
class InsufficientGpu:
    """Too few are wholly free, or none has so much left."""

    need: GpuNeed
    plugin: ClassVar[str] = "Gpu"

    def summary(self) -> str:
        if self.need.milli == MILLI_PER_GPU:
            return f"without {self.need.count} gpu free"
        return f"without {format_amount('gpu', self.need.milli)} of one gpu free"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        some = RowSubset(table, rows)
        free = (
            free_whole_gpus(some, self.need)
            if self.need.milli == MILLI_PER_GPU
            else largest_free_share(some, self.need)
        )
        return shortfalls_by_value(free.tolist(), self._shortfall)

    def _shortfall(self, have: int) -> Shortfall:
        """So many, or so much of one, are free."""
        if self.need.milli == MILLI_PER_GPU:
            return Shortfall("gpu", str(self.need.count), str(have), str(self.need.count - have))
        need, left, missing = (
            format_amount("gpu", amount) for amount in (self.need.milli, have, self.need.milli - have)
        )
        return Shortfall("part of one gpu", need, left, missing)


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
        busy: Flags = (
            np.less(free_whole_gpus(rows, need), need.count)
            if need.milli == MILLI_PER_GPU
            else np.less(largest_free_share(rows, need), need.milli)
        )
        if not need.models:
            none = rows.derived((self.name, ()), _no_gpu)
            return {NoGpu(need): none, InsufficientGpu(need): busy & ~none}
        other = rows.derived((self.name, need.models), lambda some: _lacks_model(some, need.models))
        return {GpuModelMismatch(need.models): other, InsufficientGpu(need): busy & ~other}


def free_whole_gpus(rows: Rows, need: GpuNeed) -> NDArray[np.int32]:
    """How many GPUs of the named models are wholly free."""
    if not need.models:
        return rows.column("gpu_whole")
    found: NDArray[np.int32] = sum(
        (rows.column(f"gpu_whole:{model}") for model in _present_models(rows, need.models)),
        np.zeros(rows.count, np.int32),
    )
    return found


def largest_free_share(rows: Rows, need: GpuNeed) -> NDArray[np.int32]:
    """The most that is free of any one GPU of the named models."""
    if not need.models:
        return rows.column("gpu_best")
    found = np.zeros(rows.count, np.int32)
    for model in _present_models(rows, need.models):
        np.maximum(found, rows.column(f"gpu_best:{model}"), out=found)
    return found


def _present_models(rows: Rows, models: tuple[str, ...]) -> list[str]:
    known = cast("NodeTable", rows.table).gpus.models
    return [model for model in models if model in known]


def _no_gpu(rows: Rows) -> Flags:
    none: Flags = rows.column("gpu_count") == 0
    return none


def _lacks_model(rows: Rows, models: tuple[str, ...]) -> Flags:
    found = np.zeros(rows.count, np.bool_)
    for model in _present_models(rows, models):
        found |= rows.column(f"gpu_count:{model}") > 0
    return ~found
