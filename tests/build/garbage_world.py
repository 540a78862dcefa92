"""A garbage collector on a store in memory, with a clock that the test advances."""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from lattice.controllers.garbage.collector import GarbageCollector
from lattice.errors import Unavailable
from lattice.kinds import KINDS
from lattice.kinds.meta.object_lifecycle import is_finalized, mark_for_deletion
from lattice.kinds.meta.stored_encoding import Object, pack, unpack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.metrics import REGISTRY
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Batch, Delete, Key, Put, Term, Watch

START = datetime(2026, 11, 15, 7, 40, tzinfo=UTC)


@dataclass
class ManualClock:
    """A clock that stands still until the test advances it."""

    seconds: float = 0.0
    waiting: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)
    count: Any = field(default_factory=itertools.count)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        await self._due(seconds)

    def call_later(self, seconds: float, ring: Callable[[], object]) -> "asyncio.Future[None]":
        due = self._due(seconds)
        due.add_done_callback(lambda rung: None if rung.cancelled() else ring())
        return due

    def _due(self, seconds: float) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self.waiting, (self.seconds + seconds, next(self.count), future))
        return future

    async def advance(self, seconds: float) -> None:
        end = self.seconds + seconds
        await settle()
        while self.waiting and self.waiting[0][0] <= end:
            due, _, future = heapq.heappop(self.waiting)
            if not future.done():
                self.seconds = max(self.seconds, due)
                future.set_result(None)
                await settle()
        self.seconds = end


async def settle() -> None:
    """Run every task that does not wait for time."""
    for _ in range(60):
        await asyncio.sleep(0)


class DelayedWatch:
    """A watch that delivers its batches some seconds late."""

    def __init__(self, inner: Watch, clock: ManualClock, seconds: float) -> None:
        self.inner, self.clock, self.seconds = inner, clock, seconds
        self.held: int | None = None

    @property
    def progress(self) -> int:
        return self.inner.progress if self.held is None else self.held

    async def next(self, timeout: float | None = None) -> Sequence[Batch]:
        self.held = self.inner.progress
        batches = await self.inner.next(timeout)
        await self.clock.sleep(self.seconds)
        self.held = None
        return batches

    def close(self) -> None:
        self.inner.close()


class FaultyStore(MemoryStore):
    """A store with scripted faults: lost commits, concurrent writers and delayed watches."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.refusals = 0  # commits that raise Unavailable
        self.ahead: list[
            Callable[[], Awaitable[None]]
        ] = []  # what another writer does just before each of the next commits
        self.late: dict[str, float] = {}  # delay of the watch of a resource, in seconds

    async def commit(self, *args: Any, **options: Any) -> int:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("the store does not answer", fix="wait")
        if self.ahead and options.get("fence"):
            await self.ahead.pop()()
        return await super().commit(*args, **options)

    async def watch(self, resource: str, after: int) -> Watch:
        watch = await super().watch(resource, after)
        return DelayedWatch(watch, self.clock, self.late[resource]) if resource in self.late else watch


RESOURCES = {kind.resource.kind: kind.resource for kind in KINDS}


@dataclass
class World:
    clock: ManualClock
    store: FaultyStore
    term: Term
    uids: Any = field(default_factory=lambda: itertools.count(1))

    def key(self, what: str) -> Key:
        """`ConfigMap/a/x` in a namespace, `LatticePool/x` outside."""
        kind, *rest = what.split("/")
        return Key(RESOURCES[kind].id, rest[0] if len(rest) == 2 else "", rest[-1])

    async def make(self, what: str, *owners: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Create the object; returns the owner reference to it."""
        key, kind = self.key(what), what.split("/")[0]
        metadata: Object = {
            "name": key.name,
            "uid": f"uid-{next(self.uids)}",
            "creationTimestamp": format_timestamp(self.clock.now()),
        }
        metadata |= {"namespace": key.namespace} if key.namespace else {}
        metadata |= {"ownerReferences": list(owners)} if owners else {}
        metadata |= {"finalizers": more.pop("finalizers")} if "finalizers" in more else {}
        await self.store.commit([Put(key, pack(RESOURCES[kind], {"metadata": metadata, **more}), 0)])
        return {
            "apiVersion": RESOURCES[kind].api_version,
            "kind": kind,
            "name": key.name,
            "uid": metadata["uid"],
        }

    async def delete(self, what: str, *finalizers: str) -> None:
        """Delete as the API does."""
        entry = await self.store.get(key := self.key(what))
        assert entry is not None
        obj = mark_for_deletion(
            unpack(entry.value, entry.revision), now=format_timestamp(self.clock.now()), finalizers=finalizers
        )
        if is_finalized(obj) and key.resource != "namespaces":
            await self.store.commit([Delete(key, entry.revision)])
        else:
            await self.put(what, obj)

    async def put(self, what: str, obj: Object) -> None:
        await self.store.commit([Put(self.key(what), pack(RESOURCES[what.split("/")[0]], obj))])

    async def touch(self, what: str) -> None:
        """Another writer changes the object in a way that does not matter to the collector."""
        obj = await self.get(what) or {}
        await self.put(what, {**obj, "data": {"touched": str(next(self.uids))}})

    async def get(self, what: str) -> Object | None:
        entry = await self.store.get(self.key(what))
        return None if entry is None else unpack(entry.value, entry.revision)

    async def metadata(self, what: str) -> Object:
        obj = await self.get(what)
        assert obj is not None, f"{what} is gone"
        return obj["metadata"]

    async def release(self, what: str, finalizer: str) -> None:
        """Remove a finalizer as the API does: removing the last finalizer of a terminating object deletes it."""
        obj = await self.get(what)
        assert obj is not None
        obj["metadata"]["finalizers"].remove(finalizer)
        if is_finalized(obj):
            await self.store.commit([Delete(self.key(what))])
        else:
            await self.put(what, obj)

    async def there(self, *which: str) -> list[str]:
        return [what for what in which if await self.store.get(self.key(what)) is not None]

    def removed(self, *resources: str) -> list[Key]:
        """The deleted keys, in the order of their deletion."""
        changes = [
            change
            for resource in resources
            for change in self.store.changes_after(resource, 0)
            if change.value is None
        ]
        return [change.key for change in sorted(changes, key=lambda change: change.revision)]

    @asynccontextmanager
    async def collecting(self, **options: Any):
        running = asyncio.ensure_future(
            GarbageCollector(self.store, self.clock, KINDS, self.term, **options).run()
        )
        try:
            await settle()
            yield running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def collect(self) -> None:
        async with self.collecting():
            await self.settle()

    async def settle(self) -> None:
        """Advance until two seconds pass without a write."""
        before = -1
        while before != (before := await self.store.revision()):
            await self.clock.advance(2)


async def new_world() -> World:
    """An empty store with the term of the controllers."""
    clock = ManualClock()
    store = FaultyStore(clock)
    term = await store.campaign("controllers", "me", 15)
    assert term is not None
    return World(clock, store, term)


def blocking(owner: dict[str, Any]) -> dict[str, Any]:
    return owner | {"blockOwnerDeletion": True}


def collected(reason: str) -> float:
    return REGISTRY.get_sample_value("lattice_garbage_collected_total", {"reason": reason}) or 0.0
