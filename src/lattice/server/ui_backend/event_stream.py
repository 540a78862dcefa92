"""GET /ui/live: what changes, for the page, as server-sent events. Rows as the page shows them, many changes in one note."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from lattice.errors import Denied, Gone, Malformed, UnknownUser
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.json_body import encode
from lattice.server.access.authorization import RequestAttributes, authorize
from lattice.server.requests.call import Reply, User
from lattice.server.requests.catalog import ServedKind
from lattice.server.requests.status_error import status_of
from lattice.server.resources.api import Api
from lattice.server.resources.lists import LIST_CHUNK_SIZE
from lattice.server.resources.watch import MAX_WATCH_S
from lattice.server.ui_backend.row_summaries import Row, row_summary
from lattice.store.protocol import Batch, Entry, Page, Watch

SEARCHED_EVENT_FIELDS = ("type", "reason", "kind", "about", "namespace", "message", "by")  # of an event


CHANGE_BATCH_INTERVAL_S = 0.25  # seconds between two notes: what changes in between is told once
KEEPALIVE_INTERVAL_S = (
    4.0  # seconds after which a stream that has nothing to tell says so, and who listens is looked up again
)
SUMMARY_CHUNK_SIZE = 100  # summed up at a time: a few milliseconds
MEDIA_TYPE = "text/event-stream"
KEEPALIVE_COMMENT = b": nothing new\n\n"
Reauthenticate = Callable[[], Awaitable[User]]  # who listens, looked up once more


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is asked for must hold; without any of it everything is in."""

    service: str = ""  # namespace/name: its replicas
    node: str = ""  # what is bound to it
    unplaced: bool = False  # what finds no node
    type: str = ""
    words: str = ""
    newest: Annotated[int, msgspec.Meta(ge=0)] = 0  # at most so many; 0: all

    def matches(self, row: Row) -> bool:
        return (
            (not self.service or self.service == f"{row.get('namespace', '')}/{row.get('service', '')}")
            and (not self.node or self.node == row.get("node"))
            and (not self.unplaced or bool(row.get("why") and not row.get("node")))
            and (not self.type or self.type == row.get("type"))
            and (not self.words or _contains_words(row, self.words))
        )


UNFILTERED = Scope()
_read = msgspec.json.Decoder(dict[str, Scope]).decode


def parse_scopes(text: str) -> Mapping[str, Scope]:
    """By plural name of the kind, as JSON."""
    try:
        return _read(text) if text else {}
    except msgspec.MsgspecError as error:
        fix = 'send a scope for each kind, such as {"latticeworkloads": {"service": "default/web"}}'
        raise Malformed(
            f"what is wanted of the kinds cannot be read: {error}", where="only", fix=fix
        ) from error


def _contains_words(row: Row, words: str) -> bool:
    said = " ".join(str(row.get(name, "")) for name in SEARCHED_EVENT_FIELDS).lower()
    return all(word in said for word in words.lower().split())


