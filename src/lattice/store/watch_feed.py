"""Watch feeds: the recent changes of every resource in memory, read by all watches of the process."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from lattice.errors import Gone
from lattice.store.protocol import Batch, Change, Key

# Number of changes that the feed of a resource keeps; a watch that falls further behind gets Gone.
WINDOW_CHANGES = 10_000
# Limit of batches in one read, so that a watch that catches up lets other tasks run.
MAX_BATCHES_PER_READ = 1_000


class History(Protocol):
    """A source of changes older than the window of a feed."""

    async def read(self, after: int) -> tuple[Sequence[Batch], int]:
        """Return batches after a revision, and the revision up to which the batches are complete. Raise Gone
        if compacted."""
        ...

    def close(self) -> None: ...


class Feed:
    """The ring of one resource: every change after `floor`, up to `head`. A watch is a position in the
    ring."""

    def __init__(self, floor: int, window: int = WINDOW_CHANGES) -> None:
        self.floor = floor
        self.head = floor
        self.gap: Gone | None = None
        self._window = window
        self._ring: list[Batch] = []
        # The newest change of every object in the ring.
        self._latest: dict[Key, Change] = {}
        # Number of batches trimmed from the ring so far; the batch at position p is _ring[p -
        # _trimmed_batches].
        self._trimmed_batches = 0
        self._changes = 0
        self._waiting: dict[Subscription, asyncio.Future[bool]] = {}

    @property
    def end(self) -> int:
        return self._trimmed_batches + len(self._ring)

    def publish(self, batch: Batch) -> None:
        """Append the batch of one commit and wake the waiting watches."""
        self._ring.append(batch)
        self.head = batch.revision
        self._changes += len(batch.changes)
        for change in batch.changes:
            self._latest[change.key] = change
        # Trims a slice at a time, because dropping single batches would move the whole list every time.
        if self._changes > self._window + self._window // 4:
            self._trim()
        self._wake_all()

    def value(self, key: Key, revision: int) -> bytes | None:
        """Return the value that an object had at a revision if the newest change of the object in the ring
        has that revision, else None."""
        latest = self._latest.get(key)
        return latest.value if latest is not None and latest.revision == revision else None

    def open_gap(self, gap: Gone) -> None:
        """Fail every watch with `gap`, because changes were lost: the watchers must list again."""
        self.gap = gap
        self._wake_all()

    def subscribe(self, after: int, history: History | None = None) -> "Subscription":
        """Return a watch of the changes after a revision; a revision before the floor needs a history."""
        return Subscription(self, after, history)

    def position_after(self, revision: int) -> int:
        """Return the position of the first batch after a revision."""
        low, high = 0, len(self._ring)
        while low < high:
            middle = (low + high) // 2
            if self._ring[middle].revision <= revision:
                low = middle + 1
            else:
                high = middle
        return self._trimmed_batches + low

    def read(self, position: int) -> list[Batch]:
        """Return the next batches from a position; raise Gone if the batches were trimmed."""
        if position < self._trimmed_batches:
            raise Gone(
                f"the watch fell more than {self._window} changes behind",
                fix="list again and watch from the new revision; read watches faster",
            )
        return self._ring[
            position - self._trimmed_batches : position - self._trimmed_batches + MAX_BATCHES_PER_READ
        ]

    async def wait(self, waiter: "Subscription", timeout: float | None) -> bool:
        """Return True when a change may have arrived, False after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting[waiter] = future
        timer = None if timeout is None else loop.call_later(timeout, _resolve, future, False)
        try:
            return await future
        finally:
            # Remove this future unless a wake-up has removed it: the watch may already wait with a new
            # future.
            if self._waiting.get(waiter) is future:
                del self._waiting[waiter]
            if timer is not None:
                timer.cancel()

    def wake(self, waiter: "Subscription") -> None:
        if (future := self._waiting.pop(waiter, None)) is not None:
            _resolve(future, True)

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            _resolve(future, True)

    def _trim(self) -> None:
        count = 0
        # The newest batch always stays, because watches at the end of the ring have not read the batch yet.
        while self._changes > self._window and count < len(self._ring) - 1:
            changes = self._ring[count].changes
            self._changes -= len(changes)
            for change in changes:
                # The entry stays if the ring holds a later change of the object.
                if self._latest.get(change.key) is change:
                    del self._latest[change.key]
            count += 1
        self.floor = self._ring[count - 1].revision
        del self._ring[:count]
        self._trimmed_batches += count


