"""Tests of explanations: summary text, ranked candidates with score parts, rejection counts and shortfalls."""

import json
from typing import Any

import numpy as np
import pytest
from build.candidates import NotTheFullest, Room, Unmarked, a_table, a_toy_profile, wanted
from build.property_settings import many
from hypothesis import given
from hypothesis import strategies as st

from lattice.engine.decide import REJECTED_TOTAL, Decision, decide
from lattice.engine.explain import (
    all_rejections,
    as_json,
    best_rows,
    freeze,
    rejection_counts,
    rejections_of,
    summarize,
    top_candidates,
)
from lattice.engine.plugin import Shortfall
from lattice.engine.table import Rowids, Table

PROFILE = a_toy_profile(Unmarked(), Room(), fullest=3.0, early=1.0)


def a_decision(
    rooms: list[int],
    amount: int = 2,
    marked: tuple[int, ...] = (),
    taken: tuple[int, ...] = (),
    profile: Any = PROFILE,
) -> Decision:
    table = a_table(rooms)
    for row in marked:
        table.set(row, "marked", True)
    for row, much in enumerate(taken):
        table.allocate(row, [(0, much)])
    return decide(wanted(table, x=amount), table, profile)


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        pytest.param(a_decision([4, 4]), "r0: best of 2 that fit, of 2 nodes", id="all fit"),
        pytest.param(
            a_decision([4, 1, 4], marked=(2,)),
            "r0: best of 1 that fit, of 3 nodes (1 marked; 1 without 2 x free)",
            id="some fit",
        ),
        pytest.param(
            a_decision([1, 1, 1, 4], marked=(3,)),
            "0 of 4 nodes: 3 without 2 x free; 1 marked",
            id="none fits: most first",
        ),
        pytest.param(a_decision([1]), "0 of 1 node: 1 without 2 x free", id="one is one node"),
        pytest.param(a_decision([]), "0 of 0 nodes: there are none", id="there are none"),
        pytest.param(
            a_decision([1, 1], marked=(0,)),
            "0 of 2 nodes: 1 marked; 1 without 2 x free",
            id="counted once, for the first reason",
        ),
    ],
)
def test_summarize(decision: Decision, words: str) -> None:
    assert summarize(decision) == words


def test_removed_rows_are_not_counted() -> None:
    table = a_table([1, 1, 4])
    table.remove("r0")
    assert (
        summarize(decide(wanted(table, x=2), table, PROFILE))
        == "r2: best of 1 that fit, of 2 nodes (1 without 2 x free)"
    )


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        pytest.param("r0", [], id="nothing: it would do"),
        pytest.param("r1", [Shortfall("x", "2", "1", "1")], id="need, have, missing"),
        pytest.param(
            "r2",
            [Shortfall("marked"), Shortfall("x", "2", "0", "2")],
            id="everything that is in the way, not only the first",
        ),
    ],
)
def test_rejections_of(name: str, lacking: list[Shortfall]) -> None:
    assert rejections_of(a_decision([4, 1, 0], marked=(2,)), name) == lacking


@pytest.mark.parametrize(
    ("shortfall", "words"),
    [
        pytest.param(Shortfall("x", "2", "1", "1"), "x: need 2, have 1, missing 1", id="numbers"),
        pytest.param(
            Shortfall("label", "a=1", "none"), "label: need a=1, have none", id="nothing to subtract"
        ),
        pytest.param(Shortfall("cordoned"), "cordoned", id="no numbers at all"),
    ],
)
def test_shortfall_text(shortfall: Shortfall, words: str) -> None:
    assert str(shortfall) == words


def test_top_candidates_have_score_parts_and_deciding_score() -> None:
    first, second = top_candidates(a_decision([8, 8], taken=(0, 4)), top=2)
    assert (first.name, second.name) == ("r1", "r0")
    assert [(part.plugin, part.score, part.weight) for part in second.parts] == [
        ("Fullest", 0.0, 3.0),
        ("Early", 50.0, 1.0),
    ]
    assert first.score == pytest.approx((3 * 50 + 100 / 3) / 4, abs=1e-4)
    assert first.deciding_score(second).plugin == "Fullest"


def test_top_candidates_include_table_scoped_scores() -> None:
    (best, _) = top_candidates(
        a_decision([8, 8], taken=(0, 4), profile=a_toy_profile(Room(), lonely=2.0)), top=2
    )
    assert (best.name, best.score) == ("r0", 100.0)


def test_top_candidates_without_scores_or_candidates() -> None:
    assert [
        (each.score, each.parts) for each in top_candidates(a_decision([4], profile=a_toy_profile(Room())))
    ] == [(0.0, ())]
    assert top_candidates(a_decision([1])) == []


