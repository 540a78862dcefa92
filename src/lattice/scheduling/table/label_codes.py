"""Which nodes share a value under a label key? A number for each value, kept up to date row by row."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lattice.engine.derived_columns import pad_rows
from lattice.scheduling.table.node_info import NodeInfo

CodeArray = NDArray[np.intp]
MAX_MOVES_KEPT = 4096
NO_CODE = -1


class LabelCodes:
    """`codes[row]`: the number of its value, -1 where there is none. The number of a value that no node has any more is given again."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.version = -1
        self.codes: CodeArray = np.empty(0, np.intp)
        self.values: list[str] = []  # by number
        self.code_by_value: dict[str, int] = {}  # of values that some node has
        self._node_counts: list[int] = []  # by number, how many have it
        self._unused_codes: list[int] = []
        self._moves: list[tuple[int, int, int]] = []
        self._dropped_moves = 0

    def update(self, facts: Sequence[NodeInfo | None], rows: Sequence[int]) -> None:
        """These rows changed."""
        if len(self.codes) < len(facts):
            known = len(self.codes)
            self.codes = pad_rows(self.codes, len(facts))
            self.codes[known:] = NO_CODE
        for row in rows:
            node, before = facts[row], int(self.codes[row])
            value = node.labels.get(self.key) if node else None
            if value != (self.values[before] if before >= 0 else None):
                self._move(row, before, value)

    def _move(self, row: int, before: int, value: str | None) -> None:
        if before >= 0:
            self._node_counts[before] -= 1
            if not self._node_counts[before]:
                del self.code_by_value[self.values[before]]
                self._unused_codes.append(before)
        code = NO_CODE if value is None else self._code_for(value)
        if code >= 0:
            self._node_counts[code] += 1
        self.codes[row] = code
        self._moves.append((row, before, code))
        if len(self._moves) > MAX_MOVES_KEPT:
            drop = MAX_MOVES_KEPT // 2
            del self._moves[:drop]
            self._dropped_moves += drop

    def _code_for(self, value: str) -> int:
        code = self.code_by_value.get(value)
        if code is None:
            code = self._unused_codes.pop() if self._unused_codes else len(self.values)
            if code == len(self.values):
                self.values.append(value)
                self._node_counts.append(0)
            self.values[code], self.code_by_value[value] = value, code
        return code

    @property
    def move_count(self) -> int:
        """How many moves from number to number there have been."""
        return self._dropped_moves + len(self._moves)

    def moves_since(self, moved: int) -> list[tuple[int, int, int]] | None:
        """(row, from, to); None: too long ago to say."""
        return None if moved < self._dropped_moves else self._moves[moved - self._dropped_moves :]
