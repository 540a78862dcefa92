"""The one thread that writes to the SQLite file: whatever waits is committed together, durably, then told to the event loop at once."""

import asyncio
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
from lattice.store.sqlite.row_cache import LOG_BITS, RowCache

MAX_JOBS_PER_TRANSACTION = (
    512  # commits that share one transaction at most: bounds how long the first of them waits
)
CHECKPOINT_PAGES = 1_000  # 4 MiB of write-ahead log before it is folded into the file: 16 MiB at once made commits wait 30 ms
MAX_EXPIRED_IDS_PER_DELETE = 500  # outdated request ids removed per transaction
EXIT_DISK_FAILURE = 70  # exit code: EX_SOFTWARE

_META = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"


def end_process(reason: str) -> None:
    """After a failed fsync nobody knows what is on the disk; only a fresh start, which reads it again, is safe."""
    sys.stderr.write(f"lattice: {reason}; ending, so that nothing is acknowledged that may be lost\n")
    sys.stderr.flush()
    os._exit(EXIT_DISK_FAILURE)


class Job(Protocol):
    """Something to do inside the transaction. Refusing must happen before the first write."""

    future: "asyncio.Future[int]"
    revision: int
    changes: Sequence[Change]

    def apply(self, desk: "WriterState") -> int: ...


@dataclass(eq=False)
class WriterState:
    """What jobs work on; used by the writer thread only."""

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
    future: "asyncio.Future[int]"
    writes: Sequence[Write]
    checks: Sequence[Check]
    fence: Term | None
    request_id: str | None
    revision: int = 0
    changes: Sequence[Change] = ()

    def apply(self, desk: WriterState) -> int:
        execute = desk.db.execute
        if self.request_id is not None:
            seen = execute(
                "SELECT revision FROM requests WHERE id = ? AND expires > ?", (self.request_id, desk.now())
            ).fetchone()
            if seen is not None:
                return int(seen[0])
        if self.fence is not None and desk.terms.get(self.fence.role, 0) != self.fence.number:
            raise fenced_error(self.fence, desk.terms.get(self.fence.role, 0))
        rows = desk.rows
        rows.load([each.key for each in (*self.checks, *self.writes)])
        check_expected_revisions(self.writes, self.checks, rows.revision)
        self.revision = desk.revision = desk.revision + 1
        self.changes = [rows.write(write, self.revision, number) for number, write in enumerate(self.writes)]
        if self.request_id is not None:
            expires = (desk.clock.now() + timedelta(seconds=REQUEST_ID_TTL_S)).timestamp()
            execute(
                "INSERT OR REPLACE INTO requests (id, revision, expires) VALUES (?, ?, ?)",
                (self.request_id, self.revision, expires),
            )
        return self.revision


@dataclass(eq=False, slots=True)
class TermJob:
    """Begin the next term of a role."""

    future: "asyncio.Future[int]"
    role: str
    revision: int = 0
    changes: Sequence[Change] = ()

    def apply(self, desk: WriterState) -> int:
        number = desk.terms.get(self.role, 0) + 1
        desk.db.execute("INSERT OR REPLACE INTO terms (role, number) VALUES (?, ?)", (self.role, number))
        desk.terms[self.role] = number
        return number


@dataclass(eq=False, slots=True)
class CompactJob:
    """Move the horizon, then remove at most `rows` log rows behind it; answers how many it removed."""

    future: "asyncio.Future[int]"
    compact_revision: int
    rows: int
    revision: int = 0
    changes: Sequence[Change] = ()

    def apply(self, desk: WriterState) -> int:
        desk.db.execute(
            "UPDATE meta SET value = max(value, ?) WHERE name = 'compacted'", (self.compact_revision,)
        )
        before = desk.db.total_changes()
        first_kept = (self.compact_revision + 1) << LOG_BITS
        desk.db.execute(
            "DELETE FROM log WHERE id IN (SELECT id FROM log WHERE id < ? ORDER BY id LIMIT ?)",
            (first_kept, self.rows),
        )
        return desk.db.total_changes() - before


