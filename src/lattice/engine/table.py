"""Candidates as columns: what each has, what is taken of it, and which rows changed since somebody looked."""

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Rowids = NDArray[np.intp]

FIRST_CAPACITY = 64
LOG_LIMIT = 1 << 16  # changed rows remembered; who looked longer ago looks at everything again
BUFFERS = 12  # float buffers in rotation: a score needs a few at a time


class Rows(Protocol):
    """What a plugin sees: all rows of a table, or some of them, perhaps as they would be after more was placed there."""

    count: int

    @property
    def table(self) -> "Table":
        """All of them, for what is fixed and not of a row: which taints there are, say."""
        ...

    def free(self, resource: int) -> Integers:
        """What is left, exactly; below zero where more is taken than there is."""
        ...

    def total(self, resource: int) -> Integers: ...

    def share(self, resource: int) -> Floats:
        """Taken ÷ total; 0 where there is none of it."""
        ...

    def inverse(self, resource: int) -> Floats:
        """1 ÷ total; 0 where there is none of it."""
        ...

    def column(self, name: str) -> NDArray[Any]:
        """A column that the owner of the table keeps."""
        ...

    def memo(self, key: Hashable, make: Callable[["Table"], NDArray[Any]]) -> NDArray[Any]:
        """A column derived from fixed columns only, made once for all rows and kept until one of those changes."""
        ...

    def floats(self) -> Floats:
        """A buffer to compute in, with undefined content; reused soon after the plugin returns."""
        ...


class Table:
    """All candidates. Rows are appended, and reused after removal; a change touches only its row.

    `taken` counts exactly, in integers; shares for scoring are 32-bit floats derived from it, the same however they came about.
    """

    def __init__(self, resources: Sequence[str] = (), seed: int = 0) -> None:
        self.seed = seed
        self.resources: list[str] = []
        self.index: dict[str, int] = {}
        self.names: list[str] = []
        self.row_of: dict[str, int] = {}
        self.count = 0
        self.fixed_version = 0  # grows when a row comes, goes, or changes in a column that memos are made from
        self.version = 0  # grows with every changed row
        self.in_order = True  # rows stand in tie order, so that the first best one is the one to take
        self._log: list[int] = []
        self._log_start = 0
        self._holes: list[int] = []
        self._capacity = FIRST_CAPACITY
        self._total = np.zeros((0, FIRST_CAPACITY), np.int64)
        self._taken = np.zeros((0, FIRST_CAPACITY), np.int64)
        self._free = np.zeros((0, FIRST_CAPACITY), np.int64)
        self._inverse = np.zeros((0, FIRST_CAPACITY), np.float32)
        self._share = np.zeros((0, FIRST_CAPACITY), np.float32)
        self._columns: dict[str, NDArray[Any]] = {
            "alive": np.zeros(FIRST_CAPACITY, np.bool_),
            "rank": np.zeros(FIRST_CAPACITY, np.uint64),
        }
        self._memos: dict[Hashable, tuple[int, NDArray[Any]]] = {}
        self._buffers: list[Floats] = []
        self._next_buffer = 0
        self.bases: dict[Hashable, Any] = {}  # and of fixed answers, which many shapes share
        self.states: dict[Hashable, Any] = {}  # what decide() remembers of shapes it has seen; see decide.py
        for resource in resources:
            self.add_resource(resource)

    # --- what plugins read ---

    @property
    def table(self) -> "Table":
        return self

    def free(self, resource: int) -> Integers:
        return self._free[resource, : self.count]

    def total(self, resource: int) -> Integers:
        return self._total[resource, : self.count]

    def taken(self, resource: int) -> Integers:
        return self._taken[resource, : self.count]

    def share(self, resource: int) -> Floats:
        return self._share[resource, : self.count]

    def inverse(self, resource: int) -> Floats:
        return self._inverse[resource, : self.count]

    def column(self, name: str) -> NDArray[Any]:
        return self._columns[name][: self.count]

    def memo(self, key: Hashable, make: Callable[["Table"], NDArray[Any]]) -> NDArray[Any]:
        kept = self._memos.get(key)
        if kept is None or kept[0] != self.fixed_version:
            if len(self._memos) > 4096:
                self._memos.clear()
            kept = self._memos[key] = (self.fixed_version, make(self))
        return kept[1]

    def floats(self) -> Floats:
        if not self._buffers or len(self._buffers[0]) != self.count:
            self._buffers = [np.empty(self.count, np.float32) for _ in range(BUFFERS)]
        self._next_buffer = (self._next_buffer + 1) % BUFFERS
        return self._buffers[self._next_buffer]

    # --- what its owner changes ---

    def add_resource(self, name: str) -> int:
        """The index of a resource; a new one is none anywhere until rows say otherwise."""
        if name in self.index:
            return self.index[name]
        self.index[name] = len(self.resources)
        self.resources.append(name)
        for kind, dtype in (
            ("_total", np.int64),
            ("_taken", np.int64),
            ("_free", np.int64),
            ("_inverse", np.float32),
            ("_share", np.float32),
        ):
            setattr(self, kind, np.vstack([getattr(self, kind), np.zeros((1, self._capacity), dtype)]))
        return self.index[name]

    def add_column(self, name: str, dtype: Any, fill: Any = 0) -> None:
        if name not in self._columns:
            self._columns[name] = np.full(self._capacity, fill, dtype)

    def add(self, name: str, totals: Mapping[str, int]) -> int:
        """A new row; `totals` in whole units by resource."""
        if name in self.row_of:
            raise KeyError(name)
        for resource in totals:
            self.add_resource(resource)
        row = self._holes.pop() if self._holes else self._append()
        self.names[row] = name
        self.row_of[name] = row
        self._columns["alive"][row] = True
        self._columns["rank"][row] = rank = tie_rank(self.seed, name)
        self._taken[:, row] = 0
        if self.in_order and not (row == 0 or (row == self.count - 1 and self._columns["rank"][row - 1] <= rank)):
            self.in_order = False
        self.resize(name, totals)
        return row

    def _append(self) -> int:
        if self.count == self._capacity:
            self._grow()
        self.count += 1
        self.names.append("")
        return self.count - 1

    def _grow(self) -> None:
        extra = self._capacity
        self._capacity += extra
        for kind in ("_total", "_taken", "_free", "_inverse", "_share"):
            setattr(self, kind, np.pad(getattr(self, kind), ((0, 0), (0, extra))))
        self._columns = {name: np.concatenate([column, np.zeros(extra, column.dtype)]) for name, column in self._columns.items()}

    def remove(self, name: str) -> int:
        row = self.row_of.pop(name)
        self.names[row] = ""
        self._columns["alive"][row] = False
        for kind in (self._total, self._taken, self._free, self._inverse, self._share):
            kind[:, row] = 0
        self._holes.append(row)
        self.in_order = False
        self.touch_fixed(row)
        return row

    def resize(self, name: str, totals: Mapping[str, int]) -> None:
        """Its capacity is now this; what is taken stays taken."""
        row = self.row_of[name]
        for resource in totals:
            self.add_resource(resource)
        for resource, number in self.index.items():
            self._total[number, row] = total = totals.get(resource, 0)
            self._inverse[number, row] = 1.0 / total if total > 0 else 0.0
        self._settle(row)
        self.touch_fixed(row)

    def set(self, row: int, column: str, value: Any, *, fixed: bool = True) -> None:
        """fixed: memos may have been made from this column."""
        self._columns[column][row] = value
        if fixed:
            self.touch_fixed(row)
        else:
            self.touch(row)

    def take(self, row: int, needs: Iterable[tuple[int, int]]) -> None:
        """Place something there: (resource, amount) pairs. Amounts below zero give back."""
        taken, free, total, share, inverse = self._taken, self._free, self._total, self._share, self._inverse
        for resource, amount in needs:
            used = int(taken[resource, row]) + amount
            taken[resource, row] = used
            free[resource, row] = int(total[resource, row]) - used
            share[resource, row] = np.float32(used) * inverse[resource, row]
        self.touch(row)

    def _settle(self, row: int) -> None:
        np.subtract(self._total[:, row], self._taken[:, row], out=self._free[:, row])
        self._share[:, row] = self._taken[:, row].astype(np.float32) * self._inverse[:, row]

    def touch(self, row: int) -> None:
        self._log.append(row)
        self.version += 1
        if len(self._log) > LOG_LIMIT:
            drop = LOG_LIMIT // 2
            del self._log[:drop]
            self._log_start += drop

    def touch_fixed(self, row: int) -> None:
        self.fixed_version += 1
        self.touch(row)

    def changed_since(self, version: int) -> list[int] | None:
        """The rows that changed after `version`, each once; None: too long ago to say."""
        if version < self._log_start:
            return None
        return list(dict.fromkeys(self._log[version - self._log_start :]))

    def alive_rows(self) -> Rowids:
        return np.flatnonzero(self.column("alive"))


