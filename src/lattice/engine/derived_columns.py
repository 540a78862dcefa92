"""What follows from fixed columns: by row, kept up to date where they changed; and for the table as a whole."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from lattice.engine.table import Rows, Table

Value = TypeVar("Value")
MAX_CHANGES_KEPT = 1 << 16  # who looked longer ago looks at everything again
MAX_COLUMNS_KEPT = 4096  # columns, and whole-table facts
MAX_CELLS_KEPT = 1 << 25  # in all columns together
MIN_COLUMNS_KEPT = 64


class ChangeLog:
    """Rows in the order in which they changed."""

    __slots__ = ("_rows", "_start", "version")

    def __init__(self) -> None:
        self.version = 0
        self._rows: list[int] = []
        self._start = 0

    def add(self, row: int) -> None:
        self._rows.append(row)
        self.version += 1
        if len(self._rows) > MAX_CHANGES_KEPT:
            drop = MAX_CHANGES_KEPT // 2
            del self._rows[:drop]
            self._start += drop

    def since(self, version: int) -> list[int] | None:
        """The rows that changed after `version`, each once; None: too long ago to say."""
        if version < self._start:
            return None
        return list(dict.fromkeys(self._rows[version - self._start :]))


def pad_rows(values: NDArray[Any], count: int) -> NDArray[Any]:
    """As many rows as that; new ones are zero."""
    if len(values) >= count:
        return values
    return np.concatenate([values, np.zeros((count - len(values), *values.shape[1:]), values.dtype)])


class DerivedColumn:
    """One column that is made from fixed columns, each row from its own."""

    __slots__ = ("_values", "_version")

    def __init__(self) -> None:
        self._version = -1
        self._values: NDArray[Any] = np.empty(0)

    def refresh(self, table: "Table", make: "Callable[[Rows], NDArray[Any]]") -> NDArray[Any]:
        if self._version != table.fixed_version:
            changed = table.fixed_since(self._version)
            if changed is None or len(changed) * 4 > table.count:
                self._values = make(table)
            else:
                some = table.subset(changed)
                self._values = pad_rows(self._values, table.count)
                self._values[some.selection] = make(some)
            self._version = table.fixed_version
        return self._values


class DerivedColumns:
    """Those in use, most recently made last; as many as there is room for."""

    def __init__(self) -> None:
        self._columns: dict[Hashable, DerivedColumn] = {}

    def column(self, table: "Table", key: Hashable, make: "Callable[[Rows], NDArray[Any]]") -> NDArray[Any]:
        kept = self._columns.get(key)
        if kept is None:
            drop_oldest_half(self._columns, max_columns(table.count))
            kept = self._columns[key] = DerivedColumn()
        return kept.refresh(table, make)

    def __len__(self) -> int:
        return len(self._columns)


def max_columns(count: int) -> int:
    """How many columns over so many rows may be kept."""
    return min(MAX_COLUMNS_KEPT, max(MIN_COLUMNS_KEPT, MAX_CELLS_KEPT // max(1, count)))


def drop_oldest_half(kept: dict[Any, Any], most: int) -> None:
    """Make room for one more: if there is none, the older half goes."""
    if len(kept) >= most:
        for key in list(kept)[: len(kept) - most // 2]:
            del kept[key]


class Aggregates:
    """What holds for the table as a whole, and when that last turned out different."""

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[Any, Callable[[Any], Any]]] = {}
        self._seen_version = -1
        self._version = 0

    def version(self, table: "Table") -> int:
        """Grows when anything that was asked for is no longer what it was."""
        if self._seen_version != table.fixed_version:
            self._seen_version = table.fixed_version
            for key, (value, make) in list(self._values.items()):
                now = make(table)
                if now != value:
                    self._values[key] = (now, make)
                    self._version += 1
        return self._version

    def get(self, table: "Table", key: Hashable, make: "Callable[[Table], Value]") -> Value:
        self.version(table)
        kept = self._values.get(key)
        if kept is None:
            if len(self._values) >= MAX_COLUMNS_KEPT:
                self._values.clear()
                self._version += 1
            kept = self._values[key] = (make(table), make)
        value: Value = kept[0]
        return value
