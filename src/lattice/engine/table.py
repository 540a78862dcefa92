"""Candidates as columns: what each has, what is taken of it, and which rows changed since somebody looked."""

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
Integers = NDArray[np.int64]
Rowids = NDArray[np.intp]
Value = TypeVar("Value")

FIRST_CAPACITY = 64
FIRST_LINES = 8
EMPTY_LINE = 0  # the line of every resource that no row has and nobody takes
LINE_ARRAYS = ("_total", "_allocated", "_free", "_inverse", "_share")
FLOAT_BUFFER_COUNT = 12  # float buffers in rotation: a score needs a few at a time


class Rows(Protocol):
    """What a plugin sees: all rows of a table, or some of them, perhaps as they would be after more was placed there."""

    count: int

    @property
    def table(self) -> "Table": ...

    @property
    def extra_asks(self) -> Integers | int:
        """How many more of what is asked are taken to be there, besides what the table knows of."""
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

    def derived(self, key: Hashable, make: Callable[["Rows"], NDArray[Any]]) -> NDArray[Any]:
        """A column that follows from fixed columns, each row from its own: made once, and again for the rows where those change."""
        ...

    def aggregate(self, key: Hashable, make: Callable[["Table"], Value]) -> Value:
        """What follows from the fixed columns of all rows, the highest price, say. Cheap to make: that is done at each fixed change."""
        ...

    def select(self, column: NDArray[Any]) -> NDArray[Any]:
        """The values of these rows, of a column that somebody else keeps."""
        ...

    def select_list(self, listed: Sequence[Value]) -> Sequence[Value]:
        """The same for a list."""
        ...

    def float_buffer(self) -> Floats:
        """A buffer to compute in, with undefined content; reused soon after the plugin returns."""
        ...


