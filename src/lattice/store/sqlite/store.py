"""A store in one SQLite file, for one server process; a commit is durable before it is acknowledged."""

import asyncio
import fcntl
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import apsw

from lattice.clock import Clock
from lattice.errors import Conflict, LatticeError
from lattice.store.protocol import (
    MAX_EMBEDDED_COMMIT_BYTES,
    Batch,
    Check,
    Entry,
    Key,
    Page,
    Term,
    Watch,
    Write,
    compacted_error,
    future_revision_error,
    future_watch_error,
    validate_commit,
)
from lattice.store.sqlite.reader import (
    ListRange,
    count_rows,
    list_at,
    list_inline,
    log_after,
    revision_bounds,
    snapshot,
)
from lattice.store.sqlite.writer import CommitJob, CompactJob, Job, TermJob, Writer, WriterState, end_process
from lattice.store.watch_feed import WINDOW_CHANGES, Feeds, History

SCHEMA_VERSION = 1
# Limit of log rows that one transaction removes, so that commits run in between.
MAX_COMPACTED_ROWS_PER_TRANSACTION = 1_000
READER_THREADS = 2

# objects has rowids, because a table WITHOUT ROWID would store values over 1 KB in overflow pages.
# log_by_resource: SQLite appends the rowid to an index, so the index also orders by id.
_SCHEMA_SQL = """
CREATE TABLE objects (id INTEGER PRIMARY KEY, resource TEXT NOT NULL, path TEXT NOT NULL, revision INTEGER NOT NULL, value BLOB NOT NULL);
CREATE UNIQUE INDEX objects_by_path ON objects (resource, path);
CREATE TABLE log (id INTEGER PRIMARY KEY, resource TEXT NOT NULL, path TEXT NOT NULL, previous_revision INTEGER, value BLOB,
    previous_value BLOB);
CREATE INDEX log_by_resource ON log (resource);
CREATE TABLE terms (role TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE requests (id TEXT PRIMARY KEY, revision INTEGER NOT NULL, expires REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX requests_by_expiry ON requests (expires);
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta (name, value) VALUES ('revision', 1), ('compacted', 0);
"""

T = TypeVar("T")


@dataclass
class _Lease:
    holder: str
    ttl: float
    expires_at: float
    number: int = 0


