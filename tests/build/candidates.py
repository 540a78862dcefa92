"""Toy candidates, asks and plugins for tests of the engine, without any kind."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lattice.engine.plugin import Profile, Rejections, Scope, Shortfall
from lattice.engine.table import Floats, Rows, Table

LEVELS = 9  # number of fill levels in Whim


@dataclass(frozen=True)
class Wanted:
    name: str
    amounts: tuple[tuple[str, int], ...]
    needs: tuple[tuple[int, int], ...]
    is_additive: bool = True

    @property
    def shape(self) -> Hashable:
        return self.amounts

    @property
    def fixed_shape(self) -> Hashable:
        return None


def wanted(table: Table, name: str = "w", **amounts: int) -> Wanted:
    return Wanted(
        name,
        tuple(sorted(amounts.items())),
        tuple((table.add_resource(item), amount) for item, amount in sorted(amounts.items())),
    )


def a_table(rooms: Mapping[str, int] | Sequence[int], seed: int = 0) -> Table:
    """Rows with the given amount of x each; `marked` is a column that tests may set."""
    table = Table(("x",), seed)
    table.add_column("marked", np.bool_)
    named = rooms if isinstance(rooms, Mapping) else {f"r{number}": room for number, room in enumerate(rooms)}
    for name, room in named.items():
        table.add(name, {"x": room})
    return table


@dataclass(frozen=True)
class Lacks:
    resource: str
    need: int
    plugin: ClassVar[str] = "Room"

    def summary(self) -> str:
        return f"without {self.need} {self.resource} free"

    def detail(self, table: Table, row: int) -> Shortfall:
        have = int(table.free(table.resource_index[self.resource])[row])
        return Shortfall(self.resource, str(self.need), str(have), str(self.need - have))


@dataclass(frozen=True)
class Plain:
    plugin: str
    words: str

    def summary(self) -> str:
        return self.words

    def detail(self, table: Table, row: int) -> Shortfall:
        return Shortfall(self.words)


class Room:
    name: ClassVar[str] = "Room"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: Any) -> bool:
        return bool(ask.needs)

    def filter(self, ask: Any, rows: Rows) -> Rejections:
        return {
            Lacks(name, amount): rows.free(rows.table.resource_index[name]) < amount
            for name, amount in ask.amounts
        }


class Unmarked:
    name: ClassVar[str] = "Unmarked"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: Any) -> bool:
        return True

    def filter(self, ask: Any, rows: Rows) -> Rejections:
        return {Plain("Unmarked", "marked"): rows.column("marked")}


class NotTheFullest:
    """A table-scoped filter that rejects the fullest row; it rejects nothing while nothing is allocated."""

    name: ClassVar[str] = "NotTheFullest"
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: Any) -> bool:
        return True

    def filter(self, ask: Any, rows: Rows) -> Rejections:
        shares = rows.share(0)
        return {Plain("NotTheFullest", "fullest of all"): shares == shares.max()} if shares.any() else {}


class Fullest:
    name: ClassVar[str] = "Fullest"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: Any) -> bool:
        return True

    def score(self, ask: Any, rows: Rows) -> Floats:
        values = rows.float_buffer()
        np.copyto(values, rows.share(0))
        return values


class Early:
    """A fixed score that prefers earlier names."""

    name: ClassVar[str] = "Early"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: Any) -> bool:
        return True

    def score(self, ask: Any, rows: Rows) -> Floats:
        order = rows.aggregate("names", lambda table: sorted(table.row_of))
        return np.array(
            [1 / (2 + order.index(name)) if name else 0 for name in rows.select_list(rows.table.names)],
            np.float32,
        )


class Lonely:
    """A table-scoped score."""

    name: ClassVar[str] = "Lonely"
    scope: ClassVar[Scope] = "table"

    def applies(self, ask: Any) -> bool:
        return True

    def score(self, ask: Any, rows: Rows) -> Floats:
        values = rows.float_buffer()
        return np.subtract(np.float32(1), rows.share(0), out=values)


@dataclass(frozen=True, eq=False)
class Whim:
    """A random score for each row and number of placements, neither rising nor falling as the row fills."""

    values: Mapping[str, Sequence[float]]
    unit: int
    name: ClassVar[str] = "Whim"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: Any) -> bool:
        return True

    def score(self, ask: Any, rows: Rows) -> Floats:
        lookup = rows.derived(
            self,
            lambda some: np.array(
                [self.values[name] for name in some.select_list(some.table.names)], np.float32
            ).reshape(-1, LEVELS),
        )
        level = np.minimum((rows.total(0) - rows.free(0)) // self.unit, LEVELS - 1)
        return np.take_along_axis(lookup, level[:, None].astype(np.intp), axis=1)[:, 0].copy()


def a_toy_profile(*filters: Any, **weights: Any) -> Profile:
    """Weights by the name of a score, or (score, weight) pairs."""
    known: dict[str, Any] = {"fullest": Fullest(), "early": Early(), "lonely": Lonely()}
    scores = tuple(
        value if isinstance(value, tuple) else (known[name], value) for name, value in weights.items()
    )
    return Profile("toy", filters, scores)
