"""decide(ask, table, profile): which candidate, which is next best, and why not each of the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lattice.engine.plugin import Ask, Filter, Profile, Reason, Weighted
from lattice.engine.table import Flags, Floats, Rows, Some, Table

NOWHERE = -1
RULED_OUT = np.float32(-np.inf)
REMEMBERED = 256  # shapes whose answers are kept up to date instead of made anew
SIGHTINGS = 4096  # shapes remembered as seen once, which earns a place among those


@dataclass(slots=True)
class Decision:
    """What was decided, valid until the table changes; `freeze` to keep it longer."""

    ask: Ask
    table: Table
    profile: Profile
    chosen: int
    runner_up: int
    totals: Floats  # summed weighted scores; -inf where ruled out
    reasons: dict[Reason, Flags]

    @property
    def fits(self) -> bool:
        return self.chosen != NOWHERE

    @property
    def name(self) -> str:
        return self.table.names[self.chosen] if self.fits else ""

    def freeze(self) -> "Decision":
        kept = {reason: mask.copy() for reason, mask in self.reasons.items()}
        return Decision(self.ask, self.table, self.profile, self.chosen, self.runner_up, self.totals.copy(), kept)


class _Plan:
    """The plugins of a profile that have something to say about a shape, by how far their answers reach."""

    __slots__ = ("ask", "moving_filters", "moving_scores", "profile", "wide_filters", "wide_scores")

    def __init__(self, ask: Ask, profile: Profile) -> None:
        self.ask, self.profile = ask, profile
        filters, scores = profile.filters_by_reach, profile.scores_by_reach
        self.moving_filters: Sequence[Filter] = [each for each in filters["moving"] if each.applies(ask)]
        self.moving_scores: Weighted = [each for each in scores["moving"] if each[0].applies(ask)]
        self.wide_filters: Sequence[Filter] = [each for each in filters["wide"] if each.applies(ask)]
        self.wide_scores: Weighted = [each for each in scores["wide"] if each[0].applies(ask)]

    @property
    def fixed_filters(self) -> Sequence[Filter]:
        return [each for each in self.profile.filters_by_reach["fixed"] if each.applies(self.ask)]

    @property
    def fixed_scores(self) -> Weighted:
        return [each for each in self.profile.scores_by_reach["fixed"] if each[0].applies(self.ask)]

    @property
    def near_filters(self) -> Sequence[Filter]:
        """Those whose answer for a row depends on that row alone."""
        return [*self.fixed_filters, *self.moving_filters]


class State:
    """What is known of one shape by plugins that look at one row at a time, kept up to date row by row.

    `base`: what plugins with fixed answers add, -inf where they rule out; it is added last, so that sums come out the same everywhere.
    """

    __slots__ = ("base", "fixed_version", "plan", "reasons", "totals", "version")

    def __init__(self, plan: _Plan) -> None:
        self.plan = plan
        self.version = self.fixed_version = -1
        self.totals: Floats = np.empty(0, np.float32)
        self.base: Floats = self.totals
        self.reasons: dict[Reason, Flags] = {}

    def refresh(self, ask: Ask, table: Table) -> None:
        if self.fixed_version == table.fixed_version and self.version == table.version:
            return
        changed = table.changed_since(self.version) if self.fixed_version == table.fixed_version else None
        if changed is None or len(changed) * 4 > table.count:
            self._look_at_all(ask, table)
        elif changed:
            self._look_again(ask, table, changed)
        self.version, self.fixed_version = table.version, table.fixed_version

    def _look_at_all(self, ask: Ask, table: Table) -> None:
        self.base, fixed = _base_of(ask, table, self.plan)
        self.totals, moving = evaluate(ask, table, self.plan.moving_filters, self.plan.moving_scores)
        self.totals += self.base
        self.reasons = {**fixed, **moving}

    def _look_again(self, ask: Ask, table: Table, changed: list[int]) -> None:
        rows = np.array(changed, np.intp)
        totals, reasons = evaluate(ask, Some(table, rows), self.plan.moving_filters, self.plan.moving_scores)
        totals += self.base[rows]
        self.totals[rows] = totals
        for reason, mask in reasons.items():
            self.reasons[reason][rows] = mask


def _base_of(ask: Ask, table: Table, plan: _Plan) -> tuple[Floats, dict[Reason, Flags]]:
    """What plugins with fixed answers say; the same for all asks that are alike in what those look at."""
    key = (plan.profile, ask.fixed_shape)
    kept = table.bases.get(key)
    if kept is None or kept[0] != table.fixed_version:
        if len(table.bases) >= REMEMBERED:
            table.bases.clear()
        base, reasons = evaluate(ask, table, plan.fixed_filters, plan.fixed_scores)
        np.copyto(base, RULED_OUT, where=table.memo("dead", _dead))
        kept = table.bases[key] = (table.fixed_version, base, reasons)
    return kept[1], kept[2]


def _dead(table: Table) -> Flags:
    dead: Flags = ~table.column("alive")
    return dead


def evaluate(ask: Ask, rows: Rows, filters: Sequence[Filter], scores: Weighted) -> tuple[Floats, dict[Reason, Flags]]:
    """Totals (-inf where ruled out) and reasons, by these plugins."""
    reasons = refusals_of(ask, rows, filters)
    return weighed(ask, rows, scores, reasons), reasons


def refusals_of(ask: Ask, rows: Rows, filters: Sequence[Filter]) -> dict[Reason, Flags]:
    reasons: dict[Reason, Flags] = {}
    for each in filters:
        reasons.update(each.filter(ask, rows))
    return reasons


def weighed(ask: Ask, rows: Rows, scores: Weighted, reasons: Mapping[Reason, Flags]) -> Floats:
    totals = np.zeros(rows.count, np.float32)  # not one of the buffers: those go round while the scores compute
    for score, weight in scores:
        values = score.score(ask, rows)
        totals += np.multiply(values, weight, out=values)
    if reasons:
        np.copyto(totals, RULED_OUT, where=_either(list(reasons.values())))
    return totals


def _either(masks: list[Flags]) -> Flags:
    if len(masks) == 1:
        return masks[0]
    found = np.logical_or(masks[0], masks[1])
    for mask in masks[2:]:
        found |= mask
    return found


def state_of(ask: Ask, table: Table, profile: Profile) -> State:
    """What is remembered of this shape; a shape seen for the first time is not worth remembering yet."""
    key = (profile, ask.shape)
    state = table.states.get(key)
    if isinstance(state, State):
        return state
    fresh = State(_Plan(ask, profile))
    if len(table.states) > SIGHTINGS:
        _forget(table)
    if state is None:
        table.states[key] = fresh.plan  # seen once
        return fresh
    fresh.plan = state
    table.states[key] = fresh
    return fresh


def _forget(table: Table) -> None:
    kept = [(key, state) for key, state in table.states.items() if isinstance(state, State)]
    table.states.clear()
    table.states.update(kept[-REMEMBERED // 2 :])


def decide(ask: Ask, table: Table, profile: Profile) -> Decision:
    """Every candidate filtered, every one that is left scored, the best taken; ties go by the table's fixed order."""
    state = state_of(ask, table, profile)
    state.refresh(ask, table)
    plan, totals, reasons = state.plan, state.totals, state.reasons
    more = refusals_of(ask, table, plan.wide_filters)
    if more or plan.wide_scores:
        wide = weighed(ask, table, plan.wide_scores, more)
        totals = np.add(wide, totals, out=wide)
        reasons = {**reasons, **more}
    chosen = best(table, totals)
    runner_up = NOWHERE
    if chosen != NOWHERE:
        kept, totals[chosen] = totals[chosen], RULED_OUT
        runner_up = best(table, totals)
        totals[chosen] = kept
    return Decision(ask, table, profile, chosen, runner_up, totals, reasons)


def best(table: Table, totals: Floats) -> int:
    """The row with the highest total; among equals the one that comes first in the fixed order."""
    if not len(totals):
        return NOWHERE
    first = int(totals.argmax())
    if totals[first] == RULED_OUT:
        return NOWHERE
    if table.in_order:
        return first
    equal = np.flatnonzero(totals == totals[first])
    return first if len(equal) == 1 else int(equal[table.column("rank")[equal].argmin()])
