"""Many equal asks at once: the same rows as one at a time, found by looking at each row's next few answers together."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import groupby

import numpy as np

from lattice.engine.batch_result import BatchResult, Pick
from lattice.engine.decide import NO_ROW, RULED_OUT, ActivePlugins, ShapeCache, evaluate
from lattice.engine.plugin import Ask, DomainScores, Profile
from lattice.engine.table import Floats, Rowids, RowSubset, Table

INITIAL_LOOKAHEAD_LEVELS = 2  # how many more placements on a row are looked at together, the first time
MAX_LOOKAHEAD_LEVELS = 64
INITIAL_LOOKAHEAD_ROWS = 32  # rows looked at together, the first time; then more and more
MAX_LOOKAHEAD_ROWS = 512
NO_RUNNER_UP = (-float(RULED_OUT), 0, NO_ROW)  # no next best: (−total, rank, row)
TIE_MARGIN_SHARE = (
    2.0**-20
)  # totals that differ by less, as a share of the highest, may be equal once a domain's part is added: 32-bit floats


def can_batch(ask: Ask, profile: Profile, table: Table | None = None) -> bool:
    """Does the answer for a row depend on that row only, besides one part that is the same all over a domain? Else each placement may
    change every other row in its own way.

    With the table at hand, wide filters that have nothing to say now do not count: placing such an ask does not make them speak.
    """
    plan = ActivePlugins(ask, profile)
    if not ask.is_additive or (plan.wide_scores and not plan.domain_score):
        return False
    return not plan.wide_filters or (
        table is not None and not any(each.filter(ask, table) for each in plan.wide_filters)
    )


def decide_batch(ask: Ask, table: Table, profile: Profile, count: int) -> BatchResult:
    """What `count` asks of this shape would get, one after the other, each placed before the next is decided, and who is next best.

    Fewer than asked: the rest fits nowhere. The table is not changed. Only for groupable asks.
    """
    state = table.shape_caches.get((profile, ask.shape)) or ShapeCache(ActivePlugins(ask, profile))
    state.refresh(ask, table)
    futures = _Lookahead(ask, table, state)
    if count <= 0:
        found = []
    elif state.plugins.domain_score is None:
        found = _merge(futures, count)
    else:
        score, weight = state.plugins.domain_score
        found = _Domains(futures, score.domain_scores(ask, table), weight).run(count)
    return BatchResult(ask, table, state, found)


class _Lookahead:
    """The totals of rows after one, two … more placements there."""

    def __init__(self, ask: Ask, table: Table, state: ShapeCache) -> None:
        self.ask, self.table, self.plugins = ask, table, state.plugins
        self.totals, self._base = state.totals, state.fixed.totals
        self.ranks = table.column("rank")
        self._placed: dict[int, int] = {}  # row -> how often chosen so far
        self._next_totals: dict[int, list[float]] = {}
        self._untouched: list[int] = []  # rows, those last that come up first
        self._ahead = INITIAL_LOOKAHEAD_ROWS

    def set_expected_order(self, rows: Rowids) -> None:
        """These come up, about in this order."""
        self._untouched = rows[::-1].tolist()

    def place(self, row: int) -> float:
        """One more is there: its total now."""
        times = self._placed[row] = self._placed.get(row, 0) + 1
        known = self._next_totals.get(row)
        if known is None or len(known) < times:
            self._look_ahead(row)
            known = self._next_totals[row]
        return known[times - 1]

    def _look_ahead(self, row: int) -> None:
        """Evaluate the next totals of this row; the first time, of those that come after it, too."""
        known = self._next_totals.get(row)
        if known is not None:
            self._evaluate([row], len(known), min(MAX_LOOKAHEAD_LEVELS, len(known)))
            return
        near, self._untouched = self._untouched[-self._ahead :], self._untouched[: -self._ahead]
        near = [each for each in near if each != row and each not in self._next_totals]
        self._ahead = min(MAX_LOOKAHEAD_ROWS, 2 * self._ahead)
        self._evaluate([row, *near], 0, INITIAL_LOOKAHEAD_LEVELS)

    def _evaluate(self, rows: list[int], beyond: int, levels: int) -> None:
        steps = np.tile(np.arange(beyond + 1, beyond + levels + 1, dtype=np.int64), len(rows))
        repeated = np.repeat(np.array(rows, np.intp), levels)
        some = RowSubset(self.table, repeated, self.ask.needs, steps)
        totals: Floats = evaluate(self.ask, some, self.plugins.row_filters, self.plugins.row_scores)[0]
        totals += self._base[repeated]
        for row, values in zip(rows, totals.reshape(len(rows), levels).tolist(), strict=True):
            self._next_totals.setdefault(row, []).extend(values)

    def best_first(self, rows: Rowids) -> Rowids:
        return rows[np.lexsort((self.ranks[rows], -self.totals[rows]))]


def _merge(futures: _Lookahead, count: int) -> list[Pick]:
    """A heap of (−total, rank, row): the top is what decide() would choose, and the next best is the better of the two below it.

    A chosen row comes back with its next total.
    """
    rows = futures.best_first(
        _reachable_rows(futures, np.flatnonzero(futures.totals > RULED_OUT), count + 1, 0.0)
    )
    futures.set_expected_order(rows)
    heap = list(
        zip((-futures.totals[rows]).tolist(), futures.ranks[rows].tolist(), rows.tolist(), strict=True)
    )  # sorted: a heap
    chosen: list[Pick] = []
    while heap and len(chosen) < count:
        best, rank, row = heap[0]
        second, _, runner_up = min(heap[1:3], default=NO_RUNNER_UP)
        chosen.append(Pick(row, -best, runner_up, -second))
        total = futures.place(row)
        if total == RULED_OUT:
            heappop(heap)
        else:
            heapreplace(heap, (-total, rank, row))
    return chosen


def _reachable_rows(futures: _Lookahead, rows: Rowids, count: int, margin: float) -> Rowids:
    """The best `count` rows, and all that are not behind the last of them by more than the margin: no other can be reached before these.

    Within the margin any two may turn out equal, and then rank decides: better ones leave no fewer places for those that are equal now.
    """
    if len(rows) <= count:
        return rows
    totals = futures.totals[rows]
    worst = np.partition(totals, len(rows) - count)[len(rows) - count]
    equal, better = rows[totals == worst], rows[totals > worst]
    places = count if margin else count - len(better)
    if len(equal) > places:
        equal = equal[np.argsort(futures.ranks[equal], kind="stable")][:places]
    behind = rows[(totals < worst) & (totals >= worst - margin)] if margin else equal[:0]
    return np.concatenate([better, equal, behind])


class _Domain:
    """The rows of one domain, those of equal total together: its own part, added to all, leaves their order, but may make more equal."""

    __slots__ = ("_levels", "_margin", "_next", "_ranked", "domain_score")

    def __init__(self, rows: Iterable[tuple[float, int, int]], part: np.float32, margin: float) -> None:
        """Rows as (−total, rank, row), best first; totals further apart than the margin stay different with any part added."""
        self._ranked = {
            level: [each[1:] for each in equal] for level, equal in groupby(rows, key=lambda each: each[0])
        }
        self._levels = list(self._ranked)  # sorted: a heap
        self._margin = margin
        self._next = 0.0  # the level that the best row is of
        self.domain_score = part

    def best(self) -> tuple[float, int] | None:
        """(−total, rank) of the row to choose here, which `take` takes; None: no row is left."""
        levels = self._levels
        if not levels:
            return None
        self._next = best = levels[0]
        total = np.float32(-best) + self.domain_score
        near, count = best + self._margin, len(levels)
        if (count > 1 and levels[1] <= near) or (
            count > 2 and levels[2] <= near
        ):  # the next best is one of these two: it is a heap
            tied = [
                each for each in levels if each <= near and np.float32(-each) + self.domain_score == total
            ]
            self._next = min(tied, key=lambda each: self._ranked[each][0])
        return -float(total), self._ranked[self._next][0][0]

    @property
    def best_row(self) -> int:
        """The one that `best` was about."""
        return self._ranked[self._next][0][1]

    def pop(self) -> tuple[int, int]:
        """(rank, row)."""
        level = self._next
        found = heappop(self._ranked[level])
        if not self._ranked[level]:
            del self._ranked[level]
            if level == self._levels[0]:
                heappop(self._levels)
            else:
                self._levels.remove(level)
                heapify(self._levels)
        return found

    def push(self, total: float, rank: int, row: int) -> None:
        level = -total
        if level in self._ranked:
            heappush(self._ranked[level], (rank, row))
        else:
            self._ranked[level] = [(rank, row)]
            heappush(self._levels, level)


class _Domains:
    """A heap of domains, by the best that each has to offer with its own part added."""

    def __init__(self, futures: _Lookahead, tiers: DomainScores, weight: np.float32) -> None:
        self._futures, self._scores, self._weight = futures, tiers, weight
        self._domains: dict[int, _Domain] = {}
        self._heap: list[
            tuple[float, int, int, int]
        ] = []  # −total, rank, domain, which offer of it: older ones do not count
        self._offers: dict[int, int] = {}

    def run(self, count: int) -> list[Pick]:
        self._build(count + 1)
        chosen: list[Pick] = []
        while self._has_offer() and len(chosen) < count:
            best, _, code, _ = heappop(self._heap)
            domain = self._domains[code]
            rank, row = domain.pop()
            runner_up, second = self._next_best(domain)
            chosen.append(Pick(row, -best, runner_up, second, float(domain.domain_score)))
            total = self._futures.place(row)
            if total != RULED_OUT:
                domain.push(total, rank, row)
            self._update_offers(code)
        return chosen

    def _has_offer(self) -> bool:
        """Is anything on offer? If so it is on top."""
        heap, offers = self._heap, self._offers
        while heap and heap[0][3] != offers[heap[0][2]]:
            heappop(heap)
        return bool(heap)

    def _next_best(self, domain: _Domain) -> tuple[int, float]:
        """Row and total of who would be next: what is left in the same domain, or what another one offers."""
        here, there = domain.best(), self._heap[0] if self._has_offer() else None
        if here and (there is None or here < there[:2]):
            return domain.best_row, -here[0]
        return (self._domains[there[2]].best_row, -there[0]) if there else (NO_ROW, float(RULED_OUT))

    def _update_offers(self, code: int) -> None:
        """One was placed there: what other domains offer is as before, unless their part changed."""
        changed = self._scores.place(code)
        if changed is None:
            self._heap.clear()
            changed = self._domains
        for each in changed:
            if each in self._domains:
                self._domains[each].domain_score = self._weighted_score(each)
                self._offer(each)

    def _weighted_score(self, code: int) -> np.float32:
        return np.float32(self._scores.value(code) * self._weight)

    def _offer(self, code: int) -> None:
        self._offers[code] = offer = self._offers.get(code, 0) + 1
        best = self._domains[code].best()
        if best is not None:
            heappush(self._heap, (*best, code, offer))

    def _build(self, count: int) -> None:
        futures, totals = self._futures, self._futures.totals
        rows = np.flatnonzero(totals > RULED_OUT)
        codes = self._scores.codes[rows]
        margin = TIE_MARGIN_SHARE * futures.plugins.max_total
        order = np.argsort(codes, kind="stable")
        rows, codes = rows[order], codes[order]
        starts = np.flatnonzero(np.diff(codes, prepend=-2))
        kept = (
            [_reachable_rows(futures, each, count, margin) for each in np.split(rows, starts[1:])]
            if len(rows)
            else []
        )
        for each in kept:
            code = int(self._scores.codes[each[0]])
            each = futures.best_first(each)
            listed = zip((-totals[each]).tolist(), futures.ranks[each].tolist(), each.tolist(), strict=True)
            self._domains[code] = _Domain(listed, self._weighted_score(code), margin)
            self._offer(code)
        if kept:
            futures.set_expected_order(futures.best_first(np.concatenate(kept)))