def _resolve(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


class Subscription:
    """A watch on a feed. If the window does not reach back far enough, the watch reads the history first."""

    def __init__(self, feed: Feed, after: int, history: History | None = None) -> None:
        self._feed = feed
        self._last_revision = after
        self._history = history
        self._reading: asyncio.Future[tuple[Sequence[Batch], int]] | None = None
        self._position = feed.position_after(after)
        self._closed = False

    @property
    def progress(self) -> int:
        if self._history is None and self._position == self._feed.end and self._feed.gap is None:
            # Stored, so that progress never goes back after a batch arrives.
            self._last_revision = max(self._last_revision, self._feed.head)
        return self._last_revision

    @property
    def pending_batches(self) -> int:
        """The number of published batches that the watch has not read yet."""
        return self._feed.end - self._position

    async def next(self, timeout: float | None = None) -> Sequence[Batch]:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not self._closed:
            remaining_s = None if deadline is None else max(0.0, deadline - loop.time())
            if self._history is not None:
                batches, in_time = await self._read_history(self._history, remaining_s)
            else:
                batches, in_time = self._take(), True
                if not batches:
                    in_time = await self._feed.wait(self, remaining_s)
            if batches or not in_time:
                return batches
        return ()

    def close(self) -> None:
        self._closed = True
        self._feed.wake(self)
        self._close_history()

    def _take(self) -> Sequence[Batch]:
        if self._feed.gap is not None:
            raise self._feed.gap
        batches = self._feed.read(self._position)
        self._position += len(batches)
        # The list from which the watch starts may be newer than the feed: drop the batches that the list
        # includes.
        while batches and batches[0].revision <= self._last_revision:
            del batches[0]
        if batches:
            self._last_revision = batches[-1].revision
        return batches

    async def _read_history(self, history: History, timeout: float | None) -> tuple[Sequence[Batch], bool]:
        # If the ring by now reaches back far enough, the watch continues without the history.
        if self._last_revision >= self._feed.floor:
            self._close_history()
            self._position = self._feed.position_after(self._last_revision)
            return (), True
        if self._reading is None:
            self._reading = asyncio.ensure_future(history.read(self._last_revision))
        done, _ = await asyncio.wait({self._reading}, timeout=timeout)
        if not done:
            # The next call waits for the same read, so that short timeouts do not starve the read.
            return (), False
        reading, self._reading = self._reading, None
        batches, self._last_revision = reading.result()
        return batches, True

    def _close_history(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._history is not None:
            self._history.close()
            self._history = None


class Feeds:
    """One feed per resource, all with the same head; a commit is published to the feed of every resource it
    wrote."""

    def __init__(self, revision: int, window: int = WINDOW_CHANGES) -> None:
        self.head = revision
        self._window = window
        self._feeds: dict[str, Feed] = {}

    def feed_for(self, resource: str) -> Feed:
        feed = self._feeds.get(resource)
        if feed is None:
            feed = self._feeds[resource] = Feed(self.head, self._window)
        return feed

    def publish(self, revision: int, changes: Sequence[Change]) -> None:
        """Publish the changes of one commit; a commit without changes only moves the head."""
        if len(changes) == 1:
            self.feed_for(changes[0].key.resource).publish(Batch(revision, (changes[0],)))
        elif changes:
            by_resource: dict[str, list[Change]] = {}
            for change in changes:
                by_resource.setdefault(change.key[0], []).append(change)
            for resource, resource_changes in by_resource.items():
                self.feed_for(resource).publish(Batch(revision, tuple(resource_changes)))
        self.head = revision
        # Feeds of resources without a change progress as well, because the bookmarks of a quiet kind need the
        # newest revision (decision 0014).
        for feed in self._feeds.values():
            feed.head = revision

    def value(self, key: Key, revision: int) -> bytes | None:
        """Return `Feed.value` for a key of any resource, so that a caller can share the bytes instead of
        keeping a copy."""
        feed = self._feeds.get(key.resource)
        return feed.value(key, revision) if feed is not None else None

    def subscribe(self, resource: str, after: int, history: Callable[[], History]) -> Subscription:
        """Return a watch of a resource after a revision; `history` is opened only for a revision before the
        window."""
        feed = self.feed_for(resource)
        return feed.subscribe(after, history() if after < feed.floor else None)

    def restart(self, revision: int, gap: Gone) -> None:
        """Fail every watch with `gap`, because changes were lost; new watches begin at `revision`."""
        feeds, self._feeds = self._feeds, {}
        self.head = revision
        for feed in feeds.values():
            feed.open_gap(gap)
