"""The writer thread of the SQLite file: commits all queued jobs in one durable transaction, then resolves
their futures on the event loop."""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Protocol

import apsw

from lattice.clock import Clock
from lattice.errors import Full, LatticeError, Unavailable
from lattice.store.protocol import (
    REQUEST_ID_TTL_S,
    Change,
    Check,
    Term,
    Write,
    check_expected_revisions,
    fenced_error,
)
from lattice.store.sqlite.row_cache import LOG_POSITION_BITS, RowCache

# Limit of jobs in one transaction, which bounds how long the first job waits.
MAX_JOBS_PER_TRANSACTION = 512
# A checkpoint runs once the write-ahead log is longer than this number of pages (4 MiB). During a checkpoint
# of 16 MiB, commits waited 30 ms.
CHECKPOINT_PAGES = 1_000
# Limit of expired request ids that one transaction removes.
MAX_EXPIRED_IDS_PER_DELETE = 500
EXPIRY_INTERVAL_S = 10.0
# EX_SOFTWARE of sysexits.h.
EXIT_DISK_FAILURE = 70

_META = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"


def end_process(reason: str) -> None:
    """Exit the process, because after a failed fsync the contents of the disk are unknown, and only a restart
    reads them again."""
    sys.stderr.write(f"lattice: {reason}; exiting, so that no write is acknowledged that may be lost\n")
    sys.stderr.flush()
    os._exit(EXIT_DISK_FAILURE)


class Job(Protocol):
    """A unit of work of the writer thread. A job must raise its rejection before its first write."""

    future: "asyncio.Future[int]"
    revision: int
    changes: Sequence[Change]

    def apply(self, state: "WriterState") -> int: ...


@dataclass(eq=False)
class WriterState:
    """The state that jobs read and change; only the writer thread uses the state."""

    db: apsw.Connection
    clock: Clock
    revision: int
    terms: dict[str, int]

    def __post_init__(self) -> None:
        self.rows = RowCache(self.db)

    def now(self) -> float:
        return self.clock.now().timestamp()


@dataclass(eq=False, slots=True)
class CommitJob:
    """One commit: `apply` returns the revision, or raises Fenced or RevisionConflict before any write."""

    future: "asyncio.Future[int]"
    writes: Sequence[Write]
    checks: Sequence[Check]
    fence: Term | None
    request_id: str | None
    revision: int = 0
    changes: Sequence[Change] = ()

    def apply(self, state: WriterState) -> int:
        execute = state.db.execute
        if self.request_id is not None:
            recorded = execute(
                "SELECT revision FROM requests WHERE id = ? AND expires > ?", (self.request_id, state.now())
            ).fetchone()
            if recorded is not None:
                return int(recorded[0])
        # The term number is compared in the transaction of the write, so that a deposed leader cannot write
        # (I-08, I-09).
        if self.fence is not None and state.terms.get(self.fence.role, 0) != self.fence.number:
            raise fenced_error(self.fence, state.terms.get(self.fence.role, 0))
        rows = state.rows
        rows.load([operation.key for operation in (*self.checks, *self.writes)])
        check_expected_revisions(self.writes, self.checks, rows.revision)
        # From here on the job must not raise a rejection: it begins to write, and only the whole group can be
        # rolled back.
        self.revision = state.revision = state.revision + 1
        self.changes = [rows.write(write, self.revision, number) for number, write in enumerate(self.writes)]
        if self.request_id is not None:
            expires = (state.clock.now() + timedelta(seconds=REQUEST_ID_TTL_S)).timestamp()
            execute(
                "INSERT OR REPLACE INTO requests (id, revision, expires) VALUES (?, ?, ?)",
                (self.request_id, self.revision, expires),
            )
        return self.revision


@dataclass(eq=False, slots=True)
class TermJob:
    """Begin the next term of a role and return its number."""

    future: "asyncio.Future[int]"
    role: str
    revision: int = 0
    changes: Sequence[Change] = ()

    def apply(self, state: WriterState) -> int:
        number = state.terms.get(self.role, 0) + 1
        state.db.execute("INSERT OR REPLACE INTO terms (role, number) VALUES (?, ?)", (self.role, number))
        state.terms[self.role] = number
        return number


@dataclass(eq=False, slots=True)
class CompactJob:
    """Set the oldest readable revision to `compact_revision`, then remove at most `rows` log rows that are no
    longer needed; return the number removed."""

    future: "asyncio.Future[int]"
    compact_revision: int
    rows: int
    revision: int = 0
    changes: Sequence[Change] = ()

    def apply(self, state: WriterState) -> int:
        # `max`: a compaction to an older revision must not move the boundary back.
        state.db.execute(
            "UPDATE meta SET value = max(value, ?) WHERE name = 'compacted'", (self.compact_revision,)
        )
        changes_before = state.db.total_changes()
        first_retained_id = (self.compact_revision + 1) << LOG_POSITION_BITS
        state.db.execute(
            "DELETE FROM log WHERE id IN (SELECT id FROM log WHERE id < ? ORDER BY id LIMIT ?)",
            (first_retained_id, self.rows),
        )
        return state.db.total_changes() - changes_before


