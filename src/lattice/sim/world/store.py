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
from lattice.sim.world.network import KEEPALIVE, Answer, Network
from lattice.store.memory import MemoryStore
from lattice.store.protocol import (
    ABSENT,
    Batch,
    Change,
    Check,
    Clash,
    Entry,
    Key,
    Page,
    Put,
    Term,
    Watch,
    Write,
    compacted,
    unborn,
)

T = TypeVar("T")
HOST = "store"
ORIGIN: contextvars.ContextVar[str] = contextvars.ContextVar(
    "origin", default="controllers"
)  # on whose behalf a server writes


@dataclass(frozen=True, slots=True)
class Record:
    """One commit. `led` is the term that the role was in when it was applied; `seen`: what its writer had been told of when it asked."""

    revision: int
    at: float
    actor: str
    origin: str
    term: Term | None
    led: int
    request_id: str | None
    changes: tuple[Change, ...]
    blind: tuple[Key, ...] = ()  # written over something that the writer had not seen
    seen: int | None = None  # None: nobody knows
    asked_at: float | None = None  # when its writer sent it off


@dataclass(frozen=True, slots=True)
class Elected:
    at: float
    term: Term


@dataclass
class _Line:
    """All batches of one resource."""

    revisions: list[int] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)


class HistoryStore(MemoryStore):
    """The memory store, which forgets nothing that a checker needs."""

    def __init__(self, clock: Clock, time: Callable[[], float]) -> None:
        super().__init__(clock)
        self._time = time
        self.history: list[Record] = []
        self.elections: list[Elected] = []
        self.asker = ""
        self.origin = ""
        self.seen: int | None = None
        self.asked_at: float | None = None
        self.ears: list[Callable[[int], None]] = []
        self.lines: dict[str, _Line] = {}
        self.touched_at: dict[Key, int] = {}  # by key: its last revision, also of one that is gone

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
            self._note(revision, tuple(self._log[-len(writes) :]), fence, request_id, blind)
        return revision

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        term = await super().campaign(role, holder, ttl)
        if term is not None:
            self.elections.append(Elected(self._time(), term))
        return term

    def batches(self, resource: str, after: int, until: int) -> list[Batch]:
        line = self.lines.get(resource)
        if line is None:
            return []
        return line.batches[bisect_right(line.revisions, after) : bisect_right(line.revisions, until)]

    def held(self, role: str) -> Term | None:
        """Who holds a role now: for a bug that is planted."""
        lease = self._leases.get(role)
        return lease.term if lease is not None else None

    def contents(self, resource: str, at: int | None = None) -> dict[str, int]:
        """Revision of each object, by path; at a revision that is past, or now."""
        if at is None or at >= self._revision:
            return {path: entry.revision for path, entry in self._shelf(resource).entries.items()}
        found: dict[str, int] = {}
        for change in (change for batch in self.batches(resource, 0, at) for change in batch.changes):
            if change.value is None:
                found.pop(change.key.path, None)
            else:
                found[change.key.path] = change.revision
        return found

    def newest_of(self, keys: Iterable[Key]) -> int:
        """Revision at which one of them was last written or deleted."""
        return max((self.touched_at.get(key, 0) for key in keys), default=0)

    @property
    def newest(self) -> int:
        return self._revision

    def touched(self, after: int, until: int) -> frozenset[str]:
        """Resources that changed after one revision, up to another."""
        start = bisect_right(self.history, after, key=lambda record: record.revision)
        stop = bisect_right(self.history, until, lo=start, key=lambda record: record.revision)
        return frozenset(
            change.key.resource for record in self.history[start:stop] for change in record.changes
        )

    def _note(
        self,
        revision: int,
        changes: tuple[Change, ...],
        fence: Term | None,
        request_id: str | None,
        blind: tuple[Key, ...],
    ) -> None:
        led = self._terms.get("controllers", 0)
        self.touched_at.update((change.key, revision) for change in changes)
        told = (self.seen, self.asked_at)
        self.history.append(
            Record(
                revision, self._time(), self.asker, self.origin, fence, led, request_id, changes, blind, *told
            )
        )
        for resource in dict.fromkeys(change.key.resource for change in changes):
            line = self.lines.setdefault(resource, _Line())
            line.revisions.append(revision)
            line.batches.append(
                Batch(revision, tuple(each for each in changes if each.key.resource == resource))
            )
        for ear in self.ears:
            ear(revision)


def finished(coro: Coroutine[Any, Any, T]) -> T:
    """The memory store never waits."""
    try:
        coro.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waited")


class Rejected(NamedTuple):
    """A plan that somebody else was ahead of, so many times in a row; `knowing`: the last of these with all of that known."""

    plan: tuple[str, ...] = ()
    times: int = 0
    knowing: int = 0