def tie_rank(seed: int, name: str) -> int:
    """Where a name stands among equals: a fixed order that has nothing to do with how rows came to be where they are."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, key=seed.to_bytes(8, "little", signed=True)).digest(), "little")


class Some:
    """Some rows of a table (a row may stand several times), with `more[resource]` taken there besides: what would be, if."""

    def __init__(self, table: Table, rows: Rowids, more: Mapping[int, Integers] | None = None) -> None:
        self.count = len(rows)
        self.rows = rows
        self.table = table
        self._more = more or {}
        self._shares: dict[int, Floats] = {}
        self._inverses: dict[int, Floats] = {}

    def free(self, resource: int) -> Integers:
        found = self.table.free(resource)[self.rows]
        return found - self._more[resource] if resource in self._more else found

    def total(self, resource: int) -> Integers:
        return self.table.total(resource)[self.rows]

    def share(self, resource: int) -> Floats:
        found = self._shares.get(resource)
        if found is None:
            found = self._shares[resource] = self._share(resource)
        return found

    def _share(self, resource: int) -> Floats:
        if resource not in self._more:
            return self.table.share(resource)[self.rows]
        taken = self.table.taken(resource)[self.rows] + self._more[resource]
        shares: Floats = taken.astype(np.float32) * self.inverse(resource)
        return shares

    def inverse(self, resource: int) -> Floats:
        found = self._inverses.get(resource)
        if found is None:
            found = self._inverses[resource] = self.table.inverse(resource)[self.rows]
        return found

    def column(self, name: str) -> NDArray[Any]:
        return self.table.column(name)[self.rows]

    def memo(self, key: Hashable, make: Callable[[Table], NDArray[Any]]) -> NDArray[Any]:
        return self.table.memo(key, make)[self.rows]

    def floats(self) -> Floats:
        return np.empty(self.count, np.float32)
