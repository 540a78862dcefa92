"""What a table teaches about typical asks for GPUs, and when it is looked at anew: its changes alone decide that, not who asks."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.gpu_mix import CPU, Kind, Mix, States, Whole, kind_of, most_frequent

if TYPE_CHECKING:
    from lattice.scheduling.table.node_table import NodeTable

FEW = 30  # placements up to which every change is a new lesson: a handful teaches something else with each that comes


class Lesson:
    """How often each kind of ask was placed, and what was left, at one moment. The mix is made of it when somebody wants it."""

    def __init__(self, kinds: dict[Kind, int], models: dict[str, int], nodes: Whole) -> None:
        self._kinds, self._models = kinds, models
        self._nodes = nodes  # of each: cpu free, model, then what is free of its GPUs

    @classmethod
    def of(cls, table: "NodeTable", kinds: Counter[Kind]) -> "Lesson":
        nodes = np.column_stack(
            [table.free(CPU).clip(0), table.column("gpu_model"), table.gpus.free_of(slice(None))]
        )
        return cls(dict(kinds), dict(table.gpus.models), nodes)

    def numbered(self, models: dict[str, int]) -> "Lesson":
        """The same, in the numbers that another table has for these models."""
        nodes = self._nodes.copy()
        for model, code in self._models.items():
            nodes[self._nodes[:, 1] == code, 1] = models[model]
        return Lesson(self._kinds, dict(models), nodes)

    @cached_property
    def mix(self) -> Mix:
        mix = Mix(most_frequent(self._kinds), self._models)
        nodes, times = np.unique(self._nodes, axis=0, return_counts=True)
        mix.weigh(States(nodes[:, 0].astype(np.float64), nodes[:, 2:], nodes[:, 1]), times)
        return mix


@dataclass(slots=True)
class Progress:
    """Where the lessons stand."""

    number: int = 0
    lesson: Lesson | None = None  # None: the table as it is now, since the next change ends it
    changes: int = 0  # since it began
    patience: int = 0  # after how many the next one is due
    known: tuple[int, int] = (
        0,
        0,
    )  # models, and GPUs of a node at most: where there are more, the mix does not speak of all


class Lessons:
    """The latest lesson, kept along with what is placed.

    A new one begins when the table has changed by a third of what it was learned from, at the latest after half as many changes as there
    are nodes; with few placements at every change. So the same changes in the same order always lead to the same lesson. A table built
    anew from what another one holds learns the same while its placements are FEW. Beyond that it may have learned at other moments, and
    so decide otherwise, unless it carries the lesson over.
    """

    def __init__(self, table: "NodeTable") -> None:
        self._table = table
        self._kinds: Counter[Kind] = Counter()
        self._numbers = count(1)
        self._at = Progress()

    @property
    def number(self) -> int:
        """Another one for each lesson."""
        return self._at.number

    @property
    def latest(self) -> Lesson:
        if self._at.lesson is None:
            self._at.lesson = Lesson.of(self._table, self._kinds)
        return self._at.lesson

    def note(self, ask: WorkloadAsk, change: int) -> None:
        """It is there now (1), or no longer (-1)."""
        kind = kind_of(ask)
        if kind is not None:
            self._kinds[kind] += change
            if not self._kinds[kind]:
                del self._kinds[kind]
        self.changed()

    def changed(self) -> None:
        """The table is no longer what it was. Where no node ever had a GPU there is nothing to learn."""
        gpus, at = self._table.gpus, self._at
        if not gpus.models:
            return
        known = (len(gpus.models), gpus.width)
        at.changes += 1
        if at.changes > at.patience or known != at.known:
            patience = self._patience()
            lesson = Lesson.of(self._table, self._kinds) if patience else None
            self._at = Progress(next(self._numbers), lesson, patience=patience, known=known)

    def _patience(self) -> int:
        placed = len(self._table.placements)
        return 0 if placed <= FEW else min(placed // 3, len(self._table.row_of) // 2)

    def bookmark(self) -> Progress:
        return replace(self._at)

    def go_back(self, to: Progress) -> None:
        """What is placed is as it was then."""
        self._at = replace(to)

    def carry_over(self, other: "Lessons") -> None:
        """Stand where those of another table with the same nodes and placements stand: the same changes lead to the same decisions."""
        gpus, at = self._table.gpus, other._at
        gpus.expect(other._table.gpus.models, other._table.gpus.width)
        lesson = at.lesson.numbered(gpus.models) if at.lesson and at.patience else None
        self._at = replace(
            at, number=next(self._numbers), lesson=lesson, known=(len(gpus.models), gpus.width)
        )
