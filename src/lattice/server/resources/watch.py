"""Watch requests: a stream of JSON lines with every change after a revision, resumable, with bookmarks."""

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
from lattice.store.protocol import Batch, Entry, Page, Store, Watch, list_pages

BOOKMARK_INTERVAL_S = 60.0
# The longest watch; jitter shortens a watch by up to half, so that clients reconnect at different times and
# spread over the servers.
MAX_WATCH_S = 3600.0


@dataclass
class WatchStream:
    """The watch of one client: selects the changes that match the selector and encodes events for the
    client."""

    api: Api
    call: Call
    options: ReadOptions
    selection: Selection
    representation: Representation
    # Only the first row of a table carries the column definitions.
    headers_pending: bool = True

    def lines(self, batches: Iterable[Batch]) -> bytes:
        """Encode the changes that concern the client, one line per event.

        The event type is the change as the selector sees the change: an object that no longer matches counts
        as DELETED, an object that begins to match as ADDED.
        """
        matches = self.selection.matches
        lines = []
        for batch in batches:
            for change in batch.changes:
                key, previous = change.key, change.previous
                matched_before = previous is not None and matches(key, previous.value)
                if change.value is not None and matches(key, change.value):
                    event_type = "MODIFIED" if matched_before else "ADDED"
                elif matched_before:
                    event_type = "DELETED"
                else:
                    continue
                if self.representation.is_plain_json:
                    lines.append(self.api.watch_frames.line(self.selection.served, event_type, change))
                else:
                    obj = unpack(watch_event_value(event_type, change), change.revision)
                    lines.append(self.event(event_type, obj))
        return b"".join(lines)

    def event(self, event_type: str, obj: Object) -> bytes:
        """Encode one event in the representation of the client."""
        body: Any = obj
        if self.representation.kind == "table":
            revision = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            body = table(
                table_options(self.api, self.call), [obj], revision, include_headers=self.headers_pending
            )
            self.headers_pending = False
        elif self.representation.kind == "partial":
            body = partial_metadata(obj, self.representation.version)
        return encode({"type": event_type, "object": body}) + b"\n"

    def encode_added(self, entries: Iterable[Entry]) -> bytes:
        """Encode the matching entries of the initial list as ADDED events."""
        lines = []
        for entry in entries:
            if not self.selection.matches(entry.key, entry.value):
                continue
            if self.representation.is_plain_json:
                offset = self.selection.served.revision_offset
                obj = splice_revision(entry.value, offset, entry.revision)
                lines.append(b'{"type":"ADDED","object":%b}\n' % obj)
            else:
                lines.append(self.event("ADDED", unpack(entry.value, entry.revision)))
        return b"".join(lines)

    def bookmark(self, revision: int, *, ends_initial_events: bool = False) -> bytes:
        """Encode a BOOKMARK event: the stream has delivered every change up to the revision."""
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
    """The objects at the start of a watch, read page by page at one revision and sent as ADDED events in
    chunks."""

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
        pages = list_pages(self.store, self.resource, self.namespace, limit=LIST_CHUNK_SIZE, first=self.page)
        async for page in pages:
            for start in range(0, len(page.entries), DECODED_CHUNK_SIZE):
                yield page.entries[start : start + DECODED_CHUNK_SIZE]


async def watch_objects(api: Api, call: Call) -> Reply:
    """Start a watch at the requested revision; without a revision, the watch begins with the current
    objects."""
    options = read_options(call.query)
    stream = WatchStream(api, call, options, build_selection(call, options), parse_accept(call.accept))
    revision = int(options.revision or 0)
    needs_initial_list = options.initial_events or revision == 0
    store = api.store_of(call.target.served)
    resource = call.target.served.resource.id
    initial_list = await InitialList.start(store, call, options) if needs_initial_list else None
    revision = initial_list.revision if initial_list else revision
    # The watch begins at the revision of the list, so that no change in between is lost.
    watch = await store.watch(resource, revision)
    return Reply(_stream_events(stream, watch, initial_list, revision))


async def _stream_events(
    stream: WatchStream, watch: Watch, initial_list: InitialList | None, revision: int
) -> AsyncIterator[bytes]:
    clock, options = stream.api.clock, stream.options
    deadline = clock.monotonic() + min(
        options.timeout_s or MAX_WATCH_S, MAX_WATCH_S * (1 + stream.api.jitter()) / 2
    )
    try:
        if initial_list is not None:
            async for entries in initial_list.chunks():
                yield stream.encode_added(entries)
                # Lets other requests run between two chunks.
                await asyncio.sleep(0)
        if options.initial_events and options.bookmarks:
            yield stream.bookmark(revision, ends_initial_events=True)
        while (remaining := deadline - clock.monotonic()) > 0:
            batches = await watch.next(min(remaining, BOOKMARK_INTERVAL_S))
            if batches:
                if lines := stream.lines(batches):
                    yield lines
            elif options.bookmarks:
                yield stream.bookmark(watch.progress)
    except Gone as gone:
        yield encode({"type": "ERROR", "object": status_of(gone)}) + b"\n"
    finally:
        watch.close()
