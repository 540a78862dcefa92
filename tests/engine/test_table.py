"""Tests of `Table`: exact allocation, change tracking, memos, and row subsets that equal the full table."""

from typing import Any

import numpy as np
import pytest
from build.candidates import a_table
from build.property_settings import many
from hypothesis import given
from hypothesis import strategies as st

from lattice.engine.derived_columns import MAX_LOGGED_CHANGES
from lattice.engine.table import FIRST_CAPACITY, FIRST_LINES, RowSubset, Table
from lattice.engine.tie_order import tie_rank


def free(table: Table, name: str, resource: str = "x") -> int:
    return int(table.free(table.resource_index[resource])[table.row_of[name]])


def alive(table: Table) -> list[int]:
    return np.flatnonzero(table.column("alive")).tolist()


def test_allocate_and_free_are_exact() -> None:
    table = a_table([(1 << 60) + 1])
    table.allocate(0, [(0, 1 << 60)])
    assert (free(table, "r0"), int(table.allocated(0)[0])) == (1, 1 << 60)
    table.allocate(0, [(0, 2)])
    assert free(table, "r0") == -1, "below zero: more is taken than there is"
    table.allocate(0, [(0, -2), (0, -(1 << 60))])
    assert (free(table, "r0"), float(table.share(0)[0])) == ((1 << 60) + 1, 0.0)


def test_new_resource_is_zero_on_existing_rows() -> None:
    table = a_table([4])
    assert table.add_resource("y") == table.add_resource("y") == 1
    assert (free(table, "r0", "y"), float(table.inverse(1)[0]), float(table.share(1)[0])) == (0, 0.0, 0.0)
    table.add("other", {"y": 2})
    assert (free(table, "other", "y"), free(table, "other", "x")) == (2, 0)


def test_resize_keeps_allocations() -> None:
    table = a_table([4])
    table.allocate(0, [(0, 3)])
    table.resize("r0", {"x": 6})
    assert (free(table, "r0"), float(table.share(0)[0])) == (3, 0.5)


def test_removed_row_is_empty_and_reused() -> None:
    table = a_table([4, 4])
    table.allocate(0, [(0, 3)])
    row = table.remove("r0")
    assert ("r0" in table.row_of, alive(table), int(table.free(0)[row])) == (False, [1], 0)
    assert table.add("new", {"x": 5}) == row
    assert (table.count, free(table, "new"), alive(table)) == (2, 5, [0, 1])


@given(
    before=st.integers(0, 70),
    gone=st.sets(st.integers(0, 69), max_size=3),
    batches=st.lists(
        st.tuples(st.integers(1, 70), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 1 << 60))),
        max_size=3,
    ),
)
def test_add_identical_equals_adding_rows_singly(
    before: int, gone: set[int], batches: list[tuple[int, dict[str, int]]]
) -> None:
    once, singly = Table(("x",)), Table(("x",))
    for table in (once, singly):
        for number in range(before):
            table.add(f"b{number}", {"x": 1})
        for number in sorted(each for each in gone if each < before):
            table.remove(f"b{number}")
    for start, (count, totals) in enumerate(batches):
        names = [f"n{start}-{number}" for number in range(count)]
        assert once.add_identical(names, totals) == [singly.add(name, totals) for name in names]
    assert (once.names, once.row_of, once.count, once.is_in_tie_order) == (
        singly.names,
        singly.row_of,
        singly.count,
        singly.is_in_tie_order,
    )
    assert (once.version, once.fixed_version, once.rows_by_rank().tolist()) == (
        singly.version,
        singly.fixed_version,
        singly.rows_by_rank().tolist(),
    )
    for name in once.resource_index:
        for read in ("free", "total", "allocated", "share", "inverse"):
            one, other = (getattr(table, read)(table.resource_index[name]) for table in (once, singly))
            assert np.array_equal(one, other), (name, read)


