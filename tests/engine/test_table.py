"""Columns that count exactly, say which rows changed, and look the same through a few rows as through all."""

from typing import Any

import numpy as np
import pytest
from candidates import a_table, many
from hypothesis import given
from hypothesis import strategies as st

from lattice.engine.table import FIRST_CAPACITY, LOG_LIMIT, Some, Table, tie_rank


def free(table: Table, name: str, resource: str = "x") -> int:
    return int(table.free(table.index[resource])[table.row_of[name]])


def test_taking_and_giving_back_is_exact() -> None:
    table = a_table([(1 << 60) + 1])
    table.take(0, [(0, 1 << 60)])
    assert (free(table, "r0"), int(table.taken(0)[0])) == (1, 1 << 60)
    table.take(0, [(0, 2)])
    assert free(table, "r0") == -1, "below zero: more is taken than there is"
    table.take(0, [(0, -2), (0, -(1 << 60))])
    assert (free(table, "r0"), float(table.share(0)[0])) == ((1 << 60) + 1, 0.0)


def test_a_new_resource_is_none_anywhere_until_rows_say_otherwise() -> None:
    table = a_table([4])
    assert table.add_resource("y") == table.add_resource("y") == 1
    assert (free(table, "r0", "y"), float(table.inverse(1)[0]), float(table.share(1)[0])) == (0, 0.0, 0.0)
    table.add("other", {"y": 2})
    assert (free(table, "other", "y"), free(table, "other", "x")) == (2, 0)


def test_a_changed_capacity_leaves_what_is_taken() -> None:
    table = a_table([4])
    table.take(0, [(0, 3)])
    table.resize("r0", {"x": 6})
    assert (free(table, "r0"), float(table.share(0)[0])) == (3, 0.5)


def test_a_removed_row_is_empty_and_used_again() -> None:
    table = a_table([4, 4])
    table.take(0, [(0, 3)])
    row = table.remove("r0")
    assert ("r0" in table.row_of, table.alive_rows().tolist(), int(table.free(0)[row])) == (False, [1], 0)
    assert table.add("new", {"x": 5}) == row
    assert (table.count, free(table, "new"), table.alive_rows().tolist()) == (2, 5, [0, 1])


def test_a_name_stands_once() -> None:
    with pytest.raises(KeyError, match="r0"):
        a_table([4]).add("r0", {})


def test_rows_and_columns_grow_together() -> None:
    count = 2 * FIRST_CAPACITY + 3
    table = a_table(range(count))
    table.set(count - 1, "marked", True)
    assert table.free(0).tolist() == list(range(count))
    assert np.flatnonzero(table.column("marked")).tolist() == [count - 1]


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        pytest.param(lambda table: table.take(0, [(0, 1)]), False, id="taking leaves what was derived from fixed columns"),
        pytest.param(lambda table: table.set(0, "marked", True, fixed=False), False, id="so does a column that is not fixed"),
        pytest.param(lambda table: table.set(0, "marked", True), True, id="a fixed column does not"),
        pytest.param(lambda table: table.add("new", {"x": 1}), True, id="nor does a new row"),
        pytest.param(lambda table: table.remove("r1"), True, id="nor a row that goes"),
        pytest.param(lambda table: table.resize("r0", {"x": 9}), True, id="nor a changed capacity"),
    ],
)
def test_derived_columns_are_made_once_until_something_fixed_changes(change: Any, anew: bool) -> None:
    table, made = a_table([4, 4]), []

    def make(whole: Table) -> Any:
        made.append(whole)
        return np.arange(whole.count)

    for _ in range(2):
        table.memo("numbers", make)
    change(table)
    assert len(table.memo("numbers", make)) == table.count
    assert len(made) == 1 + anew


def test_who_looked_too_long_ago_looks_at_everything() -> None:
    table = a_table([4, 4])
    old = table.version
    for _ in range(LOG_LIMIT + 1):
        table.touch(0)
    recent = table.version
    table.touch(1)
    assert table.changed_since(old) is None
    assert table.changed_since(recent) == [1]
    assert table.changed_since(table.version) == []


def test_the_tie_order_depends_on_name_and_seed_only() -> None:
    assert tie_rank(1, "a") == tie_rank(1, "a")
    assert len({tie_rank(seed, name) for seed in (-1, 0, 1) for name in "abc"}) == 9


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "take", "take", "resize", "set"]), st.integers(0, 5), st.integers(-20, 100)), max_size=40
)


