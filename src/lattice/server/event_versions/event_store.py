"""A view of a store in which the core events are events of events.k8s.io/v1."""

from collections.abc import Sequence
from dataclasses import dataclass

from lattice.kinds.core import Event
from lattice.kinds.event_v1 import EventV1
from lattice.server.event_versions.conversion import core_value, v1_value
from lattice.store.protocol import (
    Batch,
    Change,
    Check,
    Delete,
    Entry,
    Key,
    Page,
    Put,
    RevisionConflict,
    Store,
    Term,
    Watch,
    Write,
)

CORE_RESOURCE, V1_RESOURCE = Event.resource.id, EventV1.resource.id


@dataclass
class EventV1Store:
    """Serves the key `events.events.k8s.io/NAMESPACE/NAME` from the entry of the core event of the same name,
    and writes through; every other key belongs to the store below."""

    store: Store

    async def get(self, key: Key) -> Entry | None:
        entry = await self.store.get(_core_key(key))
        return entry if entry is None or key.resource != V1_RESOURCE else _v1_entry(entry)

    async def list(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        limit: int = 0,
        after: str = "",
        revision: int = 0,
    ) -> Page:
        if resource != V1_RESOURCE:
            return await self.store.list(resource, namespace, limit=limit, after=after, revision=revision)
        page = await self.store.list(CORE_RESOURCE, namespace, limit=limit, after=after, revision=revision)
        return Page([_v1_entry(entry) for entry in page.entries], page.revision, page.has_more)

    async def count(self, resource: str, namespace: str | None = None) -> int:
        return await self.store.count(CORE_RESOURCE if resource == V1_RESOURCE else resource, namespace)

    async def watch(self, resource: str, after: int) -> Watch:
        if resource != V1_RESOURCE:
            return await self.store.watch(resource, after)
        return _EventV1Watch(await self.store.watch(CORE_RESOURCE, after))

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        core_writes: list[Write] = []
        for write in writes:
            key, is_v1 = _core_key(write.key), write.key.resource == V1_RESOURCE
            if isinstance(write, Delete):
                core_writes.append(Delete(key, write.expect))
            else:
                core_writes.append(Put(key, core_value(write.value) if is_v1 else write.value, write.expect))
        try:
            return await self.store.commit(core_writes, checks=checks, fence=fence, request_id=request_id)
        except RevisionConflict as conflict:
            written = next((write.key for write in writes if _core_key(write.key) == conflict.key), None)
            if written is None or written == conflict.key:
                raise
            raise RevisionConflict(written, conflict.expected, conflict.actual) from conflict

    async def revision(self) -> int:
        return await self.store.revision()

    async def compact(self, revision: int) -> None:
        await self.store.compact(revision)

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        return await self.store.campaign(role, holder, ttl)

    async def renew(self, term: Term) -> bool:
        return await self.store.renew(term)

    async def resign(self, term: Term) -> None:
        await self.store.resign(term)

    async def close(self) -> None:
        await self.store.close()


@dataclass
class _EventV1Watch:
    """A watch of the core events that delivers events of events.k8s.io/v1."""

    watch: Watch

    @property
    def progress(self) -> int:
        return self.watch.progress

    async def next(self, timeout: float | None = None) -> Sequence[Batch]:
        return [
            Batch(batch.revision, tuple(map(_v1_change, batch.changes)))
            for batch in await self.watch.next(timeout)
        ]

    def close(self) -> None:
        self.watch.close()


def _core_key(key: Key) -> Key:
    return key._replace(resource=CORE_RESOURCE) if key.resource == V1_RESOURCE else key


def _v1_key(key: Key) -> Key:
    return key._replace(resource=V1_RESOURCE)


def _v1_entry(entry: Entry) -> Entry:
    return Entry(_v1_key(entry.key), v1_value(entry.value), entry.revision)


def _v1_change(change: Change) -> Change:
    return Change(
        change.revision,
        _v1_key(change.key),
        None if change.value is None else v1_value(change.value),
        None if change.previous is None else _v1_entry(change.previous),
    )