class SqliteStore:
    """A store on one SQLite file; create the store with `await SqliteStore.open(path, clock)`.

    Reads see only durable commits. One thread writes; short reads run on the event loop, long reads on reader
    threads.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        window: int = WINDOW_CHANGES,
        on_fatal: Callable[[str], None] = end_process,
    ) -> None:
        self._clock = clock
        # The lock comes first, because a second process must not even open the file (decision 0004).
        self._lock = _FileLock(path.with_name(path.name + ".lock"), path)
        try:
            writer_state = _open_writer_state(path, clock)
            self._inline_db = _reader(path)
            self._reader_dbs: SimpleQueue[apsw.Connection] = SimpleQueue()
            for _ in range(READER_THREADS):
                self._reader_dbs.put(_reader(path))
        except BaseException:
            self._lock.release()
            raise
        self._threads = ThreadPoolExecutor(READER_THREADS, "lattice-sqlite-reader")
        self._feeds = Feeds(writer_state.revision, window)
        self._leases: dict[str, _Lease] = {}
        self._writer_state = writer_state
        self._writer = Writer(writer_state, self._publish, on_fatal)

    @classmethod
    async def open(
        cls,
        path: str | Path,
        clock: Clock,
        window: int = WINDOW_CHANGES,
        on_fatal: Callable[[str], None] = end_process,
    ) -> "SqliteStore":
        """Open or create the file. Raise Conflict if another process uses the file or a newer Lattice wrote
        the file."""
        return cls(Path(path), clock, window, on_fatal)

    async def get(self, key: Key) -> Entry | None:
        row = self._inline_db.execute(
            "SELECT value, revision FROM objects WHERE resource = ? AND path = ?", (key.resource, key.path)
        ).fetchone()
        return None if row is None else Entry(key, row[0], row[1])

    async def list(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        limit: int = 0,
        after: str = "",
        revision: int = 0,
    ) -> Page:
        low, high = _bounds(namespace)
        list_range = ListRange(resource, max(low, after), high, limit, revision)
        if page := snapshot(self._inline_db, lambda db: list_inline(db, list_range)):
            return page
        return await self._read_in_thread(lambda db: list_at(db, list_range))

    async def count(self, resource: str, namespace: str | None = None) -> int:
        low, high = _bounds(namespace)
        # On a thread: the count visits every row of the range.
        return await self._read_in_thread(lambda db: count_rows(db, resource, low, high))

    async def watch(self, resource: str, after: int) -> Watch:
        # An empty store is at revision 1.
        after = max(after, 1)
        newest, oldest = snapshot(self._inline_db, revision_bounds)
        if after > newest:
            raise future_watch_error(after, newest)
        if after < oldest:
            raise compacted_error(after, oldest)
        return self._feeds.subscribe(resource, after, lambda: _SqliteHistory(self, resource))

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        validate_commit(writes, checks, MAX_EMBEDDED_COMMIT_BYTES, "the SQLite store")
        return await self._writer.submit(CommitJob(_future(), writes, checks, fence, request_id))

    async def revision(self) -> int:
        return snapshot(self._inline_db, revision_bounds)[0]

    async def compact(self, revision: int) -> None:
        newest, oldest = snapshot(self._inline_db, revision_bounds)
        if revision > newest:
            raise future_revision_error(revision, newest)
        if revision > oldest:
            # Every removal queues behind the commits that arrived meanwhile.
            while (
                await self._writer.submit(CompactJob(_future(), revision, MAX_COMPACTED_ROWS_PER_TRANSACTION))
                == MAX_COMPACTED_ROWS_PER_TRANSACTION
            ):
                pass

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        now = self._clock.monotonic()
        lease = self._leases.get(role)
        if lease is not None and now < lease.expires_at and lease.holder != holder:
            return None
        # The lease is taken before the await, so that a concurrent campaign of another holder loses.
        new_lease = self._leases[role] = _Lease(holder, ttl, now + ttl)
        try:
            new_lease.number = await self._writer.submit(TermJob(_future(), role))
        except LatticeError:
            del self._leases[role]
            raise
        return Term(role, new_lease.number, holder)

    async def renew(self, term: Term) -> bool:
        lease = self._leases.get(term.role)
        now = self._clock.monotonic()
        if lease is None or lease.number != term.number or now >= lease.expires_at:
            return False
        lease.expires_at = now + lease.ttl
        return True

    async def resign(self, term: Term) -> None:
        lease = self._leases.get(term.role)
        if lease is not None and lease.number == term.number:
            del self._leases[term.role]

    async def close(self) -> None:
        # The writer finishes the queued commits before the readers are closed and the lock is released.
        await asyncio.to_thread(self._writer.stop)
        # Lets the loop run the callbacks that the writer scheduled last.
        await asyncio.sleep(0)
        self._threads.shutdown()
        self._inline_db.close()
        while not self._reader_dbs.empty():
            self._reader_dbs.get().close()
        self._writer_state.db.close()
        self._lock.release()

    async def read_log(self, resource: str, after: int) -> tuple[Sequence[Batch], int]:
        """Return changes of a resource after a revision from the log on disk; see `log_after`."""
        return await self._read_in_thread(lambda db: log_after(db, resource, after))

    async def _read_in_thread(self, read: Callable[[apsw.Connection], T]) -> T:
        def work() -> T:
            db = self._reader_dbs.get()
            try:
                return snapshot(db, read)
            finally:
                self._reader_dbs.put(db)

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _publish(self, group: Sequence[Job]) -> None:
        for job in group:
            self._feeds.publish(job.revision, job.changes)


class _SqliteHistory(History):
    """The log on disk, for a watch that begins before the window of the feed."""

    def __init__(self, store: SqliteStore, resource: str) -> None:
        self._store = store
        self._resource = resource

    async def read(self, after: int) -> tuple[Sequence[Batch], int]:
        return await self._store.read_log(self._resource, after)

    def close(self) -> None:
        return None


class _FileLock:
    """An exclusive lock on the store, held by one process; the kernel releases the lock however the process
    ends."""

    def __init__(self, path: Path, guarded: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._file, 32).decode(errors="replace").strip()
            os.close(self._file)
            raise Conflict(
                f"is in use by another process (pid {owner or 'unknown'})",
                where=str(guarded),
                fix="stop that server first, or use another file",
            ) from error
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())
        # A forked child must not keep the lock after this process ends.
        os.register_at_fork(after_in_child=self.release)

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _future() -> "asyncio.Future[int]":
    return asyncio.get_running_loop().create_future()


def _open_writer_state(path: Path, clock: Clock) -> WriterState:
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = WAL")
    # FULL: a commit is on disk before the acknowledgement; NORMAL can lose the last commits (decision 0004).
    db.execute("PRAGMA synchronous = FULL")
    # Bytes (64 MiB) to which SQLite truncates a write-ahead log that has grown further.
    db.execute("PRAGMA journal_size_limit = 67108864")
    version = db.pragma("user_version")
    if version == 0:
        # One transaction: a crash leaves no schema at all, or the whole schema with its version.
        db.execute(f"BEGIN IMMEDIATE; {_SCHEMA_SQL} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT")
    elif version != SCHEMA_VERSION:
        db.close()
        raise Conflict(
            f"was written by a newer Lattice: the schema is {version}, but this version supports {SCHEMA_VERSION}",
            where=str(path),
            fix="upgrade Lattice",
        )
    revision = db.execute("SELECT value FROM meta WHERE name = 'revision'").get
    return WriterState(db, clock, revision, dict(db.execute("SELECT role, number FROM terms")))


def _reader(path: Path) -> apsw.Connection:
    # Read-write, because a reader may have to create the shared-memory index of the WAL.
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    db.execute("PRAGMA query_only = ON")
    return db


def _bounds(namespace: str | None) -> tuple[str, str]:
    """The paths between which all objects of a namespace, or of all namespaces, are."""
    # "0" is the character after "/".
    return ("", "\U0010ffff") if namespace is None else (f"{namespace}/", f"{namespace}0")
