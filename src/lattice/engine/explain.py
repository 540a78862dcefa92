"""Decision -> sentences and JSON: what was chosen, by how much, and why not each of the others."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from lattice.engine.decide import RULED_OUT, Decision, FrozenExplanation, best_row
from lattice.engine.plugin import BulkReason, Reason, Score, Shortfall
from lattice.engine.table import Rowids, RowSubset, Table

DEFAULT_TOP_COUNT = 3  # candidates that are told of
MAX_CODED_REASONS = 60  # reasons that one number tells apart
MAX_SCORE = 100.0  # scores are 0..1 inside, 0..100 to people


@dataclass(frozen=True, slots=True)
class PluginScore:
    plugin: str
    score: float  # 0..100
    weight: float


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A candidate that would do, with what its score is made of."""

    name: str
    score: float  # 0..100: the weighted mean of its parts
    parts: tuple[PluginScore, ...]

    def deciding_score(self, other: "RankedCandidate") -> PluginScore:
        """The part that put it furthest ahead of another one."""
        lead = {part.plugin: part.weight * part.score for part in other.parts}
        return max(self.parts, key=lambda part: part.weight * part.score - lead.get(part.plugin, 0.0))


def top_candidates(decision: Decision, top: int = DEFAULT_TOP_COUNT) -> list[RankedCandidate]:
    """The best few, best first. Only while the table is as it was when deciding, or of a frozen one."""
    if decision.explanation:
        return list(decision.explanation.ranked[:top])
    rows = best_rows(decision, top)
    if not rows:
        return []
    some = RowSubset(decision.table, np.array(rows, np.intp))
    scores = [
        (each, weight) for each, weight in decision.profile.scores if weight and each.applies(decision.ask)
    ]
    columns = [(each.name, weight, _values(decision, each, rows, some)) for each, weight in scores]
    whole = sum(weight for _, weight, _ in columns)
    found = []
    for position, row in enumerate(rows):
        parts = tuple(
            PluginScore(name, MAX_SCORE * values[position], weight) for name, weight, values in columns
        )
        mean = sum(part.score * part.weight for part in parts) / whole if whole else 0.0
        found.append(RankedCandidate(decision.table.names[row], mean, parts))
    return found


def _values(decision: Decision, score: Score, rows: list[int], some: RowSubset) -> list[float]:
    if score.scope in ("fixed", "row"):
        return [float(value) for value in score.score(decision.ask, some)]
    everywhere = score.score(decision.ask, decision.table)
    return [float(everywhere[row]) for row in rows]


def best_rows(decision: Decision, top: int) -> list[int]:
    totals, rows = decision.totals.copy(), []
    for _ in range(top):
        row = best_row(decision.table, totals)
        if row < 0:
            break
        rows.append(row)
        totals[row] = RULED_OUT
    return rows


def rejection_counts(decision: Decision) -> list[tuple[Reason, int]]:
    """How many candidates each reason ruled out, counting each candidate once, by the first reason that did."""
    left = decision.alive.copy()
    found = []
    for reason, mask in decision.reasons.items():
        hit = left & mask
        if count := int(np.count_nonzero(hit)):
            found.append((reason, count))
            left &= ~mask
    return sort_by_count(dict(found))


def sort_by_count(found: Mapping[Reason, int]) -> list[tuple[Reason, int]]:
    """Equals stay in the order in which reasons are looked at."""
    return sorted(found.items(), key=lambda pair: -pair[1])


def summarize(decision: Decision, noun: str = "node") -> str:
    """`chose n1 of 40 nodes`, or `0 of 2 nodes: 1 without 2 cpu free; 1 without 1 gpu free`."""
    total = int(np.count_nonzero(decision.alive))
    fitting = int(np.count_nonzero(decision.totals > RULED_OUT))
    nouns = f"{noun}s" if total != 1 else noun
    refused = "; ".join(f"{count:,} {reason.summary()}" for reason, count in rejection_counts(decision))
    if not decision.fits:
        return f"0 of {total:,} {nouns}: {refused}" if refused else f"0 of {total:,} {nouns}: there are none"
    chosen = f"{decision.name}: best of {fitting:,} that fit, of {total:,} {nouns}"
    return f"{chosen} ({refused})" if refused else chosen