class Writer:
    """Owns the writing connection. `deliver` runs on the loop with each group, in revision order."""

    def __init__(
        self, desk: WriterState, deliver: Callable[[Sequence[Job]], None], on_fatal: Callable[[str], None]
    ) -> None:
        self._state = desk
        self._deliver = deliver
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._wal_pages = 0
        self._next_expiry_at = 0.0
        self._closed = False
        desk.db.set_wal_hook(self._note_wal)  # also replaces SQLite's own checkpoint, which swallows errors
        self._thread = threading.Thread(target=self._run, name="lattice-sqlite-writer", daemon=True)
        self._thread.start()

    async def submit(self, job: Job) -> int:
        if self._closed:
            raise Unavailable("the store is closed")
        self._queue.put(job)
        return await job.future

    def stop(self) -> None:
        """What was asked before is still done."""
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
            refused = self._run_transaction(group)
            self._hand_to_loop(group, refused)
        if self._wal_pages > CHECKPOINT_PAGES:
            self._checkpoint()
        return go_on

    def _next_group(self) -> tuple[list[Job], bool]:
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
        """What came of each job: its answer, or why not."""
        desk = self._state
        before = desk.revision, dict(desk.terms)
        try:
            desk.db.execute("BEGIN IMMEDIATE")
            outcomes = [_apply_job(job, desk) for job in group]
            desk.rows.flush()
            if desk.revision != before[0]:
                desk.db.execute(_META, ("revision", desk.revision))
            self._forget_requests()
            desk.db.execute("COMMIT")
        except (apsw.Error, ValueError, TypeError, OverflowError) as error:
            desk.revision, desk.terms = before
            desk.rows.roll_back()
            self._roll_back()
            if len(group) > 1 and not isinstance(
                error, apsw.Error
            ):  # one of them cannot be written: the others can
                return [outcome for job in group for outcome in self._run_transaction([job])]
            return [self._translate_error(error)] * len(group)
        desk.rows.tidy()
        return outcomes

    def _translate_error(self, error: Exception) -> Exception:
        if (
            isinstance(error, apsw.FullError)
            or getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE
        ):
            return Full(
                "the disk is full: nothing was written",
                where=self._state.db.filename,
                fix="free some space; reads go on meanwhile",
            )
        if isinstance(error, (apsw.IOError, apsw.CorruptError, apsw.NotADBError)):
            self._fail(f"writing to {self._state.db.filename} failed: {error}")
        return Unavailable(f"SQLite refused: {error}", where=self._state.db.filename)

    def _roll_back(self) -> None:
        try:
            if self._state.db.in_transaction:
                self._state.db.execute("ROLLBACK")
        except apsw.Error as error:
            self._fail(f"rolling back in {self._state.db.filename} failed: {error}")

    def _hand_to_loop(self, group: Sequence[Job], outcomes: Sequence[int | Exception]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._resolve_jobs, group, outcomes)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def _resolve_jobs(self, group: Sequence[Job], outcomes: Sequence[int | Exception]) -> None:
        self._deliver(
            [
                job
                for job, outcome in zip(group, outcomes, strict=True)
                if job.changes and not isinstance(outcome, Exception)
            ]
        )
        for job, outcome in zip(group, outcomes, strict=True):
            if job.future.done():
                continue
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)

    def _forget_requests(self) -> None:
        now = self._state.now()
        if now < self._next_expiry_at:
            return
        before = self._state.db.total_changes()
        self._state.db.execute(
            "DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE expires <= ? ORDER BY expires LIMIT ?)",
            (now, MAX_EXPIRED_IDS_PER_DELETE),
        )
        removed = self._state.db.total_changes() - before
        self._next_expiry_at = now if removed == MAX_EXPIRED_IDS_PER_DELETE else now + 10.0

    def _checkpoint(self) -> None:
        try:
            self._state.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._wal_pages = 0
        except apsw.Error as error:
            self._translate_error(error)  # no space: the write-ahead log simply stays longer

    def _note_wal(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _fail(self, reason: str) -> None:
        self._closed = True
        self._on_fatal(reason)


def _apply_job(job: Job, desk: WriterState) -> int | Exception:
    try:
        return job.apply(desk)
    except LatticeError as refusal:
        return refusal
