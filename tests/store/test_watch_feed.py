"""The watch feed: windows, history, progress and gaps."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from lattice.errors import Gone
from lattice.store.protocol import Batch, Change, Key
from lattice.store.watch_feed import Feed, Feeds, History


def change(revision: int, resource: str = "pods") -> Change:
    return Change(revision, Key(resource, "a", "b"), b"", None)


def batch(revision: int, size: int = 1) -> Batch:
    return Batch(revision, (change(revision),) * size)


class Log(History):
    """A history of single changes, read three at a time."""

    def __init__(self, until: int) -> None:
        self._until = until
        self.is_closed = False

    async def read(self, after: int) -> tuple[Sequence[Batch], int]:
        await asyncio.sleep(0)
        upto = min(after + 3, self._until)
        return [batch(revision) for revision in range(after + 1, upto + 1)], upto

    def close(self) -> None:
        self.is_closed = True


async def test_slow_watcher_is_gone_others_continue() -> None:
    feed = Feed(1, window=10)
    slow, fast = feed.subscribe(1), feed.subscribe(1)
    seen = 0
    for revision in range(2, 40):
        feed.publish(batch(revision))
        seen += len(await fast.next(0))
    assert seen == 38
    with pytest.raises(Gone, match="fell more than 10 changes behind"):
        await slow.next(0)
    assert feed.floor >= 25


def test_the_ring_counts_changes_not_batches() -> None:
    feed = Feed(1, window=100)
    for revision in range(2, 12):
        feed.publish(batch(revision, size=50))
    assert feed.floor > 8


def test_value_is_known_while_latest_change_is_buffered() -> None:
    feeds = Feeds(1, window=4)
    key, other = Key("pods", "a", "b"), Key("pods", "a", "c")
    feeds.publish(2, [Change(2, key, b"two", None)])
    feeds.publish(3, [Change(3, key, b"three", None)])
    assert (feeds.value(key, 2), feeds.value(key, 3), feeds.value(other, 3)) == (None, b"three", None)
    assert feeds.value(Key("nodes", "", "b"), 3) is None
    feeds.publish(4, [Change(4, key, None, None)])
    assert feeds.value(key, 4) is None
    for revision in range(5, 20):
        feeds.publish(revision, [Change(revision, other if revision % 2 else key, b"%d" % revision, None)])
    assert (feeds.value(key, 18), feeds.value(other, 19)) == (b"18", b"19")
    for revision in range(20, 30):
        feeds.publish(revision, [Change(revision, other, b"", None)])
    assert feeds.value(key, 18) is None


async def test_history_joins_feed_without_gap_or_repetition() -> None:
    feed = Feed(10)
    log = Log(until=10)
    watch = feed.subscribe(1, log)
    feed.publish(batch(11))
    seen: list[int] = []
    while len(seen) < 10:
        seen += [b.revision for b in await watch.next(1)]
        assert watch.progress == seen[-1]
    assert seen == list(range(2, 12))
    assert log.is_closed
    assert watch.progress == 11


async def test_lagging_feed_does_not_repeat_listed_changes() -> None:
    feed = Feed(5)
    watch = feed.subscribe(8)
    for revision in (6, 7, 8, 9):
        feed.publish(batch(revision))
    assert [b.revision for b in await watch.next(0)] == [9]
    assert watch.progress == 9


async def test_progress_never_exceeds_delivered_changes() -> None:
    feeds = Feeds(1)
    watch = feeds.subscribe("pods", 1, lambda: Log(1))
    feeds.publish(2, [change(2, "nodes")])
    assert watch.progress == 2
    feeds.publish(3, [change(3, "pods"), change(3, "nodes")])
    feeds.publish(4, [change(4, "nodes")])
    assert watch.progress == 2
    assert [b.revision for b in await watch.next(0)] == [3]
    assert watch.progress == 4


async def test_gap_ends_every_watcher() -> None:
    feeds = Feeds(1)
    watch = feeds.subscribe("pods", 1, lambda: Log(1))
    waiting = asyncio.ensure_future(watch.next())
    await asyncio.sleep(0)
    feeds.restart(50, Gone("compacted"))
    with pytest.raises(Gone):
        await waiting
    fresh = feeds.subscribe("pods", 50, lambda: Log(1))
    feeds.publish(51, [change(51)])
    assert [b.revision for b in await fresh.next(0)] == [51]


async def test_two_hundred_watchers_cost_little_per_change() -> None:
    async def follow(feed: Feed) -> int:
        watch, seen = feed.subscribe(1), 0
        while seen < 500:
            seen += len(await watch.next())
        return seen

    feed = Feed(1)
    watchers = [asyncio.ensure_future(follow(feed)) for _ in range(200)]
    await asyncio.sleep(0)
    spent = 0.0
    for revision in range(2, 502):
        started = time.perf_counter()
        feed.publish(batch(revision))
        spent += time.perf_counter() - started
        if revision % 10 == 0:
            await asyncio.sleep(0)
    assert await asyncio.gather(*watchers) == [500] * 200
    assert spent / 500 < 0.001
