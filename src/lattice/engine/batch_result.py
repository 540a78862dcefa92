"""What equal asks got that were decided together: for each what `decide` would have said at its turn."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lattice.engine.decide import NOWHERE, Decision, State, evaluate, refusals_of
from lattice.engine.explain import FULL_SCORE, Part, Ranked, counts, most_first
from lattice.engine.plugin import Ask, Profile, Reason
from lattice.engine.table import Flags, Some, Table


class Pick(NamedTuple):
    row: int
    total: float  # summed weighted scores
    runner_up: int  # NOWHERE: nobody else would have done
    second: float  # the runner-up's total
    wide: float = 0.0  # of the total, what is the same all over the row's domain


@dataclass(slots=True)
class Picks:
    """One after the other, each placed before the next is decided. Valid until the table changes.

    Filters and scores say of a row what they said before unless it was picked: reasons change only there.
    """

    ask: Ask
    table: Table
    state: State
    each: list[Pick]

    def __len__(self) -> int:
        return len(self.each)

    @property
    def profile(self) -> Profile:
        return self.state.plan.profile

    @property
    def rows(self) -> list[int]:
        return [pick.row for pick in self.each]

    @property
    def reasons(self) -> Mapping[Reason, Flags]:
        """As they were for the first."""
        return self.state.reasons

    def decision(self, place: int) -> Decision:
        """All of it, as it was when that one was decided: every total, and every reason's mask."""
        pick, state = self.each[place], self.state
        totals, reasons = state.totals.copy(), {reason: mask.copy() for reason, mask in state.reasons.items()}
        if times := Counter(self.rows[:place]):
            some = self._after(list(times), list(times.values()))
            there, why = evaluate(self.ask, some, state.plan.moving_filters, state.plan.moving_scores)
            totals[some.rows] = there + state.base.totals[some.rows]
            for reason, mask in why.items():
                reasons[reason][some.rows] = mask
        if state.plan.tiered:
            score, weight = state.plan.tiered
            tiers = score.tiers(self.ask, self.table)
            for row in self.rows[:place]:
                tiers.place(int(tiers.codes[row]))
            totals = (tiers.values() * weight).take(tiers.codes, mode="wrap") + totals
        return Decision(self.ask, self.table, self.profile, pick.row, pick.runner_up, totals, reasons)

    def _after(self, rows: list[int], times: list[int]) -> Some:
        """These rows with so many more of the ask on each."""
        return Some(self.table, np.array(rows, np.intp), self.ask.needs, np.array(times, np.int64))

    def ranked(self) -> Iterator[tuple[Ranked, ...]]:
        """For each the row that it got, with what its score is made of, and the runner-up, all as of its turn."""
        names = self.table.names
        weights = {
            each.name: weight for each, weight in self.profile.scores if weight and each.applies(self.ask)
        }
        whole, values = sum(weights.values()), self._values()
        for place, pick in enumerate(self.each):
            parts = tuple(
                Part(name, FULL_SCORE * values[name][place], weight) for name, weight in weights.items()
            )
            mine = Ranked(names[pick.row], _mean(pick.total, whole), parts)
            other = (
                ()
                if pick.runner_up == NOWHERE
                else (Ranked(names[pick.runner_up], _mean(pick.second, whole), ()),)
            )
            yield (mine, *other)

    def _values(self) -> dict[str, list[float]]:
        """By score, what it gave to each row that was picked; a score that is a sum of several has one name."""
        plan, some = self.state.plan, self._after(self.rows, self._times())
        columns = [
            (score.name, score.score(self.ask, some).tolist())
            for score, _ in (*plan.fixed_scores, *plan.moving_scores)
        ]
        if plan.tiered:
            score, weight = plan.tiered
            columns.append((score.name, [pick.wide / float(weight) for pick in self.each]))
        found: dict[str, list[float]] = {}
        for name, values in columns:
            found[name] = (
                [one + other for one, other in zip(found[name], values, strict=True)]
                if name in found
                else values
            )
        return found

    def _times(self) -> list[int]:
        """For each, how many before it got the same row."""
        seen: Counter[int] = Counter()
        times = []
        for pick in self.each:
            times.append(seen[pick.row])
            seen[pick.row] += 1
        return times

    def counts(self) -> Iterator[list[tuple[Reason, int]]]:
        """For each how many rows each reason ruled out at its turn, as `explain.counts` says it: the same list until that changes."""
        now = dict(counts(self.decision(0))) if self.each else {}
        filled, told = self._filled(), most_first(now)
        for place in range(len(self.each)):
            if place in filled:
                now[filled[place]] = now.get(filled[place], 0) + 1
                told = most_first(now)
            yield told

    def _filled(self) -> dict[int, Reason]:
        """Where a pick left a row that would not do for another: whose turn was next, and the first reason there."""
        times, last = self._times(), {pick.row: place for place, pick in enumerate(self.each)}
        places = list(last.values())
        some = self._after(list(last), [times[place] + 1 for place in places])
        found: dict[int, Reason] = {}
        for reason, mask in reversed(refusals_of(self.ask, some, self.state.plan.moving_filters).items()):
            found.update((places[at] + 1, reason) for at in np.flatnonzero(mask).tolist())
        return found


def _mean(total: float, weights: float) -> float:
    """Of the parts, 0..100."""
    return FULL_SCORE * total / weights if weights else 0.0
