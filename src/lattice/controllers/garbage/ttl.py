"""Which events are too old to keep, and their removal."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from lattice.clock import Clock, stamp
from lattice.controllers.garbage.ownership import removal
from lattice.controllers.runtime.commit_batches import Step, Sweep
from lattice.kinds.core import Event
from lattice.store.protocol import Store

PAGE = 500


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


async def expire(store: Store, clock: Clock, sweep: Sweep, ttl: timedelta) -> None:
    """One look at all events, a page at a time."""
    resource, now, after = Event.resource, clock.now(), ""
    while True:
        page = await store.list(resource.id, limit=PAGE, after=after)
        old = [entry for entry in page.entries if is_expired(entry.value, now, ttl)]
        writes = [removal(resource, entry, stamp(now)) for entry in old]
        await sweep.take(Step(write, "ttl") for write in writes if write is not None)
        if not page.more:
            return
        after = page.entries[-1].key.path
