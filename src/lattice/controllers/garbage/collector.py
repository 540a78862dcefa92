"""Garbage collection on the leader: delete dependents of deleted owners, content of deleted namespaces, and
expired events."""

import asyncio
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from lattice.clock import Clock
from lattice.controllers.garbage.batch_committer import BatchCommitter, GarbageReason, GarbageWrite
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
from lattice.controllers.garbage.ttl import EventExpiryController
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source, run_all
from lattice.errors import Conflict
from lattice.kinds.core import Event
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.object_lifecycle import FOREGROUND_FINALIZER, ORPHAN_FINALIZER
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.store.cache import Cache
from lattice.store.protocol import MAX_COMMIT_OPERATIONS, Change, Delete, Entry, Key, Store, Term, Write

EVENT_TTL = timedelta(days=7)
# Limit of concurrent reads of the store.
MAX_CONCURRENT_READS = 100
# Delay before a namespace that still has content is reconciled again.
BLOCKED_NAMESPACE_RECHECK_S = 30.0

# One batch at a time, so that a batch sees the writes of the previous batch. Watches miss no change, so there is
# no resync; the namespaces of a batch may hold any number of objects, so there is no timeout.
CONCURRENCY = Concurrency(workers=1, resync_s=math.inf, timeout_s=math.inf)