class Table:
    """All candidates. Rows are appended, and reused after removal; a change touches only its row.

    `taken` counts exactly, in integers; shares for scoring are 32-bit floats derived from it, the same however they came about.
    """

    def __init__(self, resources: Sequence[str] = (), seed: int = 0) -> None:
        self.seed = seed
        self.resources: list[str] = []
        self.resource_index: dict[str, int] = {}
        self.names: list[str] = []
        self.row_of: dict[str, int] = {}
        self.count = 0
        self.is_in_tie_order = True  # rows stand in tie order, so that the first best one is the one to take
        self._order = TieOrder()
        self._changes = ChangeLog()
        self._fixed_changes = (
            ChangeLog()
        )  # a row came, went, or changed in a column that something is derived from
        self._free_rows: list[int] = []
        self._capacity = FIRST_CAPACITY
        self._line: list[int] = []  # of each resource, in the arrays below
        self._owner: list[int] = [EMPTY_LINE]  # of each line in use, its resource
        self._spare: list[int] = []
        self._total = np.zeros((FIRST_LINES, FIRST_CAPACITY), np.int64)
        self._allocated = np.zeros((FIRST_LINES, FIRST_CAPACITY), np.int64)
        self._free = np.zeros((FIRST_LINES, FIRST_CAPACITY), np.int64)
        self._inverse = np.zeros((FIRST_LINES, FIRST_CAPACITY), np.float32)
        self._share = np.zeros((FIRST_LINES, FIRST_CAPACITY), np.float32)
        self._columns: dict[str, NDArray[Any]] = {
            "alive": np.zeros(FIRST_CAPACITY, np.bool_),
            "rank": np.zeros(FIRST_CAPACITY, np.uint64),
        }
        self._fills: dict[str, Any] = {}
        self._memos: dict[Hashable, tuple[int, NDArray[Any]]] = {}
        self._derived = DerivedColumns()
        self._aggregates = Aggregates()
        self._buffers: list[Floats] = []
        self._next_buffer = 0
        self.shapes_seen_once: dict[Hashable, Any] = {}  # what decide() remembers: shapes seen once,
        self.shape_caches: dict[Hashable, Any] = {}  # the answers for shapes that came again,
        self.fixed_caches: dict[
            Hashable, Any
        ] = {}  # and of these the fixed part, which many shapes share; see decide.py
        for resource in resources:
            self.add_resource(resource)

    @property
    def table(self) -> "Table":
        return self

    def free(self, resource: int) -> Integers:
        return self._free[self._line[resource], : self.count]

    def total(self, resource: int) -> Integers:
        return self._total[self._line[resource], : self.count]

    def allocated(self, resource: int) -> Integers:
        return self._allocated[self._line[resource], : self.count]

    def share(self, resource: int) -> Floats:
        return self._share[self._line[resource], : self.count]

    def inverse(self, resource: int) -> Floats:
        return self._inverse[self._line[resource], : self.count]

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
        """Anything else that follows from fixed columns, made anew when one of them changes. Not for answers that are kept by row."""
        kept = self._memos.get(key)
        if kept is None or kept[0] != self.fixed_version:
            drop_oldest_half(self._memos, max_columns(self.count))
            kept = self._memos[key] = (self.fixed_version, make(self))
        return kept[1]

    def rows_by_rank(self) -> Rowids:
        """All rows in tie order."""
        return self._order.rows(self.column("rank"))

    def _are_ranks_sorted(self) -> bool:
        """Now that one left which stood out of order."""
        ranks = self.column("rank")
        return bool((ranks[1:] >= ranks[:-1]).all())

    def subset(self, rows: Sequence[int]) -> "RowSubset":
        return RowSubset(self, np.array(rows, np.intp))

    def float_buffer(self) -> Floats:
        if not self._buffers or len(self._buffers[0]) != self.count:
            self._buffers = [np.empty(self.count, np.float32) for _ in range(FLOAT_BUFFER_COUNT)]
        self._next_buffer = (self._next_buffer + 1) % FLOAT_BUFFER_COUNT
        return self._buffers[self._next_buffer]

    def add_resource(self, name: str) -> int:
        """The number of a resource, for ever; a new one is none anywhere until rows say otherwise, and takes no room until then."""
        if name in self.resource_index:
            return self.resource_index[name]
        self.resource_index[name] = len(self.resources)
        self.resources.append(name)
        self._line.append(EMPTY_LINE)
        return self.resource_index[name]

    def _line_of(self, resource: int) -> int:
        """Its line, to write to; those of resources that nobody has or takes any more are given to others."""
        if self._line[resource] != EMPTY_LINE:
            return self._line[resource]
        if not self._spare and len(self._owner) == len(self._total):
            self._reclaim_lines()
        if self._spare:
            line = self._spare.pop()
            self._owner[line] = resource
        else:
            self._owner.append(resource)
            line = len(self._owner) - 1
            if line == len(self._total):
                for kind in LINE_ARRAYS:
                    setattr(self, kind, np.pad(getattr(self, kind), ((0, line), (0, 0))))
        self._line[resource] = line
        return line

    def _reclaim_lines(self) -> None:
        for line in range(1, len(self._owner)):
            if not self._total[line].any() and not self._allocated[line].any():
                self._line[self._owner[line]] = EMPTY_LINE
                self._spare.append(line)

    def add_column(self, name: str, dtype: Any, fill: Any = 0) -> None:
        """`fill` is what rows have that nobody set it for, those that come later included."""
        if name not in self._columns:
            self._columns[name] = np.full(self._capacity, fill, dtype)
            self._fills[name] = fill

    def add(self, name: str, totals: Mapping[str, int]) -> int:
        """A new row; `totals` in whole units by resource."""
        if name in self.row_of:
            raise KeyError(name)
        row = self._free_rows.pop() if self._free_rows else self._append()
        self.names[row] = name
        self.row_of[name] = row
        self._columns["alive"][row] = True
        self._columns["rank"][row] = rank = tie_rank(self.seed, name)
        self._allocated[:, row] = 0
        self.is_in_tie_order = self.is_in_tie_order and self._stands_in_order(row, rank)
        self._order.add(row)
        self.resize(name, totals)
        return row

    def add_identical(self, names: Sequence[str], totals: Mapping[str, int]) -> list[int]:
        """As `add`, many at once that have the same."""
        if self._free_rows or len(names) == 1:
            return [self.add(name, totals) for name in names]
        first, count = self.count, len(names)
        rows = range(first, first + count)
        if known := [name for name, times in Counter(names).items() if times > 1 or name in self.row_of]:
            raise KeyError(known[0])
        while self._capacity < first + count:
            self._grow()
        self.count += count
        self.names += names
        self.row_of.update(zip(names, rows, strict=True))
        ranks = [tie_rank(self.seed, name) for name in names]
        self._columns["alive"][first : self.count] = True
        self._columns["rank"][first : self.count] = ranks
        before = [int(self._columns["rank"][first - 1])] if first else []
        self.is_in_tie_order = self.is_in_tie_order and all(
            one <= next_one for one, next_one in pairwise([*before, *ranks])
        )
        self._fill(slice(first, self.count), totals)
        for row in rows:
            self._order.add(row)
            self.touch_fixed(row)
        return list(rows)

    def _fill(self, rows: slice, totals: Mapping[str, int]) -> None:
        """Fresh rows: nothing is taken of them."""
        for resource, total in totals.items():
            number = self.add_resource(resource)
            if total:
                line = self._line_of(number)
                self._total[line, rows] = self._free[line, rows] = total
                self._inverse[line, rows] = 1.0 / total if total > 0 else 0.0

    def _stands_in_order(self, row: int, rank: int) -> bool:
        """Between its neighbours; one that left has the rank of the one before."""
        ranks = self._columns["rank"]
        return (row == 0 or ranks[row - 1] <= rank) and (row == self.count - 1 or rank <= ranks[row + 1])

    def _append(self) -> int:
        if self.count == self._capacity:
            self._grow()
        self.count += 1
        self.names.append("")
        return self.count - 1

    def _grow(self) -> None:
        extra = self._capacity
        self._capacity += extra
        for kind in LINE_ARRAYS:
            setattr(self, kind, np.pad(getattr(self, kind), ((0, 0), (0, extra))))
        for name, column in self._columns.items():
            self._columns[name] = np.concatenate(
                [column, np.full(extra, self._fills.get(name, 0), column.dtype)]
            )

    def remove(self, name: str) -> int:
        row = self.row_of.pop(name)
        self.names[row] = ""
        self._columns["alive"][row] = False
        for kind in (self._total, self._allocated, self._free, self._inverse, self._share):
            kind[:, row] = 0
        self._free_rows.append(row)
        self._columns["rank"][row] = (
            self._columns["rank"][row - 1] if row else 0
        )  # nobody chooses it: it may stand anywhere
        self._order.add(row)
        self.is_in_tie_order = self.is_in_tie_order or self._are_ranks_sorted()
        self.touch_fixed(row)
        return row

    def resize(self, name: str, totals: Mapping[str, int]) -> None:
        """Its capacity is now this; what is taken stays taken."""
        row = self.row_of[name]
        self._total[:, row] = 0
        self._inverse[:, row] = 0
        for resource, total in totals.items():
            number = self.add_resource(resource)
            if total:
                line = self._line_of(number)
                self._total[line, row] = total
                self._inverse[line, row] = 1.0 / total if total > 0 else 0.0
        self._settle(row)
        self.touch_fixed(row)

    def set(self, row: int, column: str, value: Any, *, fixed: bool = True) -> None:
        """fixed: something may have been derived from this column."""
        self._columns[column][row] = value
        if fixed:
            self.touch_fixed(row)
        else:
            self.touch(row)

    def allocate(self, row: int, needs: Iterable[tuple[int, int]]) -> None:
        """Place something there: (resource, amount) pairs. Amounts below zero give back."""
        taken, free, total, share, inverse = (
            self._allocated,
            self._free,
            self._total,
            self._share,
            self._inverse,
        )
        for resource, amount in needs:
            line = self._line[resource]
            if line == EMPTY_LINE:
                line = self._line_of(resource)
                taken, free, total, share, inverse = (
                    self._allocated,
                    self._free,
                    self._total,
                    self._share,
                    self._inverse,
                )
            used = int(taken[line, row]) + amount
            taken[line, row] = used
            free[line, row] = int(total[line, row]) - used
            share[line, row] = np.float32(used) * inverse[line, row]
        self.touch(row)

    def allocate_many(self, resource: int, rows: Sequence[int], amounts: Sequence[int]) -> None:
        """As `take` of one resource on each of these rows; a row may stand several times. Whoever takes touches them."""
        line = self._line_of(resource)
        np.add.at(self._allocated[line], rows, amounts)
        self._free[line, rows] = self._total[line, rows] - self._allocated[line, rows]
        self._share[line, rows] = as_floats(self._allocated[line, rows]) * self._inverse[line, rows]

    def _settle(self, row: int) -> None:
        np.subtract(self._total[:, row], self._allocated[:, row], out=self._free[:, row])
        self._share[:, row] = as_floats(self._allocated[:, row]) * self._inverse[:, row]

    @property
    def version(self) -> int:
        """Grows with every changed row."""
        return self._changes.version

    @property
    def fixed_version(self) -> int:
        """Grows when a row comes, goes, or changes in a fixed column."""
        return self._fixed_changes.version

    @property
    def aggregates_version(self) -> int:
        """Grows when something that holds for the table as a whole is no longer what it was: see `fact`."""
        return self._aggregates.version(self)

    def touch(self, row: int) -> None:
        self._changes.add(row)

    def touch_fixed(self, row: int) -> None:
        self._fixed_changes.add(row)
        self._changes.add(row)

    def changed_since(self, version: int) -> list[int] | None:
        """The rows that changed after `version`, each once; None: too long ago to say."""
        return self._changes.since(version)

    def fixed_since(self, version: int) -> list[int] | None:
        """Those of them that changed in a fixed column after `fixed_version` was this."""
        return self._fixed_changes.since(version)


