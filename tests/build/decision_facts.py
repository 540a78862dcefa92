"""Comparable facts of a batch decision and of single decisions of the same ask."""

from typing import Any

import pytest

from lattice.engine.batch_result import BatchResult
from lattice.engine.decide import Decision
from lattice.engine.explain import rejection_counts, top_candidates


def decision_facts(decision: Decision) -> tuple[Any, ...]:
    """The facts of a single decision."""
    best, *others = top_candidates(decision, 2)
    masks = {reason.summary(): mask.tolist() for reason, mask in decision.reasons.items() if mask.any()}
    parts = {part.plugin: pytest.approx(part.score, abs=1e-3) for part in best.parts}
    scores = {item.name: pytest.approx(item.score, abs=1e-3) for item in (best, *others)}
    return (
        decision.chosen,
        decision.runner_up,
        decision.totals.tolist(),
        masks,
        count_facts(rejection_counts(decision)),
        scores,
        parts,
    )


def batch_facts(picks: BatchResult) -> list[tuple[Any, ...]]:
    """The facts of each decision in a batch."""
    results = []
    for place, (best, count) in enumerate(zip(picks.ranked(), picks.rejection_counts(), strict=True)):
        pick, decision = picks.picks[place], picks.decision(place)
        masks = {reason.summary(): mask.tolist() for reason, mask in decision.reasons.items() if mask.any()}
        assert decision.totals[pick.row] == pick.total
        assert pick.runner_up < 0 or decision.totals[pick.runner_up] == pick.runner_up_total
        scores, parts = (
            {item.name: item.score for item in best},
            {part.plugin: part.score for part in best[0].parts},
        )
        results.append(
            (pick.row, pick.runner_up, decision.totals.tolist(), masks, count_facts(count), scores, parts)
        )
    return results


def count_facts(found: Any) -> dict[str, int]:
    return {reason.summary(): count for reason, count in found}
