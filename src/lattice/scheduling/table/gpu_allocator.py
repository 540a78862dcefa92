"""The individual GPUs of the nodes: the free part of every GPU, and the choice of GPUs for a workload."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lattice.engine.table import Table
from lattice.scheduling.table.workload_ask import MILLI_PER_GPU, GpuNeed

NO_MODEL = -1
# The free thousandths of an absent GPU: less than any request.
ABSENT_GPU_FREE = np.iinfo(np.int32).min

GpuMatrix = NDArray[np.int32]


class GpuAllocator:
    """The state of every GPU, by its number on the node and by row: total thousandths, allocated thousandths
    and model code (NO_MODEL for an absent GPU).

    Allocated thousandths do not depend on the reported GPUs: a node whose GPUs shrink may be overcommitted,
    and an overcommitted GPU accepts no further workload. Columns of the table, derived row by row: gpu_whole
    (wholly free GPUs), gpu_best (most free thousandths of one GPU), gpu_free (free thousandths of all GPUs),
    gpu_count, gpu_model (of the first GPU), and per model gpu_whole:MODEL, gpu_best:MODEL, gpu_count:MODEL.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self.models: dict[str, int] = {}
        self._model_names: list[str] = []  # by code
        self._total: GpuMatrix = np.zeros((0, 64), np.int32)
        self._allocated_milli: GpuMatrix = np.zeros((0, 64), np.int32)
        self._model: GpuMatrix = np.full((0, 64), NO_MODEL, np.int32)
        for name in ("gpu_whole", "gpu_best", "gpu_free", "gpu_count"):
            table.add_column(name, np.int32)
        table.add_column("gpu_model", np.int32, NO_MODEL)

    def free(self, row: int, models: Sequence[str] = ()) -> GpuMatrix:
        """Free thousandths of every GPU of a node, of the given models; negative where a GPU is
        overcommitted."""
        self._grow(0)
        usable = self._usable_mask(row, models)
        free_milli: GpuMatrix = (self._total[:, row] - self._allocated_milli[:, row])[usable]
        return free_milli

    @property
    def max_per_node(self) -> int:
        """An upper limit of the number of GPUs of one node."""
        return len(self._total)

    def sorted_free_milli(self, rows: slice | list[int]) -> GpuMatrix:
        """(row, GPU): free thousandths, ascending; 0 for an absent or overcommitted GPU."""
        self._grow(0)
        total, allocated, model = (
            matrix[:, : self._table.count][:, rows]
            for matrix in (self._total, self._allocated_milli, self._model)
        )
        free: GpuMatrix = np.where(model == NO_MODEL, 0, total - allocated).clip(0, MILLI_PER_GPU)
        return np.sort(free.T, axis=1)

    def set_node(self, row: int, gpus: Sequence[tuple[str, int]]) -> None:
        """Set the GPUs of a node as (model, thousandths); allocations of placed workloads are not subtracted
        from the thousandths."""
        if not gpus and not self._total.shape[0]:
            return
        self._grow(len(gpus))
        self._total[:, row] = 0
        self._model[:, row] = NO_MODEL
        for number, (model, milli) in enumerate(gpus):
            self._total[number, row] = milli
            self._model[number, row] = self._model_code(model)
        table = self._table
        table.set(row, "gpu_model", self._model[0, row] if gpus else NO_MODEL)
        table.set(row, "gpu_count", len(gpus))
        for model, code in self.models.items():
            table.set(row, f"gpu_count:{model}", int((self._model[:, row] == code).sum()))
            table.set(row, f"gpu_whole:{model}", 0, fixed=False)
            table.set(row, f"gpu_best:{model}", 0, fixed=False)
        self._update_columns(row)

    def register_models(self, models: Iterable[str], width: int) -> None:
        """Register GPU models and a number of GPUs per node, so that a later node with them changes no
        dimension."""
        for model in models:
            self._model_code(model)
        self._grow(width)

    def _model_code(self, model: str) -> int:
        if model not in self.models:
            self.models[model] = len(self.models)
            self._model_names.append(model)
            for kind in ("count", "whole", "best"):
                self._table.add_column(f"gpu_{kind}:{model}", np.int32)
        return self.models[model]

    def _usable_mask(self, row: int, models: Sequence[str]) -> NDArray[np.bool_]:
        column = self._model[:, row]
        if not models:
            usable: NDArray[np.bool_] = column != NO_MODEL
            return usable
        return np.isin(column, [self.models[model] for model in models if model in self.models])

    def allocate(self, row: int, need: GpuNeed) -> tuple[int, ...]:
        """Choose and allocate GPUs: for a part of a GPU the fullest GPU that fits, for whole GPUs the first
        free GPUs."""
        self._grow(0)
        free = np.where(
            self._usable_mask(row, need.models),
            self._total[:, row] - self._allocated_milli[:, row],
            ABSENT_GPU_FREE,
        )
        fitting = np.flatnonzero(free >= need.milli)
        # Least free first, then by number.
        chosen = fitting[np.argsort(free[fitting], kind="stable")][: need.count]
        if len(chosen) < need.count:
            raise ValueError(
                f"node {self._table.names[row]} has no free {need.count} × {need.milli} thousandths of a GPU"
            )
        return self.allocate_exactly(row, need, tuple(sorted(int(number) for number in chosen)))

    def allocate_exactly(self, row: int, need: GpuNeed, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Allocate the GPUs with the given numbers."""
        self._grow(max(numbers, default=-1) + 1)
        for number in numbers:
            self._allocated_milli[number, row] += need.milli
        self._update_columns(row)
        return numbers

    def release(self, row: int, need: GpuNeed, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            self._allocated_milli[number, row] -= need.milli
        self._update_columns(row)

    def _update_columns(self, row: int) -> None:
        models = self._model[:, row]
        free = np.where(
            models == NO_MODEL, ABSENT_GPU_FREE, self._total[:, row] - self._allocated_milli[:, row]
        )
        table = self._table
        table.set(row, "gpu_whole", int((free >= MILLI_PER_GPU).sum()), fixed=False)
        table.set(row, "gpu_best", max(0, int(free.max(initial=0))), fixed=False)
        table.set(row, "gpu_free", int(free[free > 0].sum()), fixed=False)
        # Only the models of this node, because a table may know many models.
        for code in set(models.tolist()) - {NO_MODEL}:
            free_of_model, model = free[models == code], self._model_names[code]
            table.set(row, f"gpu_whole:{model}", int((free_of_model >= MILLI_PER_GPU).sum()), fixed=False)
            table.set(row, f"gpu_best:{model}", max(0, int(free_of_model.max(initial=0))), fixed=False)

    def _grow(self, gpus: int) -> None:
        gpu_rows, rows = self._total.shape
        more_gpus, more_rows = max(0, gpus - gpu_rows), max(0, self._table.count - rows)
        if more_gpus or more_rows:
            # Rows grow in steps of 64, so that adding nodes one by one does not copy every time.
            padding = ((0, more_gpus), (0, more_rows + 64 if more_rows else 0))
            self._total = np.pad(self._total, padding)
            self._allocated_milli = np.pad(self._allocated_milli, padding)
            self._model = np.pad(self._model, padding, constant_values=NO_MODEL)
