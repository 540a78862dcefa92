"""Numbers (codes) for the values of one label key, so that nodes with equal values are found by array
operations."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lattice.engine.derived_columns import pad_rows
from lattice.scheduling.table.node_info import NodeInfo

CodeArray = NDArray[np.intp]
MAX_MOVES_KEPT = 4096
NO_CODE = -1


class LabelCodes:
    """The code of each node's value under one label key: `codes[row]`, or -1 for a node without the label.

    The code of a value that no node has any more is reused for a new value.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.version = -1
        self.codes: CodeArray = np.empty(0, np.intp)
        self.values: list[str] = []  # by code
        self.code_by_value: dict[str, int] = {}  # only values that a node has
        self._node_counts: list[int] = []  # number of nodes, by code
        self._unused_codes: list[int] = []
        # The latest changes of a row's code: (row, previous code, code). Topology counts follow these moves.
        self._moves: list[tuple[int, int, int]] = []
        self._dropped_moves = 0

    def update(self, node_infos: Sequence[NodeInfo | None], rows: Sequence[int]) -> None:
        """Update the codes of the rows that changed."""
        if len(self.codes) < len(node_infos):
            old_count = len(self.codes)
            self.codes = pad_rows(self.codes, len(node_infos))
            self.codes[old_count:] = NO_CODE
        for row in rows:
            node, previous_code = node_infos[row], int(self.codes[row])
            value = node.labels.get(self.key) if node else None
            if value != (self.values[previous_code] if previous_code >= 0 else None):
                if previous_code >= 0:
                    self._node_counts[previous_code] -= 1
                    # If no node has the value any more, its code may be reused.
                    if not self._node_counts[previous_code]:
                        del self.code_by_value[self.values[previous_code]]
                        self._unused_codes.append(previous_code)
                code = NO_CODE if value is None else self.code_by_value.get(value, NO_CODE)
                if value is not None and code == NO_CODE:
                    code = self._unused_codes.pop() if self._unused_codes else len(self.values)
                    if code == len(self.values):
                        self.values.append(value)
                        self._node_counts.append(0)
                    self.values[code], self.code_by_value[value] = value, code
                if code >= 0:
                    self._node_counts[code] += 1
                self.codes[row] = code
                self._moves.append((row, previous_code, code))
                if len(self._moves) > MAX_MOVES_KEPT:
                    # Half at a time, because dropping single moves would copy the list every time.
                    drop = MAX_MOVES_KEPT // 2
                    del self._moves[:drop]
                    self._dropped_moves += drop

    @property
    def move_count(self) -> int:
        """The number of moves since the label codes were created."""
        return self._dropped_moves + len(self._moves)

    def moves_since(self, moved: int) -> list[tuple[int, int, int]] | None:
        """The moves (row, previous code, code) after the first `moved` moves, or None if the list no longer
        holds them."""
        return None if moved < self._dropped_moves else self._moves[moved - self._dropped_moves :]
