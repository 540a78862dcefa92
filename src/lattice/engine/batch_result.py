"""What equal asks got that were decided together: for each what `decide` would have said at its turn."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lattice.engine.decide import NO_ROW, Decision, ShapeCache, collect_rejections, evaluate
from lattice.engine.explain import MAX_SCORE, PluginScore, RankedCandidate, rejection_counts, sort_by_count
from lattice.engine.plugin import Ask, Profile, Reason
from lattice.engine.table import Flags, RowSubset, Table


class Pick(NamedTuple):
    row: int
    total: float  # summed weighted scores
    runner_up: int  # NOWHERE: nobody else would have done
    runner_up_total: float  # the runner-up's total
    domain_total: float = 0.0  # of the total, what is the same all over the row's domain


@dataclass(slots=True)
class BatchResult:
    """One after the other, each placed before the next is decided. Valid until the table changes.

    Filters and scores say of a row what they said before unless it was picked: reasons change only there.
    """

    ask: Ask
    table: Table
    shape_cache: ShapeCache
    picks: list[Pick]

    def __len__(self) -> int:
        return len(self.picks)

    @property
    def profile(self) -> Profile:
        return self.shape_cache.plugins.profile

    @property
    def rows(self) -> list[int]:
        return [pick.row for pick in self.picks]

    @property
    def reasons(self) -> Mapping[Reason, Flags]:
        """As they were for the first."""
        return self.shape_cache.reasons

    def decision(self, place: int) -> Decision:
        """All of it, as it was when that one was decided: every total, and every reason's mask."""
        pick, state = self.picks[place], self.shape_cache
        totals, reasons = state.totals.copy(), {reason: mask.copy() for reason, mask in state.reasons.items()}
        if times := Counter(self.rows[:place]):
            some = self._rows_after_picks(list(times), list(times.values()))
            there, why = evaluate(self.ask, some, state.plugins.row_filters, state.plugins.row_scores)
            totals[some.rows] = there + state.fixed.totals[some.rows]
            for reason, mask in why.items():
                reasons[reason][some.rows] = mask
        if state.plugins.domain_score:
            score, weight = state.plugins.domain_score
            tiers = score.domain_scores(self.ask, self.table)
            for row in self.rows[:place]:
                tiers.place(int(tiers.codes[row]))
            totals = (tiers.values() * weight).take(tiers.codes, mode="wrap") + totals
        return Decision(self.ask, self.table, self.profile, pick.row, pick.runner_up, totals, reasons)

    def _rows_after_picks(self, rows: list[int], times: list[int]) -> RowSubset:
        """These rows with so many more of the ask on each."""
        return RowSubset(self.table, np.array(rows, np.intp), self.ask.needs, np.array(times, np.int64))

    def ranked(self) -> Iterator[tuple[RankedCandidate, ...]]:
        """For each the row that it got, with what its score is made of, and the runner-up, all as of its turn."""
        names = self.table.names
        weights = {
            each.name: weight for each, weight in self.profile.scores if weight and each.applies(self.ask)
        }
        whole, values = sum(weights.values()), self._values()
        for place, pick in enumerate(self.picks):
            parts = tuple(
                PluginScore(name, MAX_SCORE * values[name][place], weight) for name, weight in weights.items()
            )
            mine = RankedCandidate(names[pick.row], _mean(pick.total, whole), parts)
            other = (
                ()
                if pick.runner_up == NO_ROW
                else (RankedCandidate(names[pick.runner_up], _mean(pick.runner_up_total, whole), ()),)
            )
            yield (mine, *other)

    def _values(self) -> dict[str, list[float]]:
        """By score, what it gave to each row that was picked; a score that is a sum of several has one name."""
        plan, some = self.shape_cache.plugins, self._rows_after_picks(self.rows, self._earlier_picks())
        columns = [
            (score.name, score.score(self.ask, some).tolist())
            for score, _ in (*plan.fixed_scores, *plan.row_scores)
        ]
        if plan.domain_score:
            score, weight = plan.domain_score
            columns.append((score.name, [pick.domain_total / float(weight) for pick in self.picks]))
        found: dict[str, list[float]] = {}
        for name, values in columns:
            found[name] = (
                [one + other for one, other in zip(found[name], values, strict=True)]
                if name in found
                else values
            )
        return found

    def _earlier_picks(self) -> list[int]:
        """For each, how many before it got the same row."""
        seen: Counter[int] = Counter()
        times = []
        for pick in self.picks:
            times.append(seen[pick.row])
            seen[pick.row] += 1
        return times

    def rejection_counts(self) -> Iterator[list[tuple[Reason, int]]]:
        """For each how many rows each reason ruled out at its turn, as `explain.counts` says it: the same list until that changes."""
        now = dict(rejection_counts(self.decision(0))) if self.picks else {}
        filled, told = self._newly_rejected(), sort_by_count(now)
        for place in range(len(self.picks)):
            if place in filled:
                now[filled[place]] = now.get(filled[place], 0) + 1
                told = sort_by_count(now)
            yield told

    def _newly_rejected(self) -> dict[int, Reason]:
        """Where a pick left a row that would not do for another: whose turn was next, and the first reason there."""
        times, last = self._earlier_picks(), {pick.row: place for place, pick in enumerate(self.picks)}
        places = list(last.values())
        some = self._rows_after_picks(list(last), [times[place] + 1 for place in places])
        found: dict[int, Reason] = {}
        for reason, mask in reversed(
            collect_rejections(self.ask, some, self.shape_cache.plugins.row_filters).items()
        ):
            found.update((places[at] + 1, reason) for at in np.flatnonzero(mask).tolist())
        return found


def _mean(total: float, weights: float) -> float:
    """Of the parts, 0..100."""
    return MAX_SCORE * total / weights if weights else 0.0
