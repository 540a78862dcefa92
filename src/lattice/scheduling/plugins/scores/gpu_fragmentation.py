"""GpuFragmentation: prefer the node where placing the workload leaves most of the free GPUs usable by what typically comes."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rowids
from lattice.scheduling.table.ask import MILLI_PER_GPU, WorkloadAsk
from lattice.scheduling.table.gpu_allocator import GpuMatrix
from lattice.scheduling.table.gpu_demand import (
    CPU_RESOURCE,
    FloatArray,
    GpuNodeStates,
    IntArray,
    cpu_of,
    fitting_states,
    states_after,
)
from lattice.scheduling.table.node_table import NodeTable

LOSS_RESOLUTION = (
    1024.0  # losses are rounded to 1/1024 of a thousandth, so that rounding errors decide nothing
)
MAX_CACHED_SHAPES = 4096  # whose costs are kept
StateCodes = NDArray[np.int64]


class FragmentationCache:
    """One table as it is now, in numbers: each row's state as one, and by lesson what placing a shape costs in a state.

    Nodes in the same state share a number, so each is looked at once. All of it can be made anew from the table at any time.
    """

    def __init__(self, table: NodeTable) -> None:
        self.state_codes: StateCodes = np.empty(0, np.int64)
        self.rebuild(table)

    def rebuild(self, table: NodeTable) -> None:
        """Look at every row anew, and forget what was known of states."""
        self.version = table.version
        self._code_by_state: dict[tuple[int, int, bytes], int] = {}
        self._cpu: FloatArray = np.empty(256)
        self._gpus: IntArray = np.zeros((256, table.gpus.max_per_node), np.int64)
        self._model: IntArray = np.empty(256, np.int64)
        self._loss: FloatArray = np.empty(256)
        self.state_codes = np.empty(table.count, np.int64)
        self._encode(table, list(range(table.count)))
        self._use_latest_demand(table)

    def _use_latest_demand(self, table: NodeTable) -> None:
        self.snapshot_number, self._demand = (
            table.gpu_demand.snapshot_number,
            table.gpu_demand.latest_snapshot.model,
        )
        self._loss_count = 0  # states whose loss is known
        self._costs: dict[Hashable, Floats] = {}

    def update(self, table: NodeTable) -> None:
        """Catch up with the table."""
        changed = table.changed_since(self.version)
        if changed is None or not self._can_update(table):
            self.rebuild(table)
            return
        self._encode(table, changed)
        self.version = table.version
        if table.gpu_demand.snapshot_number != self.snapshot_number:
            self._use_latest_demand(table)

    def _can_update(self, table: NodeTable) -> bool:
        """For its nodes and their GPUs; and few states are in mind that no node is in, if all of them must be looked at again."""
        most = (
            table.count + 256
            if table.gpu_demand.snapshot_number != self.snapshot_number
            else 4 * table.count + 4096
        )
        return (
            table.count == len(self.state_codes)
            and table.gpus.max_per_node == self._gpus.shape[1]
            and len(self._code_by_state) <= most
        )

    def _encode(self, table: NodeTable, rows: list[int]) -> None:
        if not rows:
            return
        cpu, models = table.free(CPU_RESOURCE), table.column("gpu_model")
        for row, line in zip(rows, table.gpus.sorted_free_milli(rows), strict=True):
            key = (max(0, int(cpu[row])), int(models[row]), line.tobytes())
            number = self._code_by_state.get(key)
            if number is None:
                number = self._code_by_state[key] = len(self._code_by_state)
                self._add_state(number, key, line)
            self.state_codes[row] = number

    def _add_state(self, number: int, key: tuple[int, int, bytes], gpus: GpuMatrix) -> None:
        if number == len(self._cpu):
            self._cpu, self._model, self._loss = (
                np.concatenate([a, np.empty_like(a)]) for a in (self._cpu, self._model, self._loss)
            )
            self._gpus = np.concatenate([self._gpus, np.zeros_like(self._gpus)])
        self._cpu[number], self._model[number], self._gpus[number] = key[0], key[1], gpus

    def _states(self, numbers: Rowids | StateCodes) -> GpuNodeStates:
        return GpuNodeStates(self._cpu[numbers], self._gpus[numbers], self._model[numbers])

    def costs(self, ask: WorkloadAsk) -> Floats:
        """What placing it would lose, for each row; meaningless where it does not fit."""
        costs = self._costs.get(ask.shape)
        if costs is None or len(costs) < len(self._cpu):
            costs = self._grow_costs(ask.shape, costs)
        found = costs[self.state_codes]
        missing = np.isnan(found)
        if missing.any():
            is_missing = np.zeros(len(costs), np.bool_)
            is_missing[self.state_codes[missing]] = True
            numbers = np.flatnonzero(is_missing)
            costs[numbers] = self._cost_by_code(ask, numbers)
            found = costs[self.state_codes]
        return found

    def _grow_costs(self, shape: Hashable, known: Floats | None) -> Floats:
        if len(self._costs) > MAX_CACHED_SHAPES:
            self._costs.clear()
        costs: Floats = np.full(len(self._cpu), np.nan, np.float32)
        if known is not None:
            costs[: len(known)] = known
        self._costs[shape] = costs
        return costs

    def _cost_by_code(self, ask: WorkloadAsk, numbers: StateCodes) -> FloatArray:
        states, cpu, need = self._states(numbers), cpu_of(ask), ask.demands.gpu
        cost = np.zeros(len(numbers))
        fit = fitting_states(states, cpu, need)
        if fit.any():
            before = self._losses(numbers[fit])
            after = self._demand.expected_loss(states_after(self._states(numbers[fit]), cpu, need))
            cost[fit] = np.rint((after - before) * LOSS_RESOLUTION) / LOSS_RESOLUTION
        return cost

    def _losses(self, numbers: StateCodes) -> FloatArray:
        count = len(self._code_by_state)
        if self._loss_count < count:
            fresh = np.arange(self._loss_count, count)
            self._loss[fresh] = self._demand.expected_loss(self._states(fresh))
            self._loss_count = count
        return self._loss[numbers]


@dataclass(frozen=True)
class GpuFragmentation:
    """Goes by what is typical among what is placed (see Lessons): no mix is given. Wide, since what is scarce depends on all nodes.

    A node is taken for one of the model of its first GPU. What is kept here only saves work: scores are the same without.
    """

    name: ClassVar[str] = "GpuFragmentation"
    scope: ClassVar[Scope] = "table"
    _cache_by_table: WeakKeyDictionary[NodeTable, FragmentationCache] = field(
        default_factory=WeakKeyDictionary, compare=False, repr=False
    )

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        """A half where nothing is lost, a quarter where a whole GPU's worth is, three quarters where as much is gained."""
        score = rows.float_buffer()
        if not rows.gpus.models:
            score.fill(0.5)
            return score
        landscape = self._cache_by_table.get(rows)
        if landscape is None:
            landscape = self._cache_by_table[rows] = FragmentationCache(rows)
        landscape.update(rows)
        cost = landscape.costs(ask)
        np.abs(cost, out=score)
        score += np.float32(MILLI_PER_GPU)
        np.divide(cost, score, out=score)
        score *= np.float32(-0.5)
        score += np.float32(0.5)
        return score
