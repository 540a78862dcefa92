"""decide(ask, table, profile): which candidate, which is next best, and why not each of the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from lattice.engine.derived_columns import drop_oldest_half, max_columns, pad_rows
from lattice.engine.plugin import Ask, DomainScorePlugin, Filter, Profile, Reason, Shortfall, WeightedScores
from lattice.engine.table import Flags, Floats, Rows, Table

NO_ROW = -1
COLUMNS_PER_FIXED_CACHE = 16  # about, with its reasons
COLUMNS_PER_SHAPE_CACHE = 4
RULED_OUT = np.float32(-np.inf)
MAX_SHAPES_SEEN_ONCE = (
    4096  # shapes remembered as seen once, which earns a place among those whose answers are kept up to date
)


class FrozenExplanation(NamedTuple):
    """What a decision says, in words, and of which candidates there were."""

    name: str  # of the chosen one
    alive: Flags
    rejected: Mapping[str, Sequence[Shortfall]]  # by name
    ranked: Sequence[Any]  # the best few, as explain.py has them


@dataclass(slots=True)
class Decision:
    """What was decided, valid until the table changes; to keep it longer, see `copied`, and `freeze` in explain.py."""

    ask: Ask
    table: Table
    profile: Profile
    chosen: int
    runner_up: int
    totals: Floats  # summed weighted scores; -inf where ruled out
    reasons: dict[Reason, Flags]
    explanation: "FrozenExplanation | None" = (
        None  # once it is frozen: else its words are made when somebody asks, of the table as it is then
    )

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
        """Totals and reasons stay as they are; what is said about them is of the table as it is when that is asked."""
        kept = {reason: mask.copy() for reason, mask in self.reasons.items()}
        return Decision(
            self.ask, self.table, self.profile, self.chosen, self.runner_up, self.totals.copy(), kept
        )


class ActivePlugins:
    """The plugins of a profile that have something to say about a shape, by how far their answers reach."""

    __slots__ = ("ask", "domain_score", "profile", "row_filters", "row_scores", "wide_filters", "wide_scores")

    def __init__(self, ask: Ask, profile: Profile) -> None:
        self.ask, self.profile = ask, profile
        filters, scores = profile.filters_by_reach, profile.scores_by_reach
        self.row_filters: Sequence[Filter] = [each for each in filters["moving"] if each.applies(ask)]
        self.row_scores: WeightedScores = [each for each in scores["moving"] if each[0].applies(ask)]
        self.wide_filters: Sequence[Filter] = [each for each in filters["wide"] if each.applies(ask)]
        self.wide_scores: WeightedScores = [each for each in scores["wide"] if each[0].applies(ask)]
        alone = len(self.wide_scores) == 1 and hasattr(self.wide_scores[0][0], "domain_scores")
        self.domain_score = (
            cast("tuple[DomainScorePlugin, np.float32]", self.wide_scores[0]) if alone else None
        )  # the only wide score, if it is

    @property
    def fixed_filters(self) -> Sequence[Filter]:
        return [each for each in self.profile.filters_by_reach["fixed"] if each.applies(self.ask)]

    @property
    def fixed_scores(self) -> WeightedScores:
        return [each for each in self.profile.scores_by_reach["fixed"] if each[0].applies(self.ask)]

    @property
    def max_total(self) -> float:
        """No total is above this: scores are at most 1."""
        return float(
            sum(abs(weight) for _, weight in (*self.fixed_scores, *self.row_scores, *self.wide_scores))
        )


class FixedCache:
    """What plugins with fixed answers say: totals, -inf where they rule out, and reasons. Shared by asks alike in what those look at."""

    __slots__ = ("aggregates_version", "full_evaluations", "reasons", "totals", "version")

    def __init__(self) -> None:
        self.version = self.aggregates_version = -1
        self.full_evaluations = 0  # how often every row was looked at
        self.totals: Floats = np.empty(0, np.float32)
        self.reasons: dict[Reason, Flags] = {}

    def refresh(self, ask: Ask, table: Table, plan: ActivePlugins) -> None:
        if self.version == table.fixed_version:
            return
        changed = (
            table.fixed_since(self.version) if self.aggregates_version == table.aggregates_version else None
        )
        if (
            changed is None
            or len(changed) * 4 > table.count
            or not self._update_rows(ask, table, plan, changed)
        ):
            self.totals, self.reasons = self._evaluate_fixed(ask, table, plan)
            self.full_evaluations += 1
        self.version, self.aggregates_version = table.fixed_version, table.aggregates_version

    def _evaluate_fixed(
        self, ask: Ask, rows: Rows, plan: ActivePlugins
    ) -> tuple[Floats, dict[Reason, Flags]]:
        totals, reasons = evaluate(ask, rows, plan.fixed_filters, plan.fixed_scores)
        np.copyto(totals, RULED_OUT, where=~rows.column("alive"))
        return totals, reasons

    def _update_rows(self, ask: Ask, table: Table, plan: ActivePlugins, changed: list[int]) -> bool:
        """False: there are other reasons now, so that the rows that did not change have to be looked at, too."""
        some = table.subset(changed)
        totals, reasons = self._evaluate_fixed(ask, some, plan)
        if reasons.keys() != self.reasons.keys():
            return False
        if len(self.totals) < table.count:
            self.totals, self.reasons = _grow_to(table.count, self.totals, self.reasons)
        self.totals[some.selection] = totals
        for reason, mask in reasons.items():
            self.reasons[reason][some.selection] = mask
        return True


def _grow_to(
    count: int, totals: Floats, reasons: Mapping[Reason, Flags]
) -> tuple[Floats, dict[Reason, Flags]]:
    return pad_rows(totals, count), {reason: pad_rows(mask, count) for reason, mask in reasons.items()}


class ShapeCache:
    """What is known of one shape by plugins that look at one row at a time, kept up to date row by row.

    The base is added last, so that sums come out the same everywhere.
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

    def __init__(self, plan: ActivePlugins) -> None:
        self.plugins = plan
        self.version = self._aggregates_version = self._fixed_evaluations = -1
        self.totals: Floats = np.empty(0, np.float32)
        self.fixed = FixedCache()
        self._row_reasons: dict[Reason, Flags] = {}
        self.reasons: dict[Reason, Flags] = {}

    def refresh(self, ask: Ask, table: Table) -> None:
        if self.version == table.version:
            return
        base, facts_version = self.fixed, table.aggregates_version
        if base.version != table.fixed_version:
            base = fixed_cache_of(ask, table, self.plugins)
        is_known = (
            base is self.fixed
            and base.full_evaluations == self._fixed_evaluations
            and facts_version == self._aggregates_version
        )
        self.fixed, changed = base, table.changed_since(self.version) if is_known else None
        if changed is None or len(changed) * 4 > table.count or not self._update_rows(ask, table, changed):
            self._evaluate_all(ask, table)
        self.version, self._fixed_evaluations, self._aggregates_version = (
            table.version,
            base.full_evaluations,
            facts_version,
        )

    def _evaluate_all(self, ask: Ask, table: Table) -> None:
        self.totals, self._row_reasons = evaluate(
            ask, table, self.plugins.row_filters, self.plugins.row_scores
        )
        self.totals += self.fixed.totals
        self.reasons = {**self.fixed.reasons, **self._row_reasons}

    def _update_rows(self, ask: Ask, table: Table, changed: list[int]) -> bool:
        """False: there are other reasons now."""
        some = table.subset(changed)
        totals, reasons = evaluate(ask, some, self.plugins.row_filters, self.plugins.row_scores)
        if reasons.keys() != self._row_reasons.keys():
            return False
        if len(self.totals) < table.count:
            self.totals, self._row_reasons = _grow_to(table.count, self.totals, self._row_reasons)
            self.reasons = {**self.fixed.reasons, **self._row_reasons}
        totals += self.fixed.totals[some.selection]
        self.totals[some.selection] = totals
        for reason, mask in reasons.items():
            self._row_reasons[reason][some.selection] = mask
        return True


