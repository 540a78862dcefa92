"""The row cache and its bulk writes equal the rows in the file."""

import apsw
import pytest
from build.store_keys import pod
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.store.protocol import ABSENT, Delete, Entry, Put
from lattice.store.sqlite import row_cache as sqlite_rows
from lattice.store.sqlite.row_cache import LOG_POSITION_BITS, RowCache
from lattice.store.sqlite.store import _SCHEMA_SQL

NAMES = st.sampled_from("abcdef")
STEP = st.tuples(NAMES, st.sampled_from([b"", b"one", b"two", None]))  # None: it is deleted, if it is there
TRANSACTIONS = st.lists(st.tuples(st.lists(STEP, min_size=1, max_size=8), st.booleans()), max_size=8)


def opened() -> tuple[apsw.Connection, RowCache]:
    db = apsw.Connection(":memory:")
    db.execute(_SCHEMA_SQL)
    return db, RowCache(db)


def stored_rows(db: apsw.Connection) -> dict[str, tuple[int, bytes]]:
    return {
        path: (revision, value)
        for path, revision, value in db.execute("SELECT path, revision, value FROM objects")
    }


@settings(deadline=None)
@given(TRANSACTIONS, st.sampled_from([0, 1 << 20]))
def test_rows_match_committed_transactions(
    transactions: list[tuple[list[tuple[str, bytes | None]], bool]], remembered: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_rows, "MAX_CACHED_BYTES", remembered)
        db, rows = opened()
        there: dict[str, tuple[int, bytes]] = {}
        log: list[tuple[int, bytes | None, int | None]] = []
        revision = 1
        for steps, is_kept in transactions:
            before, logged = dict(there), list(log)
            db.execute("BEGIN")
            for name, value in steps:
                rows.load([pod(name)])
                assert rows.revision(pod(name)) == there.get(f"a/{name}", (ABSENT, b""))[0]
                if value is None and f"a/{name}" not in there:
                    continue
                revision += 1
                old = there.get(f"a/{name}")
                change = rows.write(
                    Delete(pod(name)) if value is None else Put(pod(name), value), revision, 0
                )
                assert (change.value, change.previous) == (
                    value,
                    Entry(pod(name), old[1], old[0]) if old else None,
                )
                log.append((revision << LOG_POSITION_BITS, value, old[0] if old else None))
                there.pop(f"a/{name}", None)
                if value is not None:
                    there[f"a/{name}"] = (revision, value)
            rows.flush()
            if is_kept:
                db.execute("COMMIT")
                rows.trim()
            else:
                db.execute("ROLLBACK")
                rows.roll_back()
                there, log = before, logged
            assert stored_rows(db) == there
            assert list(db.execute("SELECT id, value, previous_revision FROM log ORDER BY id")) == log


@pytest.mark.parametrize("count", [1, 2, 3, 100, 255, 256, 257, 1000])
def test_any_number_of_rows_round_trips(count: int) -> None:
    db, rows = opened()
    keys = [pod(f"p{number}") for number in range(count)]
    rows.load(keys)
    for number, key in enumerate(keys):
        rows.write(Put(key, b"%d" % number), 2 + number // 100, number % 100)
    rows.flush()
    assert len(stored_rows(db)) == count
    fresh = RowCache(db)
    fresh.load([*keys, pod("nobody")])
    assert [fresh.revision(key) for key in keys] == [2 + number // 100 for number in range(count)]
    assert fresh.revision(pod("nobody")) == ABSENT


def test_cached_rows_are_not_reread_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_rows, "MAX_CACHED_BYTES", 1000)
    db, rows = opened()
    asked: list[str] = []
    db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda told: asked.append(told["sql"]))
    for number in range(100):
        rows.load([pod(f"p{number}")])
        rows.write(Put(pod(f"p{number}"), b"x" * 100), number + 2, 0)
        rows.flush()
        rows.trim()
    asked.clear()
    rows.load([pod("p99")])
    assert not asked, "it was written last"
    rows.load([pod("p0")])
    assert len(asked) == 1
