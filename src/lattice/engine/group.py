"""Many equal asks at once: the same rows as one at a time, found by looking at each row's next few answers together."""

from heapq import heappop, heapreplace

import numpy as np

from lattice.engine.decide import RULED_OUT, State, _Plan, evaluate
from lattice.engine.plugin import Ask, Profile
from lattice.engine.table import Floats, Rowids, Some, Table

FIRST_LEVELS = 4  # how many more placements on a row are looked at together, the first time
MOST_LEVELS = 64
AHEAD = 64  # rows looked at together


def groupable(ask: Ask, profile: Profile, table: Table | None = None) -> bool:
    """Does the answer for a row depend on that row only? Else each placement may change every other row.

    With the table at hand, wide filters that have nothing to say now do not count: placing such an ask does not make them speak.
    """
    plan = _Plan(ask, profile)
    if not ask.is_additive or plan.wide_scores:
        return False
    return not plan.wide_filters or (table is not None and not any(each.filter(ask, table) for each in plan.wide_filters))


def decide_many(ask: Ask, table: Table, profile: Profile, count: int) -> list[int]:
    """The rows that `count` asks of this shape would get, one after the other, each placed before the next is decided.

    Fewer rows than asked: the rest fits nowhere. The table is not changed. Only for groupable asks.
    """
    state = State(_Plan(ask, profile))
    kept = table.states.get((profile, ask.shape))
    if isinstance(kept, State):
        state = kept
    state.refresh(ask, table)
    return _Merge(ask, table, state).run(count) if count > 0 else []


class _Merge:
    """A heap of (−total, rank, row): the top is what decide() would choose. A chosen row comes back with its next total."""

    def __init__(self, ask: Ask, table: Table, state: State) -> None:
        self.ask, self.table, self.plan = ask, table, state.plan
        self.totals, self.base = state.totals, state.base
        self.ranks = table.column("rank")
        self.placed: dict[int, int] = {}  # row -> how often chosen so far
        self.untouched: Rowids = np.empty(0, np.intp)  # rows not chosen yet, best first
        self.future: dict[int, list[float]] = {}  # row -> its totals after one, two … more placements

    def run(self, count: int) -> list[int]:
        heap = self._begin(count)
        future, placed = self.future, self.placed
        chosen: list[int] = []
        while heap and len(chosen) < count:
            _, rank, row = heap[0]
            chosen.append(row)
            times = placed[row] = placed.get(row, 0) + 1
            known = future.get(row)
            if known is None or len(known) < times:
                self._look_ahead(row)
                known = future[row]
            total = known[times - 1]
            if total == RULED_OUT:
                heappop(heap)
            else:
                heapreplace(heap, (-total, rank, row))
        return chosen

    def _begin(self, count: int) -> list[tuple[float, int, int]]:
        """The best `count` rows: no other can be reached before these are used up."""
        rows = np.flatnonzero(self.totals > RULED_OUT)
        if len(rows) > count:
            worst = np.partition(self.totals[rows], len(rows) - count)[len(rows) - count]
            better = rows[self.totals[rows] > worst]
            equal = rows[self.totals[rows] == worst]
            equal = equal[np.argsort(self.ranks[equal], kind="stable")][: count - len(better)]
            rows = np.concatenate([better, equal])
        rows = rows[np.lexsort((self.ranks[rows], -self.totals[rows]))]
        self.untouched = rows
        return list(zip((-self.totals[rows]).tolist(), self.ranks[rows].tolist(), rows.tolist(), strict=True))  # sorted: a heap

    def _look_ahead(self, row: int) -> None:
        """Evaluate the next totals of this row; the first time, of those that come after it, too: untouched rows come up in order."""
        known = self.future.get(row)
        if known is None:
            near, self.untouched = self.untouched[:AHEAD], self.untouched[AHEAD:]
            self._evaluate(near, 0, FIRST_LEVELS)
        else:
            self._evaluate(np.array([row], np.intp), len(known), min(MOST_LEVELS, len(known)))

    def _evaluate(self, rows: Rowids, beyond: int, levels: int) -> None:
        steps = np.tile(np.arange(beyond + 1, beyond + levels + 1, dtype=np.int64), len(rows))
        repeated = np.repeat(rows, levels)
        more = {resource: amount * steps for resource, amount in self.ask.needs}
        totals: Floats = evaluate(self.ask, Some(self.table, repeated, more), self.plan.moving_filters, self.plan.moving_scores)[0]
        totals += self.base[repeated]
        for row, values in zip(rows.tolist(), totals.reshape(len(rows), levels).tolist(), strict=True):
            self.future.setdefault(row, []).extend(values)
