"""Everything that placement looks at, as of one revision: once as a whole, then what has changed since."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from lattice.clock import Clock
from lattice.errors import Gone
from lattice.server.fleet_queries.protocol import Load, ObjectRow
from lattice.store.protocol import Batch, Change, Store, Watch

SNAPSHOT_PAGE_SIZE = 200  # objects at a time: other requests go in between
MAX_LIST_ATTEMPTS = 3  # to list everything before its revision is compacted away
WATCH_POLL_INTERVAL_S = 0.01  # seconds between looks at a watch that has nothing to tell
WATCH_CATCH_UP_TIMEOUT_S = 0.5  # seconds for the watches to come as far as the store


class _WatchBehindError(Exception):
    """The watches do not come as far as the store says it is: on a shared etcd, its newest revision may be somebody else's."""


@dataclass
class Snapshot:
    """One reader of it, who has taken over everything up to `revision`; 0 before the first time."""

    store: Store
    clock: Clock
    resources: Sequence[str]
    revision: int = 0
    size: int = 0  # objects as of `revision`
    _watches: dict[str, Watch] = field(default_factory=dict)
    _pending_batches: dict[str, list[Batch]] = field(
        default_factory=dict
    )  # changes after `revision`, read already

    async def loads(self) -> AsyncIterator[Load]:
        """What brings the reader up to now. Left before its end, the reader must `forget`."""
        now = await self.store.revision()
        if self._watches and now == self.revision:
            return
        if self._watches:
            try:
                changes = await self._changes(now)
            except (Gone, _WatchBehindError):
                self.reset()
            else:
                self.revision = now
                self.size += sum((each.previous is None) - (each.value is None) for each in changes)
                yield Load([ObjectRow(each.key, each.revision, each.value) for each in changes])
                return
        async for load in self._full_load():
            yield load

    def reset(self) -> None:
        """The next time everything is read again."""
        for watch in self._watches.values():
            watch.close()
        self._watches, self._pending_batches, self.revision, self.size = {}, {}, 0, 0

    async def _full_load(self) -> AsyncIterator[Load]:
        for attempt in range(MAX_LIST_ATTEMPTS):
            try:
                revision = await self.store.revision()
                self._watches = {each: await self.store.watch(each, revision) for each in self.resources}
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
            yield Load([ObjectRow(each.key, each.revision, each.value) for each in page.entries])
            if not page.has_more:
                return
            after = page.entries[-1].key.path

    async def _changes(self, until: int) -> list[Change]:
        ends = self.clock.monotonic() + WATCH_CATCH_UP_TIMEOUT_S
        found: list[Change] = []
        for resource, watch in self._watches.items():
            batches = self._pending_batches.pop(resource, [])
            while watch.progress < until:
                batches += await watch.next(WATCH_POLL_INTERVAL_S)
                if watch.progress < until and self.clock.monotonic() > ends:
                    raise _WatchBehindError
            self._pending_batches[resource] = [each for each in batches if each.revision > until]
            found += [each for batch in batches if batch.revision <= until for each in batch.changes]
        return found
