"""What is told of each of several equal asks that were decided together, and of the same ask decided by itself."""

from typing import Any

import pytest

from lattice.engine.decide import Decision
from lattice.engine.explain import counts, ranked
from lattice.engine.batch_result import Picks


def told(decision: Decision) -> tuple[Any, ...]:
    """By itself, at its turn: everything, as it has to be said later."""
    best, *others = ranked(decision, 2)
    masks = {reason.summary(): mask.tolist() for reason, mask in decision.reasons.items() if mask.any()}
    parts = {part.plugin: pytest.approx(part.score, abs=1e-3) for part in best.parts}
    scores = {each.name: pytest.approx(each.score, abs=1e-3) for each in (best, *others)}
    return (
        decision.chosen,
        decision.runner_up,
        decision.totals.tolist(),
        masks,
        told_counts(counts(decision)),
        scores,
        parts,
    )


def told_together(picks: Picks) -> list[tuple[Any, ...]]:
    """Of each of them, without anything having been placed."""
    found = []
    for place, (best, count) in enumerate(zip(picks.ranked(), picks.counts(), strict=True)):
        pick, decision = picks.each[place], picks.decision(place)
        masks = {reason.summary(): mask.tolist() for reason, mask in decision.reasons.items() if mask.any()}
        assert decision.totals[pick.row] == pick.total
        assert pick.runner_up < 0 or decision.totals[pick.runner_up] == pick.second
        scores, parts = (
            {each.name: each.score for each in best},
            {part.plugin: part.score for part in best[0].parts},
        )
        found.append(
            (pick.row, pick.runner_up, decision.totals.tolist(), masks, told_counts(count), scores, parts)
        )
    return found


def told_counts(found: Any) -> dict[str, int]:
    return {reason.summary(): count for reason, count in found}
