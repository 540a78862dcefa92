"""One store for all, behind the network, with everything that was ever written: who wrote it, in which term, and when in truth."""

import asyncio
import contextvars
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
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
REQUEST_ORIGIN: contextvars.ContextVar[str] = contextvars.ContextVar(
    "origin", default="controllers"
)  # on whose behalf a server writes


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One commit. `led` is the term that the role was in when it was applied; `seen`: what its writer had been told of when it asked."""

    revision: int
    at: float
    actor: str
    origin: str
    term: Term | None
    current_term: int
    request_id: str | None
    changes: tuple[Change, ...]
    blind_writes: tuple[Key, ...] = ()  # written over something that the writer had not seen
    writer_revision: int | None = None  # None: nobody knows
    sent_at: float | None = None  # when its writer sent it off


@dataclass(frozen=True, slots=True)
class ElectionRecord:
    at: float
    term: Term


@dataclass
class _ResourceLog:
    """All batches of one resource."""

    revisions: list[int] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)


class HistoryStore(MemoryStore):
    """The memory store, which forgets nothing that a checker needs."""

    def __init__(self, clock: Clock, time: Callable[[], float]) -> None:
        super().__init__(clock)
        self._time = time
        self.history: list[CommitRecord] = []
        self.elections: list[ElectionRecord] = []
        self.writer = ""
        self.origin = ""
        self.writer_revision: int | None = None
        self.sent_at: float | None = None
        self.listeners: list[Callable[[int], None]] = []
        self.logs_by_resource: dict[str, _ResourceLog] = {}
        self.last_revisions: dict[Key, int] = {}  # by key: its last revision, also of one that is gone

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        before = self._revision
        blind = tuple(
            each.key
            for each in writes
            if isinstance(each, Put) and self._revision_of(each.key) not in (each.expect, ABSENT)
        )
        revision = await super().commit(writes, checks=checks, fence=fence, request_id=request_id)
        if revision > before:
            self._record_commit(revision, tuple(self._log[-len(writes) :]), fence, request_id, blind)
        return revision

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        term = await super().campaign(role, holder, ttl)
        if term is not None:
            self.elections.append(ElectionRecord(self._time(), term))
        return term

    def batches(self, resource: str, after: int, until: int) -> list[Batch]:
        line = self.logs_by_resource.get(resource)
        if line is None:
            return []
        return line.batches[bisect_right(line.revisions, after) : bisect_right(line.revisions, until)]

    def term_of(self, role: str) -> Term | None:
        """Who holds a role now: for a bug that is planted."""
        lease = self._leases.get(role)
        return lease.term if lease is not None else None

    def revisions_by_path(self, resource: str, at: int | None = None) -> dict[str, int]:
        """Revision of each object, by path; at a revision that is past, or now."""
        if at is None or at >= self._revision:
            return {path: entry.revision for path, entry in self._table(resource).entries.items()}
        found: dict[str, int] = {}
        for change in (change for batch in self.batches(resource, 0, at) for change in batch.changes):
            if change.value is None:
                found.pop(change.key.path, None)
            else:
                found[change.key.path] = change.revision
        return found

    def latest_revision_of(self, keys: Iterable[Key]) -> int:
        """Revision at which one of them was last written or deleted."""
        return max((self.last_revisions.get(key, 0) for key in keys), default=0)

    @property
    def latest_revision(self) -> int:
        return self._revision

    def changed_resources(self, after: int, until: int) -> frozenset[str]:
        """Resources that changed after one revision, up to another."""
        start = bisect_right(self.history, after, key=lambda record: record.revision)
        stop = bisect_right(self.history, until, lo=start, key=lambda record: record.revision)
        return frozenset(
            change.key.resource for record in self.history[start:stop] for change in record.changes
        )

    def _record_commit(
        self,
        revision: int,
        changes: tuple[Change, ...],
        fence: Term | None,
        request_id: str | None,
        blind: tuple[Key, ...],
    ) -> None:
        led = self._terms.get("controllers", 0)
        self.last_revisions.update((change.key, revision) for change in changes)
        told = (self.writer_revision, self.sent_at)
        self.history.append(
            CommitRecord(
                revision,
                self._time(),
                self.writer,
                self.origin,
                fence,
                led,
                request_id,
                changes,
                blind,
                *told,
            )
        )
        for resource in dict.fromkeys(change.key.resource for change in changes):
            line = self.logs_by_resource.setdefault(resource, _ResourceLog())
            line.revisions.append(revision)
            line.batches.append(
                Batch(revision, tuple(each for each in changes if each.key.resource == resource))
            )
        for ear in self.listeners:
            ear(revision)


def run_synchronously(coro: Coroutine[Any, Any, T]) -> T:
    """The memory store never waits."""
    try:
        coro.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waited")


class RejectedWrites(NamedTuple):
    """A plan that somebody else was ahead of, so many times in a row; `knowing`: the last of these with all of that known."""

    keys: tuple[str, ...] = ()
    attempts: int = 0
    informed_attempts: int = 0


class StoreClient:
    """The store as one server process reaches it: a Store."""

    def __init__(self, store: HistoryStore, net: Network, process: Process, lag: Callable[[], float]) -> None:
        self.store = store
        self.net = net
        self.process = process
        self.lag = lag  # seconds by which watches are behind just now
        self.watched_revision = store.latest_revision  # watches have been told up to here
        self.watches: list[SimWatch] = []
        self.rejections: dict[
            tuple[str, ...], RejectedWrites
        ] = {}  # by what was written: since it was last written
        self.worst_rejection = RejectedWrites()
        self.are_watches_paused = False  # its watches are told nothing
        self.read_revision: Callable[[], int] = lambda: (
            self.watched_revision
        )  # the revision that whoever writes has seen, in all of its copies
        self._next_delivery_at = 0.0
        self._stalled_since: float | None = None
        store.listeners.append(self._on_commit)

    async def get(self, key: Key) -> Entry | None:
        found: Entry | None = await self._request(lambda: self.store.get(key))
        return found

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
        plan = tuple(sorted(str(each.key) for each in writes if each.key.resource != "events"))
        seen, found, now = self.read_revision(), 0, self.net.loop.time()

        async def work() -> int:
            nonlocal found
            found = self.store.latest_revision_of(each.key for each in (*writes, *checks))
            self.store.writer_revision, self.store.sent_at = seen, now
            return await self.store.commit(writes, checks=checks, fence=fence, request_id=request_id)

        try:
            revision: int = await self._request(work)
        except RevisionConflict:
            self._record_rejection(plan, was_informed=found <= seen)
            raise
        self.rejections.pop(plan, None)
        return revision

    def _record_rejection(self, plan: tuple[str, ...], *, was_informed: bool) -> None:
        """`is_known`: whoever wrote that had been told already of what it clashes with."""
        before = self.rejections.get(plan, RejectedWrites(plan))
        now = self.rejections[plan] = RejectedWrites(
            plan, before.attempts + 1, before.informed_attempts + 1 if was_informed else 0
        )
        self.worst_rejection = max(
            self.worst_rejection, now, key=lambda each: (each.informed_attempts, each.attempts)
        )

    async def revision(self) -> int:
        found: int = await self._request(self.store.revision)
        return found

    async def compact(self, revision: int) -> None:
        await self._request(lambda: self.store.compact(revision))

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        found: Term | None = await self._request(lambda: self.store.campaign(role, holder, ttl))
        return found

    async def renew(self, term: Term) -> bool:
        found: bool = await self._request(lambda: self.store.renew(term))
        return found

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

        found: T = await self.net.request(self.process, STORE_HOST, serve)
        return found

    def _on_commit(self, revision: int) -> None:
        if not self.watches or not self.process.is_alive or self.are_watches_paused:
            return
        now, host = self.net.loop.time(), self.process.host
        if self.net.is_cut(STORE_HOST, host) or self.net.is_cut(host, STORE_HOST):
            if self._stalled_since is None:
                self._stalled_since = now
                self.net.loop.schedule_external(now + KEEPALIVE_S, self._break_watches)
            return
        if self._stalled_since is not None:  # healed before the connection broke
            self._stalled_since = None
        self._next_delivery_at = max(
            self._next_delivery_at, now + self.net.latency(STORE_HOST, host) + self.lag()
        )
        self.net.loop.schedule_external(self._next_delivery_at, self._deliver, revision)

    def _deliver(self, revision: int) -> None:
        before, self.watched_revision = self.watched_revision, max(self.watched_revision, revision)
        touched = self.store.changed_resources(before, self.watched_revision)
        for watch in self.watches:
            if watch.resource in touched:
                watch.changed.set()

    def resume_watches(self) -> None:
        """Its watches go on from where they were, if what comes next is still there."""
        self.are_watches_paused = False
        self._on_commit(self.store.latest_revision)

    def on_healed(self) -> None:
        """What was published while we were cut off comes now, unless the connection broke before."""
        if self._stalled_since is not None:
            self._stalled_since = None
            self._on_commit(self.store.latest_revision)

    def _break_watches(self) -> None:
        if self._stalled_since is None:
            return
        self._stalled_since = None
        self.watched_revision = self.store.latest_revision  # whoever connects anew is told everything again
        broken, self.watches = self.watches, []
        for watch in broken:
            watch.is_broken = True
            watch.changed.set()


class SimWatch:
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
                raise Unavailable("the watch broke off", where=STORE_HOST)
            store = self.client.store
            batches = store.batches(self.resource, self.after_revision, self.client.watched_revision)
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