class StoreClient:
    """The store as one server process reaches it: a Store."""

    def __init__(self, store: HistoryStore, net: Network, process: Process, lag: Callable[[], float]) -> None:
        self.store = store
        self.net = net
        self.process = process
        self.lag = lag  # seconds by which watches are behind just now
        self.seen = store.newest  # watches have been told up to here
        self.watches: list[SimWatch] = []
        self.rejections: dict[
            tuple[str, ...], Rejected
        ] = {}  # by what was written: since it was last written
        self.worst = Rejected()
        self.is_held = False  # its watches are told nothing
        self.view: Callable[[], int] = lambda: (
            self.seen
        )  # the revision that whoever writes has seen, in all of its copies
        self._arrives = 0.0
        self._stalled_since: float | None = None
        store.ears.append(self._published)

    async def get(self, key: Key) -> Entry | None:
        found: Entry | None = await self._ask(lambda: self.store.get(key))
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
        page: Page = await self._ask(
            lambda: self.store.list(resource, namespace, limit=limit, after=after, revision=revision)
        )
        return page

    async def watch(self, resource: str, after: int) -> Watch:
        after = max(after, 1)

        async def begin() -> SimWatch:
            if after > self.store.newest:
                raise unborn(after, self.store.newest)
            if after < self.store.horizon:
                raise compacted(after, self.store.horizon)
            watch = SimWatch(self, resource, after)
            self.watches.append(watch)
            self._published(self.store.newest)
            return watch

        return await self._ask(begin)

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        plan = tuple(sorted(str(each.key) for each in writes if each.key.resource != "events"))
        seen, found, now = self.view(), 0, self.net.loop.time()

        async def work() -> int:
            nonlocal found
            found = self.store.newest_of(each.key for each in (*writes, *checks))
            self.store.seen, self.store.asked_at = seen, now
            return await self.store.commit(writes, checks=checks, fence=fence, request_id=request_id)

        try:
            revision: int = await self._ask(work)
        except Clash:
            self._rejected(plan, is_known=found <= seen)
            raise
        self.rejections.pop(plan, None)
        return revision

    def _rejected(self, plan: tuple[str, ...], *, is_known: bool) -> None:
        """`is_known`: whoever wrote that had been told already of what it clashes with."""
        before = self.rejections.get(plan, Rejected(plan))
        now = self.rejections[plan] = Rejected(plan, before.times + 1, before.knowing + 1 if is_known else 0)
        self.worst = max(self.worst, now, key=lambda each: (each.knowing, each.times))

    async def revision(self) -> int:
        found: int = await self._ask(self.store.revision)
        return found

    async def compact(self, revision: int) -> None:
        await self._ask(lambda: self.store.compact(revision))

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        found: Term | None = await self._ask(lambda: self.store.campaign(role, holder, ttl))
        return found

    async def renew(self, term: Term) -> bool:
        found: bool = await self._ask(lambda: self.store.renew(term))
        return found

    async def resign(self, term: Term) -> None:
        await self._ask(lambda: self.store.resign(term))

    async def close(self) -> None:
        return None

    async def _ask(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        origin = ORIGIN.get()

        def serve(answer: Answer) -> None:
            self.store.asker, self.store.origin = self.process.name, origin
            try:
                answer(finished(work()), None)
            except LatticeError as error:
                answer(None, error)

        found: T = await self.net.request(self.process, HOST, serve)
        return found

    def _published(self, revision: int) -> None:
        if not self.watches or not self.process.is_alive or self.is_held:
            return
        now, host = self.net.loop.time(), self.process.host
        if self.net.is_cut(HOST, host) or self.net.is_cut(host, HOST):
            if self._stalled_since is None:
                self._stalled_since = now
                self.net.loop.post(now + KEEPALIVE, self._broken)
            return
        if self._stalled_since is not None:  # healed before the connection broke
            self._stalled_since = None
        self._arrives = max(self._arrives, now + self.net.latency(HOST, host) + self.lag())
        self.net.loop.post(self._arrives, self._advance, revision)

    def _advance(self, revision: int) -> None:
        before, self.seen = self.seen, max(self.seen, revision)
        touched = self.store.touched(before, self.seen)
        for watch in self.watches:
            if watch.resource in touched:
                watch.moved.set()

    def release(self) -> None:
        """Its watches go on from where they were, if what comes next is still there."""
        self.is_held = False
        self._published(self.store.newest)

    def healed(self) -> None:
        """What was published while we were cut off comes now, unless the connection broke before."""
        if self._stalled_since is not None:
            self._stalled_since = None
            self._published(self.store.newest)

    def _broken(self) -> None:
        if self._stalled_since is None:
            return
        self._stalled_since = None
        self.seen = self.store.newest  # whoever connects anew is told everything again
        broken, self.watches = self.watches, []
        for watch in broken:
            watch.is_broken = True
            watch.moved.set()


class SimWatch:
    def __init__(self, client: StoreClient, resource: str, after: int) -> None:
        self.client = client
        self.resource = resource
        self.after = after
        self.is_broken = False
        self.is_closed = False
        self.moved = asyncio.Event()

    @property
    def progress(self) -> int:
        if not self.is_broken and not self.client.store.batches(self.resource, self.after, self.client.seen):
            self.after = max(self.after, self.client.seen)
        return self.after

    async def next(self, timeout: float | None = None) -> Sequence[Batch]:
        while not self.is_closed:
            if self.is_broken:
                raise Unavailable("the watch broke off", where=HOST)
            store = self.client.store
            batches = store.batches(self.resource, self.after, self.client.seen)
            if batches and self.after < store.horizon - 1 and batches[0].revision < store.horizon:
                raise compacted(self.after, store.horizon)
            if batches:
                self.after = batches[-1].revision
                return batches
            self.moved.clear()
            try:
                await asyncio.wait_for(
                    self.moved.wait(), timeout
                ) if timeout is not None else await self.moved.wait()
            except TimeoutError:
                return ()
        return ()

    def close(self) -> None:
        self.is_closed = True
        self.moved.set()
        if self in self.client.watches:
            self.client.watches.remove(self)
