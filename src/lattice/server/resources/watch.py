"""Watches: every change after a revision, as lines of JSON, resumable, with bookmarks."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from lattice.errors import Gone
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.stored_encoding import Object, splice_revision, unpack
from lattice.server.requests.call import Call, Reply
from lattice.server.requests.options import ReadOptions, read_options
from lattice.server.requests.status_error import status_of
from lattice.server.resources.api import Api
from lattice.server.resources.lists import LIST_CHUNK_SIZE, Selection, build_selection, require_revision
from lattice.server.resources.negotiation import (
    DECODED_CHUNK_SIZE,
    Representation,
    parse_accept,
    partial_metadata,
    table_options,
)
from lattice.server.resources.table_rows import table
from lattice.server.resources.watch_frames import watch_event_value
from lattice.store.protocol import Batch, Change, Entry, Page, Store, Watch

BOOKMARK_INTERVAL_S = 60.0  # seconds
MAX_WATCH_S = 3600.0  # seconds, and half of it at least: clients come again, not all at once, which spreads them over servers


@dataclass
class WatchStream:
    """One client's watch: which changes concern it, in which form."""

    api: Api
    call: Call
    options: ReadOptions
    selection: Selection
    representation: Representation
    headers_pending: bool = True  # a table's heads go with its first row only

    def lines(self, batches: Iterable[Batch]) -> bytes:
        return b"".join([self._line(change) for batch in batches for change in batch.changes])

    def _line(self, change: Change) -> bytes:
        kind = self._event_type(change)
        if not kind:
            return b""
        if self.representation.is_plain_json:
            return self.api.watch_frames.line(self.selection.served, kind, change)
        return self.event(kind, unpack(watch_event_value(kind, change), change.revision))

    def _event_type(self, change: Change) -> str:
        """What happened, as seen through the selector: leaving it is a deletion, entering it an addition."""
        was = change.previous is not None and self.selection.matches(change.key, change.previous.value)
        now = change.value is not None and self.selection.matches(change.key, change.value)
        if now:
            return "MODIFIED" if was else "ADDED"
        return "DELETED" if was else ""

    def event(self, kind: str, obj: Object) -> bytes:
        if self.representation.kind == "table":
            revision = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            body: Any = table(
                table_options(self.api, self.call), [obj], revision, include_headers=self.headers_pending
            )
            self.headers_pending = False
        else:
            body = (
                partial_metadata(obj, self.representation.version)
                if self.representation.kind == "partial"
                else obj
            )
        return encode({"type": kind, "object": body}) + b"\n"

    def encode_added(self, entries: Iterable[Entry]) -> bytes:
        return b"".join(
            [
                self._encode_added_entry(entry)
                for entry in entries
                if self.selection.matches(entry.key, entry.value)
            ]
        )

    def _encode_added_entry(self, entry: Entry) -> bytes:
        if self.representation.is_plain_json:
            return b'{"type":"ADDED","object":%b}\n' % splice_revision(
                entry.value, self.selection.served.revision_offset, entry.revision
            )
        return self.event("ADDED", unpack(entry.value, entry.revision))

    def bookmark(self, revision: int, *, ends_initial_events: bool = False) -> bytes:
        resource = self.selection.served.resource
        metadata: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if ends_initial_events:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        if self.representation.kind == "table":
            row = {
                "cells": [],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": metadata,
                },
            }
            version = f"meta.k8s.io/{self.representation.version}"
            obj: Any = {
                "kind": "Table",
                "apiVersion": version,
                "metadata": {"resourceVersion": str(revision)},
                "columnDefinitions": None,
                "rows": [row],
            }
        elif self.representation.kind == "partial":
            obj = {
                "kind": "PartialObjectMetadata",
                "apiVersion": f"meta.k8s.io/{self.representation.version}",
                "metadata": metadata,
            }
        else:
            obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return encode({"type": "BOOKMARK", "object": obj}) + b"\n"


@dataclass
class InitialList:
    """What was there when a watch began, to be told as added: read and told a piece at a time, all at one revision."""

    store: Store
    resource: str
    namespace: str | None
    page: Page

    @classmethod
    async def start(cls, store: Store, call: Call, options: ReadOptions) -> "InitialList":
        resource, namespace = call.target.served.resource.id, call.target.namespace or None
        page = await store.list(resource, namespace, limit=LIST_CHUNK_SIZE)
        require_revision(options, page.revision)
        return cls(store, resource, namespace, page)

    @property
    def revision(self) -> int:
        return self.page.revision

    async def chunks(self) -> AsyncIterator[list[Entry]]:
        page = self.page
        while True:
            for start in range(0, len(page.entries), DECODED_CHUNK_SIZE):
                yield page.entries[start : start + DECODED_CHUNK_SIZE]
            if not page.has_more:
                return
            page = await self.store.list(
                self.resource,
                self.namespace,
                limit=LIST_CHUNK_SIZE,
                after=page.entries[-1].key.path,
                revision=self.revision,
            )


async def watch_objects(api: Api, call: Call) -> Reply:
    options = read_options(call.query)
    stream = WatchStream(api, call, options, build_selection(call, options), parse_accept(call.accept))
    after = int(options.revision or 0)
    first = options.initial_events or after == 0
    store = api.store_of(call.target.served)
    resource = call.target.served.resource.id
    opening = await InitialList.start(store, call, options) if first else None
    after = opening.revision if opening else after
    watch = await store.watch(resource, after)
    return Reply(_stream_events(stream, watch, opening, after))


async def _stream_events(
    stream: WatchStream, watch: Watch, opening: InitialList | None, after: int
) -> AsyncIterator[bytes]:
    clock, options = stream.api.clock, stream.options
    ends = clock.monotonic() + min(
        options.timeout_s or MAX_WATCH_S, MAX_WATCH_S * (1 + stream.api.jitter()) / 2
    )
    try:
        if opening is not None:
            async for entries in opening.chunks():
                yield stream.encode_added(entries)
                await asyncio.sleep(0)
        if options.initial_events and options.bookmarks:
            yield stream.bookmark(after, ends_initial_events=True)
        while (left := ends - clock.monotonic()) > 0:
            batches = await watch.next(min(left, BOOKMARK_INTERVAL_S))
            if batches:
                if lines := stream.lines(batches):
                    yield lines
            elif options.bookmarks:
                yield stream.bookmark(watch.progress)
    except Gone as gone:
        yield encode({"type": "ERROR", "object": status_of(gone)}) + b"\n"
    finally:
        watch.close()
