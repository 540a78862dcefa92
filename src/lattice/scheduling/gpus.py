"""GPUs of the nodes, one by one: which are free, wholly or in part, and which ones a workload gets."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lattice.scheduling.ask import WHOLE_GPU, GpuNeed

if TYPE_CHECKING:
    from lattice.scheduling.nodes import NodeTable

ABSENT = -1
NO_MODEL = -1


class Gpus:
    """`free[g, row]`: thousandths free of the g-th GPU of a node, ABSENT where there is none.

    Columns of the table derived from it, row by row: gpu_whole (wholly free ones), gpu_best (most free of any one), gpu_free (all
    together), gpu_model (code of the model, see `models`; a node has GPUs of one model).
    """

    def __init__(self, table: "NodeTable") -> None:
        self._table = table
        self.models: dict[str, int] = {}
        self._free: NDArray[np.int32] = np.full((0, 64), ABSENT, np.int32)
        for name in ("gpu_whole", "gpu_best", "gpu_free", "gpu_count"):
            table.add_column(name, np.int32)
        table.add_column("gpu_model", np.int32, NO_MODEL)

    def free(self, row: int) -> NDArray[np.int32]:
        """Of one node, its own GPUs only."""
        self._make_room(0)
        column = self._free[:, row]
        present: NDArray[np.int32] = column[column != ABSENT]
        return present

    def matrix(self) -> NDArray[np.int32]:
        """(GPU, row) for all rows of the table."""
        self._make_room(0)
        return self._free[:, : self._table.count]

    def put(self, row: int, gpus: Sequence[tuple[str, int]]) -> None:
        """The node has these, before anything we placed there is taken off."""
        if not gpus and not self._free.shape[0]:
            return
        self._make_room(len(gpus))
        taken = self._taken(row)
        self._free[:, row] = ABSENT
        for number, (_, milli) in enumerate(gpus):
            self._free[number, row] = max(0, milli - taken.get(number, 0))
        model = self.models.setdefault(gpus[0][0], len(self.models)) if gpus else NO_MODEL
        self._table.set(row, "gpu_model", model)
        self._table.set(row, "gpu_count", len(gpus))
        self._settle(row)

    def _taken(self, row: int) -> dict[int, int]:
        taken: dict[int, int] = {}
        for placement in self._table.on_row[row].values():
            need = placement.ask.demands.gpu
            for number in placement.gpus if need else ():
                taken[number] = taken.get(number, 0) + (need.milli if need else 0)
        return taken

    def take(self, row: int, need: GpuNeed) -> tuple[int, ...]:
        """Which GPUs it gets: for a part, the fullest one that still has room; for whole ones, the first free."""
        column = self._free[:, row]
        if need.milli == WHOLE_GPU:
            chosen = np.flatnonzero(column >= WHOLE_GPU)[: need.count]
        else:
            room = np.where(column >= need.milli, column, np.iinfo(np.int32).max)
            chosen = np.argmin(room, keepdims=True) if need.count == 1 else np.flatnonzero(column >= need.milli)[: need.count]
            chosen = chosen[column[chosen] >= need.milli]
        if len(chosen) < need.count:
            raise ValueError(f"node {self._table.names[row]} has no room for {need}")
        return self.take_these(row, need, tuple(int(number) for number in chosen))

    def take_these(self, row: int, need: GpuNeed, numbers: tuple[int, ...]) -> tuple[int, ...]:
        for number in numbers:
            self._free[number, row] -= need.milli
        self._settle(row)
        return numbers

    def give_back(self, row: int, need: GpuNeed, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            if number < self._free.shape[0] and self._free[number, row] != ABSENT:
                self._free[number, row] += need.milli
        self._settle(row)

    def swap(self, row: int, need: GpuNeed | None, have: tuple[int, ...], want: tuple[int, ...]) -> None:
        if need is not None:
            self.give_back(row, need, have)
            self.take_these(row, need, want)

    def _settle(self, row: int) -> None:
        column = self._free[:, row]
        table = self._table
        table.set(row, "gpu_whole", int((column >= WHOLE_GPU).sum()), fixed=False)
        table.set(row, "gpu_best", max(0, int(column.max(initial=0))), fixed=False)
        table.set(row, "gpu_free", int(column[column > 0].sum()), fixed=False)

    def _make_room(self, gpus: int) -> None:
        have, rows = self._free.shape
        more_gpus, more_rows = max(0, gpus - have), max(0, self._table.count - rows)
        if more_gpus or more_rows:
            padding = ((0, more_gpus), (0, more_rows + 64 if more_rows else 0))
            self._free = np.pad(self._free, padding, constant_values=ABSENT)
