"""A specification by demand: the code that meets a demand, the test that proves it, and a mutation that the
test must detect."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple


class Mutation(NamedTuple):
    # Below src/lattice.
    file: str
    # Occurs exactly once in the file.
    old: str
    new: str


class Row(NamedTuple):
    item: str
    # module:symbol, below lattice.
    where: str
    # Below tests.
    test: str
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
    """A demand that is not met yet, and the present alternative."""

    item: str
    instead: str


class Section(NamedTuple):
    title: str
    rows: tuple[Row, ...]
    later: tuple[Later, ...] = ()

    @property
    def items(self) -> list[str]:
        return [entry.item for entry in (*self.rows, *self.later)]


@dataclass(frozen=True)
class Specification:
    number: str
    title: str
    sections: tuple[Section, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(chain.from_iterable(section.rows for section in self.sections))

    @property
    def test_ids(self) -> list[str]:
        return sorted({row.test_id for row in self.rows})

    def ids(self, rows: Iterable[Row]) -> list[str]:
        """Section and demand of the rows, for the output of the tests."""
        titles: dict[int, str] = {}
        for section in self.sections:
            titles |= {id(row): section.title for row in section.rows}
        return [f"{titles[id(row)]} - {row.item}" for row in rows]
