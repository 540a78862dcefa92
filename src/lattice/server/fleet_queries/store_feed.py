"""The feed from the store to the query process: a full load of the objects that placement reads, then the
changes."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from lattice.clock import Clock
from lattice.errors import Gone
from lattice.server.fleet_queries.protocol import Load, ObjectRow
from lattice.store.protocol import Batch, Change, Store, Watch

# Objects per page; other requests run between two pages.
SNAPSHOT_PAGE_SIZE = 200
# Compaction may remove the listed revision before the last page is read.
MAX_LIST_ATTEMPTS = 3
# How long one poll waits on a watch without changes.
WATCH_POLL_INTERVAL_S = 0.01
# How long the watches may take to reach the revision of the store.
WATCH_CATCH_UP_TIMEOUT_S = 0.5


class _WatchBehindError(Exception):
    """The watches did not reach the revision of the store: on a shared etcd, that revision may be the write of
    another application, which no watch reports."""


@dataclass
class Snapshot:
    """The state of the feed to one query process, which has received every change up to `revision`; 0 before
    the first load."""

    store: Store
    clock: Clock
    resources: Sequence[str]
    revision: int = 0
    # Objects as of `revision`.
    size: int = 0
    _watches: dict[str, Watch] = field(default_factory=dict)
    # Changes after `revision` that a watch has already delivered.
    _pending_batches: dict[str, list[Batch]] = field(default_factory=dict)

    async def loads(self) -> AsyncIterator[Load]:
        """Yield the loads that bring the query process to the newest revision.

        After an iteration that stops early, the caller must call `reset`.
        """
        newest = await self.store.revision()
        if self._watches and newest == self.revision:
            return
        if self._watches:
            try:
                changes = await self._changes(newest)
            except (Gone, _WatchBehindError):
                self.reset()
            else:
                self.revision = newest
                self.size += sum((change.previous is None) - (change.value is None) for change in changes)
                yield Load([ObjectRow(change.key, change.revision, change.value) for change in changes])
                return
        async for load in self._full_load():
            yield load

    def reset(self) -> None:
        """Close the watches; the next call of `loads` reads every object."""
        for watch in self._watches.values():
            watch.close()
        self._watches, self._pending_batches, self.revision, self.size = {}, {}, 0, 0

    async def _full_load(self) -> AsyncIterator[Load]:
        for attempt in range(MAX_LIST_ATTEMPTS):
            try:
                revision = await self.store.revision()
                # The watches open before the lists, so that no change between list and watch is lost.
                self._watches = {
                    resource: await self.store.watch(resource, revision) for resource in self.resources
                }
                yield Load([], anew=True)
                for resource in self.resources:
                    async for load in self._pages(resource, revision):
                        self.size += len(load.rows)
                        yield load
                self.revision = revision
                return
            except Gone:
                self.reset()
                if attempt == MAX_LIST_ATTEMPTS - 1:
                    raise

    async def _pages(self, resource: str, revision: int) -> AsyncIterator[Load]:
        after = ""
        while True:
            page = await self.store.list(resource, limit=SNAPSHOT_PAGE_SIZE, after=after, revision=revision)
            yield Load([ObjectRow(entry.key, entry.revision, entry.value) for entry in page.entries])
            if not page.has_more:
                return
            after = page.entries[-1].key.path

    async def _changes(self, newest: int) -> list[Change]:
        deadline = self.clock.monotonic() + WATCH_CATCH_UP_TIMEOUT_S
        changes: list[Change] = []
        for resource, watch in self._watches.items():
            batches = self._pending_batches.pop(resource, [])
            while watch.progress < newest:
                batches += await watch.next(WATCH_POLL_INTERVAL_S)
                if watch.progress < newest and self.clock.monotonic() > deadline:
                    raise _WatchBehindError
            self._pending_batches[resource] = []
            for batch in batches:
                # A watch may be ahead of the revision of the query: later changes belong to the next load.
                if batch.revision > newest:
                    self._pending_batches[resource].append(batch)
                else:
                    changes += batch.changes
        return changes
