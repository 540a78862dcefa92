"""A store in an etcd cluster, for several servers: one transaction per commit, fenced by a counter that outlives every lease."""

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

PAGE_SIZE = 500  # entries per range request
OPEN_TIMEOUT_S = 8.0  # seconds for a cluster that has just begun to be ready
MAX_GETS_PER_TXN = 100  # single reads that share one transaction
REQUEST_LEASE_ROTATION_S = (
    30.0  # seconds for which request ids share a lease: bounds how many etcd forgets at once
)
MAX_WATCH_LAG_S = (
    1.0  # seconds the shared watch may be behind what other answers mentioned before we write a mark
)
IMPOSSIBLE_REVISION = -1  # a modification revision that no key has
MAX_REPLAYED_REVISIONS = (
    1_000  # revisions that the shared watch is begun earlier for the sake of its first watcher
)

_Compare = pb.Compare


class EtcdStore:
    """Use `await EtcdStore.open(url, clock)`."""

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
        """Raises Unavailable if etcd does not answer, or is a release that loses writes and that is not allowed."""
        store = cls(Address.parse(url), clock)
        try:
            await store.check_version(allow_known_bad)
            await store.wait_for_quorum()
        except BaseException:
            await store.close()
            raise
        return store

    async def check_version(self, allow: bool) -> None:
        version = await self._client.version()
        if not allow:
            reject_lossy_version(version)

    async def wait_for_quorum(self) -> None:
        """Members that were started a moment ago have yet to agree on their leader."""
        ends = self._clock.monotonic() + OPEN_TIMEOUT_S
        while True:
            try:
                await self.revision()
                return
            except Unavailable:
                if self._clock.monotonic() >= ends:
                    raise
                await self._clock.sleep(REQUEST_TIMEOUT_S / 10)

    async def get(self, key: Key) -> Entry | None:
        loop = asyncio.get_running_loop()
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
        start = self._keys.resource_key(resource)
        low, high = (
            (start, start[:-1] + b"0")
            if namespace is None
            else (start + f"{namespace}/".encode(), start + f"{namespace}0".encode())
        )
        low = max(low, start + after.encode()) + b"\0"
        for _ in range(3):
            try:
                return await self._pages(low, high, limit, revision)
            except Gone:
                if revision:
                    raise compacted_error(revision, await self.revision()) from None
            except RevisionTooNew:
                raise future_revision_error(revision, await self.revision()) from None
        raise Unavailable("etcd was compacted faster than it could be listed", fix="compact less often")

    async def watch(self, resource: str, after: int) -> Watch:
        after = max(after, 1)
        try:
            await self._range(
                pb.RangeRequest(key=self._keys.resource_key(resource), revision=after, keys_only=True)
            )
        except Gone:
            raise compacted_error(after, await self.revision()) from None
        except RevisionTooNew:
            raise future_watch_error(after, await self.revision()) from None
        feeds = await self._start_shared_watch(after)
        return feeds.subscribe(resource, after, lambda: self._open_history(resource, after))

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        validate_commit(writes, checks)
        try:
            answer = await self._commit(writes, checks, fence, request_id)
        except NoSuchLease:  # etcd was restored, or slept: nothing was written
            self._request_lease_until = 0.0
            answer = await self._commit(writes, checks, fence, request_id)
        if answer.succeeded:
            return int(answer.header.revision)
        return _explain(answer, writes, checks, fence, request_id)

    async def revision(self) -> int:
        answer = await self._range(pb.RangeRequest(key=self._keys.full_range()[0], keys_only=True))
        return int(answer.header.revision)

    async def compact(self, revision: int) -> None:
        if revision < 1:
            return
        try:
            await self._client.call(
                lambda m: m.kv.Compact(
                    pb.CompactionRequest(revision=revision), timeout=LARGE_REQUEST_TIMEOUT_S
                )
            )
        except Gone:
            return  # it was compacted further already
        except RevisionTooNew:
            raise future_revision_error(revision, await self.revision()) from None

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        leader_key, term_key = self._keys.leader_key(role), self._keys.term_key(role)
        leader, spent = map(first_kv, (await self._read([leader_key, term_key])).responses)
        if leader is not None and leader.value.decode() != holder:
            return None
        number = 1 + (0 if spent is None else int(spent.value))
        lease = await self._client.grant(math.ceil(ttl))
        ask = pb.TxnRequest(
            compare=[_compare_unchanged(leader_key, leader), _compare_unchanged(term_key, spent)],
            success=[_put(leader_key, holder.encode(), lease), _put(term_key, b"%d" % number)],
        )
        answer = await self._txn(ask)
        if not answer.succeeded:
            await self._client.revoke(lease)
            return None
        if leader is not None:
            await self._client.revoke(
                leader.lease
            )  # the same holder, before: its old term must not be renewed
        return Term(role, number, holder, lease)

    async def renew(self, term: Term) -> bool:
        if not await self._client.keep_alive(term.lease):
            return False
        spent = first_kv((await self._read([self._keys.term_key(term.role)])).responses[0])
        return spent is not None and int(spent.value) == term.number

    async def resign(self, term: Term) -> None:
        await self._client.revoke(term.lease)

    async def close(self) -> None:
        tasks = [*self._tasks, *self._reads]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    async def write_progress_marker(self, resource: str) -> None:
        """Write a key that is no object, so that watches of a resource have something to show how far they are."""
        now = self._clock.monotonic()
        if now < self._marker_written_at.get(resource, -math.inf) + MAX_WATCH_LAG_S:
            return
        self._marker_written_at[resource] = now
        try:
            await self._txn(pb.TxnRequest(success=[_put(self._keys.resource_key(resource), b"")]))
        except LatticeError:
            return  # no space or no etcd: the watch is correct without, it only knows less

    async def _commit(
        self, writes: Sequence[Write], checks: Sequence[Check], fence: Term | None, request_id: str | None
    ) -> Any:
        ask = pb.TxnRequest()
        if request_id is not None:
            key = self._keys.request_key(request_id)
            ask.compare.append(
                _Compare(key=key, target=_Compare.CREATE, result=_Compare.EQUAL, create_revision=0)
            )
            ask.success.append(_put(key, b"", await self._lease_for_requests()))
            ask.failure.append(read_op(key, keys_only=True))
        if fence is not None:
            key = self._keys.term_key(fence.role)
            ask.compare.append(
                _Compare(key=key, target=_Compare.VALUE, result=_Compare.EQUAL, value=b"%d" % fence.number)
            )
            ask.failure.append(read_op(key))
        for check in checks:
            key = self._keys.object_key(check.key)
            ask.compare.append(
                _Compare(key=key, target=_Compare.MOD, result=_Compare.EQUAL, mod_revision=check.expect)
            )
            ask.failure.append(read_op(key, keys_only=True))
        for write in writes:
            self._add_write(ask, write)
        return await self._txn(ask)

    def _add_write(self, ask: Any, write: Write) -> None:
        key = self._keys.object_key(write.key)
        read = ask.failure.add().request_range  # filled in place: what is appended is copied
        read.key, read.keys_only = key, True
        if isinstance(write, Put):
            put = ask.success.add().request_put
            put.key, put.value = key, write.value
            if write.expect is not None:
                ask.compare.add(
                    key=key, target=_Compare.MOD, result=_Compare.EQUAL, mod_revision=write.expect
                )
            return
        ask.success.append(pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key)))
        if write.expect is None:
            ask.compare.append(
                _Compare(key=key, target=_Compare.MOD, result=_Compare.GREATER, mod_revision=0)
            )
        else:
            ask.compare.append(
                _Compare(
                    key=key,
                    target=_Compare.MOD,
                    result=_Compare.EQUAL,
                    mod_revision=write.expect or IMPOSSIBLE_REVISION,
                )
            )

    async def _lease_for_requests(self) -> int:
        async with self._lease_lock:
            now = self._clock.monotonic()
            if now >= self._request_lease_until:
                self._request_lease = await self._client.grant(
                    math.ceil(REQUEST_ID_TTL_S + 2 * REQUEST_LEASE_ROTATION_S)
                )
                self._request_lease_until = now + REQUEST_LEASE_ROTATION_S
            return self._request_lease

    def _send_gets(self) -> None:
        asked, self._queued_gets = self._queued_gets, []
        for start in range(0, len(asked), MAX_GETS_PER_TXN):
            task = asyncio.ensure_future(self._run_gets(asked[start : start + MAX_GETS_PER_TXN]))
            self._reads.add(task)
            task.add_done_callback(self._reads.discard)

    async def _run_gets(self, asked: Sequence[tuple[Key, "asyncio.Future[Entry | None]"]]) -> None:
        try:
            answer = await self._read([self._keys.object_key(key) for key, _ in asked])
        except LatticeError as error:
            for _, future in asked:
                if not future.done():
                    future.set_exception(error)
            return
        for (key, future), response in zip(asked, answer.responses, strict=True):
            if not future.done():
                kv = first_kv(response)
                future.set_result(None if kv is None else Entry(key, kv.value, kv.mod_revision))

    async def _pages(self, low: bytes, high: bytes, limit: int, revision: int) -> Page:
        entries: list[Entry] = []
        while True:
            size = min(PAGE_SIZE, limit - len(entries)) if limit else PAGE_SIZE
            answer = await self._range(
                pb.RangeRequest(key=low, range_end=high, limit=size, revision=revision),
                LARGE_REQUEST_TIMEOUT_S * self._client.member_count,
            )
            revision = revision or answer.header.revision
            entries += [
                Entry(key, kv.value, kv.mod_revision)
                for kv in answer.kvs
                if (key := self._keys.parse_object_key(kv.key))
            ]
            if not answer.more or (limit and len(entries) == limit):
                return Page(entries, revision, answer.more)
            low = answer.kvs[-1].key + b"\0"

    async def _start_shared_watch(self, after: int) -> Feeds:
        """Start the one watch of this process, at the first call."""
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
        """The shared watch never ends by itself; if it did, nobody may wait for it in vain."""
        feeds, self._feeds = self._feeds, None
        if feeds is not None:
            why = "closed" if task.cancelled() else f"broken: {task.exception()!r}"
            feeds.restart(
                feeds.head, Gone(f"the watch on etcd is {why}", fix="list again and go on from there")
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
        """Revisions made by others in a shared etcd never reach our watch: a mark of our own does, and moves its progress."""
        expected = 0
        while True:
            await self._clock.sleep(MAX_WATCH_LAG_S)
            if feeds.head < expected:
                await self.write_progress_marker("")
            expected = self._client.newest_revision

    def _open_history(self, resource: str, after: int) -> CatchUpHistory:
        start = self._keys.resource_key(resource)
        stream = WatchStream(
            self._client, self._clock, self._keys, (start, start[:-1] + b"0"), after, _discard
        )
        return CatchUpHistory(stream, resource, self.write_progress_marker)

    async def _range(self, ask: Any, patience: float = REQUEST_TIMEOUT_S) -> Any:
        return await self._client.read(lambda m, seconds: m.kv.Range(ask, timeout=seconds), patience)

    async def _read(self, keys: Sequence[bytes]) -> Any:
        ask = pb.TxnRequest(success=[read_op(key) for key in keys])
        return await self._client.read(lambda m, seconds: m.kv.Txn(ask, timeout=seconds))

    async def _txn(self, ask: Any) -> Any:
        return await self._client.call(lambda m: m.kv.Txn(ask, timeout=REQUEST_TIMEOUT_S))


def _discard(revision: int, changes: object) -> None:
    return None


def _put(key: bytes, value: bytes, lease: int = 0) -> Any:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def _compare_unchanged(key: bytes, kv: Any | None) -> Any:
    return _Compare(
        key=key, target=_Compare.MOD, result=_Compare.EQUAL, mod_revision=0 if kv is None else kv.mod_revision
    )


def _explain(
    answer: Any, writes: Sequence[Write], checks: Sequence[Check], fence: Term | None, request_id: str | None
) -> int:
    """Why the transaction's comparisons failed, from what its other branch read at the same revision."""
    found = [first_kv(response) for response in answer.responses]
    if request_id is not None and (seen := found.pop(0)) is not None:
        return int(seen.create_revision)
    if fence is not None:
        spent = found.pop(0)
        number = 0 if spent is None else int(spent.value)
        if number != fence.number:
            raise fenced_error(fence, number)
    operations = (*checks, *writes)
    revisions = {
        op.key: ABSENT if kv is None else int(kv.mod_revision)
        for op, kv in zip(operations, found, strict=True)
    }
    check_expected_revisions(writes, checks, revisions.__getitem__)
    raise Unavailable(
        "etcd refused a commit whose conditions hold", fix="retry; if it persists, etcd's data is damaged"
    )
