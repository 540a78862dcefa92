"""A store in an etcd cluster, for several servers: one transaction per commit, fenced by a term counter
that outlives every lease."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from lattice.clock import Clock
from lattice.errors import Gone, LatticeError, RevisionTooNew, Unavailable
from lattice.store.etcd import etcd_pb2 as pb
from lattice.store.etcd.client import (
    LARGE_REQUEST_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    Address,
    EtcdClient,
    NoSuchLease,
    first_kv,
    read_op,
    reject_lossy_version,
)
from lattice.store.etcd.watch import CatchUpHistory, KeyLayout, WatchStream
from lattice.store.protocol import (
    ABSENT,
    MAX_COMMIT_BYTES,
    REQUEST_ID_TTL_S,
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
from lattice.store.watch_feed import WINDOW_CHANGES, Feeds

# Limit of entries per range request.
PAGE_SIZE = 500
# How long `open` waits for a quorum of a cluster that has just started.
OPEN_TIMEOUT_S = 8.0
# Limit of single reads that share one transaction.
MAX_GETS_PER_TXN = 100
# Request ids of this many seconds share one lease. A shorter time means that etcd expires fewer keys at once.
REQUEST_LEASE_ROTATION_S = 30.0
# How long the shared watch may be behind the newest known revision before the store writes a progress marker.
MAX_WATCH_LAG_S = 1.0
# A modification revision that no key has.
IMPOSSIBLE_REVISION = -1
# If the first watch begins at most this many revisions before the newest, the shared watch starts there as
# well, so that the first watch needs no history.
MAX_REPLAYED_REVISIONS = 1_000

_Compare = pb.Compare


class EtcdStore:
    """A store on an etcd cluster; create the store with `await EtcdStore.open(url, clock)`."""

    def __init__(self, address: Address, clock: Clock, window: int = WINDOW_CHANGES) -> None:
        self._client = EtcdClient(address)
        self._clock = clock
        self._keys = KeyLayout(address.prefix)
        self._window = window
        self._feeds: Feeds | None = None
        self._start_lock = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._queued_gets: list[tuple[Key, asyncio.Future[Entry | None]]] = []
        self._reads: set[asyncio.Task[None]] = set()
        self._lease_lock = asyncio.Lock()
        self._request_lease = 0
        self._request_lease_until = 0.0
        self._marker_written_at: dict[str, float] = {}

    @classmethod
    async def open(cls, url: str, clock: Clock, allow_known_bad: bool = False) -> "EtcdStore":
        """Connect to etcd. Raise Unavailable if etcd does not answer, or if its release can lose writes and
        `allow_known_bad` is not set."""
        store = cls(Address.parse(url), clock)
        try:
            await store.check_version(allow_known_bad)
            await store.wait_for_quorum()
        except BaseException:
            await store.close()
            raise
        return store

    async def check_version(self, allow: bool) -> None:
        """Raise Unavailable for a release of etcd that loses writes, unless `allow` is set."""
        version = await self._client.version()
        if not allow:
            reject_lossy_version(version)

    async def wait_for_quorum(self) -> None:
        """Wait until the members have elected a leader, at most OPEN_TIMEOUT_S."""
        deadline = self._clock.monotonic() + OPEN_TIMEOUT_S
        while True:
            try:
                await self.revision()
                return
            except Unavailable:
                if self._clock.monotonic() >= deadline:
                    raise
                await self._clock.sleep(REQUEST_TIMEOUT_S / 10)

    async def get(self, key: Key) -> Entry | None:
        loop = asyncio.get_running_loop()
        # Gets of one turn of the event loop share a transaction.
        if not self._queued_gets:
            loop.call_soon(self._send_gets)
        future: asyncio.Future[Entry | None] = loop.create_future()
        self._queued_gets.append((key, future))
        return await future

    async def list(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        limit: int = 0,
        after: str = "",
        revision: int = 0,
    ) -> Page:
        low, high = self._bounds(resource, namespace, after)
        # Without a requested revision, a compaction between two pages only means another attempt.
        for _ in range(3):
            try:
                return await self._pages(low, high, limit, revision)
            except Gone:
                if revision:
                    raise compacted_error(revision, await self.revision()) from None
            except RevisionTooNew:
                raise future_revision_error(revision, await self.revision()) from None
        raise Unavailable("etcd was compacted during the list", fix="compact less often")

    async def count(self, resource: str, namespace: str | None = None) -> int:
        low, high = self._bounds(resource, namespace)
        response = await self._range(pb.RangeRequest(key=low, range_end=high, count_only=True))
        return int(response.count)

    def _bounds(self, resource: str, namespace: str | None, after: str = "") -> tuple[bytes, bytes]:
        """The keys between which all objects after path `after` of a namespace, or of all namespaces, are."""
        start = self._keys.resource_key(resource)
        if namespace is None:
            low, high = start, start[:-1] + b"0"
        else:
            low, high = start + f"{namespace}/".encode(), start + f"{namespace}0".encode()
        # The NUL byte makes the bound exclusive, so that the list begins after `after` and skips the progress
        # marker.
        return max(low, start + after.encode()) + b"\0", high

    async def watch(self, resource: str, after: int) -> Watch:
        after = max(after, 1)
        try:
            # Only etcd knows whether the revision is compacted or has not happened yet.
            await self._range(
                pb.RangeRequest(key=self._keys.resource_key(resource), revision=after, keys_only=True)
            )
        except Gone:
            raise compacted_error(after, await self.revision()) from None
        except RevisionTooNew:
            raise future_watch_error(after, await self.revision()) from None
        feeds = await self._start_shared_watch(after)

        def open_history() -> CatchUpHistory:
            start = self._keys.resource_key(resource)
            stream = WatchStream(
                self._client,
                self._clock,
                self._keys,
                (start, start[:-1] + b"0"),
                after,
                # CatchUpHistory sets its own `publish` before the stream runs.
                publish=lambda revision, changes: None,
            )
            return CatchUpHistory(stream, resource, self.write_progress_marker)

        return feeds.subscribe(resource, after, open_history)

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        validate_commit(writes, checks, MAX_COMMIT_BYTES, "the etcd store")
        try:
            response = await self._commit(writes, checks, fence, request_id)
        # After a restore or a pause of etcd, the lease of the request ids may be gone. Nothing was written:
        # the commit is repeated with a new lease.
        except NoSuchLease:
            self._request_lease_until = 0.0
            response = await self._commit(writes, checks, fence, request_id)
        if response.succeeded:
            return int(response.header.revision)
        return _explain(response, writes, checks, fence, request_id)

    async def revision(self) -> int:
        response = await self._range(pb.RangeRequest(key=self._keys.full_range()[0], keys_only=True))
        return int(response.header.revision)

    async def compact(self, revision: int) -> None:
        if revision < 1:
            return
        try:
            await self._client.call(
                lambda member: member.kv.Compact(
                    pb.CompactionRequest(revision=revision), timeout=LARGE_REQUEST_TIMEOUT_S
                )
            )
        except Gone:
            # etcd is already compacted up to this revision or further.
            return
        except RevisionTooNew:
            raise future_revision_error(revision, await self.revision()) from None

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        leader_key, term_key = self._keys.leader_key(role), self._keys.term_key(role)
        leader, previous_term = map(first_kv, (await self._read([leader_key, term_key])).responses)
        if leader is not None and leader.value.decode() != holder:
            return None
        number = 1 + (0 if previous_term is None else int(previous_term.value))
        # Leases of etcd last whole seconds.
        lease = await self._client.grant(math.ceil(ttl))
        # The comparisons decide between concurrent campaigns: only one transaction finds both keys unchanged.
        request = pb.TxnRequest(
            compare=[_compare_unchanged(leader_key, leader), _compare_unchanged(term_key, previous_term)],
            success=[_put(leader_key, holder.encode(), lease), _put(term_key, b"%d" % number)],
        )
        response = await self._txn(request)
        if not response.succeeded:
            await self._client.revoke(lease)
            return None
        if leader is not None:
            # The same holder had an earlier term, which must not be renewed.
            await self._client.revoke(leader.lease)
        return Term(role, number, holder, lease)

    async def renew(self, term: Term) -> bool:
        if not await self._client.keep_alive(term.lease):
            return False
        # The lease serves liveness only: the counter decides whether the term is over (decision 0005).
        current_term = first_kv((await self._read([self._keys.term_key(term.role)])).responses[0])
        return current_term is not None and int(current_term.value) == term.number

    async def resign(self, term: Term) -> None:
        await self._client.revoke(term.lease)

    async def close(self) -> None:
        tasks = [*self._tasks, *self._reads]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    async def write_progress_marker(self, resource: str) -> None:
        """Write a key that is no object, so that watches of a resource receive an event and learn their
        progress.

        A resource gets at most one marker in MAX_WATCH_LAG_S.
        """
        now = self._clock.monotonic()
        if now < self._marker_written_at.get(resource, -math.inf) + MAX_WATCH_LAG_S:
            return
        # Noted before the write, so that concurrent callers write no second marker.
        self._marker_written_at[resource] = now
        try:
            await self._txn(pb.TxnRequest(success=[_put(self._keys.resource_key(resource), b"")]))
        except LatticeError:
            # Without space or without etcd the watch stays correct; only its progress is unknown.
            return

    async def _commit(
        self, writes: Sequence[Write], checks: Sequence[Check], fence: Term | None, request_id: str | None
    ) -> Any:
        # `_explain` reads the answers of the failure branch in the order of these operations.
        request = pb.TxnRequest()
        if request_id is not None:
            key = self._keys.request_key(request_id)
            request.compare.append(
                _Compare(key=key, target=_Compare.CREATE, result=_Compare.EQUAL, create_revision=0)
            )
            request.success.append(_put(key, b"", await self._lease_for_requests()))
            request.failure.append(read_op(key, keys_only=True))
        # The counter is compared by value in the same transaction, so that a deposed leader cannot write
        # (I-08, I-09).
        if fence is not None:
            key = self._keys.term_key(fence.role)
            request.compare.append(
                _Compare(key=key, target=_Compare.VALUE, result=_Compare.EQUAL, value=b"%d" % fence.number)
            )
            request.failure.append(read_op(key))
        for check in checks:
            key = self._keys.object_key(check.key)
            request.compare.append(
                _Compare(key=key, target=_Compare.MOD, result=_Compare.EQUAL, mod_revision=check.expect)
            )
            request.failure.append(read_op(key, keys_only=True))
        for write in writes:
            self._add_write(request, write)
        return await self._txn(request)

    def _add_write(self, request: Any, write: Write) -> None:
        key = self._keys.object_key(write.key)
        # Filled in place, because appending copies a message.
        read = request.failure.add().request_range
        read.key, read.keys_only = key, True
        if isinstance(write, Put):
            put = request.success.add().request_put
            put.key, put.value = key, write.value
            # A missing key has modification revision 0, which is ABSENT.
            if write.expect is not None:
                request.compare.add(
                    key=key, target=_Compare.MOD, result=_Compare.EQUAL, mod_revision=write.expect
                )
            return
        request.success.append(pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key)))
        if write.expect is None:
            request.compare.append(
                _Compare(key=key, target=_Compare.MOD, result=_Compare.GREATER, mod_revision=0)
            )
        else:
            request.compare.append(
                _Compare(
                    key=key,
                    target=_Compare.MOD,
                    # A deletion that expects ABSENT must fail, so it is compared with an impossible revision.
                    result=_Compare.EQUAL,
                    mod_revision=write.expect or IMPOSSIBLE_REVISION,
                )
            )

    async def _lease_for_requests(self) -> int:
        async with self._lease_lock:
            now = self._clock.monotonic()
            if now >= self._request_lease_until:
                # The lease must last until REQUEST_ID_TTL_S after the write of the last request id that
                # shares the lease.
                self._request_lease = await self._client.grant(
                    math.ceil(REQUEST_ID_TTL_S + 2 * REQUEST_LEASE_ROTATION_S)
                )
                self._request_lease_until = now + REQUEST_LEASE_ROTATION_S
            return self._request_lease

    def _send_gets(self) -> None:
        gets, self._queued_gets = self._queued_gets, []
        for start in range(0, len(gets), MAX_GETS_PER_TXN):
            task = asyncio.ensure_future(self._run_gets(gets[start : start + MAX_GETS_PER_TXN]))
            self._reads.add(task)
            task.add_done_callback(self._reads.discard)

    async def _run_gets(self, gets: Sequence[tuple[Key, "asyncio.Future[Entry | None]"]]) -> None:
        try:
            response = await self._read([self._keys.object_key(key) for key, _ in gets])
        except LatticeError as error:
            for _, future in gets:
                if not future.done():
                    future.set_exception(error)
            return
        for (key, future), range_response in zip(gets, response.responses, strict=True):
            if not future.done():
                kv = first_kv(range_response)
                future.set_result(None if kv is None else Entry(key, kv.value, kv.mod_revision))

    async def _pages(self, low: bytes, high: bytes, limit: int, revision: int) -> Page:
        entries: list[Entry] = []
        while True:
            size = min(PAGE_SIZE, limit - len(entries)) if limit else PAGE_SIZE
            response = await self._range(
                pb.RangeRequest(key=low, range_end=high, limit=size, revision=revision),
                LARGE_REQUEST_TIMEOUT_S * self._client.member_count,
            )
            # Later pages show the same revision as the first page.
            revision = revision or response.header.revision
            entries += [
                Entry(key, kv.value, kv.mod_revision)
                for kv in response.kvs
                if (key := self._keys.parse_object_key(kv.key))
            ]
            if not response.more or (limit and len(entries) == limit):
                return Page(entries, revision, response.more)
            low = response.kvs[-1].key + b"\0"

    async def _start_shared_watch(self, after: int) -> Feeds:
        """Start the shared watch of the process at the first call, and return its feeds."""
        async with self._start_lock:
            if self._feeds is None:
                newest = await self.revision()
                start = after if 0 < newest - after <= MAX_REPLAYED_REVISIONS else newest
                self._feeds = Feeds(start, self._window)
                self._tasks = [
                    asyncio.ensure_future(self._run_shared_watch(self._feeds)),
                    asyncio.ensure_future(self._mark_when_lagging(self._feeds)),
                ]
                self._tasks[0].add_done_callback(self._on_shared_watch_end)
            return self._feeds

    def _on_shared_watch_end(self, task: "asyncio.Task[None]") -> None:
        """Fail every watch when the shared watch has ended, so that no watcher waits forever. The shared
        watch ends only when the store is closed or has a bug."""
        feeds, self._feeds = self._feeds, None
        if feeds is not None:
            reason = "closed" if task.cancelled() else f"broken: {task.exception()!r}"
            feeds.restart(
                feeds.head,
                Gone(f"the watch on etcd is {reason}", fix="list again and watch from the new revision"),
            )

    async def _run_shared_watch(self, feeds: Feeds) -> None:
        while True:
            stream = WatchStream(
                self._client,
                self._clock,
                self._keys,
                self._keys.full_range(),
                feeds.head,
                feeds.publish,
                lookup_value=feeds.value,
            )
            try:
                await stream.run()
            except Gone as gap:
                feeds.restart(await self._newest_revision(), gap)

    async def _newest_revision(self) -> int:
        while True:
            try:
                return await self.revision()
            except Unavailable:
                await self._clock.sleep(MAX_WATCH_LAG_S)

    async def _mark_when_lagging(self, feeds: Feeds) -> None:
        """Write a progress marker when the shared watch lags behind the newest known revision.

        Writes of other applications in a shared etcd raise the revision of etcd, but never reach the shared
        watch. A marker reaches the watch and brings its progress up to date.
        """
        expected = 0
        while True:
            await self._clock.sleep(MAX_WATCH_LAG_S)
            if feeds.head < expected:
                await self.write_progress_marker("")
            # The newest revision is compared one interval later, because the event of a recent commit may
            # still be under way.
            expected = self._client.newest_revision

    async def _range(self, request: Any, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        return await self._client.read(
            lambda member, seconds: member.kv.Range(request, timeout=seconds), timeout_s
        )

    async def _read(self, keys: Sequence[bytes]) -> Any:
        request = pb.TxnRequest(success=[read_op(key) for key in keys])
        return await self._client.read(lambda member, seconds: member.kv.Txn(request, timeout=seconds))

    async def _txn(self, request: Any) -> Any:
        return await self._client.call(lambda member: member.kv.Txn(request, timeout=REQUEST_TIMEOUT_S))


def _put(key: bytes, value: bytes, lease: int = 0) -> Any:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def _compare_unchanged(key: bytes, kv: Any | None) -> Any:
    return _Compare(
        key=key, target=_Compare.MOD, result=_Compare.EQUAL, mod_revision=0 if kv is None else kv.mod_revision
    )


def _explain(
    response: Any,
    writes: Sequence[Write],
    checks: Sequence[Check],
    fence: Term | None,
    request_id: str | None,
) -> int:
    """Return the revision of a repeated request, or raise the error that explains the failed comparisons of a
    commit.

    The failure branch of the transaction has read the keys at the revision of the comparisons.
    """
    kvs = [first_kv(range_response) for range_response in response.responses]
    if request_id is not None and (recorded := kvs.pop(0)) is not None:
        return int(recorded.create_revision)
    if fence is not None:
        current_term = kvs.pop(0)
        number = 0 if current_term is None else int(current_term.value)
        if number != fence.number:
            raise fenced_error(fence, number)
    operations = (*checks, *writes)
    revisions = {
        operation.key: ABSENT if kv is None else int(kv.mod_revision)
        for operation, kv in zip(operations, kvs, strict=True)
    }
    check_expected_revisions(writes, checks, revisions.__getitem__)
    raise Unavailable(
        "etcd rejected a commit although its conditions hold",
        fix="retry; if the error persists, the data of etcd is damaged",
    )
