"""Following etcd: one watch turned into commits, revision by revision, resumed after errors without gap or repetition."""

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
from lattice.store.etcd.client import NEED_LEADER, EtcdClient, Member, translate
from lattice.store.protocol import Batch, Change, Entry, Key
from lattice.store.watch_feed import Feed, History

MAX_BACKOFF_S = 2.0  # seconds between attempts to follow again
PROGRESS_TIMEOUT_S = 0.1  # seconds after which a watcher that catches up asks for a sign of where it is; etcd starts old watches in 0.1 s
MAX_UNREAD_BATCHES = 5_000  # batches of the past read ahead of a watcher that catches up

Publish = Callable[[int, Sequence[Change]], None]


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """Where things are in etcd. An object's key ends in its path, so that etcd's order is the order of lists."""

    prefix: str

    def object_key(self, key: Key) -> bytes:
        return f"{self.prefix}/objects/{key.resource}/{key.path}".encode()

    def resource_key(self, resource: str) -> bytes:
        """The mark of a resource, before all its objects: see EtcdStore.mark."""
        return f"{self.prefix}/objects/{resource}/".encode()

    def term_key(self, role: str) -> bytes:
        return f"{self.prefix}/terms/{role}".encode()

    def leader_key(self, role: str) -> bytes:
        return f"{self.prefix}/leaders/{role}".encode()

    def request_key(self, request_id: str) -> bytes:
        return f"{self.prefix}/requests/{request_id}".encode()

    def full_range(self) -> tuple[bytes, bytes]:
        return f"{self.prefix}/".encode(), f"{self.prefix}0".encode()  # "0" follows "/"

    def parse_object_key(self, raw: bytes) -> Key | None:
        """None: not an object."""
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
    """An etcd watch over a range of keys. `revision`: everything up to here has been published."""

    client: EtcdClient
    clock: Clock
    keys: KeyLayout
    key_range: tuple[bytes, bytes]
    revision: int
    publish: Publish
    may_read: asyncio.Event | None = None  # cleared by who cannot take more for now
    lookup_value: Callable[[Key, int], bytes | None] = lambda key, revision: (
        None
    )  # what an object was at a revision, where that is kept anyway

    async def run(self) -> None:
        """Until Gone."""
        patience = 0.05
        while True:
            member = self.client.member
            before = self.revision
            try:
                await self._read_events(member)
            except grpc.aio.AioRpcError as error:
                meaning = translate(error, member.endpoint)
                if isinstance(meaning, Gone):
                    raise meaning from error
                self.client.fail_over(member)
            except Unavailable:
                self.client.fail_over(member)
            patience = 0.05 if self.revision > before else min(MAX_BACKOFF_S, patience * 2)
            await self.clock.sleep(patience * (0.5 + random.random() / 2))  # noqa: S311

    async def _read_events(self, member: Member) -> None:
        stream = member.watch.Watch(metadata=NEED_LEADER)
        try:
            # From the last revision published, not the one after: etcd then also refuses when just that one is compacted,
            # after which the first deletion or previous value could be missing without a word.
            create = pb.WatchCreateRequest(
                key=self.key_range[0],
                range_end=self.key_range[1],
                start_revision=self.revision,
                progress_notify=True,
                prev_kv=True,
            )
            await stream.write(pb.WatchRequest(create_request=create))
            events: list[Any] = []
            while (answer := await self._read(stream)) is not grpc.aio.EOF:
                _raise_if_ended(answer)
                events += answer.events
                if not answer.fragment:
                    self._publish_events(answer, events)
                    events = []
            raise Unavailable("etcd ended the watch", where=f"etcd {member.endpoint}")
        finally:
            stream.cancel()

    async def _read(self, stream: Any) -> Any:
        if self.may_read is not None:
            await self.may_read.wait()
        return await stream.read()

    def _publish_events(self, answer: Any, events: Sequence[Any]) -> None:
        for revision, group in groupby(events, key=lambda event: event.kv.mod_revision):
            if revision > self.revision:
                changes = [change for event in group if (change := self._change(event)) is not None]
                self.revision = revision
                self.publish(revision, changes)
        is_progress = (
            not events and not answer.created
        )  # sent in order with the events, unlike those asked for before 3.5.8
        if is_progress and answer.header.revision > self.revision:
            self.revision = answer.header.revision
            self.publish(self.revision, ())

    def _change(self, event: Any) -> Change | None:
        kv = event.kv
        key = self.keys.parse_object_key(kv.key)
        if key is None:
            return None
        is_delete = event.type == pb.Event.DELETE
        had = event.prev_kv.mod_revision
        if not had and (is_delete or kv.create_revision != kv.mod_revision):
            raise Gone(
                f"what revision {kv.mod_revision} replaced is compacted",
                fix="list again and go on from there",
            )
        previous = Entry(key, self.lookup_value(key, had) or event.prev_kv.value, had) if had else None
        return Change(kv.mod_revision, key, None if is_delete else kv.value, previous)


def _raise_if_ended(answer: Any) -> None:
    if answer.compact_revision:
        raise Gone(
            f"history before revision {answer.compact_revision} is compacted",
            fix="list again and go on from there",
        )
    if answer.canceled:
        raise Unavailable(f"etcd ended the watch: {answer.cancel_reason}")


class CatchUpHistory(History):
    """The past of one resource, read by a watch of its own until it meets the shared one."""

    def __init__(self, stream: WatchStream, resource: str, mark: Callable[[str], Awaitable[None]]) -> None:
        self._resource = resource
        self._write_marker = mark
        self._feed = Feed(stream.revision, MAX_UNREAD_BATCHES * 100)
        self._subscription = self._feed.subscribe(stream.revision)
        self._may_read = asyncio.Event()
        self._may_read.set()
        stream.publish, stream.may_read = self._publish, self._may_read
        self._task = asyncio.ensure_future(self._run(stream))

    async def read(self, after: int) -> tuple[Sequence[Batch], int]:
        batches = await self._subscription.next(PROGRESS_TIMEOUT_S)
        if self._subscription.pending_batches < MAX_UNREAD_BATCHES:
            self._may_read.set()
        if not batches and self._subscription.progress <= after:
            await self._write_marker(
                self._resource
            )  # silence does not say that etcd has sent everything; an event does
        return batches, self._subscription.progress

    def close(self) -> None:
        self._task.cancel()

    def _publish(self, revision: int, changes: Sequence[Change]) -> None:
        mine = tuple(change for change in changes if change.key.resource == self._resource)
        if mine:
            self._feed.publish(Batch(revision, mine))
        self._feed.head = revision
        if self._subscription.pending_batches >= MAX_UNREAD_BATCHES:
            self._may_read.clear()

    async def _run(self, stream: WatchStream) -> None:
        try:
            await stream.run()
        except Gone as gap:
            self._feed.open_gap(gap)
