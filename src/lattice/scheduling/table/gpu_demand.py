"""What typically asks for GPUs here, learned from what is placed, and how much free GPU a node state keeps from being used by it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from math import gcd
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lattice.scheduling.table.ask import MILLI_PER_GPU, GpuNeed, WorkloadAsk

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_DEMAND_CLASSES = 512  # typical asks kept, most frequent first: the rest weighs too little to matter
SIMULATED_ARRIVALS = (
    64  # how many more asks a GPU sees before it counts as it is: results hardly change between 16 and 200
)
CPU_RESOURCE = 0  # resource number, see NodeTable
UNLIMITED_MILLI = 1e12  # as many as you like of what needs no cpu
CPU_STARVATION_WEIGHT = 2.0  # what there is no cpu for is lost for certain, so it weighs more than what some could not use; 1 to 4 fill about equally well


RELEARN_EACH_CHANGE_UP_TO = 30  # placements up to which every change is a new lesson: a handful teaches something else with each that comes


@dataclass(frozen=True, slots=True)
class GpuNodeStates:
    """Nodes as they are or would be, one a row."""

    free_cpu: FloatArray  # milli-cores free
    free_gpu_milli: IntArray  # (state, GPU): thousandths free; 0 where a node has fewer GPUs
    gpu_model: IntArray  # of the GPUs; the last number stands for none


@dataclass(frozen=True, slots=True, order=True)
class GpuDemandClass:
    """Asks that are alike as far as GPUs go."""

    cpu: int
    count: int
    milli: int
    models: tuple[str, ...]


def demand_class_of(ask: WorkloadAsk) -> GpuDemandClass | None:
    need = ask.demands.gpu
    if need is None:
        return None
    return GpuDemandClass(cpu_of(ask), need.count, need.milli, tuple(sorted(set(need.models))))


def cpu_of(ask: WorkloadAsk) -> int:
    return next((amount for resource, amount in ask.needs if resource == CPU_RESOURCE), 0)


def most_frequent(kinds: Mapping[GpuDemandClass, int]) -> list[tuple[GpuDemandClass, int]]:
    """In an order that does not depend on who came first."""
    return sorted(kinds.items(), key=lambda each: (-each[1], each[0]))[:MAX_DEMAND_CLASSES]


class GpuDemandModel:
    """The typical asks, each weighed by how often it comes over how much GPU is left that it could use.

    The weights are the slope of Σ frequency · log(usable): losing a part of what little is left for some counts for more than losing
    as much of what is plentiful. So scarce models and roomy nodes are spared for those who need them.
    """

    def __init__(self, kinds: list[tuple[GpuDemandClass, int]], models: dict[str, int]) -> None:
        self.frequency = np.array([times for _, times in kinds], np.float64)
        self._cpu = np.array([kind.cpu or 1 for kind, _ in kinds], np.float64)
        self._without_cpu = [number for number, (kind, _) in enumerate(kinds) if not kind.cpu]
        self._gpu_milli = np.array([kind.count * kind.milli for kind, _ in kinds], np.float64)
        sizes = sorted({(kind.milli, kind.count) for kind, _ in kinds})
        self._millis = np.array([milli for milli, _ in sizes], np.int64)
        self._counts = np.array([count for _, count in sizes], np.int64)
        self._size_class = np.array([sizes.index((kind.milli, kind.count)) for kind, _ in kinds], np.intp)
        self._allowed_by_model = np.zeros(
            (len(models) + 1, len(kinds)), np.bool_
        )  # model -> which kinds may use it
        for number, (kind, _) in enumerate(kinds):
            allowed = (
                [models[model] for model in kind.models if model in models]
                if kind.models
                else range(len(models))
            )
            self._allowed_by_model[list(allowed), number] = True
        self._leftover_by_free = leftover_by_free(kinds)
        cpu = sum(kind.cpu * times for kind, times in kinds)
        self._gpu_milli_per_cpu = (
            float(self.frequency @ self._gpu_milli) / cpu if cpu else 0.0
        )  # GPU used along with a milli-core; 0: no cpu is asked
        self.weights = np.zeros(len(kinds))
        self._weights_by_model = (
            self._allowed_by_model * self.weights
        )  # model -> weights of the kinds that may use it

    def usable_milli(self, states: GpuNodeStates) -> FloatArray:
        """(state, kind): thousandths of GPU there that asks of this kind alone could use."""
        usable = self._usable_any_model(states)
        usable *= self._allowed_by_model[states.gpu_model]
        return usable

    def _usable_any_model(self, states: GpuNodeStates) -> FloatArray:
        """The same if every model would do."""
        enough = states.free_gpu_milli[:, :, None] >= self._millis
        room = (states.free_gpu_milli[:, :, None] * enough).sum(axis=1)
        room[enough.sum(axis=1) < self._counts] = 0
        usable: FloatArray = states.free_cpu[:, None] / self._cpu
        np.floor(usable, out=usable)
        usable *= self._gpu_milli
        if self._without_cpu:
            usable[:, self._without_cpu] = UNLIMITED_MILLI
        np.minimum(usable, room[:, self._size_class], out=usable)
        return usable

    def update_weights(self, states: GpuNodeStates, times: IntArray) -> None:
        """Set the weights by what is left in the cluster: each of these states stands there so many times."""
        left = (self.usable_milli(states) * times[:, None]).sum(axis=0)  # whole numbers: exact in any order
        wanted = np.where(left > 0, self.frequency / (left + self._gpu_milli), 0.0)
        total = wanted.sum()
        self.weights = wanted / total if total else wanted
        self._weights_by_model = self._allowed_by_model * self.weights

    def expected_loss(self, states: GpuNodeStates) -> FloatArray:
        """Thousandths of GPU that are free and yet of no use, as expected over the mix, by three ways of losing them.

        Free where a typical ask could not use it; free for longer than there is cpu to go with it; left over on a GPU in parts.
        """
        free = states.free_gpu_milli.sum(axis=1)
        unused: FloatArray = free * self.weights.sum() - (
            self._usable_any_model(states) * self._weights_by_model[states.gpu_model]
        ).sum(axis=1)
        if self._gpu_milli_per_cpu:
            unused += CPU_STARVATION_WEIGHT * np.maximum(free - states.free_cpu * self._gpu_milli_per_cpu, 0)
        unused += self._leftover_by_free[states.free_gpu_milli].sum(axis=1)
        return unused


def leftover_by_free(kinds: list[tuple[GpuDemandClass, int]]) -> FloatArray:
    """For each amount free on one GPU: how much of it stays unused, if it is offered asks of the mix and takes those that leave less."""
    amounts = np.arange(MILLI_PER_GPU + 1)
    if not kinds:
        return amounts.astype(np.float64)
    times: Counter[int] = Counter()
    for kind, often in kinds:
        times[kind.milli] += often
    step = gcd(MILLI_PER_GPU, *times)  # what is free beyond a multiple of it stays so, whatever comes
    sizes = np.array(sorted(times))
    left: FloatArray = amounts[::step].astype(np.float64)
    after = amounts[: len(left)] - sizes[:, None] // step
    chance = (after >= 0) * np.array([times[size] for size in sizes.tolist()])[:, None] / times.total()
    after = after.clip(0)
    for _ in range(SIMULATED_ARRIVALS):
        left = left - (np.maximum(left - left[after], 0) * chance).sum(axis=0)
    return left[amounts // step] + amounts % step


def states_after(states: GpuNodeStates, cpu: int, need: GpuNeed | None) -> GpuNodeStates:
    """The states after an ask was placed on each: whole GPUs from the free ones, a part from the fullest GPU with room."""
    if need is None:
        return GpuNodeStates(states.free_cpu - cpu, states.free_gpu_milli, states.gpu_model)
    gpus = states.free_gpu_milli.copy()
    if need.milli >= MILLI_PER_GPU:
        free = gpus >= MILLI_PER_GPU
        free &= np.cumsum(free, axis=1) <= need.count
        gpus[free] -= need.milli
    else:
        chosen = np.where(gpus >= need.milli, gpus, MILLI_PER_GPU + 1).argmin(axis=1)
        gpus[np.arange(len(gpus)), chosen] -= need.milli
    return GpuNodeStates(states.free_cpu - cpu, gpus, states.gpu_model)


def fitting_states(states: GpuNodeStates, cpu: int, need: GpuNeed | None) -> NDArray[np.bool_]:
    """Which of the states have room, whatever the model."""
    enough: NDArray[np.bool_] = states.free_cpu >= cpu
    if need is not None:
        enough &= (states.free_gpu_milli >= need.milli).sum(axis=1) >= need.count
    return enough


if TYPE_CHECKING:
    from lattice.scheduling.table.node_table import NodeTable


class GpuDemandSnapshot:
    """How often each kind of ask was placed, and what was left, at one moment. The mix is made of it when somebody wants it."""

    def __init__(self, kinds: dict[GpuDemandClass, int], models: dict[str, int], nodes: IntArray) -> None:
        self._class_counts, self._models = kinds, models
        self._nodes = nodes  # of each: cpu free, model, then what is free of its GPUs

    @classmethod
    def from_table(cls, table: "NodeTable", kinds: Counter[GpuDemandClass]) -> "GpuDemandSnapshot":
        nodes = np.column_stack(
            [
                table.free(CPU_RESOURCE).clip(0),
                table.column("gpu_model"),
                table.gpus.sorted_free_milli(slice(None)),
            ]
        )
        return cls(dict(kinds), dict(table.gpus.models), nodes)

    def renumbered(self, models: dict[str, int]) -> "GpuDemandSnapshot":
        """The same, in the numbers that another table has for these models."""
        nodes = self._nodes.copy()
        for model, code in self._models.items():
            nodes[self._nodes[:, 1] == code, 1] = models[model]
        return GpuDemandSnapshot(self._class_counts, dict(models), nodes)

    @cached_property
    def model(self) -> GpuDemandModel:
        mix = GpuDemandModel(most_frequent(self._class_counts), self._models)
        nodes, times = np.unique(self._nodes, axis=0, return_counts=True)
        mix.update_weights(GpuNodeStates(nodes[:, 0].astype(np.float64), nodes[:, 2:], nodes[:, 1]), times)
        return mix


@dataclass(slots=True)
class LearningProgress:
    """Where the lessons stand."""

    snapshot_number: int = 0
    snapshot: GpuDemandSnapshot | None = None  # None: the table as it is now, since the next change ends it
    change_count: int = 0  # since it began
    relearn_after_changes: int = 0  # after how many the next one is due
    gpu_dimensions: tuple[int, int] = (
        0,
        0,
    )  # models, and GPUs of a node at most: where there are more, the mix does not speak of all


class GpuDemandLearner:
    """The latest lesson, kept along with what is placed.

    A new one begins when the table has changed by a third of what it was learned from, at the latest after half as many changes as there
    are nodes; with few placements at every change. So the same changes in the same order always lead to the same lesson. A table built
    anew from what another one holds learns the same while its placements are FEW. Beyond that it may have learned at other moments, and
    so decide otherwise, unless it carries the lesson over.
    """

    def __init__(self, table: "NodeTable") -> None:
        self._table = table
        self._class_counts: Counter[GpuDemandClass] = Counter()
        self._snapshot_numbers = count(1)
        self._progress = LearningProgress()

    @property
    def snapshot_number(self) -> int:
        """Another one for each lesson."""
        return self._progress.snapshot_number

    @property
    def latest_snapshot(self) -> GpuDemandSnapshot:
        if self._progress.snapshot is None:
            self._progress.snapshot = GpuDemandSnapshot.from_table(self._table, self._class_counts)
        return self._progress.snapshot

    def record(self, ask: WorkloadAsk, change: int) -> None:
        """It is there now (1), or no longer (-1)."""
        kind = demand_class_of(ask)
        if kind is not None:
            self._class_counts[kind] += change
            if not self._class_counts[kind]:
                del self._class_counts[kind]
        self.note_change()

    def note_change(self) -> None:
        """The table is no longer what it was. Where no node ever had a GPU there is nothing to learn."""
        gpus, at = self._table.gpus, self._progress
        if not gpus.models:
            return
        known = (len(gpus.models), gpus.max_per_node)
        at.change_count += 1
        if at.change_count > at.relearn_after_changes or known != at.gpu_dimensions:
            patience = self._relearn_interval()
            lesson = GpuDemandSnapshot.from_table(self._table, self._class_counts) if patience else None
            self._progress = LearningProgress(
                next(self._snapshot_numbers), lesson, relearn_after_changes=patience, gpu_dimensions=known
            )

    def _relearn_interval(self) -> int:
        placed = len(self._table.placements)
        return 0 if placed <= RELEARN_EACH_CHANGE_UP_TO else min(placed // 3, len(self._table.row_of) // 2)

    def checkpoint(self) -> LearningProgress:
        return replace(self._progress)

    def restore(self, to: LearningProgress) -> None:
        """What is placed is as it was then."""
        self._progress = replace(to)

    def copy_progress_from(self, other: "GpuDemandLearner") -> None:
        """Stand where those of another table with the same nodes and placements stand: the same changes lead to the same decisions."""
        gpus, at = self._table.gpus, other._progress
        gpus.register_models(other._table.gpus.models, other._table.gpus.max_per_node)
        lesson = at.snapshot.renumbered(gpus.models) if at.snapshot and at.relearn_after_changes else None
        self._progress = replace(
            at,
            snapshot_number=next(self._snapshot_numbers),
            snapshot=lesson,
            gpu_dimensions=(len(gpus.models), gpus.max_per_node),
        )
