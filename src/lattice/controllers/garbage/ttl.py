"""Which events are too old to keep, and their removal."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from lattice.clock import Clock, format_timestamp
from lattice.controllers.garbage.ownership import deletion_write
from lattice.controllers.runtime.commit_batches import BatchCommitter, GarbageWrite
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.kinds.core import Event, Secret
from lattice.kinds.join_token import TOKEN_NAMESPACE, TOKEN_SECRET_TYPE, expiry, read_token_record
from lattice.store.protocol import Change, Delete, Store

PAGE_SIZE = 500


EXPIRED_TOKEN_RETENTION = timedelta(hours=1)  # after its end, so that whoever comes late hears why


class _Metadata(msgspec.Struct, gc=False, rename="camel"):
    creation_timestamp: str | None = None


class _Series(msgspec.Struct, gc=False, rename="camel"):
    last_observed_time: str | None = None


class _Event(msgspec.Struct, gc=False, rename="camel"):
    metadata: _Metadata
    last_timestamp: str | None = None
    event_time: str | None = None
    series: _Series | None = None


_decode = msgspec.json.Decoder(_Event).decode


def is_expired(value: bytes, now: datetime, ttl: timedelta) -> bool:
    """Has nothing been heard of it for `ttl`? Times in the future are a mistake of whoever wrote them, and do not count."""
    times = [time for time in _times(_decode(value)) if time <= now]
    return bool(times) and max(times) < now - ttl


def _times(event: _Event) -> Iterator[datetime]:
    repeated = event.series.last_observed_time if event.series else None
    for text in (event.metadata.creation_timestamp, event.last_timestamp, event.event_time, repeated):
        try:
            time = datetime.fromisoformat(text or "")
        except ValueError:  # people post events too, and may write anything here
            continue
        yield time if time.tzinfo else time.replace(tzinfo=UTC)


async def delete_expired_events(store: Store, clock: Clock, sweep: BatchCommitter, ttl: timedelta) -> None:
    """One look at all events, a page at a time."""
    resource, now, after = Event.resource, clock.now(), ""
    while True:
        page = await store.list(resource.id, limit=PAGE_SIZE, after=after)
        old = [entry for entry in page.entries if is_expired(entry.value, now, ttl)]
        writes = [deletion_write(resource, entry, format_timestamp(now)) for entry in old]
        await sweep.commit_all(GarbageWrite(write, "ttl") for write in writes if write is not None)
        if not page.has_more:
            return
        after = page.entries[-1].key.path


@dataclass
class JoinTokenController:
    context: ControllerContext
    name: str = "jointokens"

    async def reconcile(self, key: str) -> Requeue | None:
        secrets = self.context.cache(Secret)
        secret, entry = secrets.get(key), secrets.entry(key)
        if secret is None or entry is None:
            return None
        kept = read_token_record(msgspec.to_builtins(secret))
        if kept is None:
            return None
        left = (expiry(kept.grant) + EXPIRED_TOKEN_RETENTION - self.context.clock.now()).total_seconds()
        if left > 0:
            return Requeue(after=left)
        await self.context.commit([Delete(entry.key, entry.revision)])
        return None

    def loop(self) -> Loop:
        office = self.context
        return Loop(
            self,
            office.clock,
            office.rng,
            self._list_keys,
            (Source(office.cache(Secret), self._keys_for_secret),),
            Concurrency(workers=1),
        )

    def _list_keys(self) -> Iterable[str]:
        return [
            f"{TOKEN_NAMESPACE}/{each.metadata.name}"
            for each in self.context.cache(Secret).objects(TOKEN_NAMESPACE)
            if each.type == TOKEN_SECRET_TYPE
        ]

    def _keys_for_secret(self, change: Change) -> Iterable[str]:
        secret = self.context.cache(Secret).get(change.key.path)
        return (
            (change.key.path,)
            if secret is not None
            and secret.type == TOKEN_SECRET_TYPE
            and change.key.namespace == TOKEN_NAMESPACE
            else ()
        )
