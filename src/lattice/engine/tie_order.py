"""In which order do equals come? Rows by rank, kept up to date as rows come."""

import hashlib

import numpy as np
from numpy.typing import NDArray

Rowids = NDArray[np.intp]
Ranks = NDArray[np.uint64]


def tie_rank(seed: int, name: str) -> int:
    """Where a name stands among equals: a fixed order that has nothing to do with how rows came to be where they are."""
    return int.from_bytes(
        hashlib.blake2b(name.encode(), digest_size=8, key=seed.to_bytes(8, "little", signed=True)).digest(),
        "little",
    )


class TieOrder:
    """Rows that left are among them: nobody chooses those."""

    def __init__(self) -> None:
        self._rows: Rowids = np.empty(0, np.intp)
        self._pending: dict[int, None] = {}  # rows that were named since

    def add(self, row: int) -> None:
        self._pending[row] = None

    def rows(self, ranks: Ranks) -> Rowids:
        """All of them, best rank first."""
        if not self._pending:
            return self._rows
        if len(self._pending) * 8 > len(ranks):
            self._rows = np.argsort(ranks, kind="stable")
        else:
            self._rows = self._merge_pending(ranks)
        self._pending.clear()
        return self._rows

    def _merge_pending(self, ranks: Ranks) -> Rowids:
        late = np.array(list(self._pending), np.intp)
        late = late[np.argsort(ranks[late], kind="stable")]
        stays = np.ones(len(ranks), np.bool_)
        stays[late] = False
        others = self._rows[stays[self._rows]]
        return np.insert(others, np.searchsorted(ranks[others], ranks[late]), late)
