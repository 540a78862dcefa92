"""The extension points Filter and Score, and the protocols of asks and rejection reasons."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, Protocol, get_args

import numpy as np

from lattice.engine.table import Doubles, Flags, Floats, Rowids, Rows, Table

# What the answer of a plugin for a row depends on: "fixed" on fixed columns of the row; "row" also on the
# resources allocated on the row; "domain" also on the placements in the topology domain of the row; "table"
# on the whole table.
Scope = Literal["fixed", "row", "domain", "table"]


class Ask(Protocol):
    """The resolved needs of one replica or workload in a decision. `shape` holds every property that plugins
    read: asks of equal shape get equal answers."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> Hashable: ...

    @property
    def fixed_shape(self) -> Hashable:
        """Every property that plugins of scope "fixed" read; many shapes may have the same value. An
        implementation may always return the shape itself, but then fewer asks share a cache entry."""
        ...

    @property
    def needs(self) -> tuple[tuple[int, int], ...]:
        """(resource, amount) pairs of the request, with the resource numbers of the table; amounts are above
        zero."""
        ...

    @property
    def is_additive(self) -> bool:
        """Whether placing the ask changes nothing on its row but the amounts in `needs`; asks that are not
        additive cannot be decided in batches."""
        ...


class Reason(Protocol):
    """The reason of a rejection. Reasons compare by value: equal reasons are one reason, and their rows are
    counted together. The text is rendered on demand."""

    @property
    def plugin(self) -> str: ...

    def summary(self) -> str:
        """The text that follows a count: 7 *without 2 gpu free*."""
        ...

    def detail(self, table: Table, row: int) -> "Shortfall":
        """The shortfall of one row, in numbers and units where the reason has amounts."""
        ...


class BulkReason(Reason, Protocol):
    """A reason that renders the details of many rows at once, faster than row by row."""

    def details(self, table: Table, rows: Rowids) -> "Sequence[Shortfall]":
        """The result of `detail` for every row. If the rows lie in very many topology domains, the shortfalls
        may state the counts of the domains without their names."""
        ...


class Shortfall(NamedTuple):
    """Need, have and missing amounts as users read them. A tuple, because one explanation holds thousands of
    shortfalls."""

    what: str
    need: str = ""
    have: str = ""
    missing: str = ""

    def __str__(self) -> str:
        """The text with need, have and missing amount. The missing amount is omitted if it equals the need,
        unless `have` is "0"."""
        if not self.need:
            return self.what
        missing = (
            f", missing {self.missing}"
            if self.missing and (self.missing != self.need or self.have == "0")
            else ""
        )
        return f"{self.what}: need {self.need}, have {self.have}{missing}"


# Reason -> rejected rows. For one ask and one state of the table, every subset of rows gives the same set of
# reasons; a mask may be all False.
Rejections = Mapping[Reason, Flags]


class Filter(Protocol):
    """A plugin that rejects rows, with a reason."""

    name: ClassVar[str]
    scope: ClassVar[Scope]

    def applies(self, ask: Ask) -> bool:
        """Whether the filter can reject a row for the ask; if False, the engine does not call the filter."""
        ...

    def filter(self, ask: Ask, rows: Rows) -> Rejections: ...


class Score(Protocol):
    """A plugin that rates rows."""

    name: ClassVar[str]
    scope: ClassVar[Scope]

    def applies(self, ask: Ask) -> bool: ...

    def score(self, ask: Ask, rows: Rows) -> Floats:
        """Scores from 0 (worst) to 1 (best), one per row.

        Implementations use only + - * / and comparisons, row by row: another function of numpy, such as exp,
        may round a value differently at another position of the array, and the score of a row must not depend
        on the other rows.
        """
        ...


class NormalizedScore(Score, Protocol):
    """A score of wide reach that is relative to the candidates: the rows that no filter rejects. The engine
    calls `normalized` instead of `score`."""

    def normalized(self, ask: Ask, table: Table, candidates: Flags) -> Doubles:
        """Scores from 0 to 1, one per row; the values of other rows than candidates do not matter.

        Scores are doubles: between a very large and two nearly equal amounts, 32 bits could not tell the two
        apart.
        """
        ...


class DomainScores(Protocol):
    """A score by topology domain, equal for all rows of a domain. Placements are counted while a batch is
    decided."""

    # The domain of each row; -1 for a row in no domain.
    codes: Rowids

    def value(self, code: int) -> np.float32:
        """The unweighted score of the domain's rows, bit for bit equal to the result of the plugin."""
        ...

    def values(self) -> Floats:
        """The scores of all domains by code, followed by the score of rows in no domain."""
        ...

    def place(self, code: int) -> Iterable[int] | None:
        """Count one more placement in the domain, and return the domains whose score may change, the domain
        itself included; None: every domain."""
        ...


class DomainScorePlugin(Score, Protocol):
    """A score of wide reach with one value per domain. Equal asks can be decided in batches with such a
    score."""

    def domain_scores(self, ask: Ask, table: Table) -> DomainScores: ...


WeightedScores = Sequence[tuple[Score, np.float32]]
# When the engine evaluates an answer of a plugin again. fixed: when a fixed column of the row changes; row:
# when the row changes; wide: for every decision.
Reach = Literal["fixed", "row", "wide"]
REACH_BY_SCOPE: Mapping[Scope, Reach] = {"fixed": "fixed", "row": "row", "domain": "wide", "table": "wide"}


@dataclass(frozen=True)
class Profile:
    """Plugins with their weights. Profiles compare by identity and are keys of caches, so build a profile
    once and reuse it."""

    name: str
    filters: tuple[Filter, ...]
    scores: tuple[tuple[Score, float], ...]

    @cached_property
    def filters_by_reach(self) -> Mapping[Reach, Sequence[Filter]]:
        return {
            reach: [plugin for plugin in self.filters if REACH_BY_SCOPE[plugin.scope] == reach]
            for reach in get_args(Reach)
        }

    @cached_property
    def scores_by_reach(self) -> Mapping[Reach, WeightedScores]:
        """Scores by reach. A score with `parts` counts as its parts, so that the engine caches the parts that
        depend on a row alone."""
        weighted = []
        for score, weight in self.scores:
            if weight:
                weighted += [(part, np.float32(weight)) for part in getattr(score, "parts", (score,))]
        return {
            reach: [pair for pair in weighted if REACH_BY_SCOPE[pair[0].scope] == reach]
            for reach in get_args(Reach)
        }

    __hash__ = object.__hash__

    def __eq__(self, value: object) -> bool:
        return self is value
