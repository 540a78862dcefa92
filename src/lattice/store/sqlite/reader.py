"""Reads of the SQLite file: lists as of a revision, and the log for watches that begin in the past."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import apsw

from lattice.store.protocol import Batch, Change, Entry, Key, Page, compacted_error, future_revision_error
from lattice.store.sqlite.row_cache import LOG_POSITION_BITS

# Limit of rows that a list reads on the event loop (well under a millisecond); longer lists go to a reader
# thread.
MAX_INLINE_ROWS = 100
# Limit of log rows in one read.
MAX_LOG_ROWS_PER_READ = 1_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListRange:
    """The rows of a list: paths after `low` and before `high`, at most `limit`, as of `revision`."""

    resource: str
    low: str
    high: str
    limit: int
    revision: int


def snapshot(db: apsw.Connection, read: Callable[[apsw.Connection], T]) -> T:
    """Run `read` in one transaction, so that every query of `read` sees one state."""
    db.execute("BEGIN")
    try:
        return read(db)
    finally:
        db.execute("COMMIT")


def revision_bounds(db: apsw.Connection) -> tuple[int, int]:
    """Return the newest revision, and the oldest revision that can still be read."""
    values = dict(db.execute("SELECT name, value FROM meta"))
    return values["revision"], values["compacted"]


def list_inline(db: apsw.Connection, scope: ListRange) -> Page | None:
    """Return a short list of the newest revision; None if the list is long or of an older revision."""
    newest, _ = revision_bounds(db)
    if scope.revision not in (0, newest):
        return None
    max_rows = MAX_INLINE_ROWS if scope.limit == 0 else scope.limit
    if max_rows > MAX_INLINE_ROWS:
        return None
    # One row more than requested shows whether entries follow.
    rows = _current(db, scope, newest, max_rows + 1)
    if scope.limit == 0 and len(rows) > max_rows:
        return None
    return Page(rows[:max_rows], newest, len(rows) > max_rows)


def list_at(db: apsw.Connection, scope: ListRange) -> Page:
    """Return a list as of the requested revision, or of the newest; raise Gone or RevisionTooNew."""
    newest, oldest = revision_bounds(db)
    list_revision = scope.revision or newest
    if list_revision > newest:
        raise future_revision_error(list_revision, newest)
    if list_revision < oldest:
        raise compacted_error(list_revision, oldest)
    max_rows = scope.limit + 1 if scope.limit else -1
    entries = _current(db, scope, list_revision, max_rows)
    if list_revision < newest:
        # An older revision also has the rows that later commits replaced or deleted.
        # Return the rows of a revision that later commits replaced or deleted. The first later change of a
        # row holds its value at the revision.
        rows = db.execute(
            "SELECT path, previous_value, previous_revision FROM log"
            " WHERE resource = ? AND id >= ? AND path > ? AND path < ? ORDER BY id",
            (scope.resource, (list_revision + 1) << LOG_POSITION_BITS, scope.low, scope.high),
        )
        replaced: dict[str, Entry | None] = {}
        for path, value, revision in rows:
            if path not in replaced:
                # Without a previous revision, a later commit created the object.
                replaced[path] = (
                    None if revision is None else Entry(_key(scope.resource, path), value, revision)
                )
        entries = sorted(
            entries + [entry for entry in replaced.values() if entry is not None],
            key=lambda entry: entry.key.path,
        )
    size = scope.limit or len(entries)
    return Page(entries[:size], list_revision, len(entries) > size)


def count_rows(db: apsw.Connection, resource: str, low: str, high: str) -> int:
    """Return the number of rows of a resource with paths after `low` and before `high`."""
    query = "SELECT count(*) FROM objects WHERE resource = ? AND path > ? AND path < ?"
    return int(next(iter(db.execute(query, (resource, low, high))))[0])


def _current(db: apsw.Connection, scope: ListRange, list_revision: int, limit: int) -> list[Entry]:
    """Return the rows of the range whose newest write is at or before a revision."""
    rows = db.execute(
        "SELECT path, value, revision FROM objects"
        " WHERE resource = ? AND path > ? AND path < ? AND revision <= ? ORDER BY path LIMIT ?",
        (scope.resource, scope.low, scope.high, list_revision, limit),
    )
    return [Entry(_key(scope.resource, path), value, revision) for path, value, revision in rows]


def log_after(db: apsw.Connection, resource: str, after: int) -> tuple[Sequence[Batch], int]:
    """Return up to MAX_LOG_ROWS_PER_READ changes after a revision, and the revision up to which the changes
    are complete."""
    newest, oldest = revision_bounds(db)
    if after < oldest:
        raise compacted_error(after, oldest)
    rows = db.execute(
        "SELECT id, path, previous_revision, value, previous_value FROM log"
        " WHERE resource = ? AND id >= ? ORDER BY id LIMIT ?",
        (resource, (after + 1) << LOG_POSITION_BITS, MAX_LOG_ROWS_PER_READ),
    ).fetchall()
    grouped: dict[int, list[Change]] = {}
    for log_id, path, previous_revision, value, previous_value in cast(
        "list[tuple[int, str, Any, Any, Any]]", rows
    ):
        key, revision = _key(resource, path), log_id >> LOG_POSITION_BITS
        previous = None if previous_revision is None else Entry(key, previous_value, previous_revision)
        grouped.setdefault(revision, []).append(Change(revision, key, value, previous))
    if len(rows) == MAX_LOG_ROWS_PER_READ:
        # The limit may have cut off the last commit, so the next read begins with that commit.
        grouped.popitem()
        newest = next(reversed(grouped))
    return [Batch(revision, tuple(changes)) for revision, changes in grouped.items()], newest


def _key(resource: str, path: str) -> Key:
    namespace, _, name = path.partition("/")
    return Key(resource, namespace, name)
