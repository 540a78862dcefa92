"""Tie-breaking among the best nodes: by the fixed order of the table, or in one of five other ways."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

from lattice.engine.decide import NO_ROW, REJECTED_TOTAL, Decision
from lattice.engine.explain import MAX_SCORE
from lattice.engine.plugin import Ask, Profile
from lattice.engine.table import Floats, Rowids, Table
from lattice.kinds.constraints import WorkloadTerm
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import WorkloadAsk

WEIGHTED_RANDOM_CANDIDATES = 3


class TieBreaker(StrEnum):
    # The tie order of the table, a hash of the node names: earlier decisions do not influence the choice.
    FIXED = "fixed"
    RANDOM = "random"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"
    WEIGHTED_RANDOM = "weighted-random"
    AFFINITY = "affinity-based"


class RandomSource(Protocol):
    def random(self) -> float:
        """A number of at least 0 and below 1, as from a seeded `random.Random`."""
        ...


class _AlwaysZero:
    """The random source of a selector that gets none; it always returns the lowest number."""

    def random(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected row, or NO_ROW with a problem."""

    row: int
    score: float  # 0..100
    # The rows among which the tie-breaker chose: by score, then in the table's fixed order.
    candidates: Rowids = field(default_factory=lambda: np.empty(0, np.intp), compare=False)
    problem: str = ""

    @property
    def fits(self) -> bool:
        return self.row != NO_ROW


@dataclass(slots=True)
class Selector:
    """Select a node of a decision. Equal decisions, random numbers and `last_rank` give equal selections."""

    tie_breaker: TieBreaker = TieBreaker.FIXED
    rng: RandomSource = field(default_factory=_AlwaysZero)
    top: int = WEIGHTED_RANDOM_CANDIDATES
    last_rank: int = -1  # the rank of the node selected last, for round-robin; the only state

    def select(self, decision: Decision) -> Selection:
        if not decision.fits:
            count = len(decision.table.row_of)
            problem = "no candidates: there are no nodes"
            if count:
                problem = f"no candidates: each of the {count} nodes is ruled out"
            return Selection(NO_ROW, 0.0, problem=problem)
        rows = self._eligible_rows(decision)
        row = int(rows[0]) if len(rows) == 1 else self._draw(decision, rows)
        if self.tie_breaker is TieBreaker.ROUND_ROBIN:
            self.last_rank = int(decision.table.column("rank")[row])
        return Selection(row, score_of(decision, row), rows)

    def _eligible_rows(self, decision: Decision) -> Rowids:
        """The rows as good as the best row, in fixed order; for weighted-random, the best few rows."""
        totals, runner_up = decision.totals, decision.runner_up
        if self.tie_breaker is TieBreaker.WEIGHTED_RANDOM:
            feasible = np.flatnonzero(totals > REJECTED_TOTAL)
            if len(feasible) > self.top:
                # Rows with the same total as the last of the best rows stay, because their ranks decide among
                # them.
                worst = np.partition(totals[feasible], len(feasible) - self.top)[len(feasible) - self.top]
                feasible = feasible[totals[feasible] >= worst]
            ranks = decision.table.column("rank")[feasible]
            return feasible[np.lexsort((ranks, -totals[feasible]))][: self.top]
        if runner_up == NO_ROW or totals[runner_up] < totals[decision.chosen]:
            return np.array([decision.chosen], np.intp)
        # The chosen row and the runner-up already show that there is a tie; no further rows are needed.
        if self.tie_breaker is TieBreaker.FIXED:
            return np.array([decision.chosen, runner_up], np.intp)
        equal = np.flatnonzero(totals == totals[decision.chosen])
        if decision.table.is_in_tie_order:
            return equal
        return equal[np.argsort(decision.table.column("rank")[equal], kind="stable")]

    def _draw(self, decision: Decision, rows: Rowids) -> int:
        match self.tie_breaker:
            case TieBreaker.FIXED:
                return decision.chosen
            case TieBreaker.RANDOM:
                return int(rows[int(self.rng.random() * len(rows))])
            case TieBreaker.LEAST_LOADED:
                # The load of a row is the utilisation of its fullest requested resource.
                loads: Floats = np.zeros(len(rows), np.float32)
                for resource, _ in decision.ask.needs:
                    np.maximum(loads, decision.table.share(resource)[rows], out=loads)
                return int(rows[loads.argmin()])
            case TieBreaker.ROUND_ROBIN:
                position = 0
                if self.last_rank >= 0:
                    ranks = decision.table.column("rank")[rows]
                    position = int(np.searchsorted(ranks, np.uint64(self.last_rank), side="right"))
                return int(rows[position % len(rows)])
            case TieBreaker.WEIGHTED_RANDOM:
                weights = [score_of(decision, row) for row in rows.tolist()]
                # All scores are 0: every row is as likely.
                if not sum(weights):
                    weights = [1.0] * len(weights)
                target = self.rng.random() * sum(weights)
                for row, weight in zip(rows.tolist(), weights, strict=True):
                    target -= weight
                    if target < 0:
                        return int(row)
                return int(rows[0])
            case TieBreaker.AFFINITY:
                # max() returns the first of equal rows, so further ties follow the fixed order.
                count_preferences = _preference_counter(decision.ask, decision.table)
                return int(max(rows.tolist(), key=count_preferences)) if count_preferences else int(rows[0])


def score_of(decision: Decision, row: int) -> float:
    """The score of a row from 0 to 100: the weighted mean of the scores that apply; 0 if none applies."""
    return scaled_score(float(decision.totals[row]), total_weight(decision.ask, decision.profile))


def scaled_score(total: float, weight: float) -> float:
    return min(MAX_SCORE, max(0.0, MAX_SCORE * total / weight)) if weight else 0.0


def total_weight(ask: Ask, profile: Profile) -> float:
    return float(sum(weight for score, weight in profile.scores if weight and score.applies(ask)))


def _preference_counter(ask: Ask, table: Table) -> Callable[[int], int] | None:
    """A function that counts the preferences of a workload that a row meets; None if the workload has no
    preferences.

    A row meets a preference for a node if the node's labels match, a preferred affinity term if the domain
    has a matching workload, and a preferred anti-affinity term if the domain has none.
    """
    if not isinstance(ask, WorkloadAsk) or not isinstance(table, NodeTable):
        return None
    if not (
        ask.demands.node_preferences
        or ask.demands.affinity_preferences
        or ask.demands.anti_affinity_preferences
    ):
        return None
    demands = ask.demands

    def is_near(term: WorkloadTerm, row: int) -> bool:
        code = int(table.domain_codes(term.topology_key)[row])
        counts = table.topology_counts(term.namespace or demands.namespace, term.selector)
        return code >= 0 and bool(counts.by_domain(table, term.topology_key)[code] > 0)

    def count(row: int) -> int:
        node_info = table.node_infos[row]
        labels = dict(node_info.labels) if node_info else {}
        met = sum(preference.term.matches(labels) for preference in demands.node_preferences)
        met += sum(is_near(preference.term, row) for preference in demands.affinity_preferences)
        return met + sum(
            not is_near(preference.term, row) for preference in demands.anti_affinity_preferences
        )

    return count
