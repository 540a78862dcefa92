"""Tests of `decide`: the best and second-best candidate, a reason for every rejected row, and cached
decisions that equal fresh ones."""

from typing import Any

import numpy as np
import pytest
from build.candidates import (
    Fullest,
    Lacks,
    Lonely,
    NotTheFullest,
    Room,
    Unmarked,
    a_table,
    a_toy_profile,
    wanted,
)
from build.property_settings import many
from hypothesis import given
from hypothesis import strategies as st

from lattice.engine.decide import (
    COLUMNS_PER_FIXED_CACHE,
    COLUMNS_PER_SHAPE_CACHE,
    MAX_SHAPES_SEEN_ONCE,
    NO_ROW,
    REJECTED_TOTAL,
    decide,
)
from lattice.engine.derived_columns import max_columns
from lattice.engine.plugin import Profile
from lattice.engine.table import Table
from lattice.engine.tie_order import tie_rank

PACK = a_toy_profile(Room(), Unmarked(), fullest=1.0)
ALL = a_toy_profile(Room(), Unmarked(), NotTheFullest(), fullest=1.0, early=0.5, lonely=0.25)


@pytest.mark.parametrize(
    ("rooms", "taken", "chosen", "runner_up"),
    [
        pytest.param([9, 9, 9], [1, 5, 3], "r1", "r2", id="the highest score wins, the next one is known"),
        pytest.param([9, 9, 9], [1, 8, 3], "r2", "r0", id="what does not fit is out, however high its score"),
        pytest.param([9], [0], "r0", "", id="there may be no next best"),
        pytest.param([1, 1], [0, 0], "", "", id="no room is an answer, not an error"),
        pytest.param([], [], "", "", id="no candidates at all is one, too"),
    ],
)
def test_decide(rooms: list[int], taken: list[int], chosen: str, runner_up: str) -> None:
    table = a_table(rooms)
    for row, amount in enumerate(taken):
        table.allocate(row, [(0, amount)])
    decision = decide(wanted(table, x=2), table, PACK)
    assert (decision.name, decision.fits) == (chosen, bool(chosen))
    assert (table.names[decision.runner_up] if decision.runner_up != NO_ROW else "") == runner_up


def test_ties_break_by_rank_in_any_row_order() -> None:
    names = [f"n{number}" for number in range(20)]
    first, second = sorted(names, key=lambda name: tie_rank(7, name))[:2]
    for order in (names, names[::-1], sorted(names, key=lambda name: tie_rank(7, name))):
        table = a_table(dict.fromkeys(order, 4), seed=7)
        decision = decide(wanted(table, x=1), table, PACK)
        assert (decision.name, table.names[decision.runner_up]) == (first, second)


def test_removed_row_is_never_chosen_until_reused() -> None:
    table = a_table([4, 4])
    table.allocate(0, [(0, 3)])
    ask = wanted(table, x=1)
    assert decide(ask, table, PACK).name == "r0"
    table.remove("r0")
    assert [decide(ask, table, PACK).name for _ in range(3)] == ["r1"] * 3
    table.allocate(table.add("new", {"x": 4}), [(0, 2)])
    assert decide(ask, table, PACK).name == "new"


class Counted:
    """Wraps a plugin and counts the rows that it evaluates."""

    def __init__(self, inner: Any, applies: bool = True) -> None:
        self.inner, self.rows, self.says = inner, 0, applies
        self.name, self.scope = inner.name, inner.scope

    def applies(self, ask: Any) -> bool:
        return self.says

    def filter(self, ask: Any, rows: Any) -> Any:
        self.rows += rows.count
        return self.inner.filter(ask, rows)

    def score(self, ask: Any, rows: Any) -> Any:
        self.rows += rows.count
        return self.inner.score(ask, rows)


def test_inapplicable_plugin_is_not_called() -> None:
    silent, weightless = Counted(Room(), applies=False), Counted(Fullest())
    profile: Any = Profile("some", (silent,), ((weightless, 0.0),))
    table = a_table([1, 1])
    assert decide(wanted(table, x=5), table, profile).fits
    assert (silent.rows, weightless.rows) == (0, 0)


def test_cached_shape_recomputes_changed_rows_only() -> None:
    room, lonely = Counted(Room()), Counted(Lonely())
    profile: Any = Profile("counted", (room,), ((lonely, 1.0),))
    table = a_table([9] * 100)
    for _ in range(2):  # the second decision caches the shape
        decide(wanted(table, x=1), table, profile)
    room.rows = lonely.rows = 0
    table.allocate(3, [(0, 1)])
    table.allocate(7, [(0, 1)])
    decide(wanted(table, x=1), table, profile)
    assert (room.rows, lonely.rows) == (2, 100), "a plugin that looks at the whole table always does"


