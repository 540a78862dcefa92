"""The cache of a store: indexes, relists, back-off and change handlers."""

import asyncio
import random
from contextlib import suppress

import pytest
from build.store_keys import PODS, pod
from build.virtual import VirtualClock, settle

from lattice.errors import Unavailable
from lattice.store.cache import Cache
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Change, Delete, Entry, Key, Put, Watch


def words(value: str) -> list[str]:
    return value.split()


class CachedStore:
    """A store, a cache on it, and the changes that the cache reported."""

    def __init__(self, store: MemoryStore, clock: VirtualClock) -> None:
        self.store = store
        self.cache: Cache[str] = Cache(
            store, PODS, _text, clock, random.Random(1), {"word": words}, freeze=False
        )
        self.changes: list[str] = []
        self.cache.on_change(self._note)
        self.task = asyncio.ensure_future(self.cache.run())

    def _note(self, change: Change) -> None:
        old = change.previous.value.decode() if change.previous else "-"
        self.changes.append(
            f"{change.key.path} {old}>{change.value.decode() if change.value is not None else '-'}"
        )

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


def _text(entry: Entry) -> str:
    return entry.value.decode()


class FlakyStore(MemoryStore):
    """A store that refuses watches while it is down."""

    is_down = False
    refused = 0

    async def watch(self, resource: str, after: int) -> Watch:
        if self.is_down:
            self.refused += 1
            raise Unavailable("down")
        return await super().watch(resource, after)


async def test_cache_follows_the_store() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    await store.commit([Put(pod("a/x"), b"red big"), Put(pod("b/y"), b"red")])
    cached = CachedStore(store, clock)
    await cached.cache.wait_for()
    assert sorted(cached.cache.objects()) == ["red", "red big"]
    assert cached.cache.objects("a") == ["red big"]
    assert sorted(cached.cache.by_index("word", "red")) == ["red", "red big"]
    revision = await store.commit([Put(pod("a/x"), b"blue"), Delete(pod("b/y"))])
    await cached.cache.wait_for(revision)
    assert cached.cache.get("a/x") == "blue"
    assert (cached.cache.by_index("word", "red"), cached.cache.by_index("word", "blue")) == ([], ["blue"])
    entry = cached.cache.entry("a/x")
    assert entry is not None
    assert entry.revision == revision
    assert len(cached.cache) == 1
    assert cached.changes == ["a/x ->red big", "b/y ->red", "a/x red big>blue", "b/y red>-"]
    await cached.stop()


async def test_wait_for_revision_of_other_resource_ends() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    cached = CachedStore(store, clock)
    await cached.cache.wait_for()
    waiting = asyncio.ensure_future(cached.cache.wait_for(await store.revision() + 1))
    await settle()
    assert not waiting.done()
    await store.commit([Put(Key("nodes", "", "n"), b"")])
    await clock.advance(0.1)
    assert waiting.done()
    await cached.stop()


async def test_relist_after_gone_reports_only_differences() -> None:
    clock = VirtualClock()
    store = FlakyStore(clock, window=4)
    await store.commit([Put(pod("a/kept"), b"1"), Put(pod("a/changed"), b"1"), Put(pod("a/removed"), b"1")])
    cached = CachedStore(store, clock)
    await cached.cache.wait_for()
    cached.changes.clear()
    await store.commit([Put(pod("a/changed"), b"2"), Delete(pod("a/removed")), Put(pod("a/added"), b"1")])
    for number in range(20):
        await store.commit([Put(pod("a/busy"), b"%d" % number)])
    await store.commit([Delete(pod("a/busy"))])
    await store.compact(await store.revision())
    await clock.advance(1)
    assert sorted(cached.changes) == ["a/added ->1", "a/changed 1>2", "a/removed 1>-"]
    assert cached.cache.revision == await store.revision()
    later = await store.commit([Put(pod("a/added"), b"2")])
    await cached.cache.wait_for(later)
    assert cached.cache.get("a/added") == "2"
    await cached.stop()


async def test_cache_backs_off_while_store_is_down() -> None:
    clock = VirtualClock()
    store = FlakyStore(clock)
    store.is_down = True
    cached = CachedStore(store, clock)
    await clock.advance(60)
    assert 8 <= store.refused <= 25
    store.is_down = False
    await store.commit([Put(pod("a/x"), b"1")])
    await clock.advance(10)
    assert cached.cache.get("a/x") == "1"
    await cached.stop()


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1200])
async def test_lists_of_any_length_are_cached(count: int) -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    for start in range(0, count, 100):
        await store.commit([Put(pod(f"a/{i:04}"), b"") for i in range(start, min(count, start + 100))])
    cached = CachedStore(store, clock)
    await cached.cache.wait_for()
    assert len(cached.cache) == count
    await cached.stop()


async def test_change_handlers_see_previous_object() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    await store.commit([Put(pod("a/x"), b"one")])
    cached = CachedStore(store, clock)
    seen: list[tuple[str, str | None]] = []
    cached.cache.on_change(lambda change: seen.append((change.key.path, cached.cache.previous_object)))
    await cached.cache.wait_for()
    await store.commit([Put(pod("a/x"), b"two"), Put(pod("a/y"), b"new")])
    await store.commit([Put(pod("a/x"), b"three")])
    await cached.cache.wait_for(await store.commit([Delete(pod("a/x"))]))
    await settle()
    assert seen == [("a/x", None), ("a/x", "one"), ("a/y", None), ("a/x", "two"), ("a/x", "three")]
    assert cached.cache.previous_object is None
    await cached.stop()
