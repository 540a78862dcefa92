"""decide(ask, table, profile): which candidate, which is next best, and why not each of the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from lattice.engine.derived_columns import keep_last, lengthened, most_columns
from lattice.engine.plugin import Ask, Filter, Profile, Reason, Shortfall, Tiered, Weighted
from lattice.engine.table import Flags, Floats, Rows, Table

NOWHERE = -1
COLUMNS_OF_A_BASE = 16  # about, with its reasons
COLUMNS_OF_A_STATE = 4
RULED_OUT = np.float32(-np.inf)
SIGHTINGS = (
    4096  # shapes remembered as seen once, which earns a place among those whose answers are kept up to date
)


class Told(NamedTuple):
    """What a decision says, in words, and of which candidates there were."""

    name: str  # of the chosen one
    alive: Flags
    refused: Mapping[str, Sequence[Shortfall]]  # by name
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
    told: "Told | None" = (
        None  # once it is frozen: else its words are made when somebody asks, of the table as it is then
    )

    @property
    def fits(self) -> bool:
        return self.chosen != NOWHERE

    @property
    def name(self) -> str:
        if self.told:
            return self.told.name
        return self.table.names[self.chosen] if self.fits else ""

    @property
    def alive(self) -> Flags:
        """Rows that hold a candidate."""
        return self.told.alive if self.told else self.table.column("alive")

    def copied(self) -> "Decision":
        """Totals and reasons stay as they are; what is said about them is of the table as it is when that is asked."""
        kept = {reason: mask.copy() for reason, mask in self.reasons.items()}
        return Decision(
            self.ask, self.table, self.profile, self.chosen, self.runner_up, self.totals.copy(), kept
        )


class Plan:
    """The plugins of a profile that have something to say about a shape, by how far their answers reach."""

    __slots__ = ("ask", "moving_filters", "moving_scores", "profile", "tiered", "wide_filters", "wide_scores")

    def __init__(self, ask: Ask, profile: Profile) -> None:
        self.ask, self.profile = ask, profile
        filters, scores = profile.filters_by_reach, profile.scores_by_reach
        self.moving_filters: Sequence[Filter] = [each for each in filters["moving"] if each.applies(ask)]
        self.moving_scores: Weighted = [each for each in scores["moving"] if each[0].applies(ask)]
        self.wide_filters: Sequence[Filter] = [each for each in filters["wide"] if each.applies(ask)]
        self.wide_scores: Weighted = [each for each in scores["wide"] if each[0].applies(ask)]
        alone = len(self.wide_scores) == 1 and hasattr(self.wide_scores[0][0], "tiers")
        self.tiered = (
            cast("tuple[Tiered, np.float32]", self.wide_scores[0]) if alone else None
        )  # the only wide score, if it is

    @property
    def fixed_filters(self) -> Sequence[Filter]:
        return [each for each in self.profile.filters_by_reach["fixed"] if each.applies(self.ask)]

    @property
    def fixed_scores(self) -> Weighted:
        return [each for each in self.profile.scores_by_reach["fixed"] if each[0].applies(self.ask)]

    @property
    def highest(self) -> float:
        """No total is above this: scores are at most 1."""
        return float(
            sum(abs(weight) for _, weight in (*self.fixed_scores, *self.moving_scores, *self.wide_scores))
        )


class Base:
    """What plugins with fixed answers say: totals, -inf where they rule out, and reasons. Shared by asks alike in what those look at."""

    __slots__ = ("facts_version", "made", "reasons", "totals", "version")

    def __init__(self) -> None:
        self.version = self.facts_version = -1
        self.made = 0  # how often every row was looked at
        self.totals: Floats = np.empty(0, np.float32)
        self.reasons: dict[Reason, Flags] = {}

    def refresh(self, ask: Ask, table: Table, plan: Plan) -> None:
        if self.version == table.fixed_version:
            return
        changed = table.fixed_since(self.version) if self.facts_version == table.facts_version else None
        if (
            changed is None
            or len(changed) * 4 > table.count
            or not self._look_again(ask, table, plan, changed)
        ):
            self.totals, self.reasons = self._look(ask, table, plan)
            self.made += 1
        self.version, self.facts_version = table.fixed_version, table.facts_version

    def _look(self, ask: Ask, rows: Rows, plan: Plan) -> tuple[Floats, dict[Reason, Flags]]:
        totals, reasons = evaluate(ask, rows, plan.fixed_filters, plan.fixed_scores)
        np.copyto(totals, RULED_OUT, where=~rows.column("alive"))
        return totals, reasons

    def _look_again(self, ask: Ask, table: Table, plan: Plan, changed: list[int]) -> bool:
        """False: there are other reasons now, so that the rows that did not change have to be looked at, too."""
        some = table.some(changed)
        totals, reasons = self._look(ask, some, plan)
        if reasons.keys() != self.reasons.keys():
            return False
        if len(self.totals) < table.count:
            self.totals, self.reasons = _room_for(table.count, self.totals, self.reasons)
        self.totals[some.at] = totals
        for reason, mask in reasons.items():
            self.reasons[reason][some.at] = mask
        return True


def _room_for(
    count: int, totals: Floats, reasons: Mapping[Reason, Flags]
) -> tuple[Floats, dict[Reason, Flags]]:
    return lengthened(totals, count), {reason: lengthened(mask, count) for reason, mask in reasons.items()}


class State:
    """What is known of one shape by plugins that look at one row at a time, kept up to date row by row.

    The base is added last, so that sums come out the same everywhere.
    """

    __slots__ = ("_facts_version", "_made", "_own", "base", "plan", "reasons", "totals", "version")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.version = self._facts_version = self._made = -1
        self.totals: Floats = np.empty(0, np.float32)
        self.base = Base()
        self._own: dict[Reason, Flags] = {}
        self.reasons: dict[Reason, Flags] = {}

    def refresh(self, ask: Ask, table: Table) -> None:
        if self.version == table.version:
            return
        base, facts_version = self.base, table.facts_version
        if base.version != table.fixed_version:
            base = base_of(ask, table, self.plan)
        is_known = base is self.base and base.made == self._made and facts_version == self._facts_version
        self.base, changed = base, table.changed_since(self.version) if is_known else None
        if changed is None or len(changed) * 4 > table.count or not self._look_again(ask, table, changed):
            self._look_at_all(ask, table)
        self.version, self._made, self._facts_version = table.version, base.made, facts_version

    def _look_at_all(self, ask: Ask, table: Table) -> None:
        self.totals, self._own = evaluate(ask, table, self.plan.moving_filters, self.plan.moving_scores)
        self.totals += self.base.totals
        self.reasons = {**self.base.reasons, **self._own}

    def _look_again(self, ask: Ask, table: Table, changed: list[int]) -> bool:
        """False: there are other reasons now."""
        some = table.some(changed)
        totals, reasons = evaluate(ask, some, self.plan.moving_filters, self.plan.moving_scores)
        if reasons.keys() != self._own.keys():
            return False
        if len(self.totals) < table.count:
            self.totals, self._own = _room_for(table.count, self.totals, self._own)
            self.reasons = {**self.base.reasons, **self._own}
        totals += self.base.totals[some.at]
        self.totals[some.at] = totals
        for reason, mask in reasons.items():
            self._own[reason][some.at] = mask
        return True


def base_of(ask: Ask, table: Table, plan: Plan) -> Base:
    key = (plan.profile, ask.fixed_shape)
    base: Base | None = table.bases.get(key)
    if base is None:
        keep_last(table.bases, most_columns(table.count) // COLUMNS_OF_A_BASE)
        base = table.bases[key] = Base()
    base.refresh(ask, table, plan)
    return base


def evaluate(
    ask: Ask, rows: Rows, filters: Sequence[Filter], scores: Weighted
) -> tuple[Floats, dict[Reason, Flags]]:
    """Totals (-inf where ruled out) and reasons, by these plugins."""
    reasons = refusals_of(ask, rows, filters)
    return weighed(ask, rows, scores, reasons), reasons


def refusals_of(ask: Ask, rows: Rows, filters: Sequence[Filter]) -> dict[Reason, Flags]:
    reasons: dict[Reason, Flags] = {}
    for each in filters:
        reasons.update(each.filter(ask, rows))
    return reasons


def weighed(ask: Ask, rows: Rows, scores: Weighted, reasons: Mapping[Reason, Flags]) -> Floats:
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
    state: State | None = table.states.get(key)
    if state is not None:
        return state
    plan: Plan | None = table.seen.pop(key, None)
    if plan is None:
        keep_last(table.seen, SIGHTINGS)
        plan = table.seen[key] = Plan(ask, profile)
        return State(plan)
    keep_last(table.states, most_columns(table.count) // COLUMNS_OF_A_STATE)
    state = table.states[key] = State(plan)
    return state


def decide(ask: Ask, table: Table, profile: Profile) -> Decision:
    """Every candidate filtered, every one that is left scored, the best taken; ties go by the table's fixed order."""
    state = state_of(ask, table, profile)
    state.refresh(ask, table)
    plan, totals, reasons = state.plan, state.totals, state.reasons
    more = refusals_of(ask, table, plan.wide_filters)
    if plan.tiered and not more:
        score, weight = plan.tiered
        tiers = score.tiers(ask, table)
        wide = (tiers.values() * weight).take(
            tiers.codes, mode="wrap"
        )  # as below, with less to multiply; -1 is the last one
        totals = np.add(wide, totals, out=wide)
    elif plan.wide_scores:
        wide = weighed(ask, table, plan.wide_scores, more)
        totals = np.add(wide, totals, out=wide)
    elif more:
        totals = totals.copy()
        np.copyto(totals, RULED_OUT, where=_either(list(more.values())))
    reasons = {**reasons, **more} if more else reasons
    chosen, runner_up = best_two(table, totals)
    return Decision(ask, table, profile, chosen, runner_up, totals, reasons)


def best_two(table: Table, totals: Floats) -> tuple[int, int]:
    """The row with the highest total, among equals the one that comes first in the fixed order; and who would be next."""
    if not len(totals):
        return NOWHERE, NOWHERE
    if table.in_order:
        return _first_two(totals)
    order = table.by_rank()
    first, second = _first_two(
        np.take(totals, order, mode="clip", out=table.floats())
    )  # clip: the fastest, and no number is out of bounds
    return (int(order[first]) if first != NOWHERE else NOWHERE), (
        int(order[second]) if second != NOWHERE else NOWHERE
    )


def _first_two(totals: Floats) -> tuple[int, int]:
    first = int(totals.argmax())
    kept = totals[first]
    if kept == RULED_OUT:
        return NOWHERE, NOWHERE
    totals[first] = RULED_OUT
    second = int(totals.argmax())
    none = totals[second] == RULED_OUT
    totals[first] = kept
    return first, (NOWHERE if none else second)


def best(table: Table, totals: Floats) -> int:
    return best_two(table, totals)[0]