def as_floats(amounts: Integers) -> Floats:
    """Rounded twice, as np.float32(int) does it: the same to the last bit beyond 2^53, too."""
    found: Floats = amounts.astype(np.float64).astype(np.float32)
    return found


class RowSubset:
    """Some rows of a table (a row may stand several times), with `more` asks that need so much there besides: what would be, if."""

    def __init__(
        self, table: Table, rows: Rowids, needs: Iterable[tuple[int, int]] = (), more: Integers | int = 0
    ) -> None:
        self.count = len(rows)
        self.rows = rows
        self.selection: Rowids | slice = (
            slice(int(rows[0]), int(rows[0]) + 1) if len(rows) == 1 else rows
        )  # a slice is looked up faster
        self.table = table
        self.extra_asks = more
        self._extra_amounts: dict[int, Integers | int] = {
            resource: amount * more for resource, amount in needs
        }
        self._shares: dict[int, Floats] = {}
        self._inverses: dict[int, Floats] = {}

    def free(self, resource: int) -> Integers:
        found = self.table.free(resource)[self.selection]
        return found - self._extra_amounts[resource] if resource in self._extra_amounts else found

    def total(self, resource: int) -> Integers:
        return self.table.total(resource)[self.selection]

    def share(self, resource: int) -> Floats:
        found = self._shares.get(resource)
        if found is None:
            found = self._shares[resource] = self._share(resource)
        return found

    def _share(self, resource: int) -> Floats:
        if resource not in self._extra_amounts:
            return self.table.share(resource)[self.selection]
        taken = self.table.allocated(resource)[self.selection] + self._extra_amounts[resource]
        shares: Floats = as_floats(taken) * self.inverse(resource)
        return shares

    def inverse(self, resource: int) -> Floats:
        found = self._inverses.get(resource)
        if found is None:
            found = self._inverses[resource] = self.table.inverse(resource)[self.selection]
        return found

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