class Writer:
    """The writer thread and its queue. `deliver` runs on the event loop with every group of jobs, in revision
    order."""

    def __init__(
        self, state: WriterState, deliver: Callable[[Sequence[Job]], None], on_fatal: Callable[[str], None]
    ) -> None:
        self._state = state
        self._deliver = deliver
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._wal_pages = 0
        self._next_expiry_at = 0.0
        self._closed = False
        # The hook also replaces SQLite's automatic checkpoint, because the automatic checkpoint hides errors.
        state.db.set_wal_hook(self._note_wal)
        self._thread = threading.Thread(target=self._run, name="lattice-sqlite-writer", daemon=True)
        self._thread.start()

    async def submit(self, job: Job) -> int:
        """Queue a job and wait for its durable result; raise Unavailable after `stop`."""
        if self._closed:
            raise Unavailable("the store is closed")
        self._queue.put(job)
        return await job.future

    def stop(self) -> None:
        """Finish the queued jobs, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        ended_well = False
        try:
            while self._run_once():
                pass
            ended_well = True
        finally:
            if not ended_well:
                self._fail("the SQLite writer failed")

    def _run_once(self) -> bool:
        group, go_on = self._next_group()
        if group:
            outcomes = self._run_transaction(group)
            # A closed loop raises RuntimeError: no caller waits any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._resolve_jobs, group, outcomes)
        if self._wal_pages > CHECKPOINT_PAGES:
            try:
                # Passive: the writer does not wait for readers, and a later checkpoint does the rest.
                self._state.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self._wal_pages = 0
            except apsw.Error as error:
                # Without space, the write-ahead log grows until a later checkpoint; a failing disk ends the
                # process.
                self._translate_error(error)
        return go_on

    def _next_group(self) -> tuple[list[Job], bool]:
        """Wait for a job and take the queued jobs with it, at most MAX_JOBS_PER_TRANSACTION; also return
        whether the thread goes on, which is False after `stop`."""
        job = self._queue.get()
        group: list[Job] = []
        while job is not None:
            group.append(job)
            if len(group) == MAX_JOBS_PER_TRANSACTION:
                return group, True
            try:
                job = self._queue.get_nowait()
            except Empty:
                return group, True
        return group, False

    def _run_transaction(self, group: Sequence[Job]) -> list[int | Exception]:
        """Run a group of jobs in one transaction; return the result or the rejection of every job."""
        state = self._state
        previous_revision, previous_terms = state.revision, dict(state.terms)
        outcomes: list[int | Exception] = []
        try:
            state.db.execute("BEGIN IMMEDIATE")
            for job in group:
                try:
                    outcomes.append(job.apply(state))
                # A rejected job has written nothing, so the other jobs of the group go on.
                except LatticeError as rejection:
                    outcomes.append(rejection)
            state.rows.flush()
            if state.revision != previous_revision:
                state.db.execute(_META, ("revision", state.revision))
            self._delete_expired_requests()
            state.db.execute("COMMIT")
        except (apsw.Error, ValueError, TypeError, OverflowError) as error:
            # Nothing of the group is in the file, so revision and terms continue from the last transaction.
            state.revision, state.terms = previous_revision, previous_terms
            state.rows.roll_back()
            self._roll_back()
            # One job of the group has a value that SQLite cannot store: run every job alone, so that the
            # other jobs succeed.
            if len(group) > 1 and not isinstance(error, apsw.Error):
                single_outcomes: list[int | Exception] = []
                for job in group:
                    single_outcomes += self._run_transaction([job])
                return single_outcomes
            return [self._translate_error(error)] * len(group)
        state.rows.trim()
        return outcomes

    def _translate_error(self, error: Exception) -> Exception:
        """Return the error for the callers; end the process if the disk may have lost data."""
        if (
            isinstance(error, apsw.FullError)
            or getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE
        ):
            return Full(
                "the disk is full: nothing was written",
                where=self._state.db.filename,
                fix="free disk space; reads still work",
            )
        if isinstance(error, (apsw.IOError, apsw.CorruptError, apsw.NotADBError)):
            self._fail(f"writing to {self._state.db.filename} failed: {error}")
        return Unavailable(f"SQLite error: {error}", where=self._state.db.filename)

    def _roll_back(self) -> None:
        try:
            if self._state.db.in_transaction:
                self._state.db.execute("ROLLBACK")
        except apsw.Error as error:
            self._fail(f"rolling back in {self._state.db.filename} failed: {error}")

    def _resolve_jobs(self, group: Sequence[Job], outcomes: Sequence[int | Exception]) -> None:
        """Publish the changes of the group, then resolve the futures; runs on the event loop."""
        # Published first, so that a caller that continues after its commit finds the change in every watch.
        self._deliver(
            [
                job
                for job, outcome in zip(group, outcomes, strict=True)
                if job.changes and not isinstance(outcome, Exception)
            ]
        )
        for job, outcome in zip(group, outcomes, strict=True):
            # The caller was cancelled meanwhile; the outcome in the file stays.
            if job.future.done():
                continue
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)

    def _delete_expired_requests(self) -> None:
        now = self._state.now()
        if now < self._next_expiry_at:
            return
        changes_before = self._state.db.total_changes()
        self._state.db.execute(
            "DELETE FROM requests WHERE id IN "
            "(SELECT id FROM requests WHERE expires <= ? ORDER BY expires LIMIT ?)",
            (now, MAX_EXPIRED_IDS_PER_DELETE),
        )
        removed = self._state.db.total_changes() - changes_before
        # A full batch means that more ids may have expired: go on with the next transaction.
        self._next_expiry_at = now if removed == MAX_EXPIRED_IDS_PER_DELETE else now + EXPIRY_INTERVAL_S

    def _note_wal(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _fail(self, reason: str) -> None:
        self._closed = True
        self._on_fatal(reason)