def test_as_json_includes_rejections_on_request() -> None:
    decision = a_decision([4, 1, 0], marked=(2,))
    document = json.loads(json.dumps(as_json(decision, with_rejections=True)))
    assert (document["ask"], document["chosen"], document["profile"]) == ("w", "r0", "toy")
    assert document["ranked"] == [
        {
            "name": "r0",
            "score": 12.5,
            "parts": {"Fullest": {"score": 0.0, "weight": 3.0}, "Early": {"score": 50.0, "weight": 1.0}},
        }
    ]
    assert document["reasons"] == [
        {"plugin": "Unmarked", "reason": "marked", "count": 1},
        {"plugin": "Room", "reason": "without 2 x free", "count": 1},
    ]
    assert document["refused"]["r1"] == [{"what": "x", "need": "2", "have": "1", "missing": "1"}]
    assert list(document["refused"]) == ["r1", "r2"]
    assert "refused" not in as_json(decision)
    assert as_json(a_decision([1]))["chosen"] is None


class Counted:
    """A reason with batched details that counts its calls."""

    plugin, asked = "Counted", 0

    def summary(self) -> str:
        return "counted"

    def detail(self, table: Table, row: int) -> Shortfall:
        return Shortfall(f"row {row}")

    def details(self, table: Table, rows: Rowids) -> list[Shortfall]:
        self.asked += 1
        return [self.detail(table, row) for row in rows.tolist()]


def test_batched_reason_is_called_once_for_its_rows() -> None:
    decision, counted = a_decision([1, 4, 1, 1]), Counted()
    decision.table.remove("r2")
    decision.reasons = {counted: np.array([True, False, True, True]), **decision.reasons}
    told = dict(all_rejections(decision))
    assert told == {
        name: (Shortfall(f"row {name[1:]}"), Shortfall("x", "2", "1", "1")) for name in ("r0", "r3")
    }
    assert counted.asked == 1


def test_copied_decision_explains_state_at_decision_time() -> None:
    decision = a_decision([4, 1, 3], 2, taken=(0, 0, 2))
    table, told = (
        decision.table,
        (
            rejections_of(decision, "r1"),
            rejections_of(decision, "r2"),
            top_candidates(decision),
            as_json(decision, with_rejections=True),
        ),
    )
    kept = freeze(decision)
    table.allocate(2, [(0, -2)])
    table.allocate(0, [(0, 4)])
    table.remove("r0")
    assert (
        rejections_of(kept, "r1"),
        rejections_of(kept, "r2"),
        top_candidates(kept),
        as_json(kept, with_rejections=True),
    ) == told
    assert rejections_of(kept, "r0") == []
    assert [str(each) for each in rejections_of(kept, "r2")] == ["x: need 2, have 1, missing 1"]


WORLDS = st.tuples(
    st.lists(st.integers(0, 5), max_size=8), st.lists(st.integers(0, 7), max_size=4), st.integers(1, 4)
)
WIDE = a_toy_profile(Unmarked(), Room(), NotTheFullest(), fullest=1.0, lonely=1.0)


@many
@given(WORLDS, st.lists(st.integers(0, 2), max_size=8))
def test_rejection_counts_add_up_and_all_have_reasons(
    world: tuple[list[int], list[int], int], taken: list[int]
) -> None:
    rooms, marked, amount = world
    decision = a_decision(
        rooms, amount, tuple(row for row in marked if row < len(rooms)), tuple(taken[: len(rooms)]), WIDE
    )
    out = {name for name, row in decision.table.row_of.items() if decision.totals[row] == REJECTED_TOTAL}
    refused = dict(all_rejections(decision))
    assert set(refused) == out
    assert list(refused) == sorted(out)
    assert sum(count for _, count in rejection_counts(decision)) == len(out)
    for name, row in decision.table.row_of.items():
        expected = sum(bool(mask[row]) for mask in decision.reasons.values())
        assert len(rejections_of(decision, name)) == expected
        assert list(refused.get(name, ())) == rejections_of(decision, name)
        for each in rejections_of(decision, name):
            assert not each.need or int(each.need) - int(each.have) == int(each.missing) > 0
    assert summarize(decision)


@many
@given(WORLDS, st.lists(st.integers(0, 2), max_size=8))
def test_ranking_agrees_with_decision_totals(
    world: tuple[list[int], list[int], int], taken: list[int]
) -> None:
    rooms, marked, amount = world
    decision = a_decision(
        rooms, amount, tuple(row for row in marked if row < len(rooms)), tuple(taken[: len(rooms)]), WIDE
    )
    before = decision.totals.copy()
    rows = best_rows(decision, 3)
    assert (decision.totals == before).all()
    assert rows[:2] == [row for row in (decision.chosen, decision.runner_up) if row >= 0]
    best = top_candidates(decision)
    assert [each.name for each in best] == [decision.table.names[row] for row in rows]
    shown = [round(each.score, 3) for each in best]  # totals are 32-bit floats
    assert shown == sorted(shown, reverse=True)
    for each, row in zip(best, rows, strict=True):
        assert each.score == pytest.approx(100 * float(decision.totals[row]) / 2, abs=1e-4)
        assert 0 <= each.score <= 100