@pytest.mark.parametrize("names", [["r0", "new"], ["new", "new"]], ids=["there", "twice"])
def test_add_identical_rejects_duplicate_names(names: list[str]) -> None:
    table = a_table([4])
    with pytest.raises(KeyError):
        table.add_identical(names, {"x": 1})
    assert (table.count, list(table.row_of)) == (1, ["r0"]), "nothing was added"


def test_add_rejects_duplicate_name() -> None:
    with pytest.raises(KeyError, match="r0"):
        a_table([4]).add("r0", {})


def test_later_rows_get_column_fill_value() -> None:
    table = a_table([])
    table.add_column("model", np.int16, fill=-1)
    for number in range(2 * FIRST_CAPACITY + 1):
        table.add(f"r{number}", {})
    assert table.column("model").tolist() == [-1] * (2 * FIRST_CAPACITY + 1)
    assert table.column("model").dtype == np.int16


def test_columns_grow_with_rows() -> None:
    count = 2 * FIRST_CAPACITY + 3
    table = a_table(range(count))
    table.set(count - 1, "marked", True)
    assert table.free(0).tolist() == list(range(count))
    assert np.flatnonzero(table.column("marked")).tolist() == [count - 1]


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        pytest.param(
            lambda table: table.allocate(0, [(0, 1)]),
            False,
            id="an allocation keeps the memo",
        ),
        pytest.param(
            lambda table: table.set(0, "marked", True, fixed=False),
            False,
            id="a column that is not fixed keeps the memo",
        ),
        pytest.param(
            lambda table: table.set(0, "marked", True), True, id="a fixed column invalidates the memo"
        ),
        pytest.param(lambda table: table.add("new", {"x": 1}), True, id="a new row invalidates the memo"),
        pytest.param(lambda table: table.remove("r1"), True, id="a removed row invalidates the memo"),
        pytest.param(
            lambda table: table.resize("r0", {"x": 9}), True, id="a changed capacity invalidates the memo"
        ),
    ],
)
def test_memo_recomputed_only_after_fixed_change(change: Any, anew: bool) -> None:
    table, made = a_table([4, 4]), []

    def make(whole: Table) -> Any:
        made.append(whole)
        return np.arange(whole.count)

    for _ in range(2):
        table.memo("numbers", make)
    change(table)
    assert len(table.memo("numbers", make)) == table.count
    assert len(made) == 1 + anew


@pytest.mark.parametrize(
    ("change", "looked_at"),
    [
        pytest.param(
            lambda table: table.allocate(0, [(0, 1)]), [], id="taking changes nothing that is fixed"
        ),
        pytest.param(lambda table: table.set(3, "marked", True), [3], id="a fixed column changes its row"),
        pytest.param(lambda table: table.add("new", {"x": 1}), [9], id="a new row is recomputed alone"),
        pytest.param(lambda table: table.remove("r1"), [1], id="a removed row is recomputed alone"),
        pytest.param(
            lambda table: [table.remove("r1"), table.add("new", {"x": 7})],
            [1],
            id="a reused row is recomputed alone",
        ),
        pytest.param(
            lambda table: [table.touch_fixed(row) for row in range(5)],
            list(range(9)),
            id="all rows if many changed",
        ),
    ],
)
def test_derived_column_recomputes_changed_rows_only(change: Any, looked_at: list[int]) -> None:
    table, seen = a_table([4] * 9), []

    def make(rows: Any) -> Any:
        seen.append(rows.select(np.arange(table.count)).tolist())
        return rows.total(0) + rows.column("marked")

    table.derived("sum", make)
    seen.clear()
    change(table)
    assert table.derived("sum", make).tolist() == (table.total(0) + table.column("marked")).tolist()
    assert seen == ([looked_at] if looked_at else [])