def walk(table: Table, steps: list[tuple[str, int, int]]) -> tuple[dict[str, tuple[int, int, bool]], list[tuple[int, set[int]]]]:
    """What a dictionary says should be there (total, taken, mark), and before each step the version and the rows touched from it on."""
    slow: dict[str, tuple[int, int, bool]] = {}
    seen: list[tuple[int, set[int]]] = []
    for what, which, amount in steps:
        name = f"n{which}"
        seen.append((table.version, set()))
        if what == "add" and name not in slow:
            row = table.add(name, {"x": abs(amount)})
            table.set(row, "marked", False)
            slow[name] = (abs(amount), 0, False)
        elif what == "remove" and name in slow:
            row = table.remove(name)
            del slow[name]
        elif what != "add" and name in slow:
            row = table.row_of[name]
            total, taken, mark = slow[name]
            if what == "take":
                table.take(row, [(0, amount)])
                slow[name] = (total, taken + amount, mark)
            elif what == "resize":
                table.resize(name, {"x": abs(amount)})
                slow[name] = (abs(amount), taken, mark)
            else:
                table.set(row, "marked", amount % 2 == 0)
                slow[name] = (total, taken, amount % 2 == 0)
        else:
            continue
        for _, rows in seen:
            rows.add(row)
    return slow, seen


@many
@given(STEPS)
def test_the_table_agrees_with_a_dictionary(steps: list[tuple[str, int, int]]) -> None:
    table = a_table({})
    slow, _ = walk(table, steps)
    assert set(table.row_of) == set(slow)
    assert sorted(table.names[row] for row in table.alive_rows()) == sorted(slow)
    for name, (total, taken, mark) in slow.items():
        row = table.row_of[name]
        assert (int(table.total(0)[row]), int(table.taken(0)[row]), int(table.free(0)[row])) == (total, taken, total - taken)
        assert table.share(0)[row] == (np.float32(taken) * np.float32(1 / total) if total else 0)
        assert table.column("marked")[row] == mark
        assert table.column("rank")[row] == tie_rank(0, name)


@many
@given(STEPS)
def test_changes_since_any_moment_are_the_rows_touched_after_it_each_once(steps: list[tuple[str, int, int]]) -> None:
    table = a_table({})
    _, seen = walk(table, steps)
    for version, rows in seen:
        changed = table.changed_since(version)
        assert changed is not None
        assert len(changed) == len(set(changed))
        assert set(changed) == rows


@many
@given(STEPS)
def test_rows_said_to_be_in_tie_order_are(steps: list[tuple[str, int, int]]) -> None:
    table = a_table({})
    walk(table, steps)
    if table.in_order:
        assert table.column("alive").all()
        assert table.column("rank").tolist() == sorted(table.column("rank").tolist())


ROOMS = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)), min_size=1, max_size=8)


@many
@given(ROOMS, st.data())
def test_a_few_rows_look_as_they_would_after_more_was_placed_there(rooms: list[tuple[int, int]], data: st.DataObject) -> None:
    table = a_table([total for total, _ in rooms])
    for row, (_, taken) in enumerate(rooms):
        table.take(row, [(0, taken)])
    rows = np.array(data.draw(st.lists(st.integers(0, len(rooms) - 1), min_size=1, max_size=6)), np.intp)
    more = np.array(data.draw(st.lists(st.integers(0, 10**12), min_size=len(rows), max_size=len(rows))), np.int64)
    as_is, as_if = Some(table, rows), Some(table, rows, {0: more})
    assert as_is.free(0).tolist() == table.free(0)[rows].tolist()
    assert np.array_equal(as_is.share(0), table.share(0)[rows])
    assert np.array_equal(as_is.memo("twice", lambda whole: whole.total(0) * 2), table.total(0)[rows] * 2)
    shares = as_if.share(0)
    assert as_if.free(0).tolist() == (table.free(0)[rows] - more).tolist()
    for position, (row, amount) in enumerate(zip(rows.tolist(), more.tolist(), strict=True)):
        table.take(row, [(0, amount)])
        assert as_if.total(0)[position] == table.total(0)[row]
        assert shares[position] == table.share(0)[row], "to the last bit"
        table.take(row, [(0, -amount)])
