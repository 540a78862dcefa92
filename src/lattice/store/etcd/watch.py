"""Watches on etcd: events grouped into commits by revision, resumed after errors without gap or
repetition."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import grpc
import grpc.aio

from lattice.clock import Clock
from lattice.errors import Gone, Unavailable
from lattice.store.etcd import etcd_pb2 as pb
from lattice.store.etcd.client import NEED_LEADER, EtcdClient, Member, translate_error
from lattice.store.protocol import Batch, Change, Entry, Key
from lattice.store.watch_feed import Feed, History

# Longest back-off between attempts to watch again.
MAX_BACKOFF_S = 2.0
# Time that a catch-up watch (see CatchUpHistory) waits for events before it writes a progress marker; etcd
# needs up to 0.1 s to start a watch in the past.
PROGRESS_TIMEOUT_S = 0.1
# Limit of batches that a catch-up watch reads ahead of its reader.
MAX_UNREAD_BATCHES = 5_000

Publish = Callable[[int, Sequence[Change]], None]


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The keys of the store in etcd. The key of an object ends in its path, so etcd lists objects in the
    order of their paths."""

    prefix: str

    def object_key(self, key: Key) -> bytes:
        return f"{self.prefix}/objects/{key.resource}/{key.path}".encode()

    def resource_key(self, resource: str) -> bytes:
        """Return the marker key of a resource, which sorts before its objects: see
        EtcdStore.write_progress_marker."""
        return f"{self.prefix}/objects/{resource}/".encode()

    def term_key(self, role: str) -> bytes:
        return f"{self.prefix}/terms/{role}".encode()

    def leader_key(self, role: str) -> bytes:
        return f"{self.prefix}/leaders/{role}".encode()

    def request_key(self, request_id: str) -> bytes:
        return f"{self.prefix}/requests/{request_id}".encode()

    def full_range(self) -> tuple[bytes, bytes]:
        """Return the range of every key below the prefix."""
        # "0" is the character after "/".
        return f"{self.prefix}/".encode(), f"{self.prefix}0".encode()

    def parse_object_key(self, raw: bytes) -> Key | None:
        """Return the key of an object, or None for every other key."""
        start = f"{self.prefix}/objects/".encode()
        if not raw.startswith(start):
            return None
        resource, _, path = raw[len(start) :].decode().partition("/")
        if not path:
            return None
        namespace, _, name = path.partition("/")
        return Key(resource, namespace, name)


