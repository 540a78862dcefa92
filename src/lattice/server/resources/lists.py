"""List requests: consistent at one revision, in pages or as one stream, filtered by label and field."""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from lattice.errors import Gone, Malformed, NotAcceptable
from lattice.kinds.meta.stored_encoding import labels_of, unpack
from lattice.server.requests.call import Call, Reply
from lattice.server.requests.catalog import ServedKind
from lattice.server.requests.options import ReadOptions, delete_options, read_options
from lattice.server.resources.api import Api
from lattice.server.resources.negotiation import ListEncoding, list_encoding, parse_accept
from lattice.server.resources.verbs import delete_entry, read_delete_options, require_reached_revision
from lattice.store.protocol import Entry, Key, RevisionConflict

# Entries that one call of the store reads.
LIST_CHUNK_SIZE = 500


class ContinueToken(msgspec.Struct, array_like=True):
    """The position of a list: the revision of the first page and the path of the last entry.

    `resource` is resource and namespace, so that a token of another list is rejected.
    """

    resource: str
    revision: int
    after_path: str
    # Objects after the path when the first page was read; -1 if the list has selectors.
    remaining: int = -1


@dataclass(frozen=True, slots=True)
class Selection:
    """The entries of a resource that a request selects by namespace, labels and fields."""

    served: ServedKind
    namespace: str
    options: ReadOptions

    @property
    def is_unfiltered(self) -> bool:
        return not self.options.is_filtered

    def matches(self, key: Key, value: bytes) -> bool:
        """Return whether the entry is selected; the cheap tests run before the value is decoded."""
        if self.namespace and key.namespace != self.namespace:
            return False
        if not self.options.is_filtered:
            return True
        fields = self.options.fields
        if fields.exact_name and fields.exact_name != key.name:
            return False
        if self.options.labels.requirements and not self.options.labels.matches(labels_of(value)):
            return False
        # No selectable field contains the revision, so 0 stands in.
        return not fields.requirements or fields.matches(unpack(value, 0))


def build_selection(call: Call, options: ReadOptions) -> Selection:
    """Return the selection of a call; raise an error for a field that the resource cannot select by."""
    options.fields.validate_for(call.target.served.resource)
    return Selection(call.target.served, call.target.namespace, options)


async def list_objects(api: Api, call: Call) -> Reply:
    """Answer a list request: one page if the request has a limit, otherwise every matching entry."""
    options = read_options(call.query)
    selection = build_selection(call, options)
    if parse_accept(call.accept).kind == "yaml":
        raise NotAcceptable(
            "lists are available as JSON, single objects also as YAML", fix="send Accept: application/json"
        )
    start = _start_position(selection, options)
    if options.limit:
        entries, revision, token = await _page(api, selection, start)
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if token is not None:
            token.remaining = await _remaining(api, selection, start, len(entries))
            metadata["continue"] = encode_token(token)
            if token.remaining > 0:
                metadata["remainingItemCount"] = token.remaining
        return _with_hint(call, options, list_reply(list_encoding(api, call, metadata), entries))
    entries, revision, has_more = await _read_chunk(api, selection, start, LIST_CHUNK_SIZE)
    encoding = list_encoding(api, call, {"resourceVersion": str(revision)})
    if not has_more:
        return _with_hint(call, options, list_reply(encoding, _filter_entries(selection, entries)))
    position = ContinueToken(start.resource, revision, entries[-1].key.path)
    return Reply(_encode_chunks(encoding, _all_chunks(api, selection, entries, position)))


def _with_hint(call: Call, options: ReadOptions, reply: Reply) -> Reply:
    """Add a warning to a list that is always empty: kubectl prints the warning above "No resources found".

    `kubectl cluster-info` lists Services by label and needs no hint.
    """
    hint = call.target.served.resource.list_hint
    return replace(reply, warnings=(*reply.warnings, hint)) if hint and not options.is_filtered else reply


def list_reply(encoding: ListEncoding, entries: list[Entry]) -> Reply:
    """Return a short list as one body and a longer list as a stream of chunks."""
    if len(entries) <= encoding.chunk_size:
        return Reply(b"".join([encoding.opening, encoding.encode_items(entries), b"]}"]))
    return Reply(_encode_chunks(encoding, _single_chunk(entries)))


def _filter_entries(selection: Selection, entries: list[Entry]) -> list[Entry]:
    if selection.is_unfiltered:
        return entries
    return [entry for entry in entries if selection.matches(entry.key, entry.value)]


async def _single_chunk(entries: list[Entry]) -> AsyncIterator[list[Entry]]:
    yield entries


async def _all_chunks(
    api: Api, selection: Selection, entries: list[Entry], start: ContinueToken
) -> AsyncIterator[list[Entry]]:
    """Yield the selected entries chunk by chunk, read at one revision."""
    position: ContinueToken | None = start
    while True:
        yield _filter_entries(selection, entries)
        if position is None:
            return
        entries, _, has_more = await _read_chunk(api, selection, position, LIST_CHUNK_SIZE)
        position = (
            ContinueToken(position.resource, position.revision, entries[-1].key.path) if has_more else None
        )


