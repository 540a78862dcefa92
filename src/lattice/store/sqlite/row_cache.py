"""The rows of the SQLite file as the writer thread sees them: a cache of recent rows, flushed with many rows
per statement.

At every statement, other threads can take the interpreter lock and hold it for milliseconds. A few large
statements are therefore many times as fast as many small statements.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import apsw

from lattice.store.protocol import ABSENT, Change, Entry, Key, Put, Write

# The id of a log row is revision << 7 | position in the commit; a commit has at most 100 operations.
LOG_POSITION_BITS = 7
MAX_ROWS_PER_STATEMENT = 256
# Bytes of cached values; most of them are shared with other caches of the process.
MAX_CACHED_BYTES = 24 << 20

_FIND = (
    "SELECT resource, path, id, value, revision FROM ({rows}) "
    "CROSS JOIN objects ON resource = column1 AND path = column2"
)
_INSERT = "INSERT INTO objects (id, resource, path, revision, value) {rows}"
_UPDATE = "UPDATE objects SET revision = column2, value = column3 FROM ({rows}) WHERE id = column1"
_DELETE = "DELETE FROM objects WHERE id IN ({rows})"
_LOG = "INSERT INTO log (id, resource, path, previous_revision, value, previous_value) {rows}"

Parameters = tuple[object, ...]


class Row(NamedTuple):
    """A row of the objects table; the value None stands for a deleted object."""

    id: int
    value: bytes | None
    revision: int


class RowCache:
    """The cache of rows; only the writer thread uses the cache.

    Call `load` before reading or writing a key, and `flush` before the transaction ends.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        # The rows as they will be after `flush`; None: the file has no such row.
        self._rows: dict[Key, Row | None] = {}
        self._size = 0
        # The keys that `flush` must write; the value says whether the file has the row now.
        self._unflushed: dict[Key, bool] = {}
        # Keys that may have no row; `trim` drops absent rows.
        self._maybe_absent: set[Key] = set()
        self._log: list[Parameters] = []
        self._last_id: int = db.execute("SELECT coalesce(max(id), 0) FROM objects").get

    def load(self, keys: Iterable[Key]) -> None:
        """Read the rows of keys that are not cached."""
        missing = {(key.resource, key.path): key for key in keys if key not in self._rows}
        if not missing:
            return
        self._rows.update(dict.fromkeys(missing.values()))
        self._maybe_absent.update(missing.values())
        for resource, path, row_id, value, revision in self._run(_FIND, list(missing)):
            self._cache_row(missing[resource, path], Row(row_id, value, revision))

    def revision(self, key: Key) -> int:
        """Return the revision of a loaded key, or ABSENT."""
        row = self._rows[key]
        return ABSENT if row is None or row.value is None else row.revision

    def write(self, write: Write, revision: int, position: int) -> Change:
        """Apply a write to the cache and queue the log row; `position` is the place of the write in the
        commit."""
        key, row = write.key, self._rows[write.key]
        value = write.value if isinstance(write, Put) else None
        previous = None if row is None or row.value is None else Entry(key, row.value, row.revision)
        old_revision, old_value = (None, None) if previous is None else (previous.revision, previous.value)
        # Only the first write of a transaction sees whether the file has the row.
        self._unflushed.setdefault(key, previous is not None)
        if row is None:
            self._last_id += 1
        if value is None:
            self._maybe_absent.add(key)
        self._cache_row(key, Row(self._last_id if row is None else row.id, value, revision))
        log_id = revision << LOG_POSITION_BITS | position
        self._log.append((log_id, key.resource, key.path, old_revision, value, old_value))
        return Change(revision, key, value, previous)

    def flush(self) -> None:
        """Write the queued rows and log rows to the file."""
        added: list[Parameters] = []
        changed: list[Parameters] = []
        deleted: list[Parameters] = []
        for key, is_stored in self._unflushed.items():
            row = self._rows[key]
            if row is not None and row.value is not None:
                if is_stored:
                    changed.append((row.id, row.revision, row.value))
                else:
                    added.append((row.id, key.resource, key.path, row.revision, row.value))
            elif row is not None and is_stored:
                deleted.append((row.id,))
        for statement, rows in ((_DELETE, deleted), (_UPDATE, changed), (_INSERT, added), (_LOG, self._log)):
            for _ in self._run(statement, rows):
                pass
        self._log = []
        self._unflushed.clear()

    def trim(self) -> None:
        """Drop absent rows and, if the values exceed MAX_CACHED_BYTES, the older half of the rows; called
        between transactions."""
        for key in self._maybe_absent:
            if (row := self._rows.get(key)) is None or row.value is None:
                self._drop_row(key)
        self._maybe_absent.clear()
        if self._size > MAX_CACHED_BYTES:
            for key in list(self._rows)[: len(self._rows) // 2]:
                self._drop_row(key)

    def roll_back(self) -> None:
        """Drop every row and queued write after a rollback, because the file has none of the writes."""
        self._rows.clear()
        self._unflushed.clear()
        self._maybe_absent.clear()
        self._log = []
        self._size = 0

    def _cache_row(self, key: Key, row: Row) -> None:
        # A rewritten row moves to the end of the dict: `trim` drops the rows that were written longest ago.
        self._drop_row(key)
        self._rows[key] = row
        self._size += len(row.value or b"")

    def _drop_row(self, key: Key) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._size -= len(row.value or b"")

    def _run(self, statement: str, rows: Sequence[Parameters]) -> Iterator[tuple[str, str, int, bytes, int]]:
        start = 0
        while start < len(rows):
            # The size of a chunk is a power of two, so that only a few different statements exist and are
            # prepared once.
            size = min(MAX_ROWS_PER_STATEMENT, 1 << (len(rows) - start).bit_length() - 1)
            chunk = rows[start : start + size]
            start += size
            placeholders = ",".join("?" * len(chunk[0]))
            sql = statement.format(rows="VALUES " + ",".join([f"({placeholders})"] * len(chunk)))
            yield from self._db.execute(sql, list(chain.from_iterable(chunk)))
