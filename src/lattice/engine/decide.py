"""`decide`: choose the best candidate for an ask, with the runner-up and the reasons that reject the other
candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from lattice.engine.derived_columns import drop_oldest_half, max_columns, pad_rows
from lattice.engine.plugin import (
    Ask,
    DomainScorePlugin,
    Filter,
    NormalizedScore,
    Profile,
    Reason,
    Shortfall,
    WeightedScores,
)
from lattice.engine.table import Doubles, Flags, Floats, Rows, Table

NO_ROW = -1
# Approximate size of one cache entry with its reasons, as a number of table columns.
COLUMNS_PER_FIXED_CACHE = 16
COLUMNS_PER_SHAPE_CACHE = 4
REJECTED_TOTAL = np.float32(-np.inf)
# Doubles with normalised scores, which are relative to the candidates; otherwise floats of 32 bits.
Totals = Floats | Doubles
# Limit of shapes that were decided only once. A shape gets a cache entry at its second decision; until then
# only its plugins are remembered.
MAX_SHAPES_SEEN_ONCE = 4096


class FrozenExplanation(NamedTuple):
    """The rendered explanation of a decision, independent of later changes of the table."""

    # The chosen candidate.
    name: str
    alive: Flags
    # Shortfalls by candidate name.
    rejected: Mapping[str, Sequence[Shortfall]]
    # The best candidates, as RankedCandidate of explain.py.
    ranked: Sequence[Any]


@dataclass(slots=True)
class Decision:
    """The decision for one ask, valid until the table changes.

    To use a decision longer, take a `copy`, which keeps totals and reasons, or `freeze` it (explain.py),
    which also keeps the explanation.
    """

    ask: Ask
    table: Table
    profile: Profile
    chosen: int
    runner_up: int
    # Sums of weighted scores; -inf for a rejected row.
    totals: Totals
    reasons: dict[Reason, Flags]
    # Set by `freeze`; if None, the explanation is rendered on demand from the present table.
    explanation: "FrozenExplanation | None" = None

    @property
    def fits(self) -> bool:
        return self.chosen != NO_ROW

    @property
    def name(self) -> str:
        if self.explanation:
            return self.explanation.name
        return self.table.names[self.chosen] if self.fits else ""

    @property
    def alive(self) -> Flags:
        """Rows that hold a candidate."""
        return self.explanation.alive if self.explanation else self.table.column("alive")

    def copy(self) -> "Decision":
        """Copy totals and reasons. Explanations of the copy are rendered later, from the table as it is
        then."""
        reasons = {reason: mask.copy() for reason, mask in self.reasons.items()}
        return Decision(
            self.ask, self.table, self.profile, self.chosen, self.runner_up, self.totals.copy(), reasons
        )


class ActivePlugins:
    """The plugins of a profile that apply to a shape, grouped by `Reach`, which tells when the engine
    evaluates a plugin again."""

    __slots__ = (
        "ask",
        "domain_score",
        "normalized_scores",
        "profile",
        "row_filters",
        "row_scores",
        "wide_filters",
        "wide_scores",
    )

    def __init__(self, ask: Ask, profile: Profile) -> None:
        self.ask, self.profile = ask, profile
        filters, scores = profile.filters_by_reach, profile.scores_by_reach
        self.row_filters: Sequence[Filter] = [plugin for plugin in filters["row"] if plugin.applies(ask)]
        self.row_scores: WeightedScores = [pair for pair in scores["row"] if pair[0].applies(ask)]
        self.wide_filters: Sequence[Filter] = [plugin for plugin in filters["wide"] if plugin.applies(ask)]
        self.wide_scores: WeightedScores = [pair for pair in scores["wide"] if pair[0].applies(ask)]
        # Scores relative to the candidates follow all other scores, when the candidates are known.
        self.normalized_scores = [
            (cast("NormalizedScore", score), weight)
            for score, weight in self.wide_scores
            if hasattr(score, "normalized")
        ]
        self.wide_scores = [pair for pair in self.wide_scores if not hasattr(pair[0], "normalized")]
        is_single = len(self.wide_scores) == 1 and hasattr(self.wide_scores[0][0], "domain_scores")
        # Set only if a single wide score applies and has one value per domain.
        self.domain_score = (
            cast("tuple[DomainScorePlugin, np.float32]", self.wide_scores[0]) if is_single else None
        )

    @property
    def fixed_filters(self) -> Sequence[Filter]:
        return [plugin for plugin in self.profile.filters_by_reach["fixed"] if plugin.applies(self.ask)]

    @property
    def fixed_scores(self) -> WeightedScores:
        return [pair for pair in self.profile.scores_by_reach["fixed"] if pair[0].applies(self.ask)]

    @property
    def max_total(self) -> float:
        """An upper bound of every total: scores are at most 1."""
        return float(
            sum(
                abs(weight)
                for _, weight in (
                    *self.fixed_scores,
                    *self.row_scores,
                    *self.wide_scores,
                    *self.normalized_scores,
                )
            )
        )


class FixedCache:
    """Cached totals and reasons of plugins of scope "fixed"; totals are -inf for rejected rows. Asks of equal
    fixed shape share one entry."""

    __slots__ = ("aggregates_version", "full_evaluations", "reasons", "totals", "version")

    def __init__(self) -> None:
        self.version = self.aggregates_version = -1
        # Counts evaluations of all rows, so that a ShapeCache notices that its copy of the reasons is stale.
        self.full_evaluations = 0
        self.totals: Floats = np.empty(0, np.float32)
        self.reasons: dict[Reason, Flags] = {}

    def refresh(self, ask: Ask, table: Table, plugins: ActivePlugins) -> None:
        if self.version == table.fixed_version:
            return
        # Beyond a quarter of all rows a full evaluation is cheaper than an update row by row.
        changed = (
            table.fixed_since(self.version) if self.aggregates_version == table.aggregates_version else None
        )
        if (
            changed is None
            or len(changed) * 4 > table.count
            or not self._update_rows(ask, table, plugins, changed)
        ):
            self.totals, self.reasons = self._evaluate_fixed(ask, table, plugins)
            self.full_evaluations += 1
        self.version, self.aggregates_version = table.fixed_version, table.aggregates_version

    def _evaluate_fixed(
        self, ask: Ask, rows: Rows, plugins: ActivePlugins
    ) -> tuple[Floats, dict[Reason, Flags]]:
        totals, reasons = evaluate(ask, rows, plugins.fixed_filters, plugins.fixed_scores)
        np.copyto(totals, REJECTED_TOTAL, where=~rows.column("alive"))
        return totals, reasons

    def _update_rows(self, ask: Ask, table: Table, plugins: ActivePlugins, changed: list[int]) -> bool:
        """Evaluate only the changed rows. Return False if the reasons differ from the cached reasons; then
        every row must be evaluated."""
        subset = table.subset(changed)
        totals, reasons = self._evaluate_fixed(ask, subset, plugins)
        if reasons.keys() != self.reasons.keys():
            return False
        if len(self.totals) < table.count:
            self.totals, self.reasons = _grow_to(table.count, self.totals, self.reasons)
        self.totals[subset.selection] = totals
        for reason, mask in reasons.items():
            self.reasons[reason][subset.selection] = mask
        return True


def _grow_to(
    count: int, totals: Floats, reasons: Mapping[Reason, Flags]
) -> tuple[Floats, dict[Reason, Flags]]:
    return pad_rows(totals, count), {reason: pad_rows(mask, count) for reason, mask in reasons.items()}


class ShapeCache:
    """Cached answers of the plugins of reach "row" for one shape, updated row by row.

    Every computation of a total sums the scores of row plugins first, and then adds the total of the fixed
    plugins: another order could round to another float.
    """

    __slots__ = (
        "_aggregates_version",
        "_fixed_evaluations",
        "_row_reasons",
        "fixed",
        "plugins",
        "reasons",
        "totals",
        "version",
    )

    def __init__(self, plugins: ActivePlugins) -> None:
        self.plugins = plugins
        self.version = self._aggregates_version = self._fixed_evaluations = -1
        self.totals: Floats = np.empty(0, np.float32)
        self.fixed = FixedCache()
        self._row_reasons: dict[Reason, Flags] = {}
        self.reasons: dict[Reason, Flags] = {}

    def refresh(self, ask: Ask, table: Table) -> None:
        if self.version == table.version:
            return
        fixed, aggregates_version = self.fixed, table.aggregates_version
        if fixed.version != table.fixed_version:
            # Return the current cache entry for the fixed shape of the ask; the oldest entries are dropped
            # when the caches are full.
            key = (self.plugins.profile, ask.fixed_shape)
            cache: FixedCache | None = table.fixed_caches.get(key)
            if cache is None:
                drop_oldest_half(table.fixed_caches, max_columns(table.count) // COLUMNS_PER_FIXED_CACHE)
                cache = table.fixed_caches[key] = FixedCache()
            cache.refresh(ask, table, self.plugins)
            fixed = cache
        # Evaluating only the changed rows is enough while no aggregate changes and `reasons` holds the masks
        # that the fixed cache updates. The fixed cache makes new masks when it evaluates all rows.
        is_incremental = (
            fixed is self.fixed
            and fixed.full_evaluations == self._fixed_evaluations
            and aggregates_version == self._aggregates_version
        )
        self.fixed, changed = fixed, table.changed_since(self.version) if is_incremental else None
        if changed is None or len(changed) * 4 > table.count or not self._update_rows(ask, table, changed):
            self.totals, self._row_reasons = evaluate(
                ask, table, self.plugins.row_filters, self.plugins.row_scores
            )
            self.totals += self.fixed.totals
            self.reasons = {**self.fixed.reasons, **self._row_reasons}
        self.version, self._fixed_evaluations, self._aggregates_version = (
            table.version,
            fixed.full_evaluations,
            aggregates_version,
        )

    def _update_rows(self, ask: Ask, table: Table, changed: list[int]) -> bool:
        """Evaluate only the changed rows. Return False if the reasons differ from the cached reasons."""
        subset = table.subset(changed)
        totals, reasons = evaluate(ask, subset, self.plugins.row_filters, self.plugins.row_scores)
        if reasons.keys() != self._row_reasons.keys():
            return False
        if len(self.totals) < table.count:
            self.totals, self._row_reasons = _grow_to(table.count, self.totals, self._row_reasons)
            self.reasons = {**self.fixed.reasons, **self._row_reasons}
        totals += self.fixed.totals[subset.selection]
        self.totals[subset.selection] = totals
        for reason, mask in reasons.items():
            self._row_reasons[reason][subset.selection] = mask
        return True


def evaluate(
    ask: Ask, rows: Rows, filters: Sequence[Filter], scores: WeightedScores
) -> tuple[Floats, dict[Reason, Flags]]:
    """Return totals (-inf for rejected rows) and rejection reasons of the plugins."""
    reasons = collect_rejections(ask, rows, filters)
    return weighted_totals(ask, rows, scores, reasons), reasons


def collect_rejections(ask: Ask, rows: Rows, filters: Sequence[Filter]) -> dict[Reason, Flags]:
    """Return the rejected rows by reason."""
    reasons: dict[Reason, Flags] = {}
    for plugin in filters:
        reasons.update(plugin.filter(ask, rows))
    return reasons


def weighted_totals(ask: Ask, rows: Rows, scores: WeightedScores, reasons: Mapping[Reason, Flags]) -> Floats:
    """Return the weighted sum of the scores per row; -inf for rows that a reason rejects."""
    totals: Floats | None = None
    for score, weight in scores:
        values = score.score(ask, rows)
        values = np.multiply(values, weight, out=values)
        if totals is None:
            # Scores return one of the rotating buffers, which later scores overwrite.
            totals = values.copy()
        else:
            totals += values
    if totals is None:
        totals = np.zeros(rows.count, np.float32)
    if reasons:
        np.copyto(totals, REJECTED_TOTAL, where=_any_mask(list(reasons.values())))
    return totals


def _any_mask(masks: list[Flags]) -> Flags:
    if len(masks) == 1:
        return masks[0]
    merged = np.logical_or(masks[0], masks[1])
    for mask in masks[2:]:
        merged |= mask
    return merged


def _shape_cache_of(ask: Ask, table: Table, profile: Profile) -> ShapeCache:
    """Return the cache entry of the ask's shape; for a shape decided for the first time, an entry that is not
    kept."""
    key = (profile, ask.shape)
    cache: ShapeCache | None = table.shape_caches.get(key)
    if cache is not None:
        return cache
    # A cache entry is kept from the second decision of a shape on: many shapes occur once.
    plugins: ActivePlugins | None = table.shapes_seen_once.pop(key, None)
    if plugins is None:
        drop_oldest_half(table.shapes_seen_once, MAX_SHAPES_SEEN_ONCE)
        plugins = table.shapes_seen_once[key] = ActivePlugins(ask, profile)
        return ShapeCache(plugins)
    drop_oldest_half(table.shape_caches, max_columns(table.count) // COLUMNS_PER_SHAPE_CACHE)
    cache = table.shape_caches[key] = ShapeCache(plugins)
    return cache


def decide(ask: Ask, table: Table, profile: Profile) -> Decision:
    """Filter all candidates, score the feasible candidates and choose the best; ties follow the tie order of
    the table."""
    cache = _shape_cache_of(ask, table, profile)
    cache.refresh(ask, table)
    plugins, reasons = cache.plugins, cache.reasons
    totals: Totals = cache.totals
    wide_reasons = collect_rejections(ask, table, plugins.wide_filters)
    if plugins.domain_score and not wide_reasons:
        score, weight = plugins.domain_score
        domain_scores = score.domain_scores(ask, table)
        # Equal to the weighted totals below, with fewer multiplications. Mode "wrap" maps code -1, a row in
        # no domain, to the last value, which is the score of such rows.
        wide = (domain_scores.values() * weight).take(domain_scores.codes, mode="wrap")
        totals = np.add(wide, totals, out=wide)
    elif plugins.wide_scores:
        wide = weighted_totals(ask, table, plugins.wide_scores, wide_reasons)
        totals = np.add(wide, totals, out=wide)
    elif wide_reasons:
        totals = totals.copy()
        np.copyto(totals, REJECTED_TOTAL, where=_any_mask(list(wide_reasons.values())))
    if plugins.normalized_scores:
        candidates: Flags = totals > REJECTED_TOTAL
        totals = totals.astype(np.float64)
        for normalized, weight in plugins.normalized_scores:
            totals += normalized.normalized(ask, table, candidates) * weight
    reasons = {**reasons, **wide_reasons} if wide_reasons else reasons
    chosen, runner_up = best_two(table, totals)
    return Decision(ask, table, profile, chosen, runner_up, totals, reasons)


def best_two(table: Table, totals: Totals) -> tuple[int, int]:
    """Return the rows with the highest and the second highest total; among equal totals the tie order
    decides."""
    if not len(totals):
        return NO_ROW, NO_ROW
    # If rows are in tie order, the first maximum in row order is also the first in tie order.
    if table.is_in_tie_order:
        return _first_two(totals)
    order = table.rows_by_rank()
    buffer = table.float_buffer() if totals.dtype == np.float32 else None
    # Mode "clip" is the fastest, and no index is out of bounds.
    first, second = _first_two(np.take(totals, order, mode="clip", out=buffer))
    return (int(order[first]) if first != NO_ROW else NO_ROW), (
        int(order[second]) if second != NO_ROW else NO_ROW
    )


def _first_two(totals: Totals) -> tuple[int, int]:
    """The indices of the highest and the second highest total; one entry of `totals` is overwritten meanwhile
    and restored."""
    first = int(totals.argmax())
    best = totals[first]
    if best == REJECTED_TOTAL:
        return NO_ROW, NO_ROW
    totals[first] = REJECTED_TOTAL
    second = int(totals.argmax())
    is_rejected = totals[second] == REJECTED_TOTAL
    totals[first] = best
    return first, (NO_ROW if is_rejected else second)


def best_row(table: Table, totals: Totals) -> int:
    return best_two(table, totals)[0]
