"""Expiry of events."""

from datetime import timedelta
from typing import Any

import pytest
from build.garbage_world import START, collected, new_world

from lattice.controllers.garbage.ttl import is_expired
from lattice.kinds.core import Event
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.meta.timestamps import format_timestamp

WEEK = timedelta(days=7)
OLD, YOUNG, FUTURE = (
    format_timestamp(START - WEEK - timedelta(seconds=1)),
    format_timestamp(START - WEEK),
    format_timestamp(START + WEEK),
)


@pytest.mark.parametrize(
    ("created", "more", "expired"),
    [
        pytest.param(OLD, {}, True, id="made long ago"),
        pytest.param(YOUNG, {}, False, id="made a week ago to the second"),
        pytest.param(OLD, {"lastTimestamp": YOUNG}, False, id="made long ago, seen since"),
        pytest.param(
            OLD, {"eventTime": "2026-11-15T07:00:00.123456Z"}, False, id="times to the microsecond count"
        ),
        pytest.param(
            OLD,
            {"series": {"count": 3, "lastObservedTime": YOUNG}},
            False,
            id="the last time of an event series counts",
        ),
        pytest.param(
            OLD, {"lastTimestamp": OLD, "eventTime": None, "series": None}, True, id="all times long ago"
        ),
        pytest.param(OLD, {"lastTimestamp": "yesterday"}, True, id="invalid times do not count"),
        pytest.param(OLD, {"lastTimestamp": FUTURE}, True, id="the future does not count"),
        pytest.param(FUTURE, {}, False, id="made in the future: another server's clock is ahead"),
    ],
)
def test_event_expiry(created: str, more: dict[str, Any], expired: bool) -> None:
    value = pack(Event.resource, {"metadata": {"name": "e", "creationTimestamp": created}, **more})
    assert is_expired(value, START, WEEK) is expired


async def test_expired_events_are_swept_in_few_commits() -> None:
    world = await new_world()
    before = collected("ttl")
    for i in range(250):
        await world.make(f"Event/a/{i}")
    made = await world.store.revision()
    async with world.collecting(event_ttl=timedelta(seconds=900)):
        await world.clock.advance(899)
        assert await world.store.revision() == made
        await world.make("Event/a/new")
        await world.clock.advance(302)
        assert [entry.key.name for entry in (await world.store.list("events")).entries] == ["new"]
        assert await world.store.revision() == made + 1 + 3
    assert collected("ttl") == before + 250
