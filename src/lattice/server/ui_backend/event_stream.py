"""GET /ui/live: what changes, for the page, as server-sent events. Rows as the page shows them, many changes in one note."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from lattice.errors import Denied, Gone, Malformed, UnknownUser
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.json_body import encode
from lattice.server.resources.api import Api
from lattice.server.access.authorization import Deed, authorize
from lattice.server.requests.call import Reply, User
from lattice.server.requests.catalog import Served
from lattice.server.resources.lists import CHUNK
from lattice.server.requests.status_error import status_of
from lattice.server.ui_backend.scopes import ALL, Scope, scopes
from lattice.server.ui_backend.row_summaries import Row, summary
from lattice.server.resources.watch import LONGEST
from lattice.store.protocol import Batch, Entry, Page, Watch

PACE = 0.25  # seconds between two notes: what changes in between is told once
BEAT = (
    4.0  # seconds after which a stream that has nothing to tell says so, and who listens is looked up again
)
ROWS = 100  # summed up at a time: a few milliseconds
MEDIA_TYPE = "text/event-stream"
BEATING = b": nothing new\n\n"

Again = Callable[[], Awaitable[User]]  # who listens, looked up once more


@dataclass
class Followed:
    """One kind of the stream: its watch, and what it told that the page was not told yet."""

    served: Served
    watch: Watch
    opening: Page | None
    scope: Scope = ALL
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

    def rows(self, values: Iterable[bytes]) -> list[Row]:
        return [row for row in map(self._row, values) if self.scope.keeps(row)]

    def news(self) -> dict[str, object]:
        """What was told since the last time. Whatever is out of scope is gone for who listens."""
        changed, self.changed = self.changed, {}
        rows = self.rows(value for value in changed.values() if value is not None)
        told = {row["path"] for row in rows}
        return {"rows": rows, "gone": [path for path in changed if path not in told]} if changed else {}

    def _row(self, value: bytes) -> Row:
        found: Kind = self._decode(value)
        return summary(found)


@dataclass
class PageStream:
    """`?kinds=a,b` are told of; those in `list=` are listed first; `only=` says which of a kind, see `Scope`; `after=REVISION` goes on
    where an earlier stream stopped."""

    api: Api

    async def open(self, user: User, query: Mapping[str, str], again: Again) -> Reply:
        """Ends once `again` does not know who listens any more, or they may not hear of it."""
        served = [self._served(each) for each in _words(query.get("kinds", ""))]
        if not served:
            raise Malformed(
                "of which kinds?", where="kinds", fix="name some, such as latticeservices,latticenodes"
            )
        _admit(user, served)
        listed = set(_words(query.get("list", "")))
        after = _revision(query.get("after", ""))
        only = scopes(query.get("only", ""))
        followed = await self._follow(served, listed, after)
        for each in followed:
            each.scope = only.get(each.plural, ALL)

        async def still_admitted() -> None:
            _admit(await again(), served)

        return Reply(self._events(followed, still_admitted), content_type=MEDIA_TYPE, is_quiet=True)

    def _served(self, plural: str) -> Served:
        for each in self.api.catalog:
            if each.resource.plural == plural and each.resource.id not in self.api.fixed:
                return each
        raise Malformed(
            f"there is no kind {plural!r}", where="kinds", fix="use plural names, such as latticenodes"
        )

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
        return await self.api.store.list(
            served.resource.id, None, limit=CHUNK, after=after, revision=revision
        )

    async def _events(
        self, followed: list[Followed], still_admitted: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[bytes]:
        news = asyncio.Event()
        ears = [asyncio.create_task(_hear(each, news)) for each in followed]
        try:
            for each in followed:
                async for piece in self._opening(each):
                    yield piece
            yield _note(followed)
            async for _ in self._turns(followed, ears, news):
                await still_admitted()
                yield _note(followed) if any(each.changed for each in followed) else BEATING
        except Gone as gone:
            yield _event("again", status_of(gone))
        except (UnknownUser, Denied):
            return  # whoever asks for the stream once more is told why
        finally:
            for ear in ears:
                ear.cancel()
            await asyncio.gather(*ears, return_exceptions=True)
            for each in followed:
                each.watch.close()

    async def _opening(self, each: Followed) -> AsyncIterator[bytes]:
        left = each.scope.newest or sys.maxsize
        async for some, follows in self._entries(each):
            found = each.rows(_values(some))
            rows, is_cut = found[:left], len(found) > left
            left -= len(rows)
            more = follows and left > 0
            if rows or not more:
                yield _event(
                    "rows",
                    {
                        "kind": each.plural,
                        "rows": rows,
                        "more": more,
                        "cut": is_cut or (follows and not more),
                    },
                )
            if not more:
                return
            await asyncio.sleep(0)

    async def _entries(self, each: Followed) -> AsyncIterator[tuple[list[Entry], bool]]:
        """A few at a time, and whether more follow. The newest first, if only those are wanted: a revision is as good as a clock."""
        page, each.opening = each.opening, None
        gathered: list[Entry] = []
        while page is not None:
            more = page.more
            if each.scope.newest:
                gathered += page.entries
                entries = [] if more else sorted(gathered, key=lambda entry: -entry.revision)
            else:
                entries = page.entries
            for start in range(0, len(entries) or 1, ROWS):
                yield entries[start : start + ROWS], more or start + ROWS < len(entries)
            page = await self._page(each.served, page.entries[-1].key.path, page.revision) if more else None

    async def _turns(
        self, followed: list[Followed], ears: "list[asyncio.Task[None]]", news: asyncio.Event
    ) -> AsyncIterator[None]:
        """Whenever it is time to tell something."""
        clock = self.api.clock
        ends = clock.monotonic() + LONGEST * (1 + self.api.jitter()) / 2
        while clock.monotonic() < ends:
            alarm = clock.alarm(BEAT, news.set)
            await news.wait()
            alarm.cancel()
            if any(each.changed for each in followed):
                await clock.sleep(PACE)
            news.clear()  # before the note is made: what is heard later is news again
            for ear in ears:
                if ear.done():
                    ear.result()  # which raises what ended it
            yield


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
    changes = {each.plural: news for each in followed if (news := each.news())}
    return _event("change", {"revision": revision, "changes": changes})


def _admit(user: User, served: Iterable[Served]) -> None:
    for each in served:
        authorize(user, Deed("watch", each.resource.group, each.resource.plural), each.resource)


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))


def _values(entries: list[Entry]) -> list[bytes]:
    return [entry.value for entry in entries]


def _revision(text: str) -> int:
    if text and not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise Malformed(
            f"{text!r} is no revision",
            where="after",
            fix="give the revision of the last note, or leave it out",
        )
    return int(text or 0)


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