def fixed_cache_of(ask: Ask, table: Table, plan: ActivePlugins) -> FixedCache:
    key = (plan.profile, ask.fixed_shape)
    base: FixedCache | None = table.fixed_caches.get(key)
    if base is None:
        drop_oldest_half(table.fixed_caches, max_columns(table.count) // COLUMNS_PER_FIXED_CACHE)
        base = table.fixed_caches[key] = FixedCache()
    base.refresh(ask, table, plan)
    return base


def evaluate(
    ask: Ask, rows: Rows, filters: Sequence[Filter], scores: WeightedScores
) -> tuple[Floats, dict[Reason, Flags]]:
    """Totals (-inf where ruled out) and reasons, by these plugins."""
    reasons = collect_rejections(ask, rows, filters)
    return weighted_totals(ask, rows, scores, reasons), reasons


def collect_rejections(ask: Ask, rows: Rows, filters: Sequence[Filter]) -> dict[Reason, Flags]:
    reasons: dict[Reason, Flags] = {}
    for each in filters:
        reasons.update(each.filter(ask, rows))
    return reasons


def weighted_totals(ask: Ask, rows: Rows, scores: WeightedScores, reasons: Mapping[Reason, Flags]) -> Floats:
    totals: Floats | None = None
    for score, weight in scores:
        values = score.score(ask, rows)
        values = np.multiply(values, weight, out=values)
        if totals is None:
            totals = (
                values.copy()
            )  # what scores return is one of the buffers, which go round while the others compute
        else:
            totals += values
    if totals is None:
        totals = np.zeros(rows.count, np.float32)
    if reasons:
        np.copyto(totals, RULED_OUT, where=_any_mask(list(reasons.values())))
    return totals


def _any_mask(masks: list[Flags]) -> Flags:
    if len(masks) == 1:
        return masks[0]
    found = np.logical_or(masks[0], masks[1])
    for mask in masks[2:]:
        found |= mask
    return found


def shape_cache_of(ask: Ask, table: Table, profile: Profile) -> ShapeCache:
    """What is remembered of this shape; a shape seen for the first time is not worth remembering yet."""
    key = (profile, ask.shape)
    state: ShapeCache | None = table.shape_caches.get(key)
    if state is not None:
        return state
    plan: ActivePlugins | None = table.shapes_seen_once.pop(key, None)
    if plan is None:
        drop_oldest_half(table.shapes_seen_once, MAX_SHAPES_SEEN_ONCE)
        plan = table.shapes_seen_once[key] = ActivePlugins(ask, profile)
        return ShapeCache(plan)
    drop_oldest_half(table.shape_caches, max_columns(table.count) // COLUMNS_PER_SHAPE_CACHE)
    state = table.shape_caches[key] = ShapeCache(plan)
    return state


def decide(ask: Ask, table: Table, profile: Profile) -> Decision:
    """Every candidate filtered, every one that is left scored, the best taken; ties go by the table's fixed order."""
    state = shape_cache_of(ask, table, profile)
    state.refresh(ask, table)
    plan, totals, reasons = state.plugins, state.totals, state.reasons
    more = collect_rejections(ask, table, plan.wide_filters)
    if plan.domain_score and not more:
        score, weight = plan.domain_score
        tiers = score.domain_scores(ask, table)
        wide = (tiers.values() * weight).take(
            tiers.codes, mode="wrap"
        )  # as below, with less to multiply; -1 is the last one
        totals = np.add(wide, totals, out=wide)
    elif plan.wide_scores:
        wide = weighted_totals(ask, table, plan.wide_scores, more)
        totals = np.add(wide, totals, out=wide)
    elif more:
        totals = totals.copy()
        np.copyto(totals, RULED_OUT, where=_any_mask(list(more.values())))
    reasons = {**reasons, **more} if more else reasons
    chosen, runner_up = best_two(table, totals)
    return Decision(ask, table, profile, chosen, runner_up, totals, reasons)


def best_two(table: Table, totals: Floats) -> tuple[int, int]:
    """The row with the highest total, among equals the one that comes first in the fixed order; and who would be next."""
    if not len(totals):
        return NO_ROW, NO_ROW
    if table.is_in_tie_order:
        return _first_two(totals)
    order = table.rows_by_rank()
    first, second = _first_two(
        np.take(totals, order, mode="clip", out=table.float_buffer())
    )  # clip: the fastest, and no number is out of bounds
    return (int(order[first]) if first != NO_ROW else NO_ROW), (
        int(order[second]) if second != NO_ROW else NO_ROW
    )


def _first_two(totals: Floats) -> tuple[int, int]:
    first = int(totals.argmax())
    kept = totals[first]
    if kept == RULED_OUT:
        return NO_ROW, NO_ROW
    totals[first] = RULED_OUT
    second = int(totals.argmax())
    none = totals[second] == RULED_OUT
    totals[first] = kept
    return first, (NO_ROW if none else second)


def best_row(table: Table, totals: Floats) -> int:
    return best_two(table, totals)[0]
