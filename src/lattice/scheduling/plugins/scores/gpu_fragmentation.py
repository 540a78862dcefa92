"""GpuFragmentation: prefer the node where placing the workload leaves most of the free GPUs usable by what typically comes."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rowids
from lattice.scheduling.table.ask import WHOLE_GPU, WorkloadAsk
from lattice.scheduling.table.gpus import Matrix
from lattice.scheduling.table.gpu_mix import CPU, Reals, States, Whole, cpu_of, placed, takes
from lattice.scheduling.table.node_table import NodeTable

GRAIN = 1024.0  # losses are rounded to 1/1024 of a thousandth, so that rounding errors decide nothing
SHAPES = 4096  # whose costs are kept
Codes = NDArray[np.int64]


class Landscape:
    """One table as it is now, in numbers: each row's state as one, and by lesson what placing a shape costs in a state.

    Nodes in the same state share a number, so each is looked at once. All of it can be made anew from the table at any time.
    """

    def __init__(self, table: NodeTable) -> None:
        self.code: Codes = np.empty(0, np.int64)
        self.recode(table)

    def recode(self, table: NodeTable) -> None:
        """Look at every row anew, and forget what was known of states."""
        self.version = table.version
        self._numbers: dict[tuple[int, int, bytes], int] = {}
        self._cpu: Reals = np.empty(256)
        self._gpus: Whole = np.zeros((256, table.gpus.width), np.int64)
        self._model: Whole = np.empty(256, np.int64)
        self._loss: Reals = np.empty(256)
        self.code = np.empty(table.count, np.int64)
        self._encode(table, list(range(table.count)))
        self._learn(table)

    def _learn(self, table: NodeTable) -> None:
        self.lesson, self._mix = table.lessons.number, table.lessons.latest.mix
        self._weighed = 0  # states whose loss is known
        self._costs: dict[Hashable, Floats] = {}

    def follow(self, table: NodeTable) -> None:
        """Catch up with the table."""
        changed = table.changed_since(self.version)
        if changed is None or not self._has_room(table):
            self.recode(table)
            return
        self._encode(table, changed)
        self.version = table.version
        if table.lessons.number != self.lesson:
            self._learn(table)

    def _has_room(self, table: NodeTable) -> bool:
        """For its nodes and their GPUs; and few states are in mind that no node is in, if all of them must be looked at again."""
        most = table.count + 256 if table.lessons.number != self.lesson else 4 * table.count + 4096
        return (
            table.count == len(self.code)
            and table.gpus.width == self._gpus.shape[1]
            and len(self._numbers) <= most
        )

    def _encode(self, table: NodeTable, rows: list[int]) -> None:
        if not rows:
            return
        cpu, models = table.free(CPU), table.column("gpu_model")
        for row, line in zip(rows, table.gpus.free_of(rows), strict=True):
            key = (max(0, int(cpu[row])), int(models[row]), line.tobytes())
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._numbers)
                self._write(number, key, line)
            self.code[row] = number

    def _write(self, number: int, key: tuple[int, int, bytes], gpus: Matrix) -> None:
        if number == len(self._cpu):
            self._cpu, self._model, self._loss = (
                np.concatenate([a, np.empty_like(a)]) for a in (self._cpu, self._model, self._loss)
            )
            self._gpus = np.concatenate([self._gpus, np.zeros_like(self._gpus)])
        self._cpu[number], self._model[number], self._gpus[number] = key[0], key[1], gpus

    def _states(self, numbers: Rowids | Codes) -> States:
        return States(self._cpu[numbers], self._gpus[numbers], self._model[numbers])

    def costs(self, ask: WorkloadAsk) -> Floats:
        """What placing it would lose, for each row; meaningless where it does not fit."""
        costs = self._costs.get(ask.shape)
        if costs is None or len(costs) < len(self._cpu):
            costs = self._grown(ask.shape, costs)
        found = costs[self.code]
        missing = np.isnan(found)
        if missing.any():
            is_missing = np.zeros(len(costs), np.bool_)
            is_missing[self.code[missing]] = True
            numbers = np.flatnonzero(is_missing)
            costs[numbers] = self._cost(ask, numbers)
            found = costs[self.code]
        return found

    def _grown(self, shape: Hashable, known: Floats | None) -> Floats:
        if len(self._costs) > SHAPES:
            self._costs.clear()
        costs: Floats = np.full(len(self._cpu), np.nan, np.float32)
        if known is not None:
            costs[: len(known)] = known
        self._costs[shape] = costs
        return costs

    def _cost(self, ask: WorkloadAsk, numbers: Codes) -> Reals:
        states, cpu, need = self._states(numbers), cpu_of(ask), ask.demands.gpu
        cost = np.zeros(len(numbers))
        fit = takes(states, cpu, need)
        if fit.any():
            before = self._losses(numbers[fit])
            after = self._mix.loss(placed(self._states(numbers[fit]), cpu, need))
            cost[fit] = np.rint((after - before) * GRAIN) / GRAIN
        return cost

    def _losses(self, numbers: Codes) -> Reals:
        count = len(self._numbers)
        if self._weighed < count:
            fresh = np.arange(self._weighed, count)
            self._loss[fresh] = self._mix.loss(self._states(fresh))
            self._weighed = count
        return self._loss[numbers]


@dataclass(frozen=True)
class GpuFragmentation:
    """Goes by what is typical among what is placed (see Lessons): no mix is given. Wide, since what is scarce depends on all nodes.

    A node is taken for one of the model of its first GPU. What is kept here only saves work: scores are the same without.
    """

    name: ClassVar[str] = "GpuFragmentation"
    scope: ClassVar[Scope] = "table"
    _seen: WeakKeyDictionary[NodeTable, Landscape] = field(
        default_factory=WeakKeyDictionary, compare=False, repr=False
    )

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        """A half where nothing is lost, a quarter where a whole GPU's worth is, three quarters where as much is gained."""
        score = rows.floats()
        if not rows.gpus.models:
            score.fill(0.5)
            return score
        landscape = self._seen.get(rows)
        if landscape is None:
            landscape = self._seen[rows] = Landscape(rows)
        landscape.follow(rows)
        cost = landscape.costs(ask)
        np.abs(cost, out=score)
        score += np.float32(WHOLE_GPU)
        np.divide(cost, score, out=score)
        score *= np.float32(-0.5)
        score += np.float32(0.5)
        return score
