"""The tie order: rows by a rank derived from their names, updated as rows are added."""

import hashlib

import numpy as np
from numpy.typing import NDArray

Rowids = NDArray[np.intp]
Ranks = NDArray[np.uint64]


def tie_rank(seed: int, name: str) -> int:
    """Return the rank of a name among candidates of equal total: a fixed order that does not depend on the
    order of rows."""
    return int.from_bytes(
        hashlib.blake2b(name.encode(), digest_size=8, key=seed.to_bytes(8, "little", signed=True)).digest(),
        "little",
    )


class TieOrder:
    """All rows by rank. Removed rows stay included: their totals are -inf, so no decision chooses them."""

    def __init__(self) -> None:
        self._rows: Rowids = np.empty(0, np.intp)
        # Rows whose rank changed since the last merge.
        self._pending: dict[int, None] = {}

    def add(self, row: int) -> None:
        self._pending[row] = None

    def rows(self, ranks: Ranks) -> Rowids:
        """Return all rows, lowest rank first."""
        if not self._pending:
            return self._rows
        if len(self._pending) * 8 > len(ranks):
            self._rows = np.argsort(ranks, kind="stable")
        else:
            # At most an eighth of the rows is pending: merge these rows into the sorted rows instead of
            # sorting all rows anew.
            pending = np.array(list(self._pending), np.intp)
            pending = pending[np.argsort(ranks[pending], kind="stable")]
            is_sorted = np.ones(len(ranks), np.bool_)
            is_sorted[pending] = False
            sorted_rows = self._rows[is_sorted[self._rows]]
            self._rows = np.insert(sorted_rows, np.searchsorted(ranks[sorted_rows], ranks[pending]), pending)
        self._pending.clear()
        return self._rows
