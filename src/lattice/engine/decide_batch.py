"""Decide many equal asks at once, with the same result as deciding one at a time. The totals that rows will
have after further placements are evaluated for many rows together."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import groupby

import numpy as np

from lattice.engine.batch_result import BatchResult, Pick
from lattice.engine.decide import NO_ROW, REJECTED_TOTAL, ActivePlugins, ShapeCache, evaluate
from lattice.engine.plugin import Ask, DomainScores, Profile
from lattice.engine.table import Floats, Rowids, RowSubset, Table

# The number of further placements on a row that are evaluated together the first time; doubled from then on.
INITIAL_LOOKAHEAD_LEVELS = 2
MAX_LOOKAHEAD_LEVELS = 64
# The number of rows that are evaluated together the first time; doubled from then on.
INITIAL_LOOKAHEAD_ROWS = 32
MAX_LOOKAHEAD_ROWS = 512
# An entry (−total, rank, row) that stands for no row.
NO_RUNNER_UP = (-float(REJECTED_TOTAL), 0, NO_ROW)
# Share of the highest possible total: totals that differ by less may become equal in 32-bit floats once the
# score of a domain is added.
TIE_MARGIN_SHARE = 2.0**-20


def can_batch(ask: Ask, profile: Profile, table: Table | None = None) -> bool:
    """Whether equal asks can be decided in a batch: the answer for a row depends on the row alone, apart from
    one score per domain.

    A filter of wide reach reads more than the row (see `plugin.Reach`), and therefore prevents a batch. With
    `table`, a wide filter prevents a batch only if the filter rejects a row now: if it rejects none now, it
    rejects none after additive asks (see `Ask.is_additive`) are placed.
    """
    plugins = ActivePlugins(ask, profile)
    if not ask.is_additive or (plugins.wide_scores and not plugins.domain_score):
        return False
    return not plugins.wide_filters or (
        table is not None and not any(plugin.filter(ask, table) for plugin in plugins.wide_filters)
    )


def decide_batch(ask: Ask, table: Table, profile: Profile, count: int) -> BatchResult:
    """Return the picks of `count` asks of one shape, each ask placed before the next is decided, with
    runners-up.

    Fewer picks than `count` mean that the remaining asks fit on no row. The table is not changed. Only for
    asks that `can_batch` accepts.
    """
    cache = table.shape_caches.get((profile, ask.shape)) or ShapeCache(ActivePlugins(ask, profile))
    cache.refresh(ask, table)
    lookahead = _Lookahead(ask, table, cache)
    if count <= 0:
        picks = []
    elif cache.plugins.domain_score is None:
        picks = _merge(lookahead, count)
    else:
        score, weight = cache.plugins.domain_score
        picks = _Domains(lookahead, score.domain_scores(ask, table), weight).run(count)
    return BatchResult(ask, table, cache, picks)


class _Lookahead:
    """The totals of rows after one, two … further placements."""

    def __init__(self, ask: Ask, table: Table, cache: ShapeCache) -> None:
        self.ask, self.table, self.plugins = ask, table, cache.plugins
        self.totals, self._fixed_totals = cache.totals, cache.fixed.totals
        self.ranks = table.column("rank")
        # Row -> placements so far.
        self._placed: dict[int, int] = {}
        self._next_totals: dict[int, list[float]] = {}
        # Rows not evaluated yet; the row that is expected next is last.
        self._pending_rows: list[int] = []
        self._lookahead_rows = INITIAL_LOOKAHEAD_ROWS

    def set_expected_order(self, rows: Rowids) -> None:
        """Set the order in which rows are expected to be picked."""
        self._pending_rows = rows[::-1].tolist()

    def place(self, row: int) -> float:
        """Count one more placement on the row and return the total of the row after it."""
        times = self._placed[row] = self._placed.get(row, 0) + 1
        totals = self._next_totals.get(row)
        if totals is None:
            # The first placement on a row: evaluate the rows that are expected next as well.
            near, self._pending_rows = (
                self._pending_rows[-self._lookahead_rows :],
                self._pending_rows[: -self._lookahead_rows],
            )
            near = [
                other_row for other_row in near if other_row != row and other_row not in self._next_totals
            ]
            # A batch that needs rows beyond those evaluated so far is likely to need many of them.
            self._lookahead_rows = min(MAX_LOOKAHEAD_ROWS, 2 * self._lookahead_rows)
            self._evaluate([row, *near], 0, INITIAL_LOOKAHEAD_LEVELS)
            totals = self._next_totals[row]
        elif len(totals) < times:
            self._evaluate([row], len(totals), min(MAX_LOOKAHEAD_LEVELS, len(totals)))
            totals = self._next_totals[row]
        return totals[times - 1]

    def _evaluate(self, rows: list[int], first_level: int, levels: int) -> None:
        steps = np.tile(np.arange(first_level + 1, first_level + levels + 1, dtype=np.int64), len(rows))
        repeated = np.repeat(np.array(rows, np.intp), levels)
        subset = RowSubset(self.table, repeated, self.ask.needs, steps)
        totals: Floats = evaluate(self.ask, subset, self.plugins.row_filters, self.plugins.row_scores)[0]
        totals += self._fixed_totals[repeated]
        for row, values in zip(rows, totals.reshape(len(rows), levels).tolist(), strict=True):
            self._next_totals.setdefault(row, []).extend(values)

    def best_first(self, rows: Rowids) -> Rowids:
        return rows[np.lexsort((self.ranks[rows], -self.totals[rows]))]


def _merge(lookahead: _Lookahead, count: int) -> list[Pick]:
    """Pick rows from a heap of (−total, rank, row): the top is the choice of `decide`, and the better of its
    two children is the runner-up.

    A picked row returns to the heap with its next total.
    """
    rows = lookahead.best_first(
        _reachable_rows(lookahead, np.flatnonzero(lookahead.totals > REJECTED_TOTAL), count + 1, 0.0)
    )
    lookahead.set_expected_order(rows)
    # Sorted, and therefore a heap.
    heap = list(
        zip((-lookahead.totals[rows]).tolist(), lookahead.ranks[rows].tolist(), rows.tolist(), strict=True)
    )
    picks: list[Pick] = []
    while heap and len(picks) < count:
        best, rank, row = heap[0]
        second, _, runner_up = min(heap[1:3], default=NO_RUNNER_UP)
        picks.append(Pick(row, -best, runner_up, -second))
        total = lookahead.place(row)
        if total == REJECTED_TOTAL:
            heappop(heap)
        else:
            heapreplace(heap, (-total, rank, row))
    return picks


def _reachable_rows(lookahead: _Lookahead, rows: Rowids, count: int, margin: float) -> Rowids:
    """Return the best `count` rows and all rows within the margin behind the last of them: no other row can
    be picked by `count` asks.

    The worst total is the lowest of the best `count` totals. Without a margin, rows with the worst total are
    kept only until `count` rows are kept in all. With a margin, the score of a domain is added to the totals
    later. Rounding can then make the worst total equal to better totals; rank decides, and all `count` picks
    may fall on rows with the worst total. Therefore up to `count` of these rows are kept in addition to the
    better rows, lowest rank first.
    """
    if len(rows) <= count:
        return rows
    totals = lookahead.totals[rows]
    worst = np.partition(totals, len(rows) - count)[len(rows) - count]
    equal, better = rows[totals == worst], rows[totals > worst]
    places = count if margin else count - len(better)
    if len(equal) > places:
        equal = equal[np.argsort(lookahead.ranks[equal], kind="stable")][:places]
    behind = rows[(totals < worst) & (totals >= worst - margin)] if margin else equal[:0]
    return np.concatenate([better, equal, behind])


class _Domain:
    """The rows of one domain, grouped by equal total.

    The score of the domain is added to every row: it preserves the order of totals, but rounding may make
    more totals equal.
    """

    __slots__ = ("_best_level", "_levels", "_margin", "_ranked", "domain_score")

    def __init__(
        self, rows: Iterable[tuple[float, int, int]], domain_score: np.float32, margin: float
    ) -> None:
        """Rows are (−total, rank, row), best first; totals further apart than the margin stay different with
        any domain score added."""
        self._ranked = {
            level: [entry[1:] for entry in equal]
            for level, equal in groupby(rows, key=lambda entry: entry[0])
        }
        # Sorted, and therefore a heap.
        self._levels = list(self._ranked)
        self._margin = margin
        # The negative total of the best row.
        self._best_level = 0.0
        self.domain_score = domain_score

    def best(self) -> tuple[float, int] | None:
        """Return (−total, rank) of the best row, which `pop` removes; None: the domain has no feasible
        row."""
        levels = self._levels
        if not levels:
            return None
        self._best_level = best = levels[0]
        total = np.float32(-best) + self.domain_score
        near, count = best + self._margin, len(levels)
        # In a heap, the second best entry is one of these two.
        if (count > 1 and levels[1] <= near) or (count > 2 and levels[2] <= near):
            tied = [
                level for level in levels if level <= near and np.float32(-level) + self.domain_score == total
            ]
            self._best_level = min(tied, key=lambda level: self._ranked[level][0])
        return -float(total), self._ranked[self._best_level][0][0]

    @property
    def best_row(self) -> int:
        """The row that the last call of `best` described."""
        return self._ranked[self._best_level][0][1]

    def pop(self) -> tuple[int, int]:
        """Remove the best row and return its (rank, row)."""
        level = self._best_level
        entry = heappop(self._ranked[level])
        if not self._ranked[level]:
            del self._ranked[level]
            if level == self._levels[0]:
                heappop(self._levels)
            else:
                self._levels.remove(level)
                heapify(self._levels)
        return entry

    def push(self, total: float, rank: int, row: int) -> None:
        level = -total
        if level in self._ranked:
            heappush(self._ranked[level], (rank, row))
        else:
            self._ranked[level] = [(rank, row)]
            heappush(self._levels, level)


class _Domains:
    """A heap of domains by the total of their best rows, domain scores included."""

    def __init__(self, lookahead: _Lookahead, domain_scores: DomainScores, weight: np.float32) -> None:
        self._lookahead, self._scores, self._weight = lookahead, domain_scores, weight
        self._domains: dict[int, _Domain] = {}
        # An entry, called bid, is the best row of a domain: −total, rank, domain, number. Only the bid with
        # the newest number of a domain is valid (`_bids`); older bids are stale.
        self._heap: list[tuple[float, int, int, int]] = []
        self._bids: dict[int, int] = {}

    def run(self, count: int) -> list[Pick]:
        """Pick up to `count` rows."""
        self._build(count + 1)
        picks: list[Pick] = []
        while self._has_bid() and len(picks) < count:
            best, _, code, _ = heappop(self._heap)
            domain = self._domains[code]
            rank, row = domain.pop()
            runner_up, second = self._next_best(domain)
            picks.append(Pick(row, -best, runner_up, second, float(domain.domain_score)))
            total = self._lookahead.place(row)
            if total != REJECTED_TOTAL:
                domain.push(total, rank, row)
            changed = self._scores.place(code)
            if changed is None:
                # Every domain gets a new bid below, so all present bids are stale.
                self._heap.clear()
                changed = self._domains
            for changed_code in changed:
                if changed_code in self._domains:
                    self._domains[changed_code].domain_score = self._weighted_score(changed_code)
                    self._bid(changed_code)
        return picks

    def _has_bid(self) -> bool:
        """Whether any domain has a feasible row; drops stale entries, so that the best bid is on top of the
        heap."""
        heap, bids = self._heap, self._bids
        while heap and heap[0][3] != bids[heap[0][2]]:
            heappop(heap)
        return bool(heap)

    def _next_best(self, domain: _Domain) -> tuple[int, float]:
        """Row and total of the runner-up: the next row of the same domain or the best bid of another
        domain."""
        own, rival = domain.best(), self._heap[0] if self._has_bid() else None
        if own and (rival is None or own < rival[:2]):
            return domain.best_row, -own[0]
        return (self._domains[rival[2]].best_row, -rival[0]) if rival else (NO_ROW, float(REJECTED_TOTAL))

    def _weighted_score(self, code: int) -> np.float32:
        return np.float32(self._scores.value(code) * self._weight)

    def _bid(self, code: int) -> None:
        self._bids[code] = bid = self._bids.get(code, 0) + 1
        best = self._domains[code].best()
        if best is not None:
            heappush(self._heap, (*best, code, bid))

    def _build(self, count: int) -> None:
        """Build the domains from the rows that `count` asks can reach."""
        lookahead, totals = self._lookahead, self._lookahead.totals
        rows = np.flatnonzero(totals > REJECTED_TOTAL)
        codes = self._scores.codes[rows]
        margin = TIE_MARGIN_SHARE * lookahead.plugins.max_total
        order = np.argsort(codes, kind="stable")
        rows, codes = rows[order], codes[order]
        starts = np.flatnonzero(np.diff(codes, prepend=-2))
        reachable = (
            [
                _reachable_rows(lookahead, domain_rows, count, margin)
                for domain_rows in np.split(rows, starts[1:])
            ]
            if len(rows)
            else []
        )
        for domain_rows in reachable:
            code = int(self._scores.codes[domain_rows[0]])
            domain_rows = lookahead.best_first(domain_rows)
            listed = zip(
                (-totals[domain_rows]).tolist(),
                lookahead.ranks[domain_rows].tolist(),
                domain_rows.tolist(),
                strict=True,
            )
            self._domains[code] = _Domain(listed, self._weighted_score(code), margin)
            self._bid(code)
        if reachable:
            lookahead.set_expected_order(lookahead.best_first(np.concatenate(reachable)))
