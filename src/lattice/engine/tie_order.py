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
        self._late: dict[int, None] = {}  # rows that were named since

    def name(self, row: int) -> None:
        self._late[row] = None

    def rows(self, ranks: Ranks) -> Rowids:
        """All of them, best rank first."""
        if not self._late:
            return self._rows
        if len(self._late) * 8 > len(ranks):
            self._rows = np.argsort(ranks, kind="stable")
        else:
            self._rows = self._with_late(ranks)
        self._late.clear()
        return self._rows

    def _with_late(self, ranks: Ranks) -> Rowids:
        late = np.array(list(self._late), np.intp)
        late = late[np.argsort(ranks[late], kind="stable")]
        stays = np.ones(len(ranks), np.bool_)
        stays[late] = False
        others = self._rows[stays[self._rows]]
        return np.insert(others, np.searchsorted(ranks[others], ranks[late]), late)
