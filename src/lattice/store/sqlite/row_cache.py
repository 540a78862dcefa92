"""Rows of the SQLite file as its one writer sees them: what was written lately is remembered, what is written goes in many rows at a time.

Every statement is a chance for other threads to take the interpreter and keep it for milliseconds: few large ones are many times as fast
as many small ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import apsw

from lattice.store.protocol import ABSENT, Change, Entry, Key, Put, Write

LOG_BITS = 7  # a log row's id is revision << 7 | position in the commit; a commit has at most 100 operations
MAX_ROWS_PER_STATEMENT = 256  # in one statement
MAX_CACHED_BYTES = 24 << 20  # bytes of values; most of them are in copies of this process, too

_FIND = "SELECT resource, path, id, value, revision FROM ({rows}) CROSS JOIN objects ON resource = column1 AND path = column2"
_INSERT = "INSERT INTO objects (id, resource, path, revision, value) {rows}"
_UPDATE = "UPDATE objects SET revision = column2, value = column3 FROM ({rows}) WHERE id = column1"
_DELETE = "DELETE FROM objects WHERE id IN ({rows})"
_LOG = "INSERT INTO log (id, resource, path, previous_revision, value, previous_value) {rows}"

Parameters = tuple[object, ...]


class Row(NamedTuple):
    """value None: it is not there any more."""

    id: int
    value: bytes | None
    revision: int


class RowCache:
    """Used by the writer thread only. `look` before anything is asked of an object; `flush` before the transaction ends."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._rows: dict[Key, Row | None] = {}  # as it will be after `flush`; None: it was not there
        self._size = 0
        self._unflushed: dict[Key, bool] = {}  # those to flush: whether they are in the file
        self._maybe_absent: set[Key] = set()  # those that may be: not remembered
        self._log: list[Parameters] = []
        self._last_id: int = db.execute("SELECT coalesce(max(id), 0) FROM objects").get

    def load(self, keys: Iterable[Key]) -> None:
        """Whatever is not known of these is read."""
        wanted = {(key.resource, key.path): key for key in keys if key not in self._rows}
        if not wanted:
            return
        self._rows.update(dict.fromkeys(wanted.values()))
        self._maybe_absent.update(wanted.values())
        for resource, path, number, value, revision in self._run(_FIND, list(wanted)):
            self._cache_row(wanted[resource, path], Row(number, value, revision))

    def revision(self, key: Key) -> int:
        row = self._rows[key]
        return ABSENT if row is None or row.value is None else row.revision

    def write(self, write: Write, revision: int, number: int) -> Change:
        """As the so many-th of a commit."""
        key, row = write.key, self._rows[write.key]
        value = write.value if isinstance(write, Put) else None
        before = None if row is None or row.value is None else Entry(key, row.value, row.revision)
        old = (None, None) if before is None else (before.revision, before.value)
        self._unflushed.setdefault(key, before is not None)
        if row is None:
            self._last_id += 1
        if value is None:
            self._maybe_absent.add(key)
        self._cache_row(key, Row(self._last_id if row is None else row.id, value, revision))
        self._log.append((revision << LOG_BITS | number, key.resource, key.path, old[0], value, old[1]))
        return Change(revision, key, value, before)

    def flush(self) -> None:
        added: list[Parameters] = []
        changed: list[Parameters] = []
        gone: list[Parameters] = []
        for key, is_stored in self._unflushed.items():
            row = self._rows[key]
            if row is not None and row.value is not None:
                (changed if is_stored else added).append(
                    (row.id, row.revision, row.value)
                    if is_stored
                    else (row.id, key.resource, key.path, row.revision, row.value)
                )
            elif row is not None and is_stored:
                gone.append((row.id,))
        for statement, rows in ((_DELETE, gone), (_UPDATE, changed), (_INSERT, added), (_LOG, self._log)):
            for _ in self._run(statement, rows):
                pass
        self._log = []
        self._unflushed.clear()

    def tidy(self) -> None:
        """Between transactions: what is not there is not remembered, and of the rest, if it is too much, what was written last."""
        for key in self._maybe_absent:
            if (row := self._rows.get(key)) is None or row.value is None:
                self._drop_row(key)
        self._maybe_absent.clear()
        if self._size > MAX_CACHED_BYTES:
            for key in list(self._rows)[: len(self._rows) // 2]:
                self._drop_row(key)

    def roll_back(self) -> None:
        """Nothing of it is in the file: what is known is read again."""
        self._rows.clear()
        self._unflushed.clear()
        self._maybe_absent.clear()
        self._log = []
        self._size = 0

    def _cache_row(self, key: Key, row: Row) -> None:
        self._drop_row(key)
        self._rows[key] = row
        self._size += len(row.value or b"")

    def _drop_row(self, key: Key) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._size -= len(row.value or b"")

    def _run(self, statement: str, rows: Sequence[Parameters]) -> Iterator[tuple[str, str, int, bytes, int]]:
        for part in _chunks(rows):
            marks = ",".join("?" * len(part[0]))
            sql = statement.format(rows="VALUES " + ",".join([f"({marks})"] * len(part)))
            yield from self._db.execute(sql, [value for row in part for value in row])


def _chunks(rows: Sequence[Parameters]) -> Iterator[Sequence[Parameters]]:
    """In powers of two, so that there are few different statements: each is prepared once."""
    start = 0
    while start < len(rows):
        size = min(MAX_ROWS_PER_STATEMENT, 1 << (len(rows) - start).bit_length() - 1)
        yield rows[start : start + size]
        start += size
