"""Tables of candidates in columns: capacity, allocation, further columns, and a log of changed rows."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from lattice.engine.derived_columns import (
    Aggregates,
    ChangeLog,
    DerivedColumns,
    drop_oldest_half,
    max_columns,
)
from lattice.engine.tie_order import TieOrder, tie_rank

Flags = NDArray[np.bool_]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Rowids = NDArray[np.intp]
Value = TypeVar("Value")

FIRST_CAPACITY = 64
FIRST_LINES = 8
# Amounts are stored as arrays [line, row]: one line per resource, one row per candidate. Line 0 is all zero;
# the resources without capacity and allocation share it.
EMPTY_LINE = 0
LINE_ARRAYS = ("_total", "_allocated", "_free", "_inverse", "_share")
# Buffers are handed out in rotation. A score uses only a few at a time, so none is reused while the score
# runs.
FLOAT_BUFFER_COUNT = 12


class Rows(Protocol):
    """The rows that a plugin evaluates: all rows of a table or a subset, perhaps as they would be after
    further placements."""

    count: int

    @property
    def table(self) -> "Table": ...

    @property
    def extra_asks(self) -> Integers | int:
        """Hypothetical placements of the ask on each row, in addition to the allocations of the table."""
        ...

    def free(self, resource: int) -> Integers:
        """Free amount, exact; below zero on an overcommitted row."""
        ...

    def total(self, resource: int) -> Integers: ...

    def share(self, resource: int) -> Floats:
        """Allocated ÷ total; 0 where the row has none of the resource."""
        ...

    def inverse(self, resource: int) -> Floats:
        """1 ÷ total; 0 where the row has none of the resource."""
        ...

    def column(self, name: str) -> NDArray[Any]:
        """A column that the owner of the table maintains."""
        ...

    def derived(self, key: Hashable, make: Callable[["Rows"], NDArray[Any]]) -> NDArray[Any]:
        """A column computed from fixed columns of the same row (see `Table.set`); cached, and computed again
        only for changed rows."""
        ...

    def aggregate(self, key: Hashable, make: Callable[["Table"], Value]) -> Value:
        """A value computed from the fixed columns of all rows, such as the highest price. `make` runs
        whenever a fixed column changes, and must be cheap."""
        ...

    def select(self, column: NDArray[Any]) -> NDArray[Any]:
        """The values of these rows, from a column with one value per row of the table."""
        ...

    def select_list(self, listed: Sequence[Value]) -> Sequence[Value]:
        """The values of these rows, from a list with one value per row of the table."""
        ...

    def float_buffer(self) -> Floats:
        """A buffer with undefined content for intermediate results; reused soon after the plugin returns."""
        ...


class Table:
    """All candidates, one per row. A new candidate takes the row of a removed candidate, or a row at the end;
    a change of a candidate changes only its row.

    Allocations are exact integers; shares for scoring are 32-bit floats derived from the integers, so the
    order of allocations does not change them.
    """

    def __init__(self, resources: Sequence[str] = (), seed: int = 0) -> None:
        self.seed = seed
        self.resources: list[str] = []
        self.resource_index: dict[str, int] = {}
        self.names: list[str] = []
        self.row_of: dict[str, int] = {}
        self.count = 0
        # True while the rows are sorted by rank. Rank breaks ties, so the first row with the best total is
        # then the choice.
        self.is_in_tie_order = True
        self._tie_order = TieOrder()
        self._changes = ChangeLog()
        # Rows that were added, removed or resized, or that changed in a fixed column (see `set`).
        self._fixed_changes = ChangeLog()
        self._free_rows: list[int] = []
        self._capacity = FIRST_CAPACITY
        # The line of each resource in the arrays [line, row] below.
        self._line_by_resource: list[int] = []
        self._resource_by_line: list[int] = [EMPTY_LINE]
        self._free_lines: list[int] = []
        self._total = np.zeros((FIRST_LINES, FIRST_CAPACITY), np.int64)
        self._allocated = np.zeros((FIRST_LINES, FIRST_CAPACITY), np.int64)
        self._free = np.zeros((FIRST_LINES, FIRST_CAPACITY), np.int64)
        self._inverse = np.zeros((FIRST_LINES, FIRST_CAPACITY), np.float32)
        self._share = np.zeros((FIRST_LINES, FIRST_CAPACITY), np.float32)
        self._columns: dict[str, NDArray[Any]] = {
            "alive": np.zeros(FIRST_CAPACITY, np.bool_),
            "rank": np.zeros(FIRST_CAPACITY, np.uint64),
        }
        self._fill_values: dict[str, Any] = {}
        self._memos: dict[Hashable, tuple[int, NDArray[Any]]] = {}
        self._derived = DerivedColumns()
        self._aggregates = Aggregates()
        self._buffers: list[Floats] = []
        self._next_buffer = 0
        # Caches of decide.py, by the shape of asks (see `Ask.shape`): the plugins for a shape that was
        # decided once; the answers for a shape that was decided more often; and the answers of plugins of
        # scope "fixed", which many shapes share.
        self.shapes_seen_once: dict[Hashable, Any] = {}
        self.shape_caches: dict[Hashable, Any] = {}
        self.fixed_caches: dict[Hashable, Any] = {}
        for resource in resources:
            self.add_resource(resource)

    @property
    def table(self) -> "Table":
        return self

    def free(self, resource: int) -> Integers:
        return self._free[self._line_by_resource[resource], : self.count]

    def total(self, resource: int) -> Integers:
        return self._total[self._line_by_resource[resource], : self.count]

    def allocated(self, resource: int) -> Integers:
        return self._allocated[self._line_by_resource[resource], : self.count]

    def share(self, resource: int) -> Floats:
        return self._share[self._line_by_resource[resource], : self.count]

    def inverse(self, resource: int) -> Floats:
        return self._inverse[self._line_by_resource[resource], : self.count]

    def column(self, name: str) -> NDArray[Any]:
        return self._columns[name][: self.count]

    @property
    def extra_asks(self) -> int:
        return 0

    def select(self, column: NDArray[Any]) -> NDArray[Any]:
        return column[: self.count]

    def select_list(self, listed: Sequence[Value]) -> Sequence[Value]:
        return listed

    def derived(self, key: Hashable, make: Callable[[Rows], NDArray[Any]]) -> NDArray[Any]:
        return self._derived.column(self, key, make)

    def aggregate(self, key: Hashable, make: Callable[["Table"], Value]) -> Value:
        return self._aggregates.get(self, key, make)

    def memo(self, key: Hashable, make: Callable[["Table"], NDArray[Any]]) -> NDArray[Any]:
        """Return an array computed from fixed columns, computed again when a fixed column changes.

        Plugins whose answers are cached row by row must not call `memo`: the engine does not evaluate a row
        again when the array changes.
        """
        entry = self._memos.get(key)
        if entry is None or entry[0] != self.fixed_version:
            drop_oldest_half(self._memos, max_columns(self.count))
            entry = self._memos[key] = (self.fixed_version, make(self))
        return entry[1]

    def rows_by_rank(self) -> Rowids:
        """Return all rows in tie order."""
        return self._tie_order.rows(self.column("rank"))

    def subset(self, rows: Sequence[int]) -> "RowSubset":
        return RowSubset(self, np.array(rows, np.intp))

    def float_buffer(self) -> Floats:
        # Buffers have the length of the table: a new row makes them useless.
        if not self._buffers or len(self._buffers[0]) != self.count:
            self._buffers = [np.empty(self.count, np.float32) for _ in range(FLOAT_BUFFER_COUNT)]
        self._next_buffer = (self._next_buffer + 1) % FLOAT_BUFFER_COUNT
        return self._buffers[self._next_buffer]

    def add_resource(self, name: str) -> int:
        """Add the resource if it is new, and return its number, which never changes.

        A new resource is zero on every row, and takes no memory until a row has some of the resource.
        """
        if name in self.resource_index:
            return self.resource_index[name]
        self.resource_index[name] = len(self.resources)
        self.resources.append(name)
        self._line_by_resource.append(EMPTY_LINE)
        return self.resource_index[name]

    def _line_of(self, resource: int) -> int:
        """Return the line of the resource for writing. When the arrays are full, lines of resources without
        capacity and allocation are given to other resources."""
        if self._line_by_resource[resource] != EMPTY_LINE:
            return self._line_by_resource[resource]
        # Lines are reclaimed only when the arrays are full: the search reads every line.
        if not self._free_lines and len(self._resource_by_line) == len(self._total):
            for line in range(1, len(self._resource_by_line)):
                if not self._total[line].any() and not self._allocated[line].any():
                    self._line_by_resource[self._resource_by_line[line]] = EMPTY_LINE
                    self._free_lines.append(line)
        if self._free_lines:
            line = self._free_lines.pop()
            self._resource_by_line[line] = resource
        else:
            self._resource_by_line.append(resource)
            line = len(self._resource_by_line) - 1
            if line == len(self._total):
                for array in LINE_ARRAYS:
                    setattr(self, array, np.pad(getattr(self, array), ((0, line), (0, 0))))
        self._line_by_resource[resource] = line
        return line

    def add_column(self, name: str, dtype: Any, fill: Any = 0) -> None:
        """Add a column; `fill` is the value of every row until set, also of rows appended later.

        A row that a new candidate reuses keeps the values of the removed candidate until they are set.
        """
        if name not in self._columns:
            self._columns[name] = np.full(self._capacity, fill, dtype)
            self._fill_values[name] = fill

    def has_column(self, name: str) -> bool:
        return name in self._columns

    def rank_of(self, name: str) -> int:
        """The rank that breaks ties, 64 bits; the lowest wins."""
        return tie_rank(self.seed, name)

    def add(self, name: str, totals: Mapping[str, int]) -> int:
        """Add a row; `totals` holds the capacity in base units by resource."""
        if name in self.row_of:
            raise KeyError(name)
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            if self.count == self._capacity:
                self._grow()
            row = self.count
            self.count += 1
            self.names.append("")
        self.names[row] = name
        self.row_of[name] = row
        self._columns["alive"][row] = True
        self._columns["rank"][row] = rank = self.rank_of(name)
        self._allocated[:, row] = 0
        # A removed row has the rank of the row before it, so it is enough to compare the new rank with the
        # neighbours.
        ranks = self._columns["rank"]
        self.is_in_tie_order = (
            self.is_in_tie_order
            and (row == 0 or ranks[row - 1] <= rank)
            and (row == self.count - 1 or rank <= ranks[row + 1])
        )
        self._tie_order.add(row)
        self.resize(name, totals)
        return row

    def add_identical(self, names: Sequence[str], totals: Mapping[str, int]) -> list[int]:
        """Add many rows of equal capacity at once, as `add` does."""
        if self._free_rows or len(names) == 1:
            return [self.add(name, totals) for name in names]
        first, count = self.count, len(names)
        rows = range(first, first + count)
        if duplicates := [name for name, times in Counter(names).items() if times > 1 or name in self.row_of]:
            raise KeyError(duplicates[0])
        while self._capacity < first + count:
            self._grow()
        self.count += count
        self.names += names
        self.row_of.update(zip(names, rows, strict=True))
        ranks = [self.rank_of(name) for name in names]
        self._columns["alive"][first : self.count] = True
        self._columns["rank"][first : self.count] = ranks
        previous_rank = [int(self._columns["rank"][first - 1])] if first else []
        self.is_in_tie_order = self.is_in_tie_order and all(
            rank <= next_rank for rank, next_rank in pairwise([*previous_rank, *ranks])
        )
        for resource, total in totals.items():
            number = self.add_resource(resource)
            if total:
                line = self._line_of(number)
                self._total[line, first : self.count] = self._free[line, first : self.count] = total
                self._inverse[line, first : self.count] = 1.0 / total if total > 0 else 0.0
        for row in rows:
            self._tie_order.add(row)
            self.touch_fixed(row)
        return list(rows)

    def _grow(self) -> None:
        # The capacity doubles, so that appending a row has a constant cost on average.
        extra = self._capacity
        self._capacity += extra
        for array in LINE_ARRAYS:
            setattr(self, array, np.pad(getattr(self, array), ((0, 0), (0, extra))))
        for name, column in self._columns.items():
            self._columns[name] = np.concatenate(
                [column, np.full(extra, self._fill_values.get(name, 0), column.dtype)]
            )

    def remove(self, name: str) -> int:
        """Remove the candidate and return its row, which a later `add` reuses."""
        row = self.row_of.pop(name)
        self.names[row] = ""
        self._columns["alive"][row] = False
        for array in (self._total, self._allocated, self._free, self._inverse, self._share):
            array[:, row] = 0
        self._free_rows.append(row)
        # No decision picks a removed row; the rank of the row above keeps the ranks sorted.
        self._columns["rank"][row] = self._columns["rank"][row - 1] if row else 0
        self._tie_order.add(row)
        # The removed row may have been the only row out of order.
        if not self.is_in_tie_order:
            ranks = self.column("rank")
            self.is_in_tie_order = bool((ranks[1:] >= ranks[:-1]).all())
        self.touch_fixed(row)
        return row

    def resize(self, name: str, totals: Mapping[str, int]) -> None:
        """Set the capacity of the row; allocations stay."""
        row = self.row_of[name]
        self._total[:, row] = 0
        self._inverse[:, row] = 0
        for resource, total in totals.items():
            number = self.add_resource(resource)
            if total:
                line = self._line_of(number)
                self._total[line, row] = total
                self._inverse[line, row] = 1.0 / total if total > 0 else 0.0
        np.subtract(self._total[:, row], self._allocated[:, row], out=self._free[:, row])
        self._share[:, row] = as_floats(self._allocated[:, row]) * self._inverse[:, row]
        self.touch_fixed(row)

    def set(self, row: int, column: str, value: Any, *, fixed: bool = True) -> None:
        """Set a value of a column. `fixed` is True for a fixed column: placements never change it, so other
        values may be derived from it and cached."""
        self._columns[column][row] = value
        if fixed:
            self.touch_fixed(row)
        else:
            self.touch(row)

    def allocate(self, row: int, needs: Iterable[tuple[int, int]]) -> None:
        """Allocate (resource, amount) pairs on the row; negative amounts release."""
        allocated, free, total, share, inverse = (
            self._allocated,
            self._free,
            self._total,
            self._share,
            self._inverse,
        )
        for resource, amount in needs:
            line = self._line_by_resource[resource]
            if line == EMPTY_LINE:
                line = self._line_of(resource)
                # The arrays may have been replaced by larger arrays.
                allocated, free, total, share, inverse = (
                    self._allocated,
                    self._free,
                    self._total,
                    self._share,
                    self._inverse,
                )
            used = int(allocated[line, row]) + amount
            allocated[line, row] = used
            free[line, row] = int(total[line, row]) - used
            share[line, row] = np.float32(used) * inverse[line, row]
        self.touch(row)

    def allocate_many(self, resource: int, rows: Sequence[int], amounts: Sequence[int]) -> None:
        """Allocate one resource on many rows at once; a row may occur several times. The caller must call
        `touch` on the rows."""
        line = self._line_of(resource)
        np.add.at(self._allocated[line], rows, amounts)
        self._free[line, rows] = self._total[line, rows] - self._allocated[line, rows]
        self._share[line, rows] = as_floats(self._allocated[line, rows]) * self._inverse[line, rows]

    @property
    def version(self) -> int:
        """Grows with every changed row."""
        return self._changes.version

    @property
    def fixed_version(self) -> int:
        """Grows when a row is added, removed, or changes in a fixed column."""
        return self._fixed_changes.version

    @property
    def aggregates_version(self) -> int:
        """Grows when an aggregate of the table changes: see `aggregate`."""
        return self._aggregates.version(self)

    def touch(self, row: int) -> None:
        self._changes.add(row)

    def touch_fixed(self, row: int) -> None:
        self._fixed_changes.add(row)
        self._changes.add(row)

    def changed_since(self, version: int) -> list[int] | None:
        """Return the rows that changed after `version`, without repeats; None if the log no longer holds all
        changes after that version."""
        return self._changes.since(version)

    def fixed_since(self, version: int) -> list[int] | None:
        """Return the rows that changed in a fixed column after `version`, an earlier `fixed_version`; None if
        the log no longer holds all changes after that version."""
        return self._fixed_changes.since(version)


def as_floats(amounts: Integers) -> Floats:
    """Round to 64-bit floats and then to 32-bit floats, as np.float32(int) does: an array and a single
    integer give the same bits, also beyond 2^53."""
    converted: Floats = amounts.astype(np.float64).astype(np.float32)
    return converted


class RowSubset:
    """A subset of the rows of a table, with `extra_asks` hypothetical placements of `needs` on each row; a
    row may occur several times."""

    def __init__(
        self,
        table: Table,
        rows: Rowids,
        needs: Iterable[tuple[int, int]] = (),
        extra_asks: Integers | int = 0,
    ) -> None:
        self.count = len(rows)
        self.rows = rows
        # A slice is faster than an index array.
        self.selection: Rowids | slice = slice(int(rows[0]), int(rows[0]) + 1) if len(rows) == 1 else rows
        self.table = table
        self.extra_asks = extra_asks
        self._extra_amounts: dict[int, Integers | int] = {
            resource: amount * extra_asks for resource, amount in needs
        }
        self._shares: dict[int, Floats] = {}
        self._inverses: dict[int, Floats] = {}

    def free(self, resource: int) -> Integers:
        free = self.table.free(resource)[self.selection]
        return free - self._extra_amounts[resource] if resource in self._extra_amounts else free

    def total(self, resource: int) -> Integers:
        return self.table.total(resource)[self.selection]

    def share(self, resource: int) -> Floats:
        share = self._shares.get(resource)
        if share is None:
            share = self._shares[resource] = self._share(resource)
        return share

    def _share(self, resource: int) -> Floats:
        if resource not in self._extra_amounts:
            return self.table.share(resource)[self.selection]
        allocated = self.table.allocated(resource)[self.selection] + self._extra_amounts[resource]
        shares: Floats = as_floats(allocated) * self.inverse(resource)
        return shares

    def inverse(self, resource: int) -> Floats:
        inverse = self._inverses.get(resource)
        if inverse is None:
            inverse = self._inverses[resource] = self.table.inverse(resource)[self.selection]
        return inverse

    def column(self, name: str) -> NDArray[Any]:
        return self.table.column(name)[self.selection]

    def select(self, column: NDArray[Any]) -> NDArray[Any]:
        return column[self.selection]

    def select_list(self, listed: Sequence[Value]) -> Sequence[Value]:
        return [listed[row] for row in self.rows.tolist()]

    def derived(self, key: Hashable, make: Callable[[Rows], NDArray[Any]]) -> NDArray[Any]:
        return self.table.derived(key, make)[self.selection]

    def aggregate(self, key: Hashable, make: Callable[[Table], Value]) -> Value:
        return self.table.aggregate(key, make)

    def float_buffer(self) -> Floats:
        return np.empty(self.count, np.float32)