def test_copied_decision_survives_table_changes() -> None:
    table = a_table([4, 4])
    ask = wanted(table, x=3)
    decision = decide(ask, table, PACK)
    kept = decision.copy()
    table.allocate(kept.chosen, [(0, 4)])
    decide(ask, table, PACK)
    decide(ask, table, PACK)
    assert (kept.totals > REJECTED_TOTAL).all()
    assert not kept.reasons[Lacks("x", 3)].any()


def test_shape_caches_stay_within_limits() -> None:
    table = a_table([10**6])
    for amount in range(1, MAX_SHAPES_SEEN_ONCE + 300):
        for _ in range(1 + amount % 2):
            decide(wanted(table, x=amount), table, PACK)
    assert len(table.shapes_seen_once) <= MAX_SHAPES_SEEN_ONCE
    assert len(table.shape_caches) <= max_columns(table.count) // COLUMNS_PER_SHAPE_CACHE
    assert len(table.fixed_caches) <= max_columns(table.count) // COLUMNS_PER_FIXED_CACHE


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "mark", "add", "remove", "resize", "decide"]),
        st.integers(0, 7),
        st.integers(0, 6),
    ),
    max_size=25,
)


def apply_step(table: Table, what: str, which: int, amount: int) -> None:
    name = f"r{which}"
    row = table.row_of.get(name)
    if row is None:
        if what == "add":
            table.set(table.add(name, {"x": amount}), "marked", False)
    elif what == "take":
        table.allocate(row, [(0, amount - 2)])
    elif what == "mark":
        table.set(row, "marked", amount % 2 == 0)
    elif what == "remove":
        table.remove(name)
    elif what == "resize":
        table.resize(name, {"x": amount})


def rebuilt_table(table: Table, *, backwards: bool = False) -> Table:
    """The same candidates in a table without caches, in another row order."""
    other = a_table({})
    for name in sorted(table.row_of, reverse=backwards):
        row = table.row_of[name]
        there = other.add(name, {"x": int(table.total(0)[row])})
        other.set(there, "marked", bool(table.column("marked")[row]))
        other.allocate(there, [(0, int(table.allocated(0)[row]))])
    return other


def naive_totals(table: Table, amount: int) -> dict[str, float]:
    """Totals of the feasible candidates, computed one at a time from the plugins of ALL."""
    names, shares = (
        sorted(table.row_of),
        {name: float(table.share(0)[row]) for name, row in table.row_of.items()},
    )
    found = {}
    for name, row in table.row_of.items():
        fullest = any(shares.values()) and shares[name] == max(
            *shares.values(), *([0.0] * (table.count > len(names))), -1e9
        )
        if table.free(0)[row] >= amount and not table.column("marked")[row] and not fullest:
            found[name] = shares[name] + 0.5 / (2 + names.index(name)) + 0.25 * (1 - shares[name])
    return found


@many
@given(st.lists(st.integers(0, 6), max_size=6), STEPS, st.integers(1, 3))
def test_cached_decision_equals_fresh_and_naive_decision(
    rooms: list[int], steps: list[tuple[str, int, int]], amount: int
) -> None:
    table = a_table(rooms)
    for what, which, much in steps:
        apply_step(table, what, which, much)
        if what == "decide":
            decide(wanted(table, x=amount), table, ALL)
    decision = decide(wanted(table, x=amount), table, ALL)
    for other in (rebuilt_table(table), rebuilt_table(table, backwards=True)):
        anew = decide(wanted(other, x=amount), other, ALL)
        if other.count == table.count:  # without holes, which a table-scoped plugin counts as empty rows
            assert anew.name == decision.name
            for name, row in table.row_of.items():
                assert decision.totals[row] == anew.totals[other.row_of[name]], "to the last bit"
    expected = naive_totals(table, amount)
    totals = {
        name: float(decision.totals[row])
        for name, row in table.row_of.items()
        if decision.totals[row] > REJECTED_TOTAL
    }
    assert totals == pytest.approx(expected, abs=1e-6)  # 32-bit floats
    if totals:
        best = max(totals.values())
        assert decision.name == min(
            (name for name, total in totals.items() if total == best), key=lambda name: tie_rank(0, name)
        )
        rest = [total for name, total in totals.items() if name != decision.name]
        assert (decision.runner_up == NO_ROW) == (not rest)
        assert not rest or decision.totals[decision.runner_up] == np.float32(max(rest))
    else:
        assert not decision.fits


@many
@given(st.lists(st.integers(0, 4), max_size=6), st.integers(1, 4), st.lists(st.integers(0, 5), max_size=3))
def test_exactly_the_rejected_rows_have_a_reason(rooms: list[int], amount: int, marked: list[int]) -> None:
    table = a_table(rooms)
    for row in marked:
        if row < len(rooms):
            table.set(row, "marked", True)
    decision = decide(wanted(table, x=amount), table, ALL)
    for row in range(table.count):
        assert any(mask[row] for mask in decision.reasons.values()) == (
            decision.totals[row] == REJECTED_TOTAL
        )