def test_aggregate_change_bumps_aggregates_version() -> None:
    table = a_table([4, 7, 5])

    def most(whole: Table) -> int:
        return int(whole.total(0).max())

    assert table.aggregate("most", most) == 7
    before = table.aggregates_version
    table.resize("r0", {"x": 6})
    assert (table.aggregates_version, table.aggregate("most", most)) == (before, 7)
    table.remove("r1")
    assert (table.aggregates_version > before, table.aggregate("most", most)) == (True, 6)


def test_unused_resources_free_their_storage() -> None:
    table = a_table([4])
    table.allocate(0, [(table.add_resource("only taken"), 2)])
    for number in range(1000):
        table.resize("r0", {"x": 4, f"odd-{number}": 3})
        assert free(table, "r0", f"odd-{number}") == 3
        assert number == 0 or free(table, "r0", f"odd-{number - 1}") == 0
    assert len(table._total) <= 2 * FIRST_LINES
    assert (free(table, "r0"), free(table, "r0", "only taken"), free(table, "r0", "odd-5")) == (4, -2, 0)
    table.resize("r0", {"x": 4, "odd-5": 1})
    assert free(table, "r0", "odd-5") == 1, "its number is still its own"


def test_shares_of_huge_amounts_round_consistently() -> None:
    amount = (
        (1 << 60) + (1 << 36) + 1
    )  # rounded once to 32 bits it goes up, rounded to 64 bits first it goes down
    table = a_table([1 << 61])
    table.allocate(0, [(0, amount)])
    taken = table.share(0)[0]
    assert RowSubset(table, np.array([0, 0]), [(0, 1)], np.array([0, 0])).share(0).tolist() == [taken, taken]
    table.resize("r0", {"x": 1 << 61})
    assert table.share(0)[0] == taken


def test_changed_since_old_version_returns_none() -> None:
    table = a_table([4, 4])
    old = table.version
    for _ in range(MAX_LOGGED_CHANGES + 1):
        table.touch(0)
    recent = table.version
    table.touch(1)
    assert table.changed_since(old) is None
    assert table.changed_since(recent) == [1]
    assert table.changed_since(table.version) == []


def test_tie_rank_depends_on_name_and_seed_only() -> None:
    assert tie_rank(1, "a") == tie_rank(1, "a")
    assert len({tie_rank(seed, name) for seed in (-1, 0, 1) for name in "abc"}) == 9


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "take", "take", "resize", "set"]),
        st.integers(0, 5),
        st.integers(-20, 100),
    ),
    max_size=40,
)


def walk(
    table: Table, steps: list[tuple[str, int, int]]
) -> tuple[dict[str, tuple[int, int, bool]], list[tuple[int, set[int]]]]:
    """Apply the steps; return the expected (total, taken, mark) by name, and for each step the version before
    it and the rows touched since."""
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
                table.allocate(row, [(0, amount)])
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
def test_table_agrees_with_dictionary_model(steps: list[tuple[str, int, int]]) -> None:
    table = a_table({})
    slow, _ = walk(table, steps)
    assert set(table.row_of) == set(slow)
    assert sorted(table.names[row] for row in alive(table)) == sorted(slow)
    for name, (total, taken, mark) in slow.items():
        row = table.row_of[name]
        assert (int(table.total(0)[row]), int(table.allocated(0)[row]), int(table.free(0)[row])) == (
            total,
            taken,
            total - taken,
        )
        assert table.share(0)[row] == (np.float32(taken) * np.float32(1 / total) if total else 0)
        assert table.column("marked")[row] == mark
        assert table.column("rank")[row] == tie_rank(0, name)


@many
@given(STEPS)
def test_changed_since_returns_each_touched_row_once(
    steps: list[tuple[str, int, int]],
) -> None:
    table = a_table({})
    _, seen = walk(table, steps)
    for version, rows in seen:
        changed = table.changed_since(version)
        assert changed is not None
        assert len(changed) == len(set(changed))
        assert set(changed) == rows


