"""The typical GPU requests of workloads, learned from the placements in the node table, and the free GPU
capacity of a node that these requests could not use."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from math import gcd

import numpy as np
from numpy.typing import NDArray

from lattice.scheduling.table.table_view import GpuDemandView
from lattice.scheduling.table.workload_ask import MILLI_PER_GPU, GpuNeed, WorkloadAsk

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_DEMAND_CLASSES = 512  # most frequent classes; classes beyond this number weigh too little to matter
# Number of simulated requests that a GPU is offered; what remains free after these requests counts as
# leftover. Numbers from 16 to 200 give nearly the same results.
SIMULATED_ARRIVALS = 64
CPU_RESOURCE = 0  # the resource number of cpu, see NodeTable
UNLIMITED_MILLI = 1e12  # for classes that need no cpu
# GPU capacity on a node without free cpu is lost for certain, so it weighs more than capacity that only some
# classes cannot use; weights from 1 to 4 fill GPUs about equally well.
CPU_STARVATION_WEIGHT = 2.0
# With up to this number of placements, a new snapshot follows every change, because each placement is a large
# part of the demand.
RELEARN_EACH_CHANGE_UP_TO = 30


@dataclass(frozen=True, slots=True)
class GpuNodeStates:
    """Current or hypothetical states of nodes, one state per row."""

    free_cpu: FloatArray  # milli-cores
    free_gpu_milli: IntArray  # (state, GPU): thousandths; 0 for an absent GPU
    gpu_model: IntArray  # model code of the GPUs; NO_MODEL (-1) for a node without GPUs


@dataclass(frozen=True, slots=True, order=True)
class GpuDemandClass:
    """A class of requests that are equal in cpu and GPU demand."""

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


def most_frequent_classes(class_counts: Mapping[GpuDemandClass, int]) -> list[tuple[GpuDemandClass, int]]:
    """The most frequent demand classes with their counts, in an order that does not depend on the order of
    arrival."""
    return sorted(class_counts.items(), key=lambda class_count: (-class_count[1], class_count[0]))[
        :MAX_DEMAND_CLASSES
    ]


class GpuDemandModel:
    """The typical requests, weighted by their frequency and by the free GPU capacity that they could use.

    The weights are the slope of Σ frequency · log(usable). A loss of usable capacity therefore weighs more
    for a class with little usable capacity than for a class with plenty, so scarce models and roomy nodes are
    spared for the classes that need them.
    """

    def __init__(self, class_counts: list[tuple[GpuDemandClass, int]], models: dict[str, int]) -> None:
        self.frequency = np.array([frequency for _, frequency in class_counts], np.float64)
        self._cpu = np.array([demand_class.cpu or 1 for demand_class, _ in class_counts], np.float64)
        self._without_cpu = [
            number for number, (demand_class, _) in enumerate(class_counts) if not demand_class.cpu
        ]
        self._gpu_milli = np.array(
            [demand_class.count * demand_class.milli for demand_class, _ in class_counts], np.float64
        )
        sizes = sorted({(demand_class.milli, demand_class.count) for demand_class, _ in class_counts})
        self._millis = np.array([milli for milli, _ in sizes], np.int64)
        self._counts = np.array([count for _, count in sizes], np.int64)
        self._size_class = np.array(
            [sizes.index((demand_class.milli, demand_class.count)) for demand_class, _ in class_counts],
            np.intp,
        )
        # (model, class): whether the class may use the model. The last row, which code -1 selects, stands for
        # no GPU.
        self._allowed_by_model = np.zeros((len(models) + 1, len(class_counts)), np.bool_)
        for number, (demand_class, _) in enumerate(class_counts):
            allowed = list(range(len(models)))
            if demand_class.models:
                allowed = [models[model] for model in demand_class.models if model in models]
            self._allowed_by_model[allowed, number] = True
        self._leftover_by_free = leftover_by_free(class_counts)
        cpu = sum(demand_class.cpu * frequency for demand_class, frequency in class_counts)
        # GPU thousandths requested per milli-core; 0 if no class requests cpu.
        self._gpu_milli_per_cpu = float(self.frequency @ self._gpu_milli) / cpu if cpu else 0.0
        self.weights = np.zeros(len(class_counts))
        # (model, class): the weight of the class, 0 if the class may not use the model.
        self._weights_by_model = self._allowed_by_model * self.weights

    def usable_milli(self, states: GpuNodeStates) -> FloatArray:
        """(state, class): thousandths of GPU that requests of this class alone could use."""
        usable = self._usable_any_model(states)
        usable *= self._allowed_by_model[states.gpu_model]
        return usable

    def _usable_any_model(self, states: GpuNodeStates) -> FloatArray:
        """(state, class): usable thousandths if every class accepted every model."""
        enough = states.free_gpu_milli[:, :, None] >= self._millis
        usable_gpu = (states.free_gpu_milli[:, :, None] * enough).sum(axis=1)
        usable_gpu[enough.sum(axis=1) < self._counts] = 0
        usable: FloatArray = states.free_cpu[:, None] / self._cpu
        np.floor(usable, out=usable)
        usable *= self._gpu_milli
        if self._without_cpu:
            usable[:, self._without_cpu] = UNLIMITED_MILLI
        np.minimum(usable, usable_gpu[:, self._size_class], out=usable)
        return usable

    def update_weights(self, states: GpuNodeStates, times: IntArray) -> None:
        """Set the weights by the free capacity of all nodes; `times` is the number of nodes in each state."""
        # The amounts are whole numbers, so the sum is exact in any order.
        usable = (self.usable_milli(states) * times[:, None]).sum(axis=0)
        scarcity = np.where(usable > 0, self.frequency / (usable + self._gpu_milli), 0.0)
        total = scarcity.sum()
        self.weights = scarcity / total if total else scarcity
        self._weights_by_model = self._allowed_by_model * self.weights

    def expected_loss(self, states: GpuNodeStates) -> FloatArray:
        """Free thousandths of GPU in each state that the typical requests are expected not to use, the sum of
        three losses.

        The losses: GPU capacity that a typical request cannot use; GPU capacity without cpu to go with it;
        leftovers of GPUs used in parts.
        """
        free = states.free_gpu_milli.sum(axis=1)
        unused: FloatArray = free * self.weights.sum() - (
            self._usable_any_model(states) * self._weights_by_model[states.gpu_model]
        ).sum(axis=1)
        if self._gpu_milli_per_cpu:
            unused += CPU_STARVATION_WEIGHT * np.maximum(free - states.free_cpu * self._gpu_milli_per_cpu, 0)
        unused += self._leftover_by_free[states.free_gpu_milli].sum(axis=1)
        return unused


def leftover_by_free(class_counts: list[tuple[GpuDemandClass, int]]) -> FloatArray:
    """The expected unused thousandths for each free amount of one GPU.

    The calculation offers SIMULATED_ARRIVALS typical requests to the GPU, one after the other. The GPU
    accepts a request only if that lowers the expected unused part.
    """
    amounts = np.arange(MILLI_PER_GPU + 1)
    if not class_counts:
        return amounts.astype(np.float64)
    frequency_by_size: Counter[int] = Counter()
    for demand_class, frequency in class_counts:
        frequency_by_size[demand_class.milli] += frequency
    # All request sizes are multiples of `step`, so a free amount below one step can never be used.
    step = gcd(MILLI_PER_GPU, *frequency_by_size)
    sizes = np.array(sorted(frequency_by_size))
    unused: FloatArray = amounts[::step].astype(np.float64)
    remaining = amounts[: len(unused)] - sizes[:, None] // step
    probability = (
        (remaining >= 0)
        * np.array([frequency_by_size[size] for size in sizes.tolist()])[:, None]
        / frequency_by_size.total()
    )
    remaining = remaining.clip(0)
    for _ in range(SIMULATED_ARRIVALS):
        unused = unused - (np.maximum(unused - unused[remaining], 0) * probability).sum(axis=0)
    return unused[amounts // step] + amounts % step


def states_after(states: GpuNodeStates, cpu: int, need: GpuNeed | None) -> GpuNodeStates:
    """The states with a request placed on each: whole GPUs from the free GPUs, a part of a GPU from the
    fullest GPU that fits."""
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
    """The states with enough free cpu and GPUs of any model."""
    enough: NDArray[np.bool_] = states.free_cpu >= cpu
    if need is not None:
        enough &= (states.free_gpu_milli >= need.milli).sum(axis=1) >= need.count
    return enough


class GpuDemandSnapshot:
    """The counts of the demand classes and the free capacity of the nodes at one moment. The demand model is
    built on first use."""

    def __init__(
        self, class_counts: dict[GpuDemandClass, int], models: dict[str, int], nodes: IntArray
    ) -> None:
        self._class_counts, self._models = class_counts, models
        self._nodes = nodes  # (node, column): free cpu, model code, then free thousandths of each GPU

    @classmethod
    def from_table(cls, table: GpuDemandView, class_counts: Counter[GpuDemandClass]) -> "GpuDemandSnapshot":
        nodes = np.column_stack(
            [
                table.free(CPU_RESOURCE).clip(0),
                table.column("gpu_model"),
                table.gpus.sorted_free_milli(slice(None)),
            ]
        )
        return cls(dict(class_counts), dict(table.gpus.models), nodes)

    def renumbered(self, models: dict[str, int]) -> "GpuDemandSnapshot":
        """The same snapshot with the model codes of a second table."""
        nodes = self._nodes.copy()
        for model, code in self._models.items():
            nodes[self._nodes[:, 1] == code, 1] = models[model]
        return GpuDemandSnapshot(self._class_counts, dict(models), nodes)

    @cached_property
    def model(self) -> GpuDemandModel:
        model = GpuDemandModel(most_frequent_classes(self._class_counts), self._models)
        nodes, times = np.unique(self._nodes, axis=0, return_counts=True)
        model.update_weights(GpuNodeStates(nodes[:, 0].astype(np.float64), nodes[:, 2:], nodes[:, 1]), times)
        return model


@dataclass(slots=True)
class LearningProgress:
    """The latest snapshot and the number of changes until the next one."""

    snapshot_number: int = 0
    # None: every change of the table ends the snapshot, so the snapshot is built only when it is read.
    snapshot: GpuDemandSnapshot | None = None
    change_count: int = 0  # changes since the snapshot
    relearn_after_changes: int = 0
    # (number of models, most GPUs of a node) that the snapshot covers; when either changes, a new snapshot is
    # due.
    gpu_dimensions: tuple[int, int] = (0, 0)


class GpuDemandLearner:
    """The latest snapshot of the GPU demand, updated as placements change.

    A new snapshot is due once the number of changes exceeds a third of the number of placements, or half of
    the number of nodes; with up to RELEARN_EACH_CHANGE_UP_TO placements, after every change. Equal changes in
    equal order lead to equal snapshots. A second table that is rebuilt from the same placements has the same
    snapshot only while there are few placements. With more placements, the snapshot of the second table may
    date from another change, and decisions on the two tables may differ; `copy_progress_from` avoids that.
    """

    def __init__(self, table: GpuDemandView) -> None:
        self._table = table
        self._class_counts: Counter[GpuDemandClass] = Counter()
        self._snapshot_numbers = count(1)
        self._progress = LearningProgress()

    @property
    def snapshot_number(self) -> int:
        """The number of the latest snapshot; no two snapshots have the same number."""
        return self._progress.snapshot_number

    @property
    def latest_snapshot(self) -> GpuDemandSnapshot:
        if self._progress.snapshot is None:
            self._progress.snapshot = GpuDemandSnapshot.from_table(self._table, self._class_counts)
        return self._progress.snapshot

    def record(self, ask: WorkloadAsk, change: int) -> None:
        """Count a placed (1) or removed (-1) workload."""
        demand_class = demand_class_of(ask)
        if demand_class is not None:
            self._class_counts[demand_class] += change
            if not self._class_counts[demand_class]:
                del self._class_counts[demand_class]
        self.note_change()

    def note_change(self) -> None:
        """Count a change of the table, and take a snapshot if due. A table without any GPU has no demand to
        learn."""
        gpus, progress = self._table.gpus, self._progress
        if not gpus.models:
            return
        dimensions = (len(gpus.models), gpus.max_per_node)
        progress.change_count += 1
        if progress.change_count > progress.relearn_after_changes or dimensions != progress.gpu_dimensions:
            placed, interval = len(self._table.placements), 0
            if placed > RELEARN_EACH_CHANGE_UP_TO:
                interval = min(placed // 3, len(self._table.row_of) // 2)
            snapshot = GpuDemandSnapshot.from_table(self._table, self._class_counts) if interval else None
            self._progress = LearningProgress(
                next(self._snapshot_numbers),
                snapshot,
                relearn_after_changes=interval,
                gpu_dimensions=dimensions,
            )

    def checkpoint(self) -> LearningProgress:
        return replace(self._progress)

    def restore(self, checkpoint: LearningProgress) -> None:
        """Return to a checkpoint; the caller has restored the placements of the checkpoint."""
        self._progress = replace(checkpoint)

    def copy_progress_from(self, source: "GpuDemandLearner") -> None:
        """Copy the progress of a table with the same nodes and placements, so that equal changes lead to
        equal decisions."""
        gpus, progress = self._table.gpus, source._progress
        # The snapshot of the source may refer to any GPU model of the source, so this table registers all.
        gpus.register_models(source._table.gpus.models, source._table.gpus.max_per_node)
        snapshot = (
            progress.snapshot.renumbered(gpus.models)
            if progress.snapshot and progress.relearn_after_changes
            else None
        )
        self._progress = replace(
            progress,
            snapshot_number=next(self._snapshot_numbers),
            snapshot=snapshot,
            gpu_dimensions=(len(gpus.models), gpus.max_per_node),
        )
