"""GET /ui/live: what changes, for the page, as server-sent events. Rows as the page shows them, many changes in one note."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import msgspec

from lattice.errors import Gone, Malformed
from lattice.kinds.base import Kind
from lattice.kinds.body import encode
from lattice.server.api import Api
from lattice.server.authority import Deed, authorize
from lattice.server.call import Reply, User
from lattice.server.catalog import Served
from lattice.server.lists import CHUNK
from lattice.server.problem import status_of
from lattice.server.summaries import Row, summary
from lattice.server.watch import LONGEST
from lattice.store.protocol import Batch, Entry, Page, Watch

PACE = 0.25  # seconds between two notes: what changes in between is told once
BEAT = 15.0  # seconds after which a stream that has nothing to tell says so
ROWS = 100  # summed up at a time: a few milliseconds
MEDIA_TYPE = "text/event-stream"
BEATING = b": nothing new\n\n"


@dataclass
class Followed:
    """One kind of the stream: its watch, and what it told that the page was not told yet."""

    served: Served
    watch: Watch
    opening: Page | None
    changed: dict[str, bytes | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._decode = msgspec.json.Decoder(self.served.kind).decode

    @property
    def plural(self) -> str:
        return self.served.resource.plural

    def take(self, batches: list[Batch]) -> None:
        for batch in batches:
            for change in batch.changes:
                self.changed[change.key.path] = change.value

    def rows(self, values: list[bytes]) -> list[Row]:
        return [summary(self._kind(value)) for value in values]

    def _kind(self, value: bytes) -> Kind:
        return self._decode(value)


@dataclass
class PageStream:
    """`?kinds=a,b` are told of; those in `list=` are listed first; `after=REVISION` goes on where an earlier stream stopped."""

    api: Api

    async def open(self, user: User, query: Mapping[str, str]) -> Reply:
        served = [self._served(each) for each in _words(query.get("kinds", ""))]
        if not served:
            raise Malformed("of which kinds?", where="kinds", fix="name some, such as latticeservices,latticenodes")
        for each in served:
            authorize(user, Deed("watch", each.resource.group, each.resource.plural), each.resource)
        listed = set(_words(query.get("list", "")))
        after = _revision(query.get("after", ""))
        return Reply(self._events(await self._follow(served, listed, after)), content_type=MEDIA_TYPE, is_quiet=True)

    def _served(self, plural: str) -> Served:
        for each in self.api.catalog:
            if each.resource.plural == plural and each.resource.id not in self.api.fixed:
                return each
        raise Malformed(f"there is no kind {plural!r}", where="kinds", fix="use plural names, such as latticenodes")

    async def _follow(self, served: list[Served], listed: set[str], after: int) -> list[Followed]:
        followed: list[Followed] = []
        try:
            for each in served:
                opening = await self._page(each) if each.resource.plural in listed else None
                start = opening.revision if opening else after or await self.api.store.revision()
                followed.append(Followed(each, await self.api.store.watch(each.resource.id, start), opening))
        except BaseException:
            for kind in followed:
                kind.watch.close()
            raise
        return followed

    async def _page(self, served: Served, after: str = "", revision: int = 0) -> Page:
        return await self.api.store.list(served.resource.id, None, limit=CHUNK, after=after, revision=revision)

    async def _events(self, followed: list[Followed]) -> AsyncIterator[bytes]:
        news = asyncio.Event()
        ears = [asyncio.create_task(_hear(each, news)) for each in followed]
        try:
            for each in followed:
                async for piece in self._opening(each):
                    yield piece
            yield _note(followed)
            async for piece in self._changes(followed, ears, news):
                yield piece
        except Gone as gone:
            yield _event("again", status_of(gone))
        finally:
            for ear in ears:
                ear.cancel()
            await asyncio.gather(*ears, return_exceptions=True)
            for each in followed:
                each.watch.close()

    async def _opening(self, each: Followed) -> AsyncIterator[bytes]:
        page = each.opening
        each.opening = None
        while page is not None:
            for start in range(0, len(page.entries) or 1, ROWS):
                some = page.entries[start : start + ROWS]
                more = page.more or start + ROWS < len(page.entries)
                yield _event("rows", {"kind": each.plural, "rows": each.rows(_values(some)), "more": more})
                await asyncio.sleep(0)
            page = await self._page(each.served, page.entries[-1].key.path, page.revision) if page.more else None

    async def _changes(self, followed: list[Followed], ears: "list[asyncio.Task[None]]", news: asyncio.Event) -> AsyncIterator[bytes]:
        clock = self.api.clock
        ends = clock.monotonic() + LONGEST * (1 + self.api.jitter()) / 2
        while clock.monotonic() < ends:
            alarm = clock.alarm(BEAT, news.set)
            await news.wait()
            alarm.cancel()
            for ear in ears:
                if ear.done():
                    ear.result()  # which raises what ended it
            if any(each.changed for each in followed):
                await clock.sleep(PACE)
                yield _note(followed)
            else:
                yield BEATING
            news.clear()


async def _hear(each: Followed, news: asyncio.Event) -> None:
    try:
        while True:
            each.take(list(await each.watch.next(None)))
            news.set()
    finally:
        news.set()


def _note(followed: list[Followed]) -> bytes:
    """All that changed since the last one. Resuming after its revision misses nothing."""
    revision = min(each.watch.progress for each in followed)
    changes = {}
    for each in followed:
        changed, each.changed = each.changed, {}
        if changed:
            rows = each.rows([value for value in changed.values() if value is not None])
            changes[each.plural] = {"rows": rows, "gone": [path for path, value in changed.items() if value is None]}
    return _event("change", {"revision": revision, "changes": changes})


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))


def _values(entries: list[Entry]) -> list[bytes]:
    return [entry.value for entry in entries]


def _revision(text: str) -> int:
    if text and not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise Malformed(f"{text!r} is no revision", where="after", fix="give the revision of the last note, or leave it out")
    return int(text or 0)


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