@dataclass
class GarbageCollector:
    """Reconcile objects with owners, deleted objects with a deletion policy, and deleted namespaces; a key in
    the work queue is the key of the object in the store, as text.

    The caches determine which keys to reconcile and which dependents an owner has; the object and its owners
    are read from the store. Events are not cached: an event has no owner and no dependents.
    """

    store: Store
    clock: Clock
    kinds: Sequence[type[Kind]]
    term: Term
    event_ttl: timedelta = EVENT_TTL
    rng: random.Random = field(default_factory=random.Random)
    name: ClassVar[str] = "garbage"
    # A key has at most one write, so a batch usually fits into one commit.
    batch_size: ClassVar[int] = MAX_COMMIT_OPERATIONS

    def __post_init__(self) -> None:
        deletable = [kind for kind in self.kinds if "delete" in kind.resource.verbs]
        self._owner_resolver = OwnerResolver(deletable)
        self._committer = BatchCommitter(self.store, self.term)
        namespaced = [kind.resource for kind in deletable if kind.resource.namespaced]
        self._namespace_cleaner = NamespaceCleaner(self.store, self.clock, self._committer, namespaced)
        # Every resource but events, by resource id; objects are indexed by the uids of their owners.
        self._caches: dict[str, Cache[GarbageObject]] = {}
        for resource in self._owner_resolver.resources:
            if resource != Event.resource.id:
                self._caches[resource] = Cache(
                    self.store,
                    resource,
                    self._owner_resolver.parse,
                    self.clock,
                    self.rng,
                    {"owner": lambda item: [owner.uid for owner in item.owners]},
                    freeze=False,
                    keeps_bytes=False,
                )
        sources = [Source(cache, self.keys_for_change) for cache in self._caches.values()]
        self._loop = Loop(self, self.clock, self.rng, self.list_keys, sources, CONCURRENCY)
        expiry = EventExpiryController(self.store, self.clock, self._committer, self.event_ttl)
        self._expiry_loop = Loop(expiry, self.clock, self.rng, expiry.list_keys, (), CONCURRENCY)

    @property
    def pending(self) -> int:
        """The number of objects to reconcile."""
        return self._loop.pending

    @property
    def last_reconciled_at(self) -> str | None:
        times = (self._loop.last_reconciled_at, self._expiry_loop.last_reconciled_at)
        return max((time for time in times if time is not None), default=None)

    async def run(self) -> None:
        """Run until cancelled, or until the term of the leader is over."""
        await run_all((self._loop, self._expiry_loop), self._caches.values())

    def list_keys(self) -> Iterable[str]:
        for cache in self._caches.values():
            for item in cache.objects():
                if self._needs_reconcile(item):
                    yield str(item.key)

    def keys_for_change(self, change: Change) -> list[str]:
        """The keys of the objects that the change concerns: the object, its dependents, its owners, its
        namespace."""
        previous, current = self._caches[change.key.resource].previous_object, self._cached(change.key)
        keys: list[Key] = []
        if previous != current:
            if current is not None and self._needs_reconcile(current):
                keys.append(current.key)
            if previous is not None:
                # The object was deleted, or created again under the same name; the dependents belong to the
                # previous uid.
                if current is None or current.uid != previous.uid:
                    keys += [dependent.key for dependent in self._dependents(previous.uid)]
                # An owner in foreground deletion may have waited for exactly this object.
                keys += [
                    owner.key
                    for owner in previous.owners
                    if owner.key and self._is_awaiting_dependents(owner.key)
                ]
        if change.key.namespace:
            namespace_key = Key(NAMESPACE_RESOURCE, "", change.key.namespace)
            if self._is_awaiting_dependents(namespace_key):
                keys.append(namespace_key)
        return list(map(str, keys))

    def _needs_reconcile(self, item: GarbageObject) -> bool:
        """Whether the caches suggest that the collector must act on the object. For ordinary changes the
        answer is no, so they cost no read of the store."""
        if item.is_terminating:
            return item.is_orphaning or item.is_foreground_deleting or item.key.resource == NAMESPACE_RESOURCE
        return any(judge_ownership(item, self._cached))

    def _is_awaiting_dependents(self, key: Key) -> bool:
        """Whether the object is deleted and waits for its dependents or its content to go."""
        item = self._cached(key)
        return item is not None and (
            item.is_foreground_deleting or (item.is_terminating and key.resource == NAMESPACE_RESOURCE)
        )

    def _cached(self, key: Key) -> GarbageObject | None:
        cache = self._caches.get(key.resource)
        return None if cache is None else cache.get(key.path)

    def _dependents(self, uid: str) -> list[GarbageObject]:
        dependents: list[GarbageObject] = []
        for cache in self._caches.values():
            dependents += cache.by_index("owner", uid)
        return dependents

    async def reconcile_batch(self, keys: Sequence[str]) -> Mapping[str, Requeue | Conflict]:
        """Read every object and its owners from the store, decide about the object, and commit the writes in
        batches; return the namespaces that are not empty and the keys in conflict."""
        entries = await self._read(list(map(Key.parse, keys)))
        items = [(entry, self._owner_resolver.parse(entry)) for entry in entries]
        owner_keys: set[Key] = set()
        for _, item in items:
            if not item.is_terminating:
                owner_keys.update(owner.key for owner in item.owners if owner.key)
        owners = {
            entry.key: self._owner_resolver.parse(entry) for entry in await self._read(list(owner_keys))
        }
        unfinished: dict[str, Requeue | Conflict] = {}
        writes: list[GarbageWrite] = []
        for entry, item in items:
            try:
                if not item.is_terminating:
                    write = self._decide_owned(entry, item, owners)
                elif item.is_orphaning:
                    write = await self._orphan_dependents(entry, item)
                elif item.is_foreground_deleting:
                    write = await self._delete_foreground(entry, item)
                elif entry.key.resource == NAMESPACE_RESOURCE:
                    write = _garbage_write(await self._namespace_cleaner.empty(entry), "namespace")
                else:
                    write = None
            except Conflict as conflict:
                unfinished[str(entry.key)] = conflict
                continue
            if write is not None:
                writes.append(write)
            is_deleted = write is not None and isinstance(write.write, Delete)
            if item.is_terminating and entry.key.resource == NAMESPACE_RESOURCE and not is_deleted:
                # Events are not cached, so the removal of their finalizers wakes no reconcile: poll.
                unfinished[str(entry.key)] = Requeue(BLOCKED_NAMESPACE_RECHECK_S)
        for key in await self._committer.commit_all(writes):
            unfinished[str(key)] = Conflict(
                "another write came first", where=str(key), fix="read the object again and retry"
            )
        return unfinished

    async def _read(self, keys: Sequence[Key]) -> list[Entry]:
        """The objects that exist, in the order of the keys."""
        entries: list[Entry] = []
        for start in range(0, len(keys), MAX_CONCURRENT_READS):
            part = keys[start : start + MAX_CONCURRENT_READS]
            entries += [
                entry for entry in await asyncio.gather(*map(self.store.get, part)) if entry is not None
            ]
        return entries

    def _decide_owned(
        self, entry: Entry, item: GarbageObject, owners: dict[Key, GarbageObject]
    ) -> GarbageWrite | None:
        decision = judge_ownership(item, owners.get)
        resource = self._owner_resolver.resources[item.key.resource]
        if decision.stale_owners:
            return _garbage_write(without_owners(resource, entry, decision.stale_owners), "owner")
        if not decision.remove:
            return None
        # An owner in foreground deletion waits for its whole tree of dependents, so the dependents of this
        # object are deleted before the object.
        finalizers = (FOREGROUND_FINALIZER,) if decision.is_awaited and self._dependents(item.uid) else ()
        return _garbage_write(
            deletion_write(resource, entry, format_timestamp(self.clock.now()), finalizers),
            "foreground" if decision.is_awaited else "owner",
        )

    async def _orphan_dependents(self, entry: Entry, item: GarbageObject) -> GarbageWrite | None:
        """Remove the owner reference from every dependent, then the orphan finalizer from the owner."""
        await self._catch_up(entry)
        entries = await self._read([dependent.key for dependent in self._dependents(item.uid)])
        resources, uids = self._owner_resolver.resources, frozenset({item.uid})
        writes = [
            _garbage_write(without_owners(resources[dependent.key.resource], dependent, uids), "orphan")
            for dependent in entries
        ]
        conflicts = await self._committer.commit_all(write for write in writes if write is not None)
        if conflicts:
            raise Conflict(
                "other writes are changing the dependents of the object",
                where=str(entry.key),
                fix="read the dependents again and retry",
            )
        return _garbage_write(
            without_finalizer(resources[item.key.resource], entry, ORPHAN_FINALIZER), "orphan"
        )

    async def _delete_foreground(self, entry: Entry, item: GarbageObject) -> GarbageWrite | None:
        """Delete the dependents first. Every change of a dependent wakes the owner, and the owner is deleted
        once no dependent blocks its deletion."""
        await self._catch_up(entry)
        self._loop.wake(
            str(dependent.key) for dependent in self._dependents(item.uid) if not dependent.is_terminating
        )
        if is_blocked(item, self._dependents):
            return None
        return _garbage_write(
            without_finalizer(self._owner_resolver.resources[item.key.resource], entry, FOREGROUND_FINALIZER),
            "foreground",
        )

    async def _catch_up(self, entry: Entry) -> None:
        """Wait until the caches hold every object that existed when the owner was marked, so that no
        dependent is missed."""
        for cache in self._caches.values():
            await cache.wait_for(entry.revision)


def _garbage_write(write: Write | None, reason: GarbageReason) -> GarbageWrite | None:
    return None if write is None else GarbageWrite(write, reason)
