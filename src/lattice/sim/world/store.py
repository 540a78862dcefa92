"""The simulated store: a memory store behind the network that records every commit with writer, term and
simulation time."""

import asyncio
import contextvars
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from lattice.clock import Clock
from lattice.errors import LatticeError, Unavailable
from lattice.sim.world.event_loop import Process
from lattice.sim.world.network import KEEPALIVE_S, AnswerCallback, Network
from lattice.store.memory import MemoryStore
from lattice.store.protocol import (
    ABSENT,
    Batch,
    Change,
    Check,
    Entry,
    Key,
    Page,
    Put,
    RevisionConflict,
    Term,
    Watch,
    Write,
    compacted_error,
    future_watch_error,
)

T = TypeVar("T")
STORE_HOST = "store"
# The component or client on whose behalf a server writes.
REQUEST_ORIGIN: contextvars.ContextVar[str] = contextvars.ContextVar("origin", default="controllers")


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A commit with its writer.

    `current_term` is the term of the role when the commit was applied; `writer_revision` is the newest
    revision that the writer had received when the writer sent the commit.
    """

    revision: int
    at: float
    actor: str
    origin: str
    term: Term | None
    current_term: int
    request_id: str | None
    changes: tuple[Change, ...]
    # Keys that the writer overwrote without having read the stored revision.
    blind_writes: tuple[Key, ...] = ()
    # None if it is unknown.
    writer_revision: int | None = None
    # Simulation time at which the writer sent the commit.
    sent_at: float | None = None
    # What the wall clock of the writer showed then; None if it is unknown.
    writer_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class ElectionRecord:
    at: float
    term: Term


@dataclass
class _ResourceLog:
    """All batches of a resource."""

    revisions: list[int] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)


class HistoryStore(MemoryStore):
    """A memory store that keeps the history of commits and elections for the checker."""

    def __init__(self, clock: Clock, time: Callable[[], float]) -> None:
        super().__init__(clock)
        self._time = time
        self.history: list[CommitRecord] = []
        self.elections: list[ElectionRecord] = []
        self.writer = ""
        self.origin = ""
        self.writer_revision: int | None = None
        self.sent_at: float | None = None
        self.writer_time: datetime | None = None
        self.listeners: list[Callable[[int], None]] = []
        self.logs_by_resource: dict[str, _ResourceLog] = {}
        # Last revision by key, deleted objects included.
        self.last_revisions: dict[Key, int] = {}

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        previous_revision = self._revision
        # A put that the store accepts over another revision than the expected one is blind (I-01).
        blind = tuple(
            write.key
            for write in writes
            if isinstance(write, Put) and self._revision_of(write.key) not in (write.expect, ABSENT)
        )
        revision = await super().commit(writes, checks=checks, fence=fence, request_id=request_id)
        # A repeated request_id returns the earlier revision and is no new commit.
        if revision > previous_revision:
            self._record_commit(revision, tuple(self._log[-len(writes) :]), fence, request_id, blind)
        return revision

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        term = await super().campaign(role, holder, ttl)
        if term is not None:
            self.elections.append(ElectionRecord(self._time(), term))
        return term

    def batches(self, resource: str, after: int, until: int) -> list[Batch]:
        log = self.logs_by_resource.get(resource)
        if log is None:
            return []
        return log.batches[bisect_right(log.revisions, after) : bisect_right(log.revisions, until)]

    def term_of(self, role: str) -> Term | None:
        """The current term of a role; used only by the planted bug fence-read-again."""
        lease = self._leases.get(role)
        return lease.term if lease is not None else None

    def revisions_by_path(self, resource: str, at: int | None = None) -> dict[str, int]:
        """Revision of every object of a resource by path, now or at an earlier revision."""
        if at is None or at >= self._revision:
            return {path: entry.revision for path, entry in self._table(resource).entries.items()}
        revisions: dict[str, int] = {}
        changes = chain.from_iterable(batch.changes for batch in self.batches(resource, 0, at))
        for change in changes:
            if change.value is None:
                revisions.pop(change.key.path, None)
            else:
                revisions[change.key.path] = change.revision
        return revisions

    def latest_revision_of(self, keys: Iterable[Key]) -> int:
        """The newest revision that wrote or deleted any of the keys."""
        return max((self.last_revisions.get(key, 0) for key in keys), default=0)

    @property
    def latest_revision(self) -> int:
        return self._revision

    def changed_resources(self, after: int, until: int) -> frozenset[str]:
        """Resources that changed after revision `after`, up to revision `until`."""
        start = bisect_right(self.history, after, key=lambda record: record.revision)
        stop = bisect_right(self.history, until, lo=start, key=lambda record: record.revision)
        changes = chain.from_iterable(record.changes for record in self.history[start:stop])
        return frozenset(change.key.resource for change in changes)

    def _record_commit(
        self,
        revision: int,
        changes: tuple[Change, ...],
        fence: Term | None,
        request_id: str | None,
        blind: tuple[Key, ...],
    ) -> None:
        current_term = self._terms.get("controllers", 0)
        self.last_revisions.update((change.key, revision) for change in changes)
        self.history.append(
            CommitRecord(
                revision,
                self._time(),
                self.writer,
                self.origin,
                fence,
                current_term,
                request_id,
                changes,
                blind,
                self.writer_revision,
                self.sent_at,
                self.writer_time,
            )
        )
        for resource in dict.fromkeys(change.key.resource for change in changes):
            log = self.logs_by_resource.setdefault(resource, _ResourceLog())
            log.revisions.append(revision)
            log.batches.append(
                Batch(revision, tuple(change for change in changes if change.key.resource == resource))
            )
        for listener in self.listeners:
            listener(revision)


def run_synchronously(coro: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the memory store, which never waits, without the event loop."""
    try:
        coro.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a request to the memory store must not wait")


