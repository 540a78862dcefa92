"""Which nodes share a value under a label key? A number for each value, kept up to date row by row."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lattice.engine.derived_columns import lengthened
from lattice.scheduling.table.node_info import NodeFacts

Codes = NDArray[np.intp]
MOVES_KEPT = 4096
NOWHERE = -1


class Coded:
    """`codes[row]`: the number of its value, -1 where there is none. The number of a value that no node has any more is given again."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.version = -1
        self.codes: Codes = np.empty(0, np.intp)
        self.names: list[str] = []  # by number
        self.numbers: dict[str, int] = {}  # of values that some node has
        self._nodes: list[int] = []  # by number, how many have it
        self._spare: list[int] = []
        self._moves: list[tuple[int, int, int]] = []
        self._first_move = 0

    def follow(self, facts: Sequence[NodeFacts | None], rows: Sequence[int]) -> None:
        """These rows changed."""
        if len(self.codes) < len(facts):
            known = len(self.codes)
            self.codes = lengthened(self.codes, len(facts))
            self.codes[known:] = NOWHERE
        for row in rows:
            node, before = facts[row], int(self.codes[row])
            value = node.labels.get(self.key) if node else None
            if value != (self.names[before] if before >= 0 else None):
                self._move(row, before, value)

    def _move(self, row: int, before: int, value: str | None) -> None:
        if before >= 0:
            self._nodes[before] -= 1
            if not self._nodes[before]:
                del self.numbers[self.names[before]]
                self._spare.append(before)
        code = NOWHERE if value is None else self._number(value)
        if code >= 0:
            self._nodes[code] += 1
        self.codes[row] = code
        self._moves.append((row, before, code))
        if len(self._moves) > MOVES_KEPT:
            drop = MOVES_KEPT // 2
            del self._moves[:drop]
            self._first_move += drop

    def _number(self, value: str) -> int:
        code = self.numbers.get(value)
        if code is None:
            code = self._spare.pop() if self._spare else len(self.names)
            if code == len(self.names):
                self.names.append(value)
                self._nodes.append(0)
            self.names[code], self.numbers[value] = value, code
        return code

    @property
    def moved(self) -> int:
        """How many moves from number to number there have been."""
        return self._first_move + len(self._moves)

    def moves_since(self, moved: int) -> list[tuple[int, int, int]] | None:
        """(row, from, to); None: too long ago to say."""
        return None if moved < self._first_move else self._moves[moved - self._first_move :]
