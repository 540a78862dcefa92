"""What nobody needs any more goes: objects without owners, emptied namespaces, old events. Runs on the leader only."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from lattice.clock import Clock, format_timestamp
from lattice.controllers.garbage.namespaces import NamespaceCleaner
from lattice.controllers.garbage.ownership import (
    NAMESPACE_RESOURCE,
    GarbageObject,
    OwnerResolver,
    deletion_write,
    is_blocked,
    judge_ownership,
    without_finalizer,
    without_owners,
)
from lattice.controllers.garbage.ttl import delete_expired_events
from lattice.controllers.runtime.commit_batches import BatchCommitter, GarbageReason, GarbageWrite
from lattice.controllers.runtime.workqueue import BatchWorkQueue
from lattice.errors import Conflict, Fenced, LatticeError
from lattice.kinds.core import Event
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.object_lifecycle import FOREGROUND_FINALIZER, ORPHAN_FINALIZER
from lattice.store.cache import Cache
from lattice.store.protocol import MAX_COMMIT_OPERATIONS, Change, Entry, Key, Store, Term, Write

EVENT_TTL = timedelta(days=7)
EVENT_EXPIRY_INTERVAL_S = 600.0  # seconds between looks for old events
MAX_CONCURRENT_READS = 100  # asked of the store at once
BLOCKED_NAMESPACE_RECHECK_S = 30.0  # seconds until a namespace that is held up is looked at again

log = structlog.get_logger()


@dataclass
class GarbageCollector:
    """Told which object to look at, never what happened to it; what it then reads is the store, not the copies.

    The copies only say where a look may be worth it. Events are not copied: they own nothing and are owned by nobody.
    """

    store: Store
    clock: Clock
    kinds: Sequence[type[Kind]]
    term: Term
    event_ttl: timedelta = EVENT_TTL
    rng: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        stored = [kind for kind in self.kinds if "delete" in kind.resource.verbs]
        self._owner_resolver = OwnerResolver(stored)
        self._queue = BatchWorkQueue(self.clock, self.rng)
        self._committer = BatchCommitter(self.store, self.term)
        namespaced = [kind.resource for kind in stored if kind.resource.namespaced]
        self._namespace_cleaner = NamespaceCleaner(self.store, self.clock, self._committer, namespaced)
        self.last_reconciled_at: str | None = None
        self._caches = {
            name: self._cache(name) for name in self._owner_resolver.resources if name != Event.resource.id
        }

    @property
    def pending(self) -> int:
        """Objects that wait for a look."""
        return len(self._queue)

    def _cache(self, resource: str) -> Cache[GarbageObject]:
        by_owner = {"owner": lambda item: [owner.uid for owner in item.owners]}
        return Cache(
            self.store,
            resource,
            self._owner_resolver.parse,
            self.clock,
            self.rng,
            by_owner,
            freeze=False,
            keeps_bytes=False,
        )

    async def run(self) -> None:
        """Until cancelled, or until the term is over."""
        try:
            async with asyncio.TaskGroup() as group:
                for cache in self._caches.values():
                    group.create_task(cache.run())
                group.create_task(self._collect())
                group.create_task(self._expire())
        except* Fenced as over:
            log.info("garbage collection ends", why=str(over.exceptions[0]))

    async def _expire(self) -> None:
        while True:
            try:
                await delete_expired_events(self.store, self.clock, self._committer, self.event_ttl)
            except Fenced:
                raise
            except LatticeError as error:
                log.warning("old events could not be removed, trying again later", why=str(error))
            await self.clock.sleep(EVENT_EXPIRY_INTERVAL_S)

    async def _collect(self) -> None:
        for cache in self._caches.values():
            await cache.wait_for()
        self.last_reconciled_at = format_timestamp(self.clock.now())
        for cache in (
            self._caches.values()
        ):  # nothing waits from here on: no change is between the look and hearing of changes
            cache.on_change(self._on_change)
            self._queue.add(item.key for item in cache.objects() if self._needs_reconcile(item))
        while True:
            await self._reconcile(await self._queue.take(MAX_COMMIT_OPERATIONS))
            self.last_reconciled_at = format_timestamp(self.clock.now())

    def _on_change(self, change: Change) -> None:
        old, new = self._caches[change.key.resource].previous_object, self._cached(change.key)
        if old != new:
            self._enqueue_affected(old, new)
        if change.key.namespace and self._is_awaiting_dependents(
            home := Key(NAMESPACE_RESOURCE, "", change.key.namespace)
        ):
            self._queue.add([home])

    def _enqueue_affected(self, old: GarbageObject | None, new: GarbageObject | None) -> None:
        if new is not None and self._needs_reconcile(new):
            self._queue.add([new.key])
        if old is not None and (new is None or new.uid != old.uid):
            self._queue.add(item.key for item in self._dependents(old.uid))
        if old is not None:
            self._queue.add(
                owner.key for owner in old.owners if owner.key and self._is_awaiting_dependents(owner.key)
            )

    def _needs_reconcile(self, item: GarbageObject) -> bool:
        """Is a closer look worth it? By the copies alone, so that ordinary changes cost nothing."""
        if item.is_terminating:
            return item.is_orphaning or item.is_foreground_deleting or item.key.resource == NAMESPACE_RESOURCE
        return any(judge_ownership(item, self._cached))

    def _is_awaiting_dependents(self, key: Key) -> bool:
        item = self._cached(key)
        return item is not None and (
            item.is_foreground_deleting or (item.is_terminating and key.resource == NAMESPACE_RESOURCE)
        )

    def _cached(self, key: Key) -> GarbageObject | None:
        cache = self._caches.get(key.resource)
        return None if cache is None else cache.get(key.path)

    def _dependents(self, uid: str) -> list[GarbageObject]:
        return [item for cache in self._caches.values() for item in cache.by_index("owner", uid)]

    async def _reconcile(self, keys: Sequence[Key]) -> None:
        """Decide on each by itself, write for all together."""
        failed: set[Key] = set()
        try:
            entries = [entry for entry in await self._read(keys) if entry is not None]
            steps = await self._decide_all(entries, failed)
            failed |= await self._committer.commit_all(steps)
        except Fenced:
            raise
        except LatticeError as error:
            log.warning("garbage could not be removed, trying again", objects=len(keys), why=str(error))
            failed.update(keys)
        for key in keys:
            (self._queue.failed if key in failed else self._queue.done)(key)

    async def _read(self, keys: Sequence[Key]) -> list[Entry | None]:
        found: list[Entry | None] = []
        for start in range(0, len(keys), MAX_CONCURRENT_READS):
            found += await asyncio.gather(
                *(self.store.get(key) for key in keys[start : start + MAX_CONCURRENT_READS])
            )
        return found

    async def _decide_all(self, entries: Sequence[Entry], failed: set[Key]) -> list[GarbageWrite]:
        looks = [(entry, self._owner_resolver.parse(entry)) for entry in entries]
        keys = {
            owner.key for _, item in looks for owner in item.owners if owner.key and not item.is_terminating
        }
        found = [entry for entry in await self._read(list(keys)) if entry is not None]
        owners = {entry.key: self._owner_resolver.parse(entry) for entry in found}
        steps = []
        for entry, item in looks:
            try:
                steps.append(
                    self._decide_owned(entry, item, owners)
                    if not item.is_terminating
                    else await self._decide_terminating(entry, item)
                )
            except Conflict:
                failed.add(entry.key)
        return [step for step in steps if step is not None]

    def _decide_owned(
        self, entry: Entry, item: GarbageObject, owners: dict[Key, GarbageObject]
    ) -> GarbageWrite | None:
        verdict = judge_ownership(item, owners.get)
        resource = self._owner_resolver.resources[item.key.resource]
        if verdict.stale_owners:
            return _garbage_write(without_owners(resource, entry, verdict.stale_owners), "owner")
        if not verdict.remove:
            return None
        in_turn = (FOREGROUND_FINALIZER,) if verdict.is_awaited and self._dependents(item.uid) else ()
        return _garbage_write(
            deletion_write(resource, entry, format_timestamp(self.clock.now()), in_turn),
            "foreground" if verdict.is_awaited else "owner",
        )

    async def _decide_terminating(self, entry: Entry, item: GarbageObject) -> GarbageWrite | None:
        if item.is_orphaning:
            return await self._orphan_dependents(entry, item)
        if item.is_foreground_deleting:
            return await self._delete_foreground(entry, item)
        if item.key.resource == NAMESPACE_RESOURCE:
            self._queue.add_after(BLOCKED_NAMESPACE_RECHECK_S, entry.key)  # finalizers of events go unheard
            return _garbage_write(await self._namespace_cleaner.empty(entry), "namespace")
        return None

    async def _orphan_dependents(self, entry: Entry, item: GarbageObject) -> GarbageWrite | None:
        """Its dependents forget it, and only then it may go."""
        await self._catch_up(entry)
        found = await self._read([each.key for each in self._dependents(item.uid)])
        resources, uids = self._owner_resolver.resources, frozenset({item.uid})
        steps = [
            _garbage_write(without_owners(resources[each.key.resource], each, uids), "orphan")
            for each in found
            if each is not None
        ]
        clashed = await self._committer.commit_all(step for step in steps if step is not None)
        if clashed:
            raise Conflict("its dependents are being changed", where=str(entry.key), fix="look again")
        return _garbage_write(
            without_finalizer(resources[item.key.resource], entry, ORPHAN_FINALIZER), "orphan"
        )

    async def _delete_foreground(self, entry: Entry, item: GarbageObject) -> GarbageWrite | None:
        """Its dependents first; it is looked at again whenever one of them changes."""
        await self._catch_up(entry)
        self._queue.add(each.key for each in self._dependents(item.uid) if not each.is_terminating)
        if is_blocked(item, self._dependents):
            return None
        return _garbage_write(
            without_finalizer(self._owner_resolver.resources[item.key.resource], entry, FOREGROUND_FINALIZER),
            "foreground",
        )

    async def _catch_up(self, entry: Entry) -> None:
        """Whatever was there when the object was marked is in the copies: no dependent is overlooked."""
        for cache in self._caches.values():
            await cache.wait_for(entry.revision)


def _garbage_write(write: Write | None, reason: GarbageReason) -> GarbageWrite | None:
    return None if write is None else GarbageWrite(write, reason)
