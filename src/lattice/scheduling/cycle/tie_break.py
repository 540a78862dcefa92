"""Which of the best nodes? Five ways to break a tie, besides the table's own fixed order."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

from lattice.engine.decide import NO_ROW, RULED_OUT, Decision
from lattice.engine.explain import MAX_SCORE
from lattice.engine.plugin import Ask, Profile
from lattice.engine.table import Floats, Rowids, Table
from lattice.kinds.constraint import WorkloadTerm
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable

WEIGHTED_RANDOM_CANDIDATES = 3  # rows that weighted-random draws from


class TieBreaker(StrEnum):
    FIXED = "fixed"  # the order of the table's hash: the same node for the same names, whatever came before
    RANDOM = "random"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"
    WEIGHTED_RANDOM = "weighted-random"
    AFFINITY = "affinity-based"


class RandomSource(Protocol):
    def random(self) -> float:
        """At least 0 and below 1; a seeded `random.Random` is one."""
        ...


class _AlwaysZero:
    """Dice for those who never throw any: the lowest number, always."""

    def random(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Selection:
    row: int
    score: float  # 0..100
    candidates: Rowids = field(
        default_factory=lambda: np.empty(0, np.intp), compare=False
    )  # rows drawn from, in the table's fixed order
    problem: str = ""

    @property
    def fits(self) -> bool:
        return self.row != NO_ROW


@dataclass(slots=True)
class Selector:
    """Equal decisions, dice and turn give equal selections. `turn` is the only state: whose turn it was last in round-robin."""

    tie_breaker: TieBreaker = TieBreaker.FIXED
    rng: RandomSource = field(default_factory=_AlwaysZero)
    top: int = WEIGHTED_RANDOM_CANDIDATES
    last_rank: int = -1  # rank of the last one taken

    def select(self, decision: Decision) -> Selection:
        if not decision.fits:
            return Selection(NO_ROW, 0.0, problem=_no_candidates_message(decision))
        rows = self._eligible_rows(decision)
        row = int(rows[0]) if len(rows) == 1 else self._draw(decision, rows)
        if self.tie_breaker is TieBreaker.ROUND_ROBIN:
            self.last_rank = int(decision.table.column("rank")[row])
        return Selection(row, score_of(decision, row), rows)

    def _eligible_rows(self, decision: Decision) -> Rowids:
        """The rows as good as the best, or for weighted-random the best few; in fixed order."""
        totals, runner_up = decision.totals, decision.runner_up
        if self.tie_breaker is TieBreaker.WEIGHTED_RANDOM:
            return _top_rows(decision, self.top)
        if runner_up == NO_ROW or totals[runner_up] < totals[decision.chosen]:
            return np.array([decision.chosen], np.intp)
        if self.tie_breaker is TieBreaker.FIXED:  # the two that decide() found are enough to know
            return np.array([decision.chosen, runner_up], np.intp)
        equal = np.flatnonzero(totals == totals[decision.chosen])
        return (
            equal
            if decision.table.is_in_tie_order
            else equal[np.argsort(decision.table.column("rank")[equal], kind="stable")]
        )

    def _draw(self, decision: Decision, rows: Rowids) -> int:
        match self.tie_breaker:
            case TieBreaker.FIXED:
                return decision.chosen
            case TieBreaker.RANDOM:
                return int(rows[int(self.rng.random() * len(rows))])
            case TieBreaker.LEAST_LOADED:
                return int(rows[row_loads(decision.ask, decision.table, rows).argmin()])
            case TieBreaker.ROUND_ROBIN:
                return self._next_round_robin(decision.table, rows)
            case TieBreaker.WEIGHTED_RANDOM:
                return self._weighted(decision, rows)
            case TieBreaker.AFFINITY:
                return self._most_preferred(decision, rows)

    def _next_round_robin(self, table: Table, rows: Rowids) -> int:
        after = (
            int(np.searchsorted(table.column("rank")[rows], np.uint64(self.last_rank), side="right"))
            if self.last_rank >= 0
            else 0
        )
        return int(rows[after % len(rows)])

    def _most_preferred(self, decision: Decision, rows: Rowids) -> int:
        """The first of the most liked, so that further ties go by the fixed order."""
        liked = preference_counter(decision.ask, decision.table)
        return int(max(rows.tolist(), key=liked)) if liked else int(rows[0])

    def _weighted(self, decision: Decision, rows: Rowids) -> int:
        weights = [score_of(decision, row) for row in rows.tolist()]
        if not sum(weights):
            weights = [1.0] * len(weights)
        aim = self.rng.random() * sum(weights)
        for row, weight in zip(rows.tolist(), weights, strict=True):
            aim -= weight
            if aim < 0:
                return int(row)
        return int(rows[0])


def score_of(decision: Decision, row: int) -> float:
    """0..100: the weighted mean of the scores that had something to say; 0 where none had."""
    return scaled_score(float(decision.totals[row]), total_weight(decision.ask, decision.profile))


def scaled_score(total: float, weight: float) -> float:
    return min(MAX_SCORE, max(0.0, MAX_SCORE * total / weight)) if weight else 0.0


def total_weight(ask: Ask, profile: Profile) -> float:
    return float(sum(weight for score, weight in profile.scores if weight and score.applies(ask)))


def row_loads(ask: Ask, table: Table, rows: Rowids) -> Floats:
    """How full these are: the fullest of what is asked for."""
    fullest: Floats = np.zeros(len(rows), np.float32)
    for resource, _ in ask.needs:
        np.maximum(fullest, table.share(resource)[rows], out=fullest)
    return fullest


def preference_counter(ask: Ask, table: Table) -> Callable[[int], int] | None:
    """How many of its preferences a row meets: labels it likes, neighbours it likes there, neighbours it dislikes not there."""
    if not isinstance(ask, WorkloadAsk) or not isinstance(table, NodeTable):
        return None
    if not (ask.demands.node_preferences or ask.demands.near_preferences or ask.demands.far_preferences):
        return None
    demands = ask.demands

    def near(term: WorkloadTerm, row: int) -> bool:
        code = int(table.domain_codes(term.topology_key)[row])
        tally = table.topology_counts(demands.namespace, term.selector)
        return code >= 0 and bool(tally.by_domain(table, term.topology_key)[code] > 0)

    def count(row: int) -> int:
        facts = table.node_infos[row]
        labels = dict(facts.labels) if facts else {}
        liked = sum(each.term.matches(labels) for each in demands.node_preferences)
        liked += sum(near(each.term, row) for each in demands.near_preferences)
        return liked + sum(not near(each.term, row) for each in demands.far_preferences)

    return count


def _top_rows(decision: Decision, few: int) -> Rowids:
    totals = decision.totals
    open_rows = np.flatnonzero(totals > RULED_OUT)
    if len(open_rows) > few:
        worst = np.partition(totals[open_rows], len(open_rows) - few)[len(open_rows) - few]
        open_rows = open_rows[totals[open_rows] >= worst]
    ranks = decision.table.column("rank")[open_rows]
    return open_rows[np.lexsort((ranks, -totals[open_rows]))][:few]


def _no_candidates_message(decision: Decision) -> str:
    count = len(decision.table.row_of)
    return (
        f"no candidates: each of the {count} nodes is ruled out"
        if count
        else "no candidates: there are no nodes"
    )
