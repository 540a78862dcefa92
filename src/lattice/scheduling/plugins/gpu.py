"""Gpu: whole GPUs, or a part of a single one, of a model that will do."""

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.scheduling.ask import WHOLE_GPU, GpuNeed, WorkloadAsk
from lattice.scheduling.change import Change
from lattice.scheduling.nodes import NodeTable
from lattice.scheduling.reason import facts_at
from lattice.scheduling.resources import show_amount


@dataclass(frozen=True, slots=True)
class OtherModel:
    """None of its GPUs is of a model that was named."""

    models: tuple[str, ...]
    plugin: ClassVar[str] = "Gpu"

    def summary(self) -> str:
        return f"without a GPU of model {' or '.join(self.models)}"

    def detail(self, table: Table, row: int) -> Shortfall:
        have = sorted({model for model, _ in facts_at(table, row).gpus})
        return Shortfall("gpu model", " or ".join(self.models), ", ".join(have) or "none")


@dataclass(frozen=True, slots=True)
class GpuBusy:
    """Too few are wholly free, or none has so much left."""

    need: GpuNeed
    plugin: ClassVar[str] = "Gpu"

    def summary(self) -> str:
        if self.need.milli == WHOLE_GPU:
            return f"without {self.need.count} gpu free"
        return f"without {show_amount('gpu', self.need.milli)} of one gpu free"

    def detail(self, table: Table, row: int) -> Shortfall:
        if self.need.milli == WHOLE_GPU:
            have = int(table.column("gpu_whole")[row])
            return Shortfall("gpu", str(self.need.count), str(have), str(self.need.count - have))
        most = int(table.column("gpu_best")[row])
        need, have_text, missing = (show_amount("gpu", amount) for amount in (self.need.milli, most, self.need.milli - most))
        return Shortfall("part of one gpu", need, have_text, missing)


@dataclass(frozen=True, slots=True)
class Gpu:
    name: ClassVar[str] = "Gpu"
    scope: ClassVar[Scope] = "row"
    wakes_on: ClassVar[frozenset[Change]] = frozenset({Change.NODE_ADDED, Change.NODE_GREW, Change.NODE_CHANGED, Change.WORKLOAD_GONE})

    def applies(self, ask: WorkloadAsk) -> bool:
        return ask.demands.gpu is not None

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        need = cast("GpuNeed", ask.demands.gpu)
        found: dict[Reason, Flags] = {}
        if need.models:
            found[OtherModel(need.models)] = rows.memo((self.name, need.models), lambda table: _other_model(table, need.models))
        if need.milli == WHOLE_GPU:
            found[GpuBusy(need)] = np.less(rows.column("gpu_whole"), need.count)
        else:
            found[GpuBusy(need)] = np.less(rows.column("gpu_best"), need.milli)
        return found


def _other_model(table: Table, models: tuple[str, ...]) -> Flags:
    known = cast("NodeTable", table).gpus.models
    wanted = [known[model] for model in models if model in known]
    return ~np.isin(table.column("gpu_model"), wanted)
