"""GET /ui/live: changes of objects for the web page, as server-sent events with summary rows, several changes
in one event."""

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

# The fields of an Event row that are searched for the `words` of a scope.
SEARCHED_EVENT_FIELDS = ("type", "reason", "kind", "about", "namespace", "message", "by")


# Time between two events of a stream: an object that changes several times in between is sent once.
CHANGE_BATCH_INTERVAL_S = 0.25
# An idle stream sends a comment at this interval and authenticates the user again.
KEEPALIVE_INTERVAL_S = 4.0
# Objects that one step summarises: a few milliseconds on the event loop.
SUMMARY_CHUNK_SIZE = 100
MEDIA_TYPE = "text/event-stream"
KEEPALIVE_COMMENT = b": nothing new\n\n"
# Authenticates the user of the stream again.
Reauthenticate = Callable[[], Awaitable[User]]


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The filter of one kind: a row must match every field that is set; an empty scope matches every row.

    `service` is namespace/name and selects replicas of the service, `node` selects workloads bound to the
    node, and `unplaced` selects unschedulable workloads. `type` selects Events of a type, and `words` selects
    Events that contain every word. `newest` limits the initial rows to that many (0: no limit).
    """

    service: str = ""
    node: str = ""
    unplaced: bool = False
    type: str = ""
    words: str = ""
    newest: Annotated[int, msgspec.Meta(ge=0)] = 0

    def matches(self, row: Row) -> bool:
        if not (
            (not self.service or self.service == f"{row.get('namespace', '')}/{row.get('service', '')}")
            and (not self.node or self.node == row.get("node"))
            and (not self.unplaced or bool(row.get("why") and not row.get("node")))
            and (not self.type or self.type == row.get("type"))
        ):
            return False
        if not self.words:
            return True
        text = " ".join(str(row.get(name, "")) for name in SEARCHED_EVENT_FIELDS).lower()
        return all(word in text for word in self.words.lower().split())


UNFILTERED = Scope()
_decode_scopes = msgspec.json.Decoder(dict[str, Scope]).decode


def parse_scopes(text: str) -> Mapping[str, Scope]:
    """Parse the scopes of a request: JSON, by plural name of the kind."""
    try:
        return _decode_scopes(text) if text else {}
    except msgspec.MsgspecError as error:
        fix = 'send a scope for each kind, such as {"latticeworkloads": {"service": "default/web"}}'
        raise Malformed(f"the scopes of the kinds cannot be read: {error}", where="only", fix=fix) from error


@dataclass
class WatchedKind:
    """One kind of the stream: the watch, and the changes that the page has not received yet."""

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
        """Add the changes of a watch; only the newest value of an object counts."""
        for batch in batches:
            for change in batch.changes:
                self.pending_changes[change.key.path] = change.value

    def rows(self, values: Iterable[bytes]) -> list[Row]:
        """Return the summary rows of the encoded objects that match the scope."""
        rows = []
        for value in values:
            obj: Kind = self._decode(value)
            row = row_summary(obj)
            if self.scope.matches(row):
                rows.append(row)
        return rows

    def drain_changes(self) -> dict[str, object]:
        """Return the pending changes and clear them. For the page, an object outside the scope counts as
        gone."""
        changed, self.pending_changes = self.pending_changes, {}
        rows = self.rows(value for value in changed.values() if value is not None)
        shown = {row["path"] for row in rows}
        return {"rows": rows, "gone": [path for path in changed if path not in shown]} if changed else {}


@dataclass
class PageEventStream:
    """The event stream of the web page.

    The query `kinds=a,b` names the watched kinds; `list=` names the kinds whose objects are sent first;
    `only=` gives the Scope of a kind; `after=REVISION` resumes an earlier stream.
    """

    api: Api

    async def open(self, user: User, query: Mapping[str, str], reauthenticate: Reauthenticate) -> Reply:
        """Open a stream for a user. The stream ends when `reauthenticate` rejects the user, or the user may no
        longer watch the kinds."""
        served = [self._served_kind(plural) for plural in _split_list(query.get("kinds", ""))]
        if not served:
            raise Malformed(
                "at least one kind is required",
                where="kinds",
                fix="list the kinds, such as latticeservices,latticenodes",
            )
        _authorize_watch(user, served)
        listed = set(_split_list(query.get("list", "")))
        after = query.get("after", "")
        if after and not (after.isascii() and after.isdecimal() and len(after) < 20):
            raise Malformed(
                f"{after!r} is not a revision",
                where="after",
                fix="use the revision of the last event, or omit the parameter",
            )
        scopes = parse_scopes(query.get("only", ""))
        watched_kinds = await self._watch_kinds(served, listed, int(after or 0))
        for kind in watched_kinds:
            kind.scope = scopes.get(kind.plural, UNFILTERED)

        async def reauthorize() -> None:
            _authorize_watch(await reauthenticate(), served)

        return Reply(self._events(watched_kinds, reauthorize), content_type=MEDIA_TYPE, is_idle_stream=True)

    def _served_kind(self, plural: str) -> ServedKind:
        for served in self.api.catalog:
            if served.resource.plural == plural and served.resource.id not in self.api.read_only_stores:
                return served
        raise Malformed(
            f"there is no kind {plural!r}", where="kinds", fix="use plural names, such as latticenodes"
        )

    async def _watch_kinds(
        self, served_kinds: list[ServedKind], listed: set[str], after: int
    ) -> list[WatchedKind]:
        watched_kinds: list[WatchedKind] = []
        try:
            for served in served_kinds:
                page = await self._page(served) if served.resource.plural in listed else None
                start = page.revision if page else after or await self.api.store.revision()
                watch = await self.api.store.watch(served.resource.id, start)
                watched_kinds.append(WatchedKind(served, watch, page))
        except BaseException:
            for kind in watched_kinds:
                kind.watch.close()
            raise
        return watched_kinds

    async def _page(self, served: ServedKind, after: str = "", revision: int = 0) -> Page:
        return await self.api.store.list(
            served.resource.id, None, limit=LIST_CHUNK_SIZE, after=after, revision=revision
        )

    async def _events(
        self, watched_kinds: list[WatchedKind], reauthorize: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[bytes]:
        has_changes = asyncio.Event()
        collectors = [asyncio.create_task(_collect_changes(kind, has_changes)) for kind in watched_kinds]
        try:
            for kind in watched_kinds:
                async for chunk in self._initial_rows(kind):
                    yield chunk
            yield _change_event(watched_kinds)
            async for _ in self._ticks(watched_kinds, collectors, has_changes):
                # Checked for every event: a revoked token ends an open stream.
                await reauthorize()
                if any(kind.pending_changes for kind in watched_kinds):
                    yield _change_event(watched_kinds)
                else:
                    yield KEEPALIVE_COMMENT
        except Gone as gone:
            yield _event("again", status_of(gone))
        except (UnknownUser, Denied):
            # The next request of the client for a stream gets the error.
            return
        finally:
            for collector in collectors:
                collector.cancel()
            await asyncio.gather(*collectors, return_exceptions=True)
            for kind in watched_kinds:
                kind.watch.close()

    async def _initial_rows(self, kind: WatchedKind) -> AsyncIterator[bytes]:
        remaining = kind.scope.newest or sys.maxsize
        async for entries, follows in self._initial_entries(kind):
            matching = kind.rows([entry.value for entry in entries])
            rows, is_cut = matching[:remaining], len(matching) > remaining
            remaining -= len(rows)
            has_more = follows and remaining > 0
            if rows or not has_more:
                yield _event(
                    "rows",
                    {
                        "kind": kind.plural,
                        "rows": rows,
                        "more": has_more,
                        "cut": is_cut or (follows and not has_more),
                    },
                )
            if not has_more:
                return
            # Lets other requests run between two chunks.
            await asyncio.sleep(0)

    async def _initial_entries(self, kind: WatchedKind) -> AsyncIterator[tuple[list[Entry], bool]]:
        """Yield chunks of the initial entries, and whether more follow.

        A scope with `newest` gets the entries in descending order of revision, which is the order of time.
        """
        page, kind.initial_page = kind.initial_page, None
        collected: list[Entry] = []
        while page is not None:
            if not kind.scope.newest:
                entries = page.entries
            else:
                # Only the last page completes the order, so earlier pages yield empty chunks.
                collected += page.entries
                entries = [] if page.has_more else sorted(collected, key=lambda entry: -entry.revision)
            for start in range(0, len(entries) or 1, SUMMARY_CHUNK_SIZE):
                end = start + SUMMARY_CHUNK_SIZE
                yield entries[start:end], page.has_more or end < len(entries)
            if not page.has_more:
                return
            page = await self._page(kind.served, page.entries[-1].key.path, page.revision)

    async def _ticks(
        self,
        watched_kinds: list[WatchedKind],
        collectors: "list[asyncio.Task[None]]",
        has_changes: asyncio.Event,
    ) -> AsyncIterator[None]:
        """Yield whenever the stream must send an event or a keepalive; raise the error of a failed watch."""
        clock = self.api.clock
        # Random, so that streams that began together do not end together.
        deadline = clock.monotonic() + MAX_WATCH_S * (1 + self.api.jitter()) / 2
        while clock.monotonic() < deadline:
            alarm = clock.call_later(KEEPALIVE_INTERVAL_S, has_changes.set)
            await has_changes.wait()
            alarm.cancel()
            if any(kind.pending_changes for kind in watched_kinds):
                await clock.sleep(CHANGE_BATCH_INTERVAL_S)
            # Cleared before the event is built, so that a change that arrives meanwhile sets the flag again.
            has_changes.clear()
            for collector in collectors:
                if collector.done():
                    # Raises the exception that ended the watch.
                    collector.result()
            yield


async def _collect_changes(kind: WatchedKind, has_changes: asyncio.Event) -> None:
    try:
        while True:
            kind.add_changes(list(await kind.watch.next(None)))
            has_changes.set()
    finally:
        # Wakes the stream, which then raises the error of the watch.
        has_changes.set()


def _change_event(watched_kinds: list[WatchedKind]) -> bytes:
    """Encode the changes since the last event; a stream that resumes after the revision of the event misses
    no change."""
    # The slowest watch decides how far the stream has come.
    revision = min(kind.watch.progress for kind in watched_kinds)
    changes = {kind.plural: change for kind in watched_kinds if (change := kind.drain_changes())}
    return _event("change", {"revision": revision, "changes": changes})


def _authorize_watch(user: User, served_kinds: Iterable[ServedKind]) -> None:
    for served in served_kinds:
        resource = served.resource
        authorize(user, RequestAttributes("watch", resource.group, resource.plural), resource)


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))


def _split_list(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
