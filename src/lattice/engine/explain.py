"""Explanations of a decision as sentences and JSON: the chosen candidate, its scores, and the reasons that
reject other candidates."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from lattice.engine.decide import REJECTED_TOTAL, Decision, FrozenExplanation, best_row
from lattice.engine.plugin import BulkReason, NormalizedScore, Reason, Shortfall
from lattice.engine.table import Rowids, RowSubset, Table

DEFAULT_TOP_COUNT = 3
# `_group_by_reasons` codes the reasons of a row as bits of an integer; after this number of reasons, the
# codes are renumbered so that further bits are free.
MAX_CODED_REASONS = 60
# Scores are 0..1 in the engine and 0..100 in explanations.
MAX_SCORE = 100.0


@dataclass(frozen=True, slots=True)
class PluginScore:
    """The score of one plugin for a candidate, 0..100."""

    plugin: str
    score: float
    weight: float


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A feasible candidate with the scores of the plugins."""

    name: str
    # 0..100: the weighted mean of the parts.
    score: float
    parts: tuple[PluginScore, ...]

    def deciding_score(self, rival: "RankedCandidate") -> PluginScore:
        """Return the plugin score that puts this candidate furthest ahead of the rival."""
        rival_scores = {part.plugin: part.weight * part.score for part in rival.parts}
        return max(self.parts, key=lambda part: part.weight * part.score - rival_scores.get(part.plugin, 0.0))


def top_candidates(decision: Decision, top: int = DEFAULT_TOP_COUNT) -> list[RankedCandidate]:
    """Return the best candidates, best first. Valid only while the table is unchanged since the decision, or
    for a frozen decision."""
    if decision.explanation:
        return list(decision.explanation.ranked[:top])
    rows = best_rows(decision, top)
    if not rows:
        return []
    subset = RowSubset(decision.table, np.array(rows, np.intp))
    candidates = decision.totals > REJECTED_TOTAL
    columns: list[tuple[str, float, list[float]]] = []
    for score, weight in decision.profile.scores:
        if not weight or not score.applies(decision.ask):
            continue
        if score.scope in ("fixed", "row"):
            values = [float(value) for value in score.score(decision.ask, subset)]
        else:
            # Scores of wide reach (see `plugin.Reach`) need the whole table.
            table_values = (
                cast("NormalizedScore", score).normalized(decision.ask, decision.table, candidates)
                if hasattr(score, "normalized")
                else score.score(decision.ask, decision.table)
            )
            values = [float(table_values[row]) for row in rows]
        columns.append((score.name, weight, values))
    total_weight = sum(weight for _, weight, _ in columns)
    ranked = []
    for position, row in enumerate(rows):
        parts = tuple(
            PluginScore(name, MAX_SCORE * values[position], weight) for name, weight, values in columns
        )
        mean = sum(part.score * part.weight for part in parts) / total_weight if total_weight else 0.0
        ranked.append(RankedCandidate(decision.table.names[row], mean, parts))
    return ranked


def best_rows(decision: Decision, top: int) -> list[int]:
    """Return up to `top` feasible rows, best first."""
    totals, rows = decision.totals.copy(), []
    for _ in range(top):
        row = best_row(decision.table, totals)
        if row < 0:
            break
        rows.append(row)
        totals[row] = REJECTED_TOTAL
    return rows


def rejection_counts(decision: Decision) -> list[tuple[Reason, int]]:
    """Return the number of candidates per rejection reason, most first; a candidate counts once, for the
    first reason that rejects it."""
    uncounted = decision.alive.copy()
    counts = []
    for reason, mask in decision.reasons.items():
        rejected = uncounted & mask
        if count := int(np.count_nonzero(rejected)):
            counts.append((reason, count))
            uncounted &= ~mask
    return sort_by_count(dict(counts))


def sort_by_count(counts: Mapping[Reason, int]) -> list[tuple[Reason, int]]:
    """Sort by count, largest first; equal counts stay in the order of the filters."""
    return sorted(counts.items(), key=lambda pair: -pair[1])


def summarize(decision: Decision, noun: str = "node") -> str:
    """Return `n1: best of 38 that fit, of 40 nodes`, or `0 of 2 nodes: 1 without 2 cpu free; 1 without 1 gpu
    free`."""
    total = int(np.count_nonzero(decision.alive))
    fitting = int(np.count_nonzero(decision.totals > REJECTED_TOTAL))
    nouns = f"{noun}s" if total != 1 else noun
    rejections = "; ".join(f"{count:,} {reason.summary()}" for reason, count in rejection_counts(decision))
    if not decision.fits:
        return (
            f"0 of {total:,} {nouns}: {rejections}"
            if rejections
            else f"0 of {total:,} {nouns}: there are none"
        )
    chosen = f"{decision.name}: best of {fitting:,} that fit, of {total:,} {nouns}"
    return f"{chosen} ({rejections})" if rejections else chosen


