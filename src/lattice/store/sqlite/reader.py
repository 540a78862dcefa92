"""What the SQLite file says: lists as of a revision, and the log for watches that begin in the past."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import apsw

from lattice.store.protocol import Batch, Change, Entry, Key, Page, compacted_error, future_revision_error
from lattice.store.sqlite.row_cache import LOG_BITS

MAX_INLINE_ROWS = (
    100  # rows read on the event loop itself (well under a millisecond); more go to a reader thread
)
LOG_ROWS = 1_000  # log rows read at once

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListRange:
    """Which rows a list asks for: paths after `low` and before `high`."""

    resource: str
    low: str
    high: str
    limit: int
    revision: int


def snapshot(db: apsw.Connection, read: Callable[[apsw.Connection], T]) -> T:
    """Everything read inside sees one state."""
    db.execute("BEGIN")
    try:
        return read(db)
    finally:
        db.execute("COMMIT")


def bounds(db: apsw.Connection) -> tuple[int, int]:
    """The newest revision, and the oldest that can still be read."""
    values = dict(db.execute("SELECT name, value FROM meta"))
    return values["revision"], values["compacted"]


def list_inline(db: apsw.Connection, scope: ListRange) -> Page | None:
    """A short list of now; None if it is neither."""
    newest, _ = bounds(db)
    if scope.revision not in (0, newest):
        return None
    most = MAX_INLINE_ROWS if scope.limit == 0 else scope.limit
    if most > MAX_INLINE_ROWS:
        return None
    rows = _current(db, scope, newest, most + 1)
    if scope.limit == 0 and len(rows) > most:
        return None
    return Page(rows[:most], newest, len(rows) > most)


def list_at(db: apsw.Connection, scope: ListRange) -> Page:
    newest, horizon = bounds(db)
    at = scope.revision or newest
    if at > newest:
        raise future_revision_error(at, newest)
    if at < horizon:
        raise compacted_error(at, horizon)
    wanted = scope.limit + 1 if scope.limit else -1
    entries = _current(db, scope, at, wanted)
    if at < newest:
        entries = sorted(entries + _replaced(db, scope, at), key=lambda entry: entry.key.path)
    cut = scope.limit or len(entries)
    return Page(entries[:cut], at, len(entries) > cut)


def _current(db: apsw.Connection, scope: ListRange, at: int, limit: int) -> list[Entry]:
    """Rows that were written at or before a revision, and not since."""
    rows = db.execute(
        "SELECT path, value, revision FROM objects WHERE resource = ? AND path > ? AND path < ? AND revision <= ? ORDER BY path LIMIT ?",
        (scope.resource, scope.low, scope.high, at, limit),
    )
    return [Entry(_key(scope.resource, path), value, revision) for path, value, revision in rows]


def _replaced(db: apsw.Connection, scope: ListRange, at: int) -> list[Entry]:
    """Rows that were there at a revision and have been written since: the first change since then knows what it replaced."""
    rows = db.execute(
        "SELECT path, previous_value, previous_revision FROM log WHERE resource = ? AND id >= ? AND path > ? AND path < ? ORDER BY id",
        (scope.resource, (at + 1) << LOG_BITS, scope.low, scope.high),
    )
    first: dict[str, Entry | None] = {}
    for path, value, revision in rows:
        if path not in first:
            first[path] = None if revision is None else Entry(_key(scope.resource, path), value, revision)
    return [entry for entry in first.values() if entry is not None]


def log_after(db: apsw.Connection, resource: str, after: int) -> tuple[Sequence[Batch], int]:
    newest, horizon = bounds(db)
    if after < horizon:
        raise compacted_error(after, horizon)
    rows = db.execute(
        "SELECT id, path, previous_revision, value, previous_value FROM log WHERE resource = ? AND id >= ? ORDER BY id LIMIT ?",
        (resource, (after + 1) << LOG_BITS, LOG_ROWS),
    ).fetchall()
    grouped: dict[int, list[Change]] = {}
    for number, path, old_revision, value, old_value in cast("list[tuple[int, str, Any, Any, Any]]", rows):
        key, revision = _key(resource, path), number >> LOG_BITS
        previous = None if old_revision is None else Entry(key, old_value, old_revision)
        grouped.setdefault(revision, []).append(Change(revision, key, value, previous))
    if len(rows) == LOG_ROWS:
        grouped.popitem()  # the last commit may be cut off
        newest = next(reversed(grouped))
    return [Batch(revision, tuple(changes)) for revision, changes in grouped.items()], newest


def _key(resource: str, path: str) -> Key:
    namespace, _, name = path.partition("/")
    return Key(resource, namespace, name)
