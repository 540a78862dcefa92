"""One demand of the specification: where it is met, which test proves it, and a slip of the hand that the test must notice."""

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


class Section(NamedTuple):
    title: str
    rows: tuple[Row, ...]
