"""The two extension points, Filter and Score, and what they are asked."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, Protocol, get_args

import numpy as np

from lattice.engine.table import Flags, Floats, Rowids, Rows, Table

# What an answer for a row depends on: fixed columns of that row alone; also what is taken there; the other things in its topology
# domain too; or anything in the table.
Scope = Literal["fixed", "row", "domain", "table"]


class Ask(Protocol):
    """Something to place. Equal shapes get equal answers: `shape` holds everything that plugins look at."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> Hashable: ...

    @property
    def fixed_shape(self) -> Hashable:
        """Everything that plugins with fixed answers look at, which many shapes may share. The shape itself is always right."""
        ...

    @property
    def needs(self) -> tuple[tuple[int, int], ...]:
        """(resource, amount) for everything asked for, in the table's numbers; amounts above zero."""
        ...

    @property
    def is_additive(self) -> bool:
        """Does placing it change its row in nothing but these amounts? Else equal asks cannot be looked at together."""
        ...


class Reason(Protocol):
    """Why a row is ruled out. A value: equal reasons are the same reason. Its words are made when somebody asks."""

    @property
    def plugin(self) -> str: ...

    def summary(self) -> str:
        """After a count: 7 *without 2 gpu free*."""
        ...

    def detail(self, table: Table, row: int) -> "Shortfall":
        """For one row, in numbers and units where there are any."""
        ...


class BulkReason(Reason, Protocol):
    """A reason that can be told of many rows at once, for less than of one after the other."""

    def details(self, table: Table, rows: Rowids) -> "Sequence[Shortfall]":
        """What `detail` says of each of them; if they are very many, it may name fewer examples."""
        ...


class Shortfall(NamedTuple):
    """Need, have, missing, as people read them. A tuple: thousands are made for one explanation."""

    what: str
    need: str = ""
    have: str = ""
    missing: str = ""

    def __str__(self) -> str:
        """What is no amount, and missing as a whole, is not said twice."""
        if not self.need:
            return self.what
        missing = (
            f", missing {self.missing}"
            if self.missing and (self.missing != self.need or self.have == "0")
            else ""
        )
        return f"{self.what}: need {self.need}, have {self.have}{missing}"


Rejections = Mapping[
    Reason, Flags
]  # reason -> which rows; for one ask always the same reasons, whichever rows are looked at


class Filter(Protocol):
    name: ClassVar[str]
    scope: ClassVar[Scope]

    def applies(self, ask: Ask) -> bool:
        """Could it rule out anything for this ask? False: it is not called."""
        ...

    def filter(self, ask: Ask, rows: Rows) -> Rejections: ...


class Score(Protocol):
    name: ClassVar[str]
    scope: ClassVar[Scope]

    def applies(self, ask: Ask) -> bool: ...

    def score(self, ask: Ask, rows: Rows) -> Floats:
        """0 worst to 1 best, one per row. Only + - * / and comparisons, so that a row's score never depends on its neighbours."""
        ...


class DomainScores(Protocol):
    """What a score gives by domain: the same to every row of it. Counts along while more of the ask are taken to be placed."""

    codes: Rowids  # of each row, its domain; -1: it is in none

    def value(self, code: int) -> np.float32:
        """What rows of this domain get, weights apart, bit for bit what the score gives them."""
        ...

    def values(self) -> Floats:
        """That of every domain, and last of those in none."""
        ...

    def place(self, code: int) -> Iterable[int] | None:
        """One more is there: which domains may get another value now, its own among them? None: all of them."""
        ...


class DomainScorePlugin(Score, Protocol):
    """A wide score that is one value for all rows of a domain, so that equal asks can be looked at together."""

    def domain_scores(self, ask: Ask, table: Table) -> DomainScores: ...


WeightedScores = Sequence[tuple[Score, np.float32]]
Reach = Literal[
    "fixed", "moving", "wide"
]  # when an answer is looked for again: never, when the row changes, always
REACH_BY_SCOPE: Mapping[Scope, Reach] = {"fixed": "fixed", "row": "moving", "domain": "wide", "table": "wide"}


@dataclass(frozen=True)
class Profile:
    """Which plugins, with what weights. Compared by identity: make one and keep it."""

    name: str
    filters: tuple[Filter, ...]
    scores: tuple[tuple[Score, float], ...]

    @cached_property
    def filters_by_reach(self) -> Mapping[Reach, Sequence[Filter]]:
        return {
            reach: [each for each in self.filters if REACH_BY_SCOPE[each.scope] == reach]
            for reach in get_args(Reach)
        }

    @cached_property
    def scores_by_reach(self) -> Mapping[Reach, WeightedScores]:
        """A score may be the sum of `parts`, of which some look at each row alone and others further: what can be kept by row is."""
        weighted = [
            (part, np.float32(weight))
            for each, weight in self.scores
            if weight
            for part in getattr(each, "parts", (each,))
        ]
        return {
            reach: [pair for pair in weighted if REACH_BY_SCOPE[pair[0].scope] == reach]
            for reach in get_args(Reach)
        }

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other
