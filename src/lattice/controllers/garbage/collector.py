"""What nobody needs any more goes: objects without owners, emptied namespaces, old events. Runs on the leader only."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from lattice.clock import Clock, stamp
from lattice.controllers.runtime.backlog import Backlog
from lattice.controllers.garbage.ttl import expire
from lattice.controllers.garbage.namespaces import Emptying
from lattice.controllers.garbage.ownership import (
    NAMESPACES,
    Addresses,
    Item,
    is_blocked,
    judge,
    removal,
    without_finalizer,
    without_owners,
)
from lattice.controllers.runtime.commit_batches import Reason, Step, Sweep
from lattice.errors import Conflict, Fenced, LatticeError
from lattice.kinds.meta.base import Kind
from lattice.kinds.core import Event
from lattice.kinds.meta.object_rules import FOREGROUND, ORPHAN
from lattice.store.cache import Cache
from lattice.store.protocol import MAX_OPERATIONS, Change, Entry, Key, Store, Term, Write

EVENT_TTL = timedelta(days=7)
SWEEP_PAUSE = 600.0  # seconds between looks for old events
READS = 100  # asked of the store at once
HELD_PAUSE = 30.0  # seconds until a namespace that is held up is looked at again

log = structlog.get_logger()


@dataclass
class Garbage:
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
        self._addresses = Addresses(stored)
        self._backlog = Backlog(self.clock, self.rng)
        self._sweep = Sweep(self.store, self.term)
        namespaced = [kind.resource for kind in stored if kind.resource.namespaced]
        self._emptying = Emptying(self.store, self.clock, self._sweep, namespaced)
        self.last_look: str | None = None
        self._caches = {
            name: self._cache(name) for name in self._addresses.resources if name != Event.resource.id
        }

    @property
    def pending(self) -> int:
        """Objects that wait for a look."""
        return len(self._backlog)

    def _cache(self, resource: str) -> Cache[Item]:
        by_owner = {"owner": lambda item: [owner.uid for owner in item.owners]}
        return Cache(
            self.store,
            resource,
            self._addresses.item,
            self.clock,
            self.rng,
            by_owner,
            freeze=False,
            has_bytes=False,
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
                await expire(self.store, self.clock, self._sweep, self.event_ttl)
            except Fenced:
                raise
            except LatticeError as error:
                log.warning("old events could not be removed, trying again later", why=str(error))
            await self.clock.sleep(SWEEP_PAUSE)

    async def _collect(self) -> None:
        for cache in self._caches.values():
            await cache.wait_for()
        self.last_look = stamp(self.clock.now())
        for cache in (
            self._caches.values()
        ):  # nothing waits from here on: no change is between the look and hearing of changes
            cache.on_change(self._hear)
            self._backlog.add(item.key for item in cache.all() if self._is_suspect(item))
        while True:
            await self._look(await self._backlog.take(MAX_OPERATIONS))
            self.last_look = stamp(self.clock.now())

    def _hear(self, change: Change) -> None:
        old, new = self._caches[change.key.resource].before, self._known(change.key)
        if old != new:
            self._note(old, new)
        if change.key.namespace and self._is_waiting(home := Key(NAMESPACES, "", change.key.namespace)):
            self._backlog.add([home])

    def _note(self, old: Item | None, new: Item | None) -> None:
        if new is not None and self._is_suspect(new):
            self._backlog.add([new.key])
        if old is not None and (new is None or new.uid != old.uid):
            self._backlog.add(item.key for item in self._dependents(old.uid))
        if old is not None:
            self._backlog.add(owner.key for owner in old.owners if owner.key and self._is_waiting(owner.key))

    def _is_suspect(self, item: Item) -> bool:
        """Is a closer look worth it? By the copies alone, so that ordinary changes cost nothing."""
        if item.is_dying:
            return item.is_orphaning or item.is_leaving or item.key.resource == NAMESPACES
        return any(judge(item, self._known))

    def _is_waiting(self, key: Key) -> bool:
        item = self._known(key)
        return item is not None and (item.is_leaving or (item.is_dying and key.resource == NAMESPACES))

    def _known(self, key: Key) -> Item | None:
        cache = self._caches.get(key.resource)
        return None if cache is None else cache.get(key.path)

    def _dependents(self, uid: str) -> list[Item]:
        return [item for cache in self._caches.values() for item in cache.by("owner", uid)]

    async def _look(self, keys: Sequence[Key]) -> None:
        """Decide on each by itself, write for all together."""
        failed: set[Key] = set()
        try:
            entries = [entry for entry in await self._read(keys) if entry is not None]
            steps = await self._decide_all(entries, failed)
            failed |= await self._sweep.take(steps)
        except Fenced:
            raise
        except LatticeError as error:
            log.warning("garbage could not be removed, trying again", objects=len(keys), why=str(error))
            failed.update(keys)
        for key in keys:
            (self._backlog.failed if key in failed else self._backlog.done)(key)

    async def _read(self, keys: Sequence[Key]) -> list[Entry | None]:
        found: list[Entry | None] = []
        for start in range(0, len(keys), READS):
            found += await asyncio.gather(*(self.store.get(key) for key in keys[start : start + READS]))
        return found

    async def _decide_all(self, entries: Sequence[Entry], failed: set[Key]) -> list[Step]:
        looks = [(entry, self._addresses.item(entry)) for entry in entries]
        keys = {owner.key for _, item in looks for owner in item.owners if owner.key and not item.is_dying}
        found = [entry for entry in await self._read(list(keys)) if entry is not None]
        owners = {entry.key: self._addresses.item(entry) for entry in found}
        steps = []
        for entry, item in looks:
            try:
                steps.append(
                    self._owned(entry, item, owners) if not item.is_dying else await self._dying(entry, item)
                )
            except Conflict:
                failed.add(entry.key)
        return [step for step in steps if step is not None]

    def _owned(self, entry: Entry, item: Item, owners: dict[Key, Item]) -> Step | None:
        verdict = judge(item, owners.get)
        resource = self._addresses.resources[item.key.resource]
        if verdict.shed:
            return _step(without_owners(resource, entry, verdict.shed), "owner")
        if not verdict.remove:
            return None
        in_turn = (FOREGROUND,) if verdict.is_awaited and self._dependents(item.uid) else ()
        return _step(
            removal(resource, entry, stamp(self.clock.now()), in_turn),
            "foreground" if verdict.is_awaited else "owner",
        )

    async def _dying(self, entry: Entry, item: Item) -> Step | None:
        if item.is_orphaning:
            return await self._orphan(entry, item)
        if item.is_leaving:
            return await self._leave(entry, item)
        if item.key.resource == NAMESPACES:
            self._backlog.add_after(HELD_PAUSE, entry.key)  # finalizers of events go unheard
            return _step(await self._emptying.empty(entry), "namespace")
        return None

    async def _orphan(self, entry: Entry, item: Item) -> Step | None:
        """Its dependents forget it, and only then it may go."""
        await self._catch_up(entry)
        found = await self._read([each.key for each in self._dependents(item.uid)])
        resources, uids = self._addresses.resources, frozenset({item.uid})
        steps = [
            _step(without_owners(resources[each.key.resource], each, uids), "orphan")
            for each in found
            if each is not None
        ]
        clashed = await self._sweep.take(step for step in steps if step is not None)
        if clashed:
            raise Conflict("its dependents are being changed", where=str(entry.key), fix="look again")
        return _step(without_finalizer(resources[item.key.resource], entry, ORPHAN), "orphan")

    async def _leave(self, entry: Entry, item: Item) -> Step | None:
        """Its dependents first; it is looked at again whenever one of them changes."""
        await self._catch_up(entry)
        self._backlog.add(each.key for each in self._dependents(item.uid) if not each.is_dying)
        if is_blocked(item, self._dependents):
            return None
        return _step(
            without_finalizer(self._addresses.resources[item.key.resource], entry, FOREGROUND), "foreground"
        )

    async def _catch_up(self, entry: Entry) -> None:
        """Whatever was there when the object was marked is in the copies: no dependent is overlooked."""
        for cache in self._caches.values():
            await cache.wait_for(entry.revision)


def _step(write: Write | None, reason: Reason) -> Step | None:
    return None if write is None else Step(write, reason)