async def _encode_chunks(encoding: ListEncoding, chunks: AsyncIterator[list[Entry]]) -> AsyncIterator[bytes]:
    """Encode a list in small steps, so that other requests run in between and little garbage accumulates."""
    yield encoding.opening
    has_items = False
    async for entries in chunks:
        for start in range(0, len(entries), encoding.chunk_size):
            items = encoding.encode_items(entries[start : start + encoding.chunk_size])
            yield b"," + items if has_items else items
            has_items = True
            await asyncio.sleep(0)
    yield b"]}"


def _start_position(selection: Selection, options: ReadOptions) -> ContinueToken:
    identifier = selection.served.resource.id
    if options.continue_token:
        token = read_token(options.continue_token)
        if token.resource != f"{identifier}/{selection.namespace}":
            raise Malformed(
                "continue key is not valid: it belongs to a different list",
                where="continue",
                fix="start the list again",
            )
        return token
    # As in Kubernetes: a page at a stated revision, without a match rule, is a page of that revision.
    is_exact = options.revision_match == "Exact" or (options.limit and not options.revision_match)
    exact_revision = int(options.revision) if options.revision and is_exact else 0
    return ContinueToken(f"{identifier}/{selection.namespace}", exact_revision, "")


def encode_token(token: ContinueToken) -> str:
    return urlsafe_b64encode(msgspec.json.encode(token)).decode()


def read_token(text: str) -> ContinueToken:
    """Parse a continue token; raise Malformed if a client altered the token."""
    try:
        return msgspec.json.decode(urlsafe_b64decode(text.encode()), type=ContinueToken)
    except (ValueError, msgspec.DecodeError) as error:
        raise Malformed("continue key is not valid", where="continue", fix="start the list again") from error


async def _read_chunk(
    api: Api, selection: Selection, start: ContinueToken, limit: int
) -> tuple[list[Entry], int, bool]:
    """Return entries, their revision and whether more follow; the revision of the first chunk is the revision
    of the list."""
    store = api.store_of(selection.served)
    try:
        page = await store.list(
            selection.served.resource.id,
            selection.namespace or None,
            limit=limit,
            after=start.after_path,
            revision=start.revision,
        )
    except Gone as gone:
        if start.after_path:
            expired = Gone(
                "The provided continue parameter is too old to display a consistent list result. You can start a "
                "new list without the continue parameter, or use the continue token in this response to retrieve "
                "the remainder of the results. Continuing with the provided token results in an inconsistent list"
            )
            # Revision 0 reads the rest of the list from the newest state.
            expired.continue_token = encode_token(ContinueToken(start.resource, 0, start.after_path))
            raise expired from gone
        raise
    require_revision(selection.options, page.revision)
    return page.entries, page.revision, page.has_more


def require_revision(options: ReadOptions, current: int) -> None:
    """Raise RevisionTooNew if the request names a revision that the store has not reached."""
    require_reached_revision(int(options.revision or 0), current)


async def _remaining(api: Api, selection: Selection, start: ContinueToken, page_size: int) -> int:
    """Return the number of objects on the following pages; -1 if a selector decides, as in Kubernetes.

    The store counts once for a list: the token of a page carries the number to the next page.
    """
    if not selection.is_unfiltered:
        return -1
    total = start.remaining
    if not start.after_path:
        store = api.store_of(selection.served)
        total = await store.count(selection.served.resource.id, selection.namespace or None)
    # A page follows, whatever was deleted since the count.
    return max(total - page_size, 1) if total >= 0 else -1


async def _page(
    api: Api, selection: Selection, start: ContinueToken
) -> tuple[list[Entry], int, ContinueToken | None]:
    """Return up to `limit` matching entries, their revision, and the position of the next page or None."""
    limit = selection.options.limit
    matching: list[Entry] = []
    entries, revision, has_more = await _read_chunk(api, selection, start, limit or LIST_CHUNK_SIZE)
    while True:
        for position, entry in enumerate(entries):
            if selection.matches(entry.key, entry.value):
                matching.append(entry)
                if limit and len(matching) == limit:
                    # The limit ends exactly at the last entry: no page follows.
                    if not has_more and position == len(entries) - 1:
                        return matching, revision, None
                    return matching, revision, ContinueToken(start.resource, revision, entry.key.path)
        if not has_more:
            return matching, revision, None
        token = ContinueToken(start.resource, revision, entries[-1].key.path)
        entries, revision, has_more = await _read_chunk(api, selection, token, LIST_CHUNK_SIZE)


async def delete_collection(api: Api, call: Call) -> Reply:
    """Delete every matching object and answer with the list of objects before the deletion."""
    options = read_options(call.query)
    deletion_options = delete_options(call.query, read_delete_options(call))
    selection = build_selection(call, options)
    entries, revision, _ = await _page(api, selection, _start_position(selection, options))
    for entry in entries:
        current: Entry | None = entry
        while current is not None:
            try:
                await delete_entry(api, call, current, deletion_options)
                break
            except RevisionConflict:
                # A concurrent write changed the object: delete the newer revision.
                current = await api.store_of(call.target.served).get(entry.key)
    return list_reply(list_encoding(api, call, {"resourceVersion": str(revision)}), entries)
