"""Delete expired events and expired join tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

import msgspec

from lattice.clock import Clock
from lattice.controllers.garbage.batch_committer import BatchCommitter, GarbageWrite
from lattice.controllers.garbage.ownership import deletion_write
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.kinds.core import Event, Secret
from lattice.kinds.join_token import TOKEN_SECRET_TYPE, expiry, read_token_record
from lattice.kinds.meta.base import SYSTEM_NAMESPACE
from lattice.kinds.meta.timestamps import format_timestamp, parse_timestamp
from lattice.store.protocol import Change, Delete, Store

PAGE_SIZE = 500
EVENT_EXPIRY_INTERVAL_S = 600.0


# An expired token is kept for this time, so that an agent that uses it late learns that it has expired.
EXPIRED_TOKEN_RETENTION = timedelta(hours=1)


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
    """Whether the latest timestamp of the event is older than `ttl`; timestamps in the future do not
    count."""
    event = _decode(value)
    repeated = event.series.last_observed_time if event.series else None
    latest: datetime | None = None
    for text in (event.metadata.creation_timestamp, event.last_timestamp, event.event_time, repeated):
        try:
            time = parse_timestamp(text or "")
        # Users may post events with any text as a timestamp.
        except ValueError:
            continue
        if time <= now and (latest is None or time > latest):
            latest = time
    # Without a usable timestamp the age is unknown, and the event stays.
    return latest is not None and latest < now - ttl


@dataclass(frozen=True)
class EventExpiryController:
    """Delete the expired events of all namespaces at an interval; the only key is the resource of events."""

    store: Store
    clock: Clock
    committer: BatchCommitter
    ttl: timedelta
    name: ClassVar[str] = "events"

    def list_keys(self) -> Iterable[str]:
        return [Event.resource.id]

    async def reconcile(self, key: str) -> Requeue:
        """Delete all expired events, one page of the list at a time."""
        now, after, has_more = self.clock.now(), "", True
        while has_more:
            page = await self.store.list(key, limit=PAGE_SIZE, after=after)
            expired = [entry for entry in page.entries if is_expired(entry.value, now, self.ttl)]
            writes = [deletion_write(Event.resource, entry, format_timestamp(now)) for entry in expired]
            await self.committer.commit_all(
                GarbageWrite(write, "ttl") for write in writes if write is not None
            )
            if has_more := page.has_more:
                after = page.entries[-1].key.path
        return Requeue(after=EVENT_EXPIRY_INTERVAL_S)


@dataclass
class JoinTokenController:
    """Delete the Secret of a join token EXPIRED_TOKEN_RETENTION after the token expires; the key is the
    Secret."""

    context: ControllerContext
    name: str = "jointokens"

    async def reconcile(self, key: str) -> Requeue | None:
        secrets = self.context.cache(Secret)
        secret, entry = secrets.get(key), secrets.entry(key)
        if secret is None or entry is None:
            return None
        record = read_token_record(msgspec.to_builtins(secret))
        if record is None:
            return None
        remaining_s = (
            expiry(record.grant) + EXPIRED_TOKEN_RETENTION - self.context.clock.now()
        ).total_seconds()
        if remaining_s > 0:
            return Requeue(after=remaining_s)
        await self.context.commit([Delete(entry.key, entry.revision)])
        return None

    def loop(self) -> Loop:
        context = self.context
        return Loop(
            self,
            context.clock,
            context.rng,
            self.list_keys,
            (Source(context.cache(Secret), self.keys_for_secret),),
            Concurrency(workers=1),
        )

    def list_keys(self) -> Iterable[str]:
        return [
            f"{SYSTEM_NAMESPACE}/{secret.metadata.name}"
            for secret in self.context.cache(Secret).objects(SYSTEM_NAMESPACE)
            if secret.type == TOKEN_SECRET_TYPE
        ]

    def keys_for_secret(self, change: Change) -> Iterable[str]:
        secret = self.context.cache(Secret).get(change.key.path)
        if secret is None or secret.type != TOKEN_SECRET_TYPE or change.key.namespace != SYSTEM_NAMESPACE:
            return ()
        return (change.key.path,)