@dataclass
class WatchStream:
    """An etcd watch over a range of keys. Every change up to `revision` has been published."""

    client: EtcdClient
    clock: Clock
    keys: KeyLayout
    key_range: tuple[bytes, bytes]
    revision: int
    publish: Publish
    # Cleared while the reader cannot take further events.
    may_read: asyncio.Event | None = None
    # Returns the value of an object at a revision if the process already holds the bytes, else None; this
    # saves a second copy.
    lookup_value: Callable[[Key, int], bytes | None] = lambda key, revision: None

    async def run(self) -> None:
        """Watch until the history is compacted, then raise Gone; other errors resume the watch on the next
        member."""
        backoff_s = 0.05
        while True:
            member = self.client.member
            previous_revision = self.revision
            try:
                await self._read_events(member)
            except grpc.aio.AioRpcError as error:
                translated = translate_error(error, member.endpoint)
                if isinstance(translated, Gone):
                    raise translated from error
                self.client.fail_over(member)
            except Unavailable:
                self.client.fail_over(member)
            backoff_s = 0.05 if self.revision > previous_revision else min(MAX_BACKOFF_S, backoff_s * 2)
            await self.clock.sleep(backoff_s * (0.5 + random.random() / 2))  # noqa: S311

    async def _read_events(self, member: Member) -> None:
        stream = member.watch.Watch(metadata=NEED_LEADER)
        try:
            # Begin at the last published revision, although its events arrive again: etcd rejects the watch
            # once that revision is compacted. At the next revision, etcd would accept a watch even after a
            # compaction that has removed a deletion at that next revision, or the previous value of a change.
            create = pb.WatchCreateRequest(
                key=self.key_range[0],
                range_end=self.key_range[1],
                start_revision=self.revision,
                progress_notify=True,
                prev_kv=True,
            )
            await stream.write(pb.WatchRequest(create_request=create))
            events: list[Any] = []
            while True:
                if self.may_read is not None:
                    await self.may_read.wait()
                response = await stream.read()
                if response is grpc.aio.EOF:
                    break
                if response.compact_revision:
                    raise Gone(
                        f"history before revision {response.compact_revision} is compacted",
                        fix="list again and watch from the new revision",
                    )
                if response.canceled:
                    raise Unavailable(f"etcd ended the watch: {response.cancel_reason}")
                events += response.events
                # etcd may split a response into fragments, which are joined, so that a commit is published
                # whole.
                if not response.fragment:
                    self._publish_events(response, events)
                    events = []
            raise Unavailable("etcd ended the watch", where=f"etcd {member.endpoint}")
        finally:
            stream.cancel()

    def _publish_events(self, response: Any, events: Sequence[Any]) -> None:
        for revision, group in groupby(events, key=lambda event: event.kv.mod_revision):
            # The events of the revision at which the watch starts arrive a second time and are skipped.
            if revision > self.revision:
                changes = [change for event in group if (change := self._change(event)) is not None]
                self.revision = revision
                self.publish(revision, changes)
        # A progress notification arrives in order with the events, unlike the answer to a progress request
        # before etcd 3.5.8.
        is_progress = not events and not response.created
        if is_progress and response.header.revision > self.revision:
            self.revision = response.header.revision
            self.publish(self.revision, ())

    def _change(self, event: Any) -> Change | None:
        kv = event.kv
        key = self.keys.parse_object_key(kv.key)
        if key is None:
            return None
        is_delete = event.type == pb.Event.DELETE
        previous_revision = event.prev_kv.mod_revision
        # Without the previous value, the change would look like a creation.
        if not previous_revision and (is_delete or kv.create_revision != kv.mod_revision):
            raise Gone(
                f"the previous value of revision {kv.mod_revision} is compacted",
                fix="list again and watch from the new revision",
            )
        previous = (
            Entry(key, self.lookup_value(key, previous_revision) or event.prev_kv.value, previous_revision)
            if previous_revision
            else None
        )
        return Change(kv.mod_revision, key, None if is_delete else kv.value, previous)


class CatchUpHistory(History):
    """The history of one resource, read by a separate etcd watch until that watch has caught up with the
    window of the shared watch."""

    def __init__(
        self, stream: WatchStream, resource: str, write_marker: Callable[[str], Awaitable[None]]
    ) -> None:
        self._resource = resource
        self._write_marker = write_marker
        # A batch has at most 100 changes, so the window has room for MAX_UNREAD_BATCHES batches, and no
        # unread batch is trimmed.
        self._feed = Feed(stream.revision, MAX_UNREAD_BATCHES * 100)
        self._subscription = self._feed.subscribe(stream.revision)
        self._may_read = asyncio.Event()
        self._may_read.set()
        stream.publish, stream.may_read = self.publish, self._may_read
        self._task = asyncio.ensure_future(self._run(stream))

    async def read(self, after: int) -> tuple[Sequence[Batch], int]:
        batches = await self._subscription.next(PROGRESS_TIMEOUT_S)
        if self._subscription.pending_batches < MAX_UNREAD_BATCHES:
            self._may_read.set()
        if not batches and self._subscription.progress <= after:
            # A pause does not prove that etcd has sent every event; the event of a marker proves it.
            await self._write_marker(self._resource)
        return batches, self._subscription.progress

    def close(self) -> None:
        self._task.cancel()

    def publish(self, revision: int, changes: Sequence[Change]) -> None:
        own_changes = tuple(change for change in changes if change.key.resource == self._resource)
        if own_changes:
            self._feed.publish(Batch(revision, own_changes))
        self._feed.head = revision
        if self._subscription.pending_batches >= MAX_UNREAD_BATCHES:
            self._may_read.clear()

    async def _run(self, stream: WatchStream) -> None:
        try:
            await stream.run()
        except Gone as gap:
            self._feed.open_gap(gap)
