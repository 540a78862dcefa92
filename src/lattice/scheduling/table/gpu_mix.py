"""What typically asks for GPUs here, learned from what is placed, and how much free GPU a node state keeps from being used by it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from lattice.scheduling.table.ask import WHOLE_GPU, GpuNeed, WorkloadAsk

Reals = NDArray[np.float64]
Whole = NDArray[np.int64]

KINDS = 512  # typical asks kept, most frequent first: the rest weighs too little to matter
OFFERS = (
    64  # how many more asks a GPU sees before it counts as it is: results hardly change between 16 and 200
)
CPU = 0  # resource number, see NodeTable
MUCH = 1e12  # as many as you like of what needs no cpu
STARVED = 2.0  # what there is no cpu for is lost for certain, so it weighs more than what some could not use; 1 to 4 fill about equally well


@dataclass(frozen=True, slots=True)
class States:
    """Nodes as they are or would be, one a row."""

    cpu: Reals  # milli-cores free
    gpus: Whole  # (state, GPU): thousandths free; 0 where a node has fewer GPUs
    model: Whole  # of the GPUs; the last number stands for none


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """Asks that are alike as far as GPUs go."""

    cpu: int
    count: int
    milli: int
    models: tuple[str, ...]


def kind_of(ask: WorkloadAsk) -> Kind | None:
    need = ask.demands.gpu
    if need is None:
        return None
    return Kind(cpu_of(ask), need.count, need.milli, tuple(sorted(set(need.models))))


def cpu_of(ask: WorkloadAsk) -> int:
    return next((amount for resource, amount in ask.needs if resource == CPU), 0)


def most_frequent(kinds: Mapping[Kind, int]) -> list[tuple[Kind, int]]:
    """In an order that does not depend on who came first."""
    return sorted(kinds.items(), key=lambda each: (-each[1], each[0]))[:KINDS]


class Mix:
    """The typical asks, each weighed by how often it comes over how much GPU is left that it could use.

    The weights are the slope of Σ frequency · log(usable): losing a part of what little is left for some counts for more than losing
    as much of what is plentiful. So scarce models and roomy nodes are spared for those who need them.
    """

    def __init__(self, kinds: list[tuple[Kind, int]], models: dict[str, int]) -> None:
        self.frequency = np.array([times for _, times in kinds], np.float64)
        self._cpu = np.array([kind.cpu or 1 for kind, _ in kinds], np.float64)
        self._without_cpu = [number for number, (kind, _) in enumerate(kinds) if not kind.cpu]
        self._size = np.array([kind.count * kind.milli for kind, _ in kinds], np.float64)
        sizes = sorted({(kind.milli, kind.count) for kind, _ in kinds})
        self._millis = np.array([milli for milli, _ in sizes], np.int64)
        self._counts = np.array([count for _, count in sizes], np.int64)
        self._class = np.array([sizes.index((kind.milli, kind.count)) for kind, _ in kinds], np.intp)
        self._may = np.zeros((len(models) + 1, len(kinds)), np.bool_)  # model -> which kinds may use it
        for number, (kind, _) in enumerate(kinds):
            allowed = (
                [models[model] for model in kind.models if model in models]
                if kind.models
                else range(len(models))
            )
            self._may[list(allowed), number] = True
        self._left_over = left_over(kinds)
        cpu = sum(kind.cpu * times for kind, times in kinds)
        self._fed = (
            float(self.frequency @ self._size) / cpu if cpu else 0.0
        )  # GPU used along with a milli-core; 0: no cpu is asked
        self.weight = np.zeros(len(kinds))
        self._weight_on = self._may * self.weight  # model -> weights of the kinds that may use it

    def usable(self, states: States) -> Reals:
        """(state, kind): thousandths of GPU there that asks of this kind alone could use."""
        usable = self._as_if_any(states)
        usable *= self._may[states.model]
        return usable

    def _as_if_any(self, states: States) -> Reals:
        """The same if every model would do."""
        enough = states.gpus[:, :, None] >= self._millis
        room = (states.gpus[:, :, None] * enough).sum(axis=1)
        room[enough.sum(axis=1) < self._counts] = 0
        usable: Reals = states.cpu[:, None] / self._cpu
        np.floor(usable, out=usable)
        usable *= self._size
        if self._without_cpu:
            usable[:, self._without_cpu] = MUCH
        np.minimum(usable, room[:, self._class], out=usable)
        return usable

    def weigh(self, states: States, times: Whole) -> None:
        """Set the weights by what is left in the cluster: each of these states stands there so many times."""
        left = (self.usable(states) * times[:, None]).sum(axis=0)  # whole numbers: exact in any order
        wanted = np.where(left > 0, self.frequency / (left + self._size), 0.0)
        total = wanted.sum()
        self.weight = wanted / total if total else wanted
        self._weight_on = self._may * self.weight

    def loss(self, states: States) -> Reals:
        """Thousandths of GPU that are free and yet of no use, as expected over the mix, by three ways of losing them.

        Free where a typical ask could not use it; free for longer than there is cpu to go with it; left over on a GPU in parts.
        """
        free = states.gpus.sum(axis=1)
        unused: Reals = free * self.weight.sum() - (
            self._as_if_any(states) * self._weight_on[states.model]
        ).sum(axis=1)
        if self._fed:
            unused += STARVED * np.maximum(free - states.cpu * self._fed, 0)
        unused += self._left_over[states.gpus].sum(axis=1)
        return unused


def left_over(kinds: list[tuple[Kind, int]]) -> Reals:
    """For each amount free on one GPU: how much of it stays unused, if it is offered asks of the mix and takes those that leave less."""
    amounts = np.arange(WHOLE_GPU + 1)
    if not kinds:
        return amounts.astype(np.float64)
    times: Counter[int] = Counter()
    for kind, often in kinds:
        times[kind.milli] += often
    step = gcd(WHOLE_GPU, *times)  # what is free beyond a multiple of it stays so, whatever comes
    sizes = np.array(sorted(times))
    left: Reals = amounts[::step].astype(np.float64)
    after = amounts[: len(left)] - sizes[:, None] // step
    chance = (after >= 0) * np.array([times[size] for size in sizes.tolist()])[:, None] / times.total()
    after = after.clip(0)
    for _ in range(OFFERS):
        left = left - (np.maximum(left - left[after], 0) * chance).sum(axis=0)
    return left[amounts // step] + amounts % step


def placed(states: States, cpu: int, need: GpuNeed | None) -> States:
    """The states after an ask was placed on each: whole GPUs from the free ones, a part from the fullest GPU with room."""
    if need is None:
        return States(states.cpu - cpu, states.gpus, states.model)
    gpus = states.gpus.copy()
    if need.milli >= WHOLE_GPU:
        free = gpus >= WHOLE_GPU
        free &= np.cumsum(free, axis=1) <= need.count
        gpus[free] -= need.milli
    else:
        chosen = np.where(gpus >= need.milli, gpus, WHOLE_GPU + 1).argmin(axis=1)
        gpus[np.arange(len(gpus)), chosen] -= need.milli
    return States(states.cpu - cpu, gpus, states.model)


def takes(states: States, cpu: int, need: GpuNeed | None) -> NDArray[np.bool_]:
    """Which of the states have room, whatever the model."""
    enough: NDArray[np.bool_] = states.cpu >= cpu
    if need is not None:
        enough &= (states.gpus >= need.milli).sum(axis=1) >= need.count
    return enough
