"""The result of a batch of equal asks: for every ask the decision that `decide` would have made at its
turn."""

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
    """The row that one ask of the batch gets; totals are sums of weighted scores."""

    row: int
    total: float
    # NO_ROW if no other row is feasible.
    runner_up: int
    runner_up_total: float
    # The part of the total from the domain score: equal for all rows of a topology domain; 0 without such a
    # score.
    domain_total: float = 0.0


@dataclass(slots=True)
class BatchResult:
    """Decisions for equal asks in order, each ask placed before the next is decided. Valid until the table
    changes.

    Apart from the domain score, the answers of filters and scores for a row change only when the row is
    picked. Rejections therefore change only on picked rows.
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
        """The rejections for the first ask."""
        return self.shape_cache.reasons

    def decision(self, place: int) -> Decision:
        """Return the full decision for the ask at index `place`: totals and reasons of all rows after the
        earlier asks are placed."""
        pick, cache = self.picks[place], self.shape_cache
        totals, reasons = cache.totals.copy(), {reason: mask.copy() for reason, mask in cache.reasons.items()}
        if pick_counts := Counter(self.rows[:place]):
            subset = self._rows_after_picks(list(pick_counts), list(pick_counts.values()))
            row_totals, row_reasons = evaluate(
                self.ask, subset, cache.plugins.row_filters, cache.plugins.row_scores
            )
            totals[subset.rows] = row_totals + cache.fixed.totals[subset.rows]
            for reason, mask in row_reasons.items():
                reasons[reason][subset.rows] = mask
        if cache.plugins.domain_score:
            score, weight = cache.plugins.domain_score
            domain_scores = score.domain_scores(self.ask, self.table)
            for row in self.rows[:place]:
                domain_scores.place(int(domain_scores.codes[row]))
            totals = (domain_scores.values() * weight).take(domain_scores.codes, mode="wrap") + totals
        return Decision(self.ask, self.table, self.profile, pick.row, pick.runner_up, totals, reasons)

    def _rows_after_picks(self, rows: list[int], times: list[int]) -> RowSubset:
        """The rows with `times` further asks placed on each."""
        return RowSubset(self.table, np.array(rows, np.intp), self.ask.needs, np.array(times, np.int64))

    def ranked(self) -> Iterator[tuple[RankedCandidate, ...]]:
        """Yield for every ask the picked row with its plugin scores, and the runner-up, as of its turn."""
        names = self.table.names
        weights = {
            score.name: weight for score, weight in self.profile.scores if weight and score.applies(self.ask)
        }
        total_weight, values = sum(weights.values()), self._values()
        for place, pick in enumerate(self.picks):
            parts = tuple(
                PluginScore(name, MAX_SCORE * values[name][place], weight) for name, weight in weights.items()
            )
            picked = RankedCandidate(names[pick.row], _mean(pick.total, total_weight), parts)
            runner_up = (
                ()
                if pick.runner_up == NO_ROW
                else (RankedCandidate(names[pick.runner_up], _mean(pick.runner_up_total, total_weight), ()),)
            )
            yield (picked, *runner_up)

    def _values(self) -> dict[str, list[float]]:
        """The values of each score on the picked rows, by name; scores that are parts of one plugin share a
        name and are summed."""
        plugins, subset = self.shape_cache.plugins, self._rows_after_picks(self.rows, self._earlier_picks())
        columns = [
            (score.name, score.score(self.ask, subset).tolist())
            for score, _ in (*plugins.fixed_scores, *plugins.row_scores)
        ]
        if plugins.domain_score:
            score, weight = plugins.domain_score
            columns.append((score.name, [pick.domain_total / float(weight) for pick in self.picks]))
        by_name: dict[str, list[float]] = {}
        for name, values in columns:
            if name in by_name:
                values = [first + second for first, second in zip(by_name[name], values, strict=True)]
            by_name[name] = values
        return by_name

    def _earlier_picks(self) -> list[int]:
        """The number of earlier picks of the same row, per pick."""
        picked: Counter[int] = Counter()
        times = []
        for pick in self.picks:
            times.append(picked[pick.row])
            picked[pick.row] += 1
        return times

    def rejection_counts(self) -> Iterator[list[tuple[Reason, int]]]:
        """Yield for every ask the rejection counts as of its turn, as `explain.rejection_counts` returns
        them. The same list object is yielded until a count changes."""
        counts = dict(rejection_counts(self.decision(0))) if self.picks else {}
        times, last = self._earlier_picks(), {pick.row: place for place, pick in enumerate(self.picks)}
        places = list(last.values())
        subset = self._rows_after_picks(list(last), [times[place] + 1 for place in places])
        # Only the last pick of a row can make the row rejected. `newly_rejected` maps the index of the first
        # ask after that pick to the reason that rejects the row from that ask on. The reasons are read in
        # reverse, so that the first reason of a row overwrites the later reasons.
        newly_rejected: dict[int, Reason] = {}
        for reason, mask in reversed(
            collect_rejections(self.ask, subset, self.shape_cache.plugins.row_filters).items()
        ):
            newly_rejected.update((places[index] + 1, reason) for index in np.flatnonzero(mask).tolist())
        ordered = sort_by_count(counts)
        for place in range(len(self.picks)):
            if place in newly_rejected:
                counts[newly_rejected[place]] = counts.get(newly_rejected[place], 0) + 1
                ordered = sort_by_count(counts)
            yield ordered


def _mean(total: float, weights: float) -> float:
    """The weighted mean of the plugin scores, 0..100."""
    return MAX_SCORE * total / weights if weights else 0.0
