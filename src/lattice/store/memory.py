"""A store in memory: the oracle of the contract suite and the store of the simulator. The injected clock
measures leases."""

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lattice.clock import Clock
from lattice.store.protocol import (
    ABSENT,
    MAX_EMBEDDED_COMMIT_BYTES,
    REQUEST_ID_TTL_S,
    Batch,
    Change,
    Check,
    Entry,
    Key,
    Page,
    Put,
    Term,
    Watch,
    Write,
    check_expected_revisions,
    compacted_error,
    fenced_error,
    future_revision_error,
    future_watch_error,
    validate_commit,
)
from lattice.store.watch_feed import WINDOW_CHANGES, Feeds, History


@dataclass
class _ResourceTable:
    """The objects of one resource, with the paths in order."""

    entries: dict[str, Entry] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)

    def put(self, entry: Entry) -> None:
        path = entry.key.path
        if path not in self.entries:
            insort(self.paths, path)
        self.entries[path] = entry

    def remove(self, path: str) -> None:
        del self.entries[path]
        del self.paths[bisect_left(self.paths, path)]


@dataclass
class _Lease:
    term: Term
    ttl: float
    expires_at: float


class MemoryStore:
    """A store without durability; every promise of the store protocol holds as long as the process lives."""

    def __init__(self, clock: Clock, window: int = WINDOW_CHANGES) -> None:
        self._clock = clock
        self._tables: dict[str, _ResourceTable] = {}
        self._revision = 1
        self._compacted = 0
        self._log: list[Change] = []
        # By request id: the first revision, and when to forget the id; oldest first.
        self._requests: dict[str, tuple[int, float]] = {}
        self._terms: dict[str, int] = {}
        self._leases: dict[str, _Lease] = {}
        self._feeds = Feeds(1, window)

    async def get(self, key: Key) -> Entry | None:
        return self._table(key.resource).entries.get(key.path)

    async def list(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        limit: int = 0,
        after: str = "",
        revision: int = 0,
    ) -> Page:
        if revision > self._revision:
            raise future_revision_error(revision, self._revision)
        list_revision = revision or self._revision
        if list_revision < self._compacted:
            raise compacted_error(list_revision, self._compacted)
        table = (
            self._table(resource)
            if list_revision == self._revision
            else self._table_at(resource, list_revision)
        )
        start = bisect_right(table.paths, after) if after else 0
        end = len(table.paths)
        if namespace is not None:
            start = max(start, bisect_left(table.paths, f"{namespace}/"))
            # "0" is the character after "/".
            end = bisect_left(table.paths, f"{namespace}0")
        stop = min(end, start + limit) if limit else end
        return Page([table.entries[path] for path in table.paths[start:stop]], list_revision, stop < end)

    async def count(self, resource: str, namespace: str | None = None) -> int:
        paths = self._table(resource).paths
        if namespace is None:
            return len(paths)
        return bisect_left(paths, f"{namespace}0") - bisect_left(paths, f"{namespace}/")

    async def watch(self, resource: str, after: int) -> Watch:
        # An empty store is at revision 1.
        after = max(after, 1)
        if after > self._revision:
            raise future_watch_error(after, self._revision)
        if after < self._compacted:
            raise compacted_error(after, self._compacted)
        return self._feeds.subscribe(resource, after, lambda: _MemoryHistory(self, resource))

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        validate_commit(writes, checks, MAX_EMBEDDED_COMMIT_BYTES, "the memory store")
        # Expired ids are dropped first, so that a request id repeated after its lifetime counts as a new
        # request.
        self._forget_requests()
        if request_id is not None and request_id in self._requests:
            return self._requests[request_id][0]
        if fence is not None and self._terms.get(fence.role, 0) != fence.number:
            raise fenced_error(fence, self._terms.get(fence.role, 0))
        check_expected_revisions(writes, checks, self._revision_of)
        self._revision += 1
        changes = [self._apply(write) for write in writes]
        self._log += changes
        if request_id is not None:
            self._requests[request_id] = (self._revision, self._clock.monotonic() + REQUEST_ID_TTL_S)
        self._feeds.publish(self._revision, changes)
        return self._revision

    async def revision(self) -> int:
        return self._revision

    async def compact(self, revision: int) -> None:
        if revision > self._revision:
            raise future_revision_error(revision, self._revision)
        if revision > self._compacted:
            self._compacted = revision
            del self._log[: self._log_position(revision)]

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        now = self._clock.monotonic()
        lease = self._leases.get(role)
        # The same holder may campaign again, for example after a lost answer.
        if lease is not None and now < lease.expires_at and lease.term.holder != holder:
            return None
        number = self._terms[role] = self._terms.get(role, 0) + 1
        term = Term(role, number, holder)
        self._leases[role] = _Lease(term, ttl, now + ttl)
        return term

    async def renew(self, term: Term) -> bool:
        lease = self._leases.get(term.role)
        now = self._clock.monotonic()
        # An expired lease stays lost, even if no other holder has taken the lease meanwhile.
        if lease is None or lease.term.number != term.number or now >= lease.expires_at:
            return False
        lease.expires_at = now + lease.ttl
        return True

    async def resign(self, term: Term) -> None:
        lease = self._leases.get(term.role)
        if lease is not None and lease.term.number == term.number:
            del self._leases[term.role]

    async def close(self) -> None:
        return None

    def changes_after(self, resource: str, revision: int) -> Iterable[Change]:
        """Return the changes of a resource after a revision, oldest first."""
        return (
            change
            for change in itertools.islice(self._log, self._log_position(revision), None)
            if change.key.resource == resource
        )

    @property
    def compacted_revision(self) -> int:
        """The oldest revision that lists and watches can start from."""
        return self._compacted

    def _table(self, resource: str) -> _ResourceTable:
        return self._tables.setdefault(resource, _ResourceTable())

    def _revision_of(self, key: Key) -> int:
        entry = self._table(key.resource).entries.get(key.path)
        return ABSENT if entry is None else entry.revision

    def _apply(self, write: Write) -> Change:
        table = self._table(write.key.resource)
        previous = table.entries.get(write.key.path)
        if isinstance(write, Put):
            table.put(Entry(write.key, write.value, self._revision))
            return Change(self._revision, write.key, write.value, previous)
        table.remove(write.key.path)
        return Change(self._revision, write.key, None, previous)

    def _table_at(self, resource: str, revision: int) -> _ResourceTable:
        entries = dict(self._table(resource).entries)
        restored: set[str] = set()
        # `previous` of the first change after the revision is the value that the object had at the revision.
        for change in self.changes_after(resource, revision):
            path = change.key.path
            if path in restored:
                continue
            restored.add(path)
            entries.pop(path, None)
            if change.previous is not None:
                entries[path] = change.previous
        return _ResourceTable(entries, sorted(entries))

    def _log_position(self, revision: int) -> int:
        return bisect_right(self._log, revision, key=lambda change: change.revision)

    def _forget_requests(self) -> None:
        now = self._clock.monotonic()
        while self._requests:
            oldest = next(iter(self._requests))
            if self._requests[oldest][1] > now:
                return
            del self._requests[oldest]


class _MemoryHistory(History):
    """The log of the store, for a watch that begins before the window of the feed."""

    def __init__(self, store: MemoryStore, resource: str) -> None:
        self._store = store
        self._resource = resource

    async def read(self, after: int) -> tuple[Sequence[Batch], int]:
        if after < self._store.compacted_revision:
            raise compacted_error(after, self._store.compacted_revision)
        grouped = itertools.groupby(
            self._store.changes_after(self._resource, after), key=lambda change: change.revision
        )
        batches = [Batch(revision, tuple(changes)) for revision, changes in grouped]
        return batches, await self._store.revision()

    def close(self) -> None:
        return None