class RejectedWrites(NamedTuple):
    """Consecutive rejections of the same commit by revision conflicts.

    `informed_attempts` counts the latest successive rejections for which the writer had received the
    conflicting revision before it sent the commit.
    """

    keys: tuple[str, ...] = ()
    attempts: int = 0
    informed_attempts: int = 0


class StoreClient:
    """The client through which a server process uses the store over the simulated network."""

    def __init__(self, store: HistoryStore, net: Network, process: Process, lag: Callable[[], float]) -> None:
        self.store = store
        self.net = net
        self.process = process
        # The present delay of watches, in seconds.
        self.lag = lag
        # Newest revision that watches have received.
        self.watched_revision = store.latest_revision
        self.watches: list[SimWatch] = []
        # By written keys: rejections since the last success.
        self.rejections: dict[tuple[str, ...], RejectedWrites] = {}
        self.worst_rejection = RejectedWrites()
        # While true, watches receive no change.
        self.are_watches_paused = False
        # The oldest revision of the writer's caches.
        self.read_revision: Callable[[], int] = lambda: self.watched_revision
        # The wall clock of the writer's host.
        self.wall_time: Callable[[], datetime] | None = None
        self._next_delivery_at = 0.0
        self._stalled_since: float | None = None
        store.listeners.append(self._on_commit)

    async def get(self, key: Key) -> Entry | None:
        entry: Entry | None = await self._request(lambda: self.store.get(key))
        return entry

    async def list(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        limit: int = 0,
        after: str = "",
        revision: int = 0,
    ) -> Page:
        page: Page = await self._request(
            lambda: self.store.list(resource, namespace, limit=limit, after=after, revision=revision)
        )
        return page

    async def count(self, resource: str, namespace: str | None = None) -> int:
        count: int = await self._request(lambda: self.store.count(resource, namespace))
        return count

    async def watch(self, resource: str, after: int) -> Watch:
        after = max(after, 1)

        async def begin() -> SimWatch:
            if after > self.store.latest_revision:
                raise future_watch_error(after, self.store.latest_revision)
            if after < self.store.compacted_revision:
                raise compacted_error(after, self.store.compacted_revision)
            watch = SimWatch(self, resource, after)
            self.watches.append(watch)
            self._on_commit(self.store.latest_revision)
            return watch

        return await self._request(begin)

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        # Events are left out, because an event has a new name in every attempt: with events, two attempts of
        # the same commit would never have the same keys (I-35).
        keys = tuple(sorted(str(write.key) for write in writes if write.key.resource != "events"))
        read_revision, stored_revision, sent_at = self.read_revision(), 0, self.net.loop.time()
        wall_time = self.wall_time() if self.wall_time is not None else None

        async def work() -> int:
            nonlocal stored_revision
            stored_revision = self.store.latest_revision_of(write.key for write in (*writes, *checks))
            # The store attributes the commit to the revision that the writer knew when the commit was sent.
            self.store.writer_revision, self.store.sent_at = read_revision, sent_at
            self.store.writer_time = wall_time
            return await self.store.commit(writes, checks=checks, fence=fence, request_id=request_id)

        try:
            revision: int = await self._request(work)
        # The limit of rejections depends on whether the writer had received the conflicting revision (I-35).
        except RevisionConflict:
            previous = self.rejections.get(keys, RejectedWrites(keys))
            was_informed = stored_revision <= read_revision
            current = self.rejections[keys] = RejectedWrites(
                keys, previous.attempts + 1, previous.informed_attempts + 1 if was_informed else 0
            )
            self.worst_rejection = max(
                self.worst_rejection,
                current,
                key=lambda rejection: (rejection.informed_attempts, rejection.attempts),
            )
            raise
        self.rejections.pop(keys, None)
        return revision

    async def revision(self) -> int:
        revision: int = await self._request(self.store.revision)
        return revision

    async def compact(self, revision: int) -> None:
        await self._request(lambda: self.store.compact(revision))

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        term: Term | None = await self._request(lambda: self.store.campaign(role, holder, ttl))
        return term

    async def renew(self, term: Term) -> bool:
        is_renewed: bool = await self._request(lambda: self.store.renew(term))
        return is_renewed

    async def resign(self, term: Term) -> None:
        await self._request(lambda: self.store.resign(term))

    async def close(self) -> None:
        return None

    async def _request(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        origin = REQUEST_ORIGIN.get()

        def serve(answer: AnswerCallback) -> None:
            self.store.writer, self.store.origin = self.process.name, origin
            try:
                answer(run_synchronously(work()), None)
            except LatticeError as error:
                answer(None, error)

        result: T = await self.net.request(self.process, STORE_HOST, serve)
        return result

    def _on_commit(self, revision: int) -> None:
        if not self.watches or not self.process.is_alive or self.are_watches_paused:
            return
        now, host = self.net.loop.time(), self.process.host
        # A cut in either direction stalls the TCP connection of the watches.
        if self.net.is_cut(STORE_HOST, host) or self.net.is_cut(host, STORE_HOST):
            if self._stalled_since is None:
                self._stalled_since = now
                self.net.loop.schedule_external(now + KEEPALIVE_S, self._break_watches)
            return
        # The network healed before the connection broke.
        if self._stalled_since is not None:
            self._stalled_since = None
        # Deliveries keep their order although latencies are random.
        self._next_delivery_at = max(
            self._next_delivery_at, now + self.net.latency(STORE_HOST, host) + self.lag()
        )
        self.net.loop.schedule_external(self._next_delivery_at, self._deliver, revision)

    def _deliver(self, revision: int) -> None:
        previous_revision, self.watched_revision = self.watched_revision, max(self.watched_revision, revision)
        changed = self.store.changed_resources(previous_revision, self.watched_revision)
        for watch in self.watches:
            if watch.resource in changed:
                watch.changed.set()

    def resume_watches(self) -> None:
        """Continue the watches from their revision; a watch behind the compacted revision fails."""
        self.are_watches_paused = False
        self._on_commit(self.store.latest_revision)

    def on_healed(self) -> None:
        """Deliver the changes since the network was cut, unless the connection has broken meanwhile."""
        if self._stalled_since is not None:
            self._stalled_since = None
            self._on_commit(self.store.latest_revision)

    def _break_watches(self) -> None:
        if self._stalled_since is None:
            return
        self._stalled_since = None
        # New connections are not behind: a new watch receives every change up to the latest revision.
        self.watched_revision = self.store.latest_revision
        broken, self.watches = self.watches, []
        for watch in broken:
            watch.is_broken = True
            watch.changed.set()


class SimWatch:
    """A watch of a resource that delivers batches up to the client's watched revision."""

    def __init__(self, client: StoreClient, resource: str, after: int) -> None:
        self.client = client
        self.resource = resource
        self.after_revision = after
        self.is_broken = False
        self.is_closed = False
        self.changed = asyncio.Event()

    @property
    def progress(self) -> int:
        if not self.is_broken and not self.client.store.batches(
            self.resource, self.after_revision, self.client.watched_revision
        ):
            self.after_revision = max(self.after_revision, self.client.watched_revision)
        return self.after_revision

    async def next(self, timeout: float | None = None) -> Sequence[Batch]:
        while not self.is_closed:
            if self.is_broken:
                raise Unavailable("the watch was interrupted", where=STORE_HOST)
            store = self.client.store
            batches = store.batches(self.resource, self.after_revision, self.client.watched_revision)
            # The next change may have been compacted away while the watch was behind.
            if (
                batches
                and self.after_revision < store.compacted_revision - 1
                and batches[0].revision < store.compacted_revision
            ):
                raise compacted_error(self.after_revision, store.compacted_revision)
            if batches:
                self.after_revision = batches[-1].revision
                return batches
            self.changed.clear()
            try:
                await asyncio.wait_for(
                    self.changed.wait(), timeout
                ) if timeout is not None else await self.changed.wait()
            except TimeoutError:
                return ()
        return ()

    def close(self) -> None:
        self.is_closed = True
        self.changed.set()
        if self in self.client.watches:
            self.client.watches.remove(self)
