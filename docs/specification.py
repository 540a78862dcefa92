"""A specification, demand by demand: where each is met, which test proves it, and a slip of the hand that the test must notice."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Mutation(NamedTuple):
    file: str  # below src/lattice
    old: str  # stands there exactly once
    new: str


class Row(NamedTuple):
    item: str
    where: str  # module:symbol, below lattice
    test: str  # below tests
    mutation: tuple[str, str, str]

    @property
    def module(self) -> str:
        return f"lattice.{self.where.partition(':')[0]}"

    @property
    def symbol(self) -> str:
        return self.where.partition(":")[2]

    @property
    def test_id(self) -> str:
        return f"tests/{self.test}"

    @property
    def slip(self) -> Mutation:
        return Mutation(*self.mutation)


class Later(NamedTuple):
    """A demand that is not met yet, and what there is instead."""

    item: str
    instead: str


class Section(NamedTuple):
    title: str
    rows: tuple[Row, ...]
    later: tuple[Later, ...] = ()

    @property
    def items(self) -> list[str]:
        return [each.item for each in (*self.rows, *self.later)]


@dataclass(frozen=True)
class Specification:
    number: str
    title: str
    sections: tuple[Section, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for section in self.sections for row in section.rows)

    @property
    def test_ids(self) -> list[str]:
        return sorted({row.test_id for row in self.rows})

    def ids(self, rows: Iterable[Row]) -> list[str]:
        """Section and demand, for whoever reads the output of the tests."""
        titles = {id(row): section.title for section in self.sections for row in section.rows}
        return [f"{titles[id(row)]} - {row.item}" for row in rows]
