"""The cache (informer): all objects of one resource in memory, kept current by a watch, for controllers and
the scheduler."""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lattice.clock import Clock, with_timeout
from lattice.errors import Gone, Unavailable
from lattice.process_tuning import collect_and_freeze
from lattice.store.protocol import Change, Entry, Store, Watch, list_pages

PAGE_SIZE = 500
# Back-off between attempts to reach the store.
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 10.0
# The revision of a cache can advance without a change that wakes the waiters, so waiters also poll, at a
# growing interval.
MIN_POLL_INTERVAL_S, MAX_POLL_INTERVAL_S = 0.02, 0.32

T = TypeVar("T")
ChangeListener = Callable[[Change], None]
# Returns the index values of an object.
Index = Callable[[T], Collection[str]]


@dataclass
class Cache(Generic[T]):
    """The decoded objects of one resource. `run` keeps the cache current; all other methods read.

    Listeners are called after the cache has changed and must not block.
    """

    store: Store
    resource: str
    decode: Callable[[Entry], T]
    clock: Clock
    rng: random.Random
    indexes: Mapping[str, Index[T]] = field(default_factory=dict)
    # True excludes the objects of the first list from Python's garbage collection, which would scan these
    # long-lived objects in every run.
    freeze: bool = True
    # False stores entries without their bytes, for users that read only decoded objects.
    keeps_bytes: bool = True

    def __post_init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._values: dict[str, T] = {}
        self._namespaces: dict[str, dict[str, None]] = {}
        self._indexed: dict[str, dict[str, dict[str, None]]] = {name: {} for name in self.indexes}
        self._listeners: list[ChangeListener] = []
        # While listeners run: the object before the change.
        self.previous_object: T | None = None
        self._listed_revision = 0
        self._backoff_s = MIN_BACKOFF_S
        self._watch: Watch | None = None
        self._progressed: asyncio.Event = asyncio.Event()

    @property
    def revision(self) -> int:
        """The revision up to which the cache has every change; 0 before the first list."""
        if self._watch is None:
            return self._listed_revision
        return max(self._listed_revision, self._watch.progress)

    def get(self, path: str) -> T | None:
        return self._values.get(path)

    def entry(self, path: str) -> Entry | None:
        return self._entries.get(path)

    def objects(self, namespace: str | None = None) -> list[T]:
        """Return the objects of a namespace, or all objects, in no particular order."""
        if namespace is None:
            return list(self._values.values())
        return [self._values[path] for path in self._namespaces.get(namespace, ())]

    def by_index(self, index: str, value: str) -> list[T]:
        """Return the objects for which an index function returned this value."""
        return [self._values[path] for path in self._indexed[index].get(value, ())]

    def __len__(self) -> int:
        return len(self._values)

    def on_change(self, listener: ChangeListener) -> Callable[[], None]:
        """Call the listener for every change, also for changes that a new list reveals. Return a function
        that removes the listener."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def wait_for(self, revision: int = 1) -> None:
        """Wait until the cache includes a revision; without a revision, until the first list is complete."""
        poll_interval_s = MIN_POLL_INTERVAL_S
        while self.revision < revision:
            self._progressed.clear()
            with suppress(TimeoutError):
                await with_timeout(self.clock, poll_interval_s, self._progressed.wait())
            poll_interval_s = min(2 * poll_interval_s, MAX_POLL_INTERVAL_S)

    async def run(self) -> None:
        """List and watch until cancelled; list again after Gone, back off while the store is unavailable."""
        is_listed = False
        while True:
            try:
                if not is_listed:
                    entries: dict[str, Entry] = {}
                    revision = 0
                    async for page in list_pages(self.store, self.resource, limit=PAGE_SIZE):
                        entries.update((entry.key.path, entry) for entry in page.entries)
                        # All pages have one revision, from which the watch starts without a gap.
                        revision = page.revision
                    is_first = self._listed_revision == 0
                    self._replace_contents(entries, revision)
                    if is_first and self.freeze:
                        collect_and_freeze()
                    is_listed = True
                await self._follow_watch()
            except Gone:
                is_listed = False
            except Unavailable:
                self._backoff_s = min(MAX_BACKOFF_S, self._backoff_s * 2)
            await self.clock.sleep(self._backoff_s * (0.5 + self.rng.random() / 2))

    def _replace_contents(self, entries: Mapping[str, Entry], revision: int) -> None:
        """Replace the contents by a list and notify the listeners of the difference."""
        # The watch missed these deletions, so their revisions are unknown; these changes carry the revision
        # of the list instead.
        vanished = [entry for path, entry in self._entries.items() if path not in entries]
        changes = [Change(revision, entry.key, None, entry) for entry in vanished]
        for path, entry in entries.items():
            cached = self._entries.get(path)
            if cached is None or cached.revision != entry.revision:
                changes.append(Change(entry.revision, entry.key, entry.value, cached))
        replaced = [self._apply(change) for change in changes]
        self._listed_revision = revision
        self._progressed.set()
        self._notify(changes, replaced)

    async def _follow_watch(self) -> None:
        self._watch = await self.store.watch(self.resource, self._listed_revision)
        self._backoff_s = MIN_BACKOFF_S
        try:
            while True:
                batches = await self._watch.next()
                changes: list[Change] = []
                for batch in batches:
                    changes.extend(batch.changes)
                # All changes are applied before the first listener runs, because a listener may read other
                # objects of the cache.
                replaced = [self._apply(change) for change in changes]
                self._progressed.set()
                self._notify(changes, replaced)
        finally:
            # The progress of the watch is the point at which the next watch resumes.
            self._listed_revision = self.revision
            self._watch.close()
            self._watch = None

    def _notify(self, changes: Sequence[Change], replaced: Sequence[T | None]) -> None:
        # A listener may remove itself while the listeners are called.
        listeners = tuple(self._listeners)
        for change, self.previous_object in zip(changes, replaced, strict=True):
            for listener in listeners:
                listener(change)
        self.previous_object = None

    def _apply(self, change: Change) -> T | None:
        """Apply a change and return the previous object."""
        path, namespace = change.key.path, change.key.namespace
        previous = self._values.get(path)
        if change.value is None:
            self._entries.pop(path, None)
            self._values.pop(path, None)
            self._namespaces.get(namespace, {}).pop(path, None)
            self._index(path, previous, None)
            return previous
        entry = Entry(change.key, change.value, change.revision)
        value = self.decode(entry)
        self._entries[path] = entry if self.keeps_bytes else Entry(change.key, b"", change.revision)
        self._values[path] = value
        if previous is None:
            self._namespaces.setdefault(namespace, {})[path] = None
        self._index(path, previous, value)
        return previous

    def _index(self, path: str, old: T | None, new: T | None) -> None:
        for name, index in self.indexes.items():
            old_values = () if old is None else index(old)
            new_values = () if new is None else index(new)
            if old_values == new_values:
                continue
            paths_by_value = self._indexed[name]
            for value in old_values:
                paths = paths_by_value.get(value, {})
                paths.pop(path, None)
                if not paths:
                    paths_by_value.pop(value, None)
            for value in new_values:
                paths_by_value.setdefault(value, {})[path] = None