@dataclass
class WatchedKind:
    """One kind of the stream: its watch, and what it told that the page was not told yet."""

    served: ServedKind
    watch: Watch
    initial_page: Page | None
    scope: Scope = UNFILTERED
    pending_changes: dict[str, bytes | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._decode = msgspec.json.Decoder(self.served.kind).decode

    @property
    def plural(self) -> str:
        return self.served.resource.plural

    def add_changes(self, batches: list[Batch]) -> None:
        for batch in batches:
            for change in batch.changes:
                self.pending_changes[change.key.path] = change.value

    def rows(self, values: Iterable[bytes]) -> list[Row]:
        return [row for row in map(self._row, values) if self.scope.matches(row)]

    def drain_changes(self) -> dict[str, object]:
        """What was told since the last time. Whatever is out of scope is gone for who listens."""
        changed, self.pending_changes = self.pending_changes, {}
        rows = self.rows(value for value in changed.values() if value is not None)
        told = {row["path"] for row in rows}
        return {"rows": rows, "gone": [path for path in changed if path not in told]} if changed else {}

    def _row(self, value: bytes) -> Row:
        found: Kind = self._decode(value)
        return row_summary(found)


@dataclass
class PageEventStream:
    """`?kinds=a,b` are told of; those in `list=` are listed first; `only=` says which of a kind, see `Scope`; `after=REVISION` goes on
    where an earlier stream stopped."""

    api: Api

    async def open(self, user: User, query: Mapping[str, str], again: Reauthenticate) -> Reply:
        """Ends once `again` does not know who listens any more, or they may not hear of it."""
        served = [self._served(each) for each in _words(query.get("kinds", ""))]
        if not served:
            raise Malformed(
                "of which kinds?", where="kinds", fix="name some, such as latticeservices,latticenodes"
            )
        _authorize_watch(user, served)
        listed = set(_words(query.get("list", "")))
        after = _revision(query.get("after", ""))
        only = parse_scopes(query.get("only", ""))
        followed = await self._watch_kinds(served, listed, after)
        for each in followed:
            each.scope = only.get(each.plural, UNFILTERED)

        async def still_admitted() -> None:
            _authorize_watch(await again(), served)

        return Reply(self._events(followed, still_admitted), content_type=MEDIA_TYPE, is_idle_stream=True)

    def _served(self, plural: str) -> ServedKind:
        for each in self.api.catalog:
            if each.resource.plural == plural and each.resource.id not in self.api.read_only_stores:
                return each
        raise Malformed(
            f"there is no kind {plural!r}", where="kinds", fix="use plural names, such as latticenodes"
        )

    async def _watch_kinds(self, served: list[ServedKind], listed: set[str], after: int) -> list[WatchedKind]:
        followed: list[WatchedKind] = []
        try:
            for each in served:
                opening = await self._page(each) if each.resource.plural in listed else None
                start = opening.revision if opening else after or await self.api.store.revision()
                followed.append(
                    WatchedKind(each, await self.api.store.watch(each.resource.id, start), opening)
                )
        except BaseException:
            for kind in followed:
                kind.watch.close()
            raise
        return followed

    async def _page(self, served: ServedKind, after: str = "", revision: int = 0) -> Page:
        return await self.api.store.list(
            served.resource.id, None, limit=LIST_CHUNK_SIZE, after=after, revision=revision
        )

    async def _events(
        self, followed: list[WatchedKind], still_admitted: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[bytes]:
        news = asyncio.Event()
        ears = [asyncio.create_task(_collect_changes(each, news)) for each in followed]
        try:
            for each in followed:
                async for piece in self._initial_rows(each):
                    yield piece
            yield _change_event(followed)
            async for _ in self._ticks(followed, ears, news):
                await still_admitted()
                yield (
                    _change_event(followed)
                    if any(each.pending_changes for each in followed)
                    else KEEPALIVE_COMMENT
                )
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

    async def _initial_rows(self, each: WatchedKind) -> AsyncIterator[bytes]:
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

    async def _entries(self, each: WatchedKind) -> AsyncIterator[tuple[list[Entry], bool]]:
        """A few at a time, and whether more follow. The newest first, if only those are wanted: a revision is as good as a clock."""
        page, each.initial_page = each.initial_page, None
        gathered: list[Entry] = []
        while page is not None:
            more = page.has_more
            if each.scope.newest:
                gathered += page.entries
                entries = [] if more else sorted(gathered, key=lambda entry: -entry.revision)
            else:
                entries = page.entries
            for start in range(0, len(entries) or 1, SUMMARY_CHUNK_SIZE):
                yield (
                    entries[start : start + SUMMARY_CHUNK_SIZE],
                    more or start + SUMMARY_CHUNK_SIZE < len(entries),
                )
            page = await self._page(each.served, page.entries[-1].key.path, page.revision) if more else None

    async def _ticks(
        self, followed: list[WatchedKind], ears: "list[asyncio.Task[None]]", news: asyncio.Event
    ) -> AsyncIterator[None]:
        """Whenever it is time to tell something."""
        clock = self.api.clock
        ends = clock.monotonic() + MAX_WATCH_S * (1 + self.api.jitter()) / 2
        while clock.monotonic() < ends:
            alarm = clock.call_later(KEEPALIVE_INTERVAL_S, news.set)
            await news.wait()
            alarm.cancel()
            if any(each.pending_changes for each in followed):
                await clock.sleep(CHANGE_BATCH_INTERVAL_S)
            news.clear()  # before the note is made: what is heard later is news again
            for ear in ears:
                if ear.done():
                    ear.result()  # which raises what ended it
            yield


async def _collect_changes(each: WatchedKind, news: asyncio.Event) -> None:
    try:
        while True:
            each.add_changes(list(await each.watch.next(None)))
            news.set()
    finally:
        news.set()


def _change_event(followed: list[WatchedKind]) -> bytes:
    """All that changed since the last one. Resuming after its revision misses nothing."""
    revision = min(each.watch.progress for each in followed)
    changes = {each.plural: news for each in followed if (news := each.drain_changes())}
    return _event("change", {"revision": revision, "changes": changes})


def _authorize_watch(user: User, served: Iterable[ServedKind]) -> None:
    for each in served:
        authorize(user, RequestAttributes("watch", each.resource.group, each.resource.plural), each.resource)


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
