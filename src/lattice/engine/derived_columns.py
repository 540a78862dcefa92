"""Columns and aggregates derived from fixed columns (columns that placements never change, see `Table.set`),
cached and updated where a fixed column changes."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value")
# Limit of changes in a log. A reader that needs older changes evaluates all rows again.
MAX_LOGGED_CHANGES = 1 << 16
# Limit of cached derived columns, and of cached aggregates.
MAX_CACHED_COLUMNS = 4096
# Limit of the cells of all derived columns together.
MAX_CACHED_CELLS = 1 << 25
MIN_CACHED_COLUMNS = 64


class SelectedRows(Protocol):
    """A subset of the rows of a table."""

    @property
    def selection(self) -> NDArray[np.intp] | slice:
        """The index of the rows in a column of the table."""
        ...


TableT = TypeVar("TableT")
TableT_co = TypeVar("TableT_co", covariant=True)
SubsetT = TypeVar("SubsetT", bound=SelectedRows)
SubsetT_co = TypeVar("SubsetT_co", bound=SelectedRows, covariant=True)


class DerivableTable(Protocol[TableT_co, SubsetT_co]):
    """What derived columns and aggregates read of a table: its rows, all or a subset, and the log of the
    changes in fixed columns."""

    @property
    def count(self) -> int: ...

    @property
    def table(self) -> TableT_co:
        """The table, as passed to the functions that compute columns."""
        ...

    def subset(self, rows: Sequence[int]) -> SubsetT_co: ...

    @property
    def fixed_version(self) -> int:
        """Grows when a row is added, removed, or changes in a fixed column."""
        ...

    def fixed_since(self, version: int) -> list[int] | None:
        """Return the rows that changed in a fixed column after `version`, an earlier `fixed_version`; None if
        the log no longer holds all changes after that version."""
        ...


class ChangeLog:
    """Changed rows in the order of their changes."""

    __slots__ = ("_rows", "_start", "version")

    def __init__(self) -> None:
        self.version = 0
        self._rows: list[int] = []
        self._start = 0

    def add(self, row: int) -> None:
        self._rows.append(row)
        self.version += 1
        if len(self._rows) > MAX_LOGGED_CHANGES:
            # Half of the log is dropped at once, so that dropping stays rare.
            drop = MAX_LOGGED_CHANGES // 2
            del self._rows[:drop]
            self._start += drop

    def since(self, version: int) -> list[int] | None:
        """Return the rows that changed after `version`, without repeats; None if the log no longer holds all
        changes after that version."""
        if version < self._start:
            return None
        return list(dict.fromkeys(self._rows[version - self._start :]))


def pad_rows(values: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the values extended with zeros to `count` rows."""
    if len(values) >= count:
        return values
    return np.concatenate([values, np.zeros((count - len(values), *values.shape[1:]), values.dtype)])


class DerivedColumn:
    """A column computed from fixed columns of the same row."""

    __slots__ = ("_values", "_version")

    def __init__(self) -> None:
        self._version = -1
        self._values: NDArray[Any] = np.empty(0)

    def refresh(
        self,
        table: DerivableTable[TableT, SubsetT],
        make: Callable[[TableT | SubsetT], NDArray[Any]],
    ) -> NDArray[Any]:
        """Return the current values; only changed rows are computed again, unless more than a quarter of the
        rows changed."""
        if self._version != table.fixed_version:
            changed = table.fixed_since(self._version)
            if changed is None or len(changed) * 4 > table.count:
                self._values = make(table.table)
            else:
                subset = table.subset(changed)
                self._values = pad_rows(self._values, table.count)
                self._values[subset.selection] = make(subset)
            self._version = table.fixed_version
        return self._values


class DerivedColumns:
    """The derived columns in use, oldest first, limited in number by `max_columns`."""

    def __init__(self) -> None:
        self._columns: dict[Hashable, DerivedColumn] = {}

    def column(
        self,
        table: DerivableTable[TableT, SubsetT],
        key: Hashable,
        make: Callable[[TableT | SubsetT], NDArray[Any]],
    ) -> NDArray[Any]:
        column = self._columns.get(key)
        if column is None:
            drop_oldest_half(self._columns, max_columns(table.count))
            column = self._columns[key] = DerivedColumn()
        return column.refresh(table, make)

    def __len__(self) -> int:
        return len(self._columns)


def max_columns(count: int) -> int:
    """Return how many cached columns of `count` rows are allowed."""
    return min(MAX_CACHED_COLUMNS, max(MIN_CACHED_COLUMNS, MAX_CACHED_CELLS // max(1, count)))


def drop_oldest_half(cache: dict[Any, Any], most: int) -> None:
    """Drop the older half of the cache if the cache holds `most` entries or more."""
    if len(cache) >= most:
        for key in list(cache)[: len(cache) - most // 2]:
            del cache[key]


class Aggregates:
    """Values computed from all rows of the table, such as the highest price, with a version that grows when a
    value changes."""

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[Any, Callable[[Any], Any]]] = {}
        self._seen_version = -1
        self._version = 0

    def version(self, table: DerivableTable[Any, SelectedRows]) -> int:
        """Grows when an aggregate in use changes."""
        if self._seen_version != table.fixed_version:
            self._seen_version = table.fixed_version
            for key, (value, make) in list(self._values.items()):
                now = make(table.table)
                if now != value:
                    self._values[key] = (now, make)
                    self._version += 1
        return self._version

    def get(
        self,
        table: DerivableTable[TableT, SelectedRows],
        key: Hashable,
        make: Callable[[TableT], Value],
    ) -> Value:
        """Return the aggregate of the key, computed by `make` on first use."""
        self.version(table)
        entry = self._values.get(key)
        if entry is None:
            if len(self._values) >= MAX_CACHED_COLUMNS:
                # `version` no longer notices when a dropped aggregate changes. The version grows here
                # instead, so that answers that used a dropped aggregate are computed again.
                self._values.clear()
                self._version += 1
            entry = self._values[key] = (make(table.table), make)
        value: Value = entry[0]
        return value