@many
@given(STEPS)
def test_is_in_tie_order_implies_sorted_ranks(steps: list[tuple[str, int, int]]) -> None:
    table = a_table({})
    walk(table, steps)
    ranks = table.column("rank")[alive(table)].tolist()
    assert table.column("rank")[
        [row for row in table.rows_by_rank() if table.column("alive")[row]]
    ].tolist() == sorted(ranks)
    if table.is_in_tie_order:
        assert ranks == sorted(ranks)


@many
@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 49)), min_size=1, max_size=4), max_size=8))
def test_rows_by_rank_follows_added_and_removed_rows(rounds: list[list[tuple[bool, int]]]) -> None:
    table = a_table({f"n{number}": 1 for number in range(40)})
    for changes in rounds:
        for comes, which in changes:
            if comes and f"n{which}" not in table.row_of:
                table.add(f"n{which}", {"x": 1})
            elif not comes and f"n{which}" in table.row_of:
                table.remove(f"n{which}")
        order = table.rows_by_rank().tolist()
        assert sorted(order) == list(range(table.count))
        assert [table.names[row] for row in order if table.names[row]] == sorted(
            table.row_of, key=lambda name: tie_rank(0, name)
        )


ROOMS = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)), min_size=1, max_size=8)


@many
@given(ROOMS, st.data())
def test_row_subset_equals_table_after_allocation(rooms: list[tuple[int, int]], data: st.DataObject) -> None:
    table = a_table([total for total, _ in rooms])
    for row, (_, taken) in enumerate(rooms):
        table.allocate(row, [(0, taken)])
    rows = np.array(data.draw(st.lists(st.integers(0, len(rooms) - 1), min_size=1, max_size=6)), np.intp)
    more = np.array(
        data.draw(st.lists(st.integers(0, 10**12), min_size=len(rows), max_size=len(rows))), np.int64
    )
    as_is, as_if = RowSubset(table, rows), RowSubset(table, rows, [(0, 1)], more)
    assert as_is.free(0).tolist() == table.free(0)[rows].tolist()
    assert np.array_equal(as_is.share(0), table.share(0)[rows])
    assert np.array_equal(as_is.derived("twice", lambda some: some.total(0) * 2), table.total(0)[rows] * 2)
    assert np.array_equal(as_is.select(table.column("rank")), table.column("rank")[rows])
    assert list(as_is.select_list(table.names)) == [table.names[row] for row in rows]
    shares = as_if.share(0)
    assert as_if.free(0).tolist() == (table.free(0)[rows] - more).tolist()
    for position, (row, amount) in enumerate(zip(rows.tolist(), more.tolist(), strict=True)):
        table.allocate(row, [(0, amount)])
        assert as_if.total(0)[position] == table.total(0)[row]
        assert shares[position] == table.share(0)[row], "to the last bit"
        table.allocate(row, [(0, -amount)])


def test_reused_first_row_out_of_order_is_detected() -> None:
    table = a_table({})
    first, second, late = sorted(("n0", "n1", "n2"), key=lambda name: tie_rank(0, name))
    table.add(first, {})
    table.add(second, {})
    table.remove(first)
    table.add(late, {})
    assert not table.is_in_tie_order


def test_tie_order_returns_after_late_rows_are_removed() -> None:
    table, names = (
        Table(("x",)),
        sorted((f"n{number}" for number in range(9)), key=lambda name: tie_rank(0, name)),
    )
    for name in (*names[1:4], *names[5:], names[0], names[4]):
        table.add(name, {"x": 1})
    assert not table.is_in_tie_order
    table.remove(names[0])
    assert not table.is_in_tie_order
    table.remove(names[4])
    assert table.is_in_tie_order
    table.add("other", {"x": 1})
    assert [table.names[row] for row in table.rows_by_rank() if table.names[row]] == sorted(
        table.row_of, key=lambda name: tie_rank(0, name)
    )
