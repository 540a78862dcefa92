"""Watches: every change after a revision, as lines of JSON, resumable, with bookmarks."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from lattice.errors import Gone
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.stored import Object, splice, unpack
from lattice.server.resources.api import Api
from lattice.server.requests.call import Call, Reply
from lattice.server.resources.watch_frames import shown
from lattice.server.resources.lists import CHUNK, Selection, demand_fresh, selection
from lattice.server.requests.options import ReadOptions, read_options
from lattice.server.requests.status_error import status_of
from lattice.server.resources.negotiation import ROWS, Form, form_of, partial, rendering
from lattice.server.resources.table_rows import table
from lattice.store.protocol import Batch, Change, Entry, Page, Store, Watch

BOOKMARK_EVERY = 60.0  # seconds
LONGEST = 3600.0  # seconds, and half of it at least: clients come again, not all at once, which spreads them over servers


@dataclass
class Stream:
    """One client's watch: which changes concern it, in which form."""

    api: Api
    call: Call
    options: ReadOptions
    wanted: Selection
    form: Form
    heads: bool = True  # a table's heads go with its first row only

    def lines(self, batches: Iterable[Batch]) -> bytes:
        return b"".join([self._line(change) for batch in batches for change in batch.changes])

    def _line(self, change: Change) -> bytes:
        kind = self._kind(change)
        if not kind:
            return b""
        if self.form.plain:
            return self.api.frames.line(self.wanted.served, kind, change)
        return self.event(kind, unpack(shown(kind, change), change.revision))

    def _kind(self, change: Change) -> str:
        """What happened, as seen through the selector: leaving it is a deletion, entering it an addition."""
        was = change.previous is not None and self.wanted.takes(change.key, change.previous.value)
        now = change.value is not None and self.wanted.takes(change.key, change.value)
        if now:
            return "MODIFIED" if was else "ADDED"
        return "DELETED" if was else ""

    def event(self, kind: str, obj: Object) -> bytes:
        if self.form.kind == "table":
            revision = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            body: Any = table(rendering(self.api, self.call), [obj], revision, heads=self.heads)
            self.heads = False
        else:
            body = partial(obj, self.form.version) if self.form.kind == "partial" else obj
        return encode({"type": kind, "object": body}) + b"\n"

    def added(self, entries: Iterable[Entry]) -> bytes:
        return b"".join(
            [self._added(entry) for entry in entries if self.wanted.takes(entry.key, entry.value)]
        )

    def _added(self, entry: Entry) -> bytes:
        if self.form.plain:
            return b'{"type":"ADDED","object":%b}\n' % splice(
                entry.value, self.wanted.served.head, entry.revision
            )
        return self.event("ADDED", unpack(entry.value, entry.revision))

    def bookmark(self, revision: int, *, initial: bool = False) -> bytes:
        resource = self.wanted.served.resource
        metadata: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        if self.form.kind == "table":
            row = {
                "cells": [],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": metadata,
                },
            }
            version = f"meta.k8s.io/{self.form.version}"
            obj: Any = {
                "kind": "Table",
                "apiVersion": version,
                "metadata": {"resourceVersion": str(revision)},
                "columnDefinitions": None,
                "rows": [row],
            }
        elif self.form.kind == "partial":
            obj = {
                "kind": "PartialObjectMetadata",
                "apiVersion": f"meta.k8s.io/{self.form.version}",
                "metadata": metadata,
            }
        else:
            obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return encode({"type": "BOOKMARK", "object": obj}) + b"\n"


@dataclass
class Opening:
    """What was there when a watch began, to be told as added: read and told a piece at a time, all at one revision."""

    store: Store
    resource: str
    namespace: str | None
    page: Page

    @classmethod
    async def begin(cls, store: Store, call: Call, options: ReadOptions) -> "Opening":
        resource, namespace = call.target.served.resource.id, call.target.namespace or None
        page = await store.list(resource, namespace, limit=CHUNK)
        demand_fresh(options, page.revision)
        return cls(store, resource, namespace, page)

    @property
    def revision(self) -> int:
        return self.page.revision

    async def pieces(self) -> AsyncIterator[list[Entry]]:
        page = self.page
        while True:
            for start in range(0, len(page.entries), ROWS):
                yield page.entries[start : start + ROWS]
            if not page.more:
                return
            page = await self.store.list(
                self.resource,
                self.namespace,
                limit=CHUNK,
                after=page.entries[-1].key.path,
                revision=self.revision,
            )


async def watch_objects(api: Api, call: Call) -> Reply:
    options = read_options(call.query)
    stream = Stream(api, call, options, selection(call, options), form_of(call.accept))
    after = int(options.revision or 0)
    first = options.initial_events or after == 0
    store = api.store_of(call.target.served)
    resource = call.target.served.resource.id
    opening = await Opening.begin(store, call, options) if first else None
    after = opening.revision if opening else after
    watch = await store.watch(resource, after)
    return Reply(_follow(stream, watch, opening, after))


async def _follow(stream: Stream, watch: Watch, opening: Opening | None, after: int) -> AsyncIterator[bytes]:
    clock, options = stream.api.clock, stream.options
    ends = clock.monotonic() + min(options.timeout or LONGEST, LONGEST * (1 + stream.api.jitter()) / 2)
    try:
        if opening is not None:
            async for entries in opening.pieces():
                yield stream.added(entries)
                await asyncio.sleep(0)
        if options.initial_events and options.bookmarks:
            yield stream.bookmark(after, initial=True)
        while (left := ends - clock.monotonic()) > 0:
            batches = await watch.next(min(left, BOOKMARK_EVERY))
            if batches:
                if lines := stream.lines(batches):
                    yield lines
            elif options.bookmarks:
                yield stream.bookmark(watch.progress)
    except Gone as gone:
        yield encode({"type": "ERROR", "object": status_of(gone)}) + b"\n"
    finally:
        watch.close()