def rejections_of(decision: Decision, name: str) -> list[Shortfall]:
    """Return every shortfall that rejects the candidate; empty for a feasible candidate."""
    if decision.explanation:
        return list(decision.explanation.rejected.get(name, ()))
    row = decision.table.row_of[name]
    return [reason.detail(decision.table, row) for reason, mask in decision.reasons.items() if mask[row]]


def freeze(decision: Decision, top: int = DEFAULT_TOP_COUNT) -> Decision:
    """Return a copy of the decision with its explanation rendered now, so that later changes of the table do
    not alter the explanation."""
    explanation = FrozenExplanation(
        decision.name, decision.alive.copy(), dict(all_rejections(decision)), top_candidates(decision, top)
    )
    return replace(decision.copy(), explanation=explanation)


def all_rejections(decision: Decision) -> Iterator[tuple[str, Sequence[Shortfall]]]:
    """Yield every rejected candidate by name, with all reasons."""
    if decision.explanation:
        return iter(decision.explanation.rejected.items())
    names, rejections = decision.table.names, dict[str, Sequence[Shortfall]]()
    for rows, reasons in _group_by_reasons(decision):
        rejections.update(zip(map(names.__getitem__, rows.tolist()), zip(*reasons, strict=True), strict=True))
    return ((name, rejections[name]) for name in sorted(rejections))


def _group_by_reasons(decision: Decision) -> Iterator[tuple[Rowids, Sequence[Iterable[Shortfall]]]]:
    """Yield groups of rows that are rejected for the same reasons, with the shortfalls of each reason for the
    rows of the group.

    A row is coded by one bit per reason, so that grouping is vectorised over rows.
    """
    count, codes = decision.table.count, np.zeros(decision.table.count, np.int64)
    # Per reason: the position of each row among the shortfalls of the reason, -1 for a row not rejected.
    details: list[tuple[Rowids, Sequence[Shortfall]]] = []
    for number, (reason, mask) in enumerate(decision.reasons.items()):
        rows = np.flatnonzero(mask & decision.alive)
        if len(rows):
            positions = np.full(count, -1, np.intp)
            positions[rows] = np.arange(len(rows))
            details.append((positions, reason_details(reason, decision.table, rows)))
            codes *= 2
            codes[rows] += 1
        # Renumbering keeps distinct codes distinct, and frees the bits for further reasons.
        if number % MAX_CODED_REASONS == MAX_CODED_REASONS - 1:
            codes = np.unique(codes, return_inverse=True)[1]
    for code in np.unique(codes).tolist():
        rows = np.flatnonzero(codes == code)
        reasons = [
            map(shortfalls.__getitem__, positions[rows].tolist())
            for positions, shortfalls in details
            if positions[rows[0]] >= 0
        ]
        if reasons:
            yield rows, reasons


def reason_details(reason: Reason, table: Table, rows: Rowids) -> Sequence[Shortfall]:
    """Return the shortfall of each row, in one call if the reason supports bulk details."""
    if hasattr(reason, "details"):
        return cast("BulkReason", reason).details(table, rows)
    return [reason.detail(table, row) for row in rows.tolist()]


def as_json(
    decision: Decision, top: int = DEFAULT_TOP_COUNT, *, with_rejections: bool = False
) -> dict[str, Any]:
    """Return the decision record: the best candidates with plugin scores, counts per reason, and on request
    every rejection."""
    candidates = top_candidates(decision, top)
    document: dict[str, Any] = {
        "ask": decision.ask.name,
        "profile": decision.profile.name,
        "chosen": decision.name or None,
        "summary": summarize(decision),
        "ranked": [
            {
                "name": candidate.name,
                "score": round(candidate.score, 2),
                "parts": {
                    p.plugin: {"score": round(p.score, 2), "weight": p.weight} for p in candidate.parts
                },
            }
            for candidate in candidates
        ],
        "reasons": [
            {"plugin": reason.plugin, "reason": reason.summary(), "count": count}
            for reason, count in rejection_counts(decision)
        ],
    }
    if with_rejections:
        # Candidates with equal shortfalls share one list.
        encoded: dict[Sequence[Shortfall], list[dict[str, str]]] = {}
        rejections: dict[str, list[dict[str, str]]] = {}
        for name, shortfalls in all_rejections(decision):
            entries = encoded.get(shortfalls)
            if entries is None:
                entries = encoded[shortfalls] = [shortfall._asdict() for shortfall in shortfalls]
            rejections[name] = entries
        document["refused"] = rejections
    return document