def rejections_of(decision: Decision, name: str) -> list[Shortfall]:
    """Everything that rules one candidate out; nothing: it would do."""
    if decision.explanation:
        return list(decision.explanation.rejected.get(name, ()))
    row = decision.table.row_of[name]
    return [reason.detail(decision.table, row) for reason, mask in decision.reasons.items() if mask[row]]


def freeze(decision: Decision, top: int = DEFAULT_TOP_COUNT) -> Decision:
    """What can be said of it is said now, and stays true of that moment whatever becomes of the table."""
    told = FrozenExplanation(
        decision.name, decision.alive.copy(), dict(all_rejections(decision)), top_candidates(decision, top)
    )
    return replace(decision.copy(), explanation=told)


def all_rejections(decision: Decision) -> Iterator[tuple[str, Sequence[Shortfall]]]:
    """Every candidate that is ruled out, with all its reasons, by name."""
    if decision.explanation:
        return iter(decision.explanation.rejected.items())
    names, found = decision.table.names, dict[str, Sequence[Shortfall]]()
    for rows, reasons in _group_by_reasons(decision):
        found.update(zip(map(names.__getitem__, rows.tolist()), zip(*reasons, strict=True), strict=True))
    return ((name, found[name]) for name in sorted(found))


def _group_by_reasons(decision: Decision) -> Iterator[tuple[Rowids, Sequence[Iterable[Shortfall]]]]:
    """Rows that the same reasons rule out, together with what each of these says of each row."""
    count, alike = decision.table.count, np.zeros(decision.table.count, np.int64)
    said: list[
        tuple[Rowids, Sequence[Shortfall]]
    ] = []  # of each row, where in the words of the reason it comes; -1: nowhere
    for number, (reason, mask) in enumerate(decision.reasons.items()):
        rows = np.flatnonzero(mask & decision.alive)
        if len(rows):
            places = np.full(count, -1, np.intp)
            places[rows] = np.arange(len(rows))
            said.append((places, reason_details(reason, decision.table, rows)))
            alike *= 2
            alike[rows] += 1
        if number % MAX_CODED_REASONS == MAX_CODED_REASONS - 1:
            alike = np.unique(alike, return_inverse=True)[1]
    for code in np.unique(alike).tolist():
        rows = np.flatnonzero(alike == code)
        reasons = [
            map(words.__getitem__, places[rows].tolist()) for places, words in said if places[rows[0]] >= 0
        ]
        if reasons:
            yield rows, reasons


def reason_details(reason: Reason, table: Table, rows: Rowids) -> Sequence[Shortfall]:
    """Of each row, in one go if the reason can."""
    if hasattr(reason, "details"):
        return cast("BulkReason", reason).details(table, rows)
    return [reason.detail(table, row) for row in rows.tolist()]


def as_json(
    decision: Decision, top: int = DEFAULT_TOP_COUNT, *, with_rejections: bool = False
) -> dict[str, Any]:
    """For machines, and for keeping: the best few with their parts, counts per reason, on request every refusal."""
    best_few = top_candidates(decision, top)
    document: dict[str, Any] = {
        "ask": decision.ask.name,
        "profile": decision.profile.name,
        "chosen": decision.name or None,
        "summary": summarize(decision),
        "ranked": [
            {
                "name": each.name,
                "score": round(each.score, 2),
                "parts": {p.plugin: {"score": round(p.score, 2), "weight": p.weight} for p in each.parts},
            }
            for each in best_few
        ],
        "reasons": [
            {"plugin": reason.plugin, "reason": reason.summary(), "count": count}
            for reason, count in rejection_counts(decision)
        ],
    }
    if with_rejections:
        document["refused"] = _rejections_json(all_rejections(decision))
    return document


def _rejections_json(found: Iterable[tuple[str, Sequence[Shortfall]]]) -> dict[str, list[dict[str, str]]]:
    """By name; those that are told the same share it."""
    written: dict[Sequence[Shortfall], list[dict[str, str]]] = {}
    document: dict[str, list[dict[str, str]]] = {}
    for name, reasons in found:
        told = written.get(reasons)
        if told is None:
            told = written[reasons] = [each._asdict() for each in reasons]
        document[name] = told
    return document
