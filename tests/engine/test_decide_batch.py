"""Tests of `decide_batch`: a batch of equal asks gets the rows that single decisions give, for any scores."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from build.candidates import LEVELS, NotTheFullest, Room, Unmarked, Whim, a_table, a_toy_profile, wanted
from build.decision_facts import batch_facts, decision_facts
from build.property_settings import many
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.engine.decide import Decision, decide
from lattice.engine.decide_batch import MAX_LOOKAHEAD_ROWS, can_batch, decide_batch
from lattice.engine.plugin import Profile
from lattice.engine.table import Table


def one_at_a_time(
    table: Table, profile: Profile, count: int, amount: int, tell: Callable[[Decision], Any] = decision_facts
) -> list[Any]:
    rows: list[int] = []
    found: list[Any] = []
    for _ in range(count):
        ask = wanted(table, x=amount)
        decision = decide(ask, table, profile)
        if not decision.fits:
            break
        rows.append(decision.chosen)
        found.append(tell(decision))
        table.allocate(decision.chosen, ask.needs)
    for row in rows:
        table.allocate(row, [(0, -amount)])
    return found


@pytest.mark.parametrize(
    ("rooms", "count", "weights", "names"),
    [
        pytest.param([4, 4], 3, {"early": 1.0}, ["r0", "r0", "r0"], id="the best one as long as it has room"),
        pytest.param([2, 4], 3, {"early": 1.0}, ["r0", "r0", "r1"], id="the next best once the best is full"),
        pytest.param(
            [1, 1], 3, {"early": 1.0}, ["r0", "r1"], id="fewer rows than asked: the rest fits nowhere"
        ),
        pytest.param([0, 0], 3, {"early": 1.0}, [], id="no row fits"),
        pytest.param([], 3, {"early": 1.0}, [], id="nothing to choose from"),
    ],
)
def test_decide_batch(rooms: list[int], count: int, weights: dict[str, float], names: list[str]) -> None:
    table = a_table(rooms)
    assert [
        table.names[row]
        for row in decide_batch(wanted(table, x=1), table, a_toy_profile(Room(), **weights), count).rows
    ] == names
    assert not table.allocated(0).any(), "the table is as before"


@pytest.mark.parametrize(
    ("profile", "additive", "taken", "together"),
    [
        pytest.param(
            a_toy_profile(Room(), Unmarked(), fullest=1.0, early=1.0), True, 0, True, id="each row by itself"
        ),
        pytest.param(
            a_toy_profile(Room(), fullest=1.0), False, 0, False, id="placing changes more than amounts"
        ),
        pytest.param(
            a_toy_profile(Room(), lonely=1.0), True, 0, False, id="a score that looks at the whole table"
        ),
        pytest.param(
            a_toy_profile(Room(), lonely=0.0),
            True,
            0,
            True,
            id="a table-scoped score without weight is ignored",
        ),
        pytest.param(
            a_toy_profile(Room(), NotTheFullest()),
            True,
            1,
            False,
            id="a filter that looks at the whole table",
        ),
        pytest.param(
            a_toy_profile(Room(), NotTheFullest()),
            True,
            0,
            True,
            id="a table-scoped filter that does not apply",
        ),
    ],
)
def test_can_batch(profile: Profile, additive: bool, taken: int, together: bool) -> None:
    table = a_table([4, 4])
    table.allocate(0, [(0, taken)])
    assert can_batch(replace(wanted(table, x=1), is_additive=additive), profile, table) is together


def test_table_scoped_filter_without_table_prevents_batching() -> None:
    table = a_table([4])
    assert not can_batch(wanted(table, x=1), a_toy_profile(Room(), NotTheFullest()))


WHIMS = st.lists(
    st.lists(st.integers(0, 4).map(lambda value: value / 4), min_size=LEVELS, max_size=LEVELS),
    min_size=8,
    max_size=8,
)


@many
@given(
    rooms=st.lists(st.integers(0, 12), max_size=8),
    whims=WHIMS,
    count=st.integers(0, 40),
    amount=st.integers(1, 3),
    seed=st.integers(0, 3),
    known=st.booleans(),
)
def test_batch_equals_single_decisions_with_random_scores(
    rooms: list[int], whims: list[list[float]], count: int, amount: int, seed: int, known: bool
) -> None:
    table = a_table(rooms, seed)
    if rooms:
        table.set(len(rooms) // 2, "marked", True)
    whim = Whim({f"r{number}": values for number, values in enumerate(whims)}, amount)
    profile = a_toy_profile(Room(), Unmarked(), whim=(whim, 1.0), early=0.25)
    if known:  # cached earlier, and changed since
        for _ in range(2):
            decide(wanted(table, x=amount), table, profile)
        for row in range(0, len(rooms), 3):
            table.allocate(row, [(0, min(amount, rooms[row]))])
    together = batch_facts(decide_batch(wanted(table, x=amount), table, profile, count))
    assert together == one_at_a_time(table, profile, count, amount)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 90), min_size=MAX_LOOKAHEAD_ROWS // 4, max_size=MAX_LOOKAHEAD_ROWS // 2),
    st.booleans(),
)
def test_large_batch_equals_single_decisions(rooms: list[int], packs: bool) -> None:
    table = a_table(rooms)
    profile = a_toy_profile(Room(), fullest=1.0) if packs else a_toy_profile(Room(), early=1.0)
    assert decide_batch(wanted(table, x=1), table, profile, 400).rows == one_at_a_time(
        table, profile, 400, 1, lambda each: each.chosen
    )
