"""GpuFragmentation: prefer the node where the workload leaves most of the free GPU capacity usable by typical
workloads."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rowids
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
from lattice.scheduling.table.workload_ask import MILLI_PER_GPU, WorkloadAsk

# Losses are in thousandths of a GPU and are rounded to 1/1024 of that, so that rounding errors decide
# nothing.
LOSS_RESOLUTION = 1024.0
MAX_CACHED_SHAPES = 4096  # limit of shapes with cached costs
StateCodes = NDArray[np.int64]


class FragmentationCache:
    """The state of every node as a number (its code), and the cost of placing a workload on a node in that
    state. The state of a node is its free CPU, the model of its GPUs and the free part of every GPU; the cost
    is the lost GPU capacity.

    Nodes in equal states share a code, so the cost for equal workloads is computed once per state. The cache
    can be rebuilt from the table at any time.
    """

    def __init__(self, table: NodeTable) -> None:
        self.state_codes: StateCodes = np.empty(0, np.int64)
        self.rebuild(table)

    def rebuild(self, table: NodeTable) -> None:
        """Encode every row anew, and drop the known states."""
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
        self._loss_count = 0  # states with a known loss
        self._costs: dict[Hashable, Floats] = {}

    def update(self, table: NodeTable) -> None:
        """Encode the rows that changed since the last update."""
        changed = table.changed_since(self.version)
        # The cache keeps states that no node is in any more. After a new demand snapshot every state is
        # evaluated again, so the limit of states is lower then.
        max_states = 4 * table.count + 4096
        if table.gpu_demand.snapshot_number != self.snapshot_number:
            max_states = table.count + 256
        if (
            changed is None
            or table.count != len(self.state_codes)
            or table.gpus.max_per_node != self._gpus.shape[1]
            or len(self._code_by_state) > max_states
        ):
            self.rebuild(table)
            return
        self._encode(table, changed)
        self.version = table.version
        if table.gpu_demand.snapshot_number != self.snapshot_number:
            self._use_latest_demand(table)

    def _encode(self, table: NodeTable, rows: list[int]) -> None:
        if not rows:
            return
        cpu, models = table.free(CPU_RESOURCE), table.column("gpu_model")
        for row, gpus in zip(rows, table.gpus.sorted_free_milli(rows), strict=True):
            key = (max(0, int(cpu[row])), int(models[row]), gpus.tobytes())
            code = self._code_by_state.get(key)
            if code is None:
                code = self._code_by_state[key] = len(self._code_by_state)
                if code == len(self._cpu):
                    self._cpu, self._model, self._loss = (
                        np.concatenate([column, np.empty_like(column)])
                        for column in (self._cpu, self._model, self._loss)
                    )
                    self._gpus = np.concatenate([self._gpus, np.zeros_like(self._gpus)])
                self._cpu[code], self._model[code], self._gpus[code] = key[0], key[1], gpus
            self.state_codes[row] = code

    def _states(self, codes: Rowids | StateCodes) -> GpuNodeStates:
        return GpuNodeStates(self._cpu[codes], self._gpus[codes], self._model[codes])

    def costs(self, ask: WorkloadAsk) -> Floats:
        """The loss of GPU capacity by placing the workload, by row; meaningless for rows on which the
        workload does not fit."""
        costs = self._costs.get(ask.shape)
        if costs is None or len(costs) < len(self._cpu):
            if len(self._costs) > MAX_CACHED_SHAPES:
                self._costs.clear()
            previous_costs = costs
            # NaN marks a cost that is not computed yet.
            costs = self._costs[ask.shape] = np.full(len(self._cpu), np.nan, np.float32)
            if previous_costs is not None:
                costs[: len(previous_costs)] = previous_costs
        row_costs = costs[self.state_codes]
        missing = np.isnan(row_costs)
        if missing.any():
            is_missing = np.zeros(len(costs), np.bool_)
            is_missing[self.state_codes[missing]] = True
            codes = np.flatnonzero(is_missing)
            costs[codes] = self._cost_by_code(ask, codes)
            row_costs = costs[self.state_codes]
        return row_costs

    def _cost_by_code(self, ask: WorkloadAsk, codes: StateCodes) -> FloatArray:
        states, cpu, need = self._states(codes), cpu_of(ask), ask.demands.gpu
        cost = np.zeros(len(codes))
        fit = fitting_states(states, cpu, need)
        if not fit.any():
            return cost
        state_count = len(self._code_by_state)
        # States never change, so only the states added since the last call lack their loss.
        if self._loss_count < state_count:
            new_codes = np.arange(self._loss_count, state_count)
            self._loss[new_codes] = self._demand.expected_loss(self._states(new_codes))
            self._loss_count = state_count
        loss = self._loss[codes[fit]]
        loss_after = self._demand.expected_loss(states_after(self._states(codes[fit]), cpu, need))
        cost[fit] = np.rint((loss_after - loss) * LOSS_RESOLUTION) / LOSS_RESOLUTION
        return cost


@dataclass(frozen=True)
class GpuFragmentation:
    """Score by the typical GPU demand, which is learned from the placed workloads (see GpuDemandLearner) and
    needs no setting.

    The scope is "table", since scarcity depends on all nodes. A node counts under the model of its first GPU,
    even if it has several models. The cache only saves work: scores are equal without it.
    """

    name: ClassVar[str] = "GpuFragmentation"
    scope: ClassVar[Scope] = "table"
    _cache_by_table: WeakKeyDictionary[NodeTable, FragmentationCache] = field(
        default_factory=WeakKeyDictionary, compare=False, repr=False
    )

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        """0.5 for no loss of usable GPU capacity, 0.25 for a loss of one whole GPU, 0.75 for a gain of one
        whole GPU."""
        score = rows.float_buffer()
        if not rows.gpus.models:
            score.fill(0.5)
            return score
        cache = self._cache_by_table.get(rows)
        if cache is None:
            cache = self._cache_by_table[rows] = FragmentationCache(rows)
        cache.update(rows)
        cost = cache.costs(ask)
        np.abs(cost, out=score)
        score += np.float32(MILLI_PER_GPU)
        np.divide(cost, score, out=score)
        score *= np.float32(-0.5)
        score += np.float32(0.5)
        return score
