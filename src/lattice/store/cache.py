"""A copy of one resource, fed by a watch: what controllers and the scheduler read instead of asking the store."""

import asyncio
import gc
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lattice.clock import Clock, with_timeout
from lattice.errors import Gone, Unavailable
from lattice.store.protocol import Change, Entry, Key, Store, Watch

PAGE_SIZE = 500
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 10.0  # seconds between attempts to reach the store
MIN_POLL_INTERVAL_S, MAX_POLL_INTERVAL_S = (
    0.02,
    0.32,
)  # seconds between looks at a progress that moves without a change of ours

T = TypeVar("T")
ChangeListener = Callable[[Change], None]
Index = Callable[[T], Collection[str]]  # the words by which it is found


@dataclass
class Cache(Generic[T]):
    """`run` keeps it current; everything else reads. Callbacks come after the copy has changed, and must not wait."""

    store: Store
    resource: str
    decode: Callable[[Entry], T]
    clock: Clock
    rng: random.Random
    indexes: Mapping[str, Index[T]] = field(default_factory=dict)
    freeze: bool = True  # long-lived copies are not worth walking through in every garbage collection
    keeps_bytes: bool = (
        True  # False: entries tell revisions only, for those who read nothing but what was decoded
    )

    def __post_init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._values: dict[str, T] = {}
        self._namespaces: dict[str, dict[str, None]] = {}
        self._indexed: dict[str, dict[str, dict[str, None]]] = {name: {} for name in self.indexes}
        self._listeners: list[ChangeListener] = []
        self.previous_object: T | None = (
            None  # what the copy held in the place of the change that is being told
        )
        self._listed_revision = 0
        self._backoff_s = MIN_BACKOFF_S
        self._watch: Watch | None = None
        self._progressed: asyncio.Event = asyncio.Event()

    @property
    def revision(self) -> int:
        """Everything up to this revision is in the copy; 0 before the first list."""
        return (
            self._listed_revision if self._watch is None else max(self._listed_revision, self._watch.progress)
        )

    def get(self, path: str) -> T | None:
        return self._values.get(path)

    def entry(self, path: str) -> Entry | None:
        return self._entries.get(path)

    def objects(self, namespace: str | None = None) -> list[T]:
        """In no particular order."""
        if namespace is None:
            return list(self._values.values())
        return [self._values[path] for path in self._namespaces.get(namespace, ())]

    def by_index(self, index: str, word: str) -> list[T]:
        """Those for which an index function named this word."""
        return [self._values[path] for path in self._indexed[index].get(word, ())]

    def __len__(self) -> int:
        return len(self._values)

    def on_change(self, told: ChangeListener) -> Callable[[], None]:
        """Hear of every change, also those found by listing again. Returns how to stop."""
        self._listeners.append(told)
        return lambda: self._listeners.remove(told)

    def on_key_change(self, told: Callable[[Key], None]) -> Callable[[], None]:
        """Hear which object changed, not how."""
        return self.on_change(lambda change: told(change.key))

    async def wait_for(self, revision: int = 1) -> None:
        """Until the copy includes a revision; without one, until it is filled."""
        glance = MIN_POLL_INTERVAL_S
        while self.revision < revision:
            self._progressed.clear()
            with suppress(TimeoutError):
                await with_timeout(self.clock, glance, self._progressed.wait())
            glance = min(2 * glance, MAX_POLL_INTERVAL_S)

    async def run(self) -> None:
        """Until cancelled."""
        is_listed = False
        while True:
            try:
                if not is_listed:
                    await self._list()
                    is_listed = True
                await self._follow_watch()
            except Gone:
                is_listed = False
            except Unavailable:
                self._backoff_s = min(MAX_BACKOFF_S, self._backoff_s * 2)
            await self.clock.sleep(self._backoff_s * (0.5 + self.rng.random() / 2))

    async def _list(self) -> None:
        found: dict[str, Entry] = {}
        page = await self.store.list(self.resource, limit=PAGE_SIZE)
        while True:
            found.update((entry.key.path, entry) for entry in page.entries)
            if not page.has_more:
                break
            page = await self.store.list(
                self.resource, limit=PAGE_SIZE, after=page.entries[-1].key.path, revision=page.revision
            )
        is_first = self._listed_revision == 0
        self._replace_contents(found, page.revision)
        if is_first and self.freeze:
            gc.collect()
            gc.freeze()

    def _replace_contents(self, found: Mapping[str, Entry], revision: int) -> None:
        """Replace the copy by a list, telling the difference as changes."""
        vanished = [entry for path, entry in self._entries.items() if path not in found]
        changes = [Change(revision, entry.key, None, entry) for entry in vanished]
        for path, entry in found.items():
            known = self._entries.get(path)
            if known is None or known.revision != entry.revision:
                changes.append(Change(entry.revision, entry.key, entry.value, known))
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
                changes = [change for batch in batches for change in batch.changes]
                replaced = [self._apply(change) for change in changes]
                self._progressed.set()
                self._notify(changes, replaced)
        finally:
            self._listed_revision = self.revision
            self._watch.close()
            self._watch = None

    def _notify(self, changes: Sequence[Change], replaced: Sequence[T | None]) -> None:
        ears = tuple(self._listeners)
        for change, self.previous_object in zip(changes, replaced, strict=True):
            for told in ears:
                told(change)
        self.previous_object = None

    def _apply(self, change: Change) -> T | None:
        """What was there before."""
        path, namespace = change.key.path, change.key.namespace
        old = self._values.get(path)
        if change.value is None:
            self._entries.pop(path, None)
            self._values.pop(path, None)
            self._namespaces.get(namespace, {}).pop(path, None)
            self._index(path, old, None)
            return old
        entry = Entry(change.key, change.value, change.revision)
        value = self.decode(entry)
        self._entries[path] = entry if self.keeps_bytes else Entry(change.key, b"", change.revision)
        self._values[path] = value
        if old is None:
            self._namespaces.setdefault(namespace, {})[path] = None
        self._index(path, old, value)
        return old

    def _index(self, path: str, old: T | None, new: T | None) -> None:
        for name, words_of in self.indexes.items():
            before = () if old is None else words_of(old)
            after = () if new is None else words_of(new)
            if before == after:
                continue
            by_word = self._indexed[name]
            for word in before:
                paths = by_word.get(word, {})
                paths.pop(path, None)
                if not paths:
                    by_word.pop(word, None)
            for word in after:
                by_word.setdefault(word, {})[path] = None
