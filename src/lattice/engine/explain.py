"""Decision -> sentences and JSON: what was chosen, by how much, and why not each of the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from lattice.engine.decide import RULED_OUT, Decision, best
from lattice.engine.plugin import Plural, Reason, Score, Shortfall
from lattice.engine.table import Rowids, Some, Table

SHOWN = 100.0  # scores are 0..1 inside, 0..100 to people


@dataclass(frozen=True, slots=True)
class Part:
    plugin: str
    score: float  # 0..100
    weight: float


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate that would do, with what its score is made of."""

    name: str
    score: float  # 0..100: the weighted mean of its parts
    parts: tuple[Part, ...]

    def deciding_over(self, other: "Ranked") -> Part:
        """The part that put it furthest ahead of another one."""
        lead = {part.plugin: part.weight * part.score for part in other.parts}
        return max(self.parts, key=lambda part: part.weight * part.score - lead.get(part.plugin, 0.0))


def ranked(decision: Decision, top: int = 3) -> list[Ranked]:
    """The best few, best first. Only while the table is as it was when deciding."""
    rows = best_rows(decision, top)
    if not rows:
        return []
    some = Some(decision.table, np.array(rows, np.intp))
    scores = [(each, weight) for each, weight in decision.profile.scores if weight and each.applies(decision.ask)]
    columns = [(each.name, weight, _values(decision, each, rows, some)) for each, weight in scores]
    whole = sum(weight for _, weight, _ in columns)
    found = []
    for position, row in enumerate(rows):
        parts = tuple(Part(name, SHOWN * values[position], weight) for name, weight, values in columns)
        mean = sum(part.score * part.weight for part in parts) / whole if whole else 0.0
        found.append(Ranked(decision.table.names[row], mean, parts))
    return found


def _values(decision: Decision, score: Score, rows: list[int], some: Some) -> list[float]:
    if score.scope in ("fixed", "row"):
        return [float(value) for value in score.score(decision.ask, some)]
    everywhere = score.score(decision.ask, decision.table)
    return [float(everywhere[row]) for row in rows]


def best_rows(decision: Decision, top: int) -> list[int]:
    totals, rows = decision.totals.copy(), []
    for _ in range(top):
        row = best(decision.table, totals)
        if row < 0:
            break
        rows.append(row)
        totals[row] = RULED_OUT
    return rows


def counts(decision: Decision) -> list[tuple[Reason, int]]:
    """How many candidates each reason ruled out, counting each candidate once, by the first reason that did."""
    left = decision.table.column("alive").copy()
    found = []
    for reason, mask in decision.reasons.items():
        hit = left & mask
        if count := int(np.count_nonzero(hit)):
            found.append((reason, count))
            left &= ~mask
    return sorted(found, key=lambda pair: -pair[1])


def sentence(decision: Decision, noun: str = "node") -> str:
    """`chose n1 of 40 nodes`, or `0 of 2 nodes: 1 without 2 cpu free; 1 without 1 gpu free`."""
    total = int(np.count_nonzero(decision.table.column("alive")))
    fitting = int(np.count_nonzero(decision.totals > RULED_OUT))
    nouns = f"{noun}s" if total != 1 else noun
    refused = "; ".join(f"{count:,} {reason.summary()}" for reason, count in counts(decision))
    if not decision.fits:
        return f"0 of {total:,} {nouns}: {refused}" if refused else f"0 of {total:,} {nouns}: there are none"
    chosen = f"{decision.name}: best of {fitting:,} that fit, of {total:,} {nouns}"
    return f"{chosen} ({refused})" if refused else chosen


def why_not(decision: Decision, name: str) -> list[Shortfall]:
    """Everything that rules one candidate out; nothing: it would do."""
    row = decision.table.row_of[name]
    return [reason.detail(decision.table, row) for reason, mask in decision.reasons.items() if mask[row]]


def refusals(decision: Decision) -> Iterator[tuple[str, list[Shortfall]]]:
    """Every candidate that is ruled out, with all its reasons, by name."""
    table, alive, names = decision.table, decision.table.column("alive"), decision.table.names
    found: dict[str, list[Shortfall]] = {}
    for reason, mask in decision.reasons.items():
        rows = np.flatnonzero(mask & alive)
        for row, short in zip(rows.tolist(), details(reason, table, rows), strict=True):
            name = names[row]
            if name in found:
                found[name].append(short)
            else:
                found[name] = [short]
    for name in sorted(found):
        yield name, found[name]


def details(reason: Reason, table: Table, rows: Rowids) -> Sequence[Shortfall]:
    """Of each row, in one go if the reason can."""
    if hasattr(reason, "details"):
        return cast("Plural", reason).details(table, rows)
    return [reason.detail(table, row) for row in rows.tolist()]


def as_json(decision: Decision, top: int = 3, *, everything: bool = False) -> dict[str, Any]:
    """For machines, and for keeping: the best few with their parts, counts per reason, on request every refusal."""
    best_few = ranked(decision, top)
    document: dict[str, Any] = {
        "ask": decision.ask.name,
        "profile": decision.profile.name,
        "chosen": decision.name or None,
        "summary": sentence(decision),
        "ranked": [
            {
                "name": each.name,
                "score": round(each.score, 2),
                "parts": {p.plugin: {"score": round(p.score, 2), "weight": p.weight} for p in each.parts},
            }
            for each in best_few
        ],
        "reasons": [{"plugin": reason.plugin, "reason": reason.summary(), "count": count} for reason, count in counts(decision)],
    }
    if everything:
        document["refused"] = {
            name: [{"what": what, "need": need, "have": have, "missing": missing} for what, need, have, missing in found]
            for name, found in refusals(decision)
        }
    return document
