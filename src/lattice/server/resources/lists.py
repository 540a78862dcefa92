"""Lists: consistent at one revision, in pages or streamed whole, filtered by label and field."""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from lattice.errors import Cause, Gone, Malformed, NotAcceptable, RevisionTooNew
from lattice.kinds.meta.stored_encoding import labels_of, unpack
from lattice.server.requests.call import Call, Reply
from lattice.server.requests.catalog import ServedKind
from lattice.server.requests.options import ReadOptions, delete_options, read_options
from lattice.server.resources.api import Api
from lattice.server.resources.negotiation import ListEncoding, list_encoding, parse_accept
from lattice.server.resources.verbs import delete_entry, read_delete_options
from lattice.store.protocol import Entry, Key, RevisionConflict

LIST_CHUNK_SIZE = 500  # entries read at a time
REVISION_TOO_LARGE_CAUSE = Cause("", "Too large resource version", "ResourceVersionTooLarge")


class ContinueToken(msgspec.Struct, array_like=True):
    """Where a list goes on: at the same revision, after this path."""

    resource: str
    revision: int
    after_path: str


@dataclass(frozen=True, slots=True)
class Selection:
    """Which entries of a resource are meant."""

    served: ServedKind
    namespace: str
    options: ReadOptions

    @property
    def is_unfiltered(self) -> bool:
        return not self.options.is_filtered

    def matches(self, key: Key, value: bytes) -> bool:
        if self.namespace and key.namespace != self.namespace:
            return False
        if not self.options.is_filtered:
            return True
        fields = self.options.fields
        if fields.exact_name and fields.exact_name != key.name:
            return False
        if self.options.labels.requirements and not self.options.labels.matches(labels_of(value)):
            return False
        return not fields.requirements or fields.matches(unpack(value, 0))


def build_selection(call: Call, options: ReadOptions) -> Selection:
    options.fields.validate_for(call.target.served.resource)
    return Selection(call.target.served, call.target.namespace, options)


async def list_objects(api: Api, call: Call) -> Reply:
    options = read_options(call.query)
    wanted = build_selection(call, options)
    if parse_accept(call.accept).kind == "yaml":
        raise NotAcceptable(
            "lists are given as JSON, single objects also as YAML", fix="send Accept: application/json"
        )
    start = _start(wanted, options)
    if options.limit:
        entries, revision, token = await _page(api, wanted, start)
        metadata: dict[str, Any] = {"resourceVersion": str(revision)} | ({"continue": token} if token else {})
        return list_reply(list_encoding(api, call, metadata), entries)
    entries, revision, more = await _read_chunk(api, wanted, start, LIST_CHUNK_SIZE)
    how = list_encoding(api, call, {"resourceVersion": str(revision)})
    if not more:
        return list_reply(how, _filter_entries(wanted, entries))
    rest = ContinueToken(start.resource, revision, entries[-1].key.path)
    return Reply(_pieces(how, _all_chunks(api, wanted, entries, rest)))


def list_reply(how: ListEncoding, entries: list[Entry]) -> Reply:
    """A short list at once, a longer one in pieces."""
    if len(entries) <= how.chunk_size:
        return Reply(b"".join([how.opening, how.encode_items(entries), b"]}"]))
    return Reply(_pieces(how, _single_chunk(entries)))


def _filter_entries(wanted: Selection, entries: list[Entry]) -> list[Entry]:
    return (
        entries
        if wanted.is_unfiltered
        else [entry for entry in entries if wanted.matches(entry.key, entry.value)]
    )


async def _single_chunk(entries: list[Entry]) -> AsyncIterator[list[Entry]]:
    yield entries


async def _all_chunks(
    api: Api, wanted: Selection, entries: list[Entry], start: ContinueToken
) -> AsyncIterator[list[Entry]]:
    """Everything that is wanted, chunk by chunk, at one revision."""
    rest: ContinueToken | None = start
    while True:
        yield _filter_entries(wanted, entries)
        if rest is None:
            return
        entries, _, more = await _read_chunk(api, wanted, rest, LIST_CHUNK_SIZE)
        rest = ContinueToken(rest.resource, rest.revision, entries[-1].key.path) if more else None


async def _pieces(how: ListEncoding, chunks: AsyncIterator[list[Entry]]) -> AsyncIterator[bytes]:
    """A little at a time: other requests go in between, and there is never much garbage at once."""
    yield how.opening
    begun = False
    async for entries in chunks:
        for start in range(0, len(entries), how.chunk_size):
            items = how.encode_items(entries[start : start + how.chunk_size])
            yield b"," + items if begun else items
            begun = True
            await asyncio.sleep(0)
    yield b"]}"


def _start(wanted: Selection, options: ReadOptions) -> ContinueToken:
    identifier = wanted.served.resource.id
    if options.continue_token:
        token = read_token(options.continue_token)
        if token.resource != f"{identifier}/{wanted.namespace}":
            raise Malformed(
                "continue key is not valid: it belongs to another list",
                where="continue",
                fix="start the list again",
            )
        return token
    exact = int(options.revision) if options.revision and options.revision_match == "Exact" else 0
    return ContinueToken(f"{identifier}/{wanted.namespace}", exact, "")


def read_token(text: str) -> ContinueToken:
    try:
        return msgspec.json.decode(urlsafe_b64decode(text.encode()), type=ContinueToken)
    except (ValueError, msgspec.DecodeError) as error:
        raise Malformed("continue key is not valid", where="continue", fix="start the list again") from error


def _write_token(token: ContinueToken) -> str:
    return urlsafe_b64encode(msgspec.json.encode(token)).decode()


async def _read_chunk(
    api: Api, wanted: Selection, start: ContinueToken, limit: int
) -> tuple[list[Entry], int, bool]:
    """The first chunk tells the revision that the rest is read at."""
    store = api.store_of(wanted.served)
    try:
        page = await store.list(
            wanted.served.resource.id,
            wanted.namespace or None,
            limit=limit,
            after=start.after_path,
            revision=start.revision,
        )
    except Gone as gone:
        if start.after_path:
            raise Gone(
                "The provided continue parameter is too old to display a consistent list result",
                fix="start the list again",
            ) from gone
        raise
    require_revision(wanted.options, page.revision)
    return page.entries, page.revision, page.has_more


def require_revision(options: ReadOptions, have: int) -> None:
    """NotOlderThan, spoken or not: a revision that has not happened yet cannot be shown."""
    wanted = int(options.revision or 0)
    if wanted > have:
        raise RevisionTooNew(
            f"Too large resource version: {wanted}, current: {have}", causes=[REVISION_TOO_LARGE_CAUSE]
        )


async def _page(api: Api, wanted: Selection, start: ContinueToken) -> tuple[list[Entry], int, str]:
    """Up to `limit` matching entries, and the token for the rest."""
    limit = wanted.options.limit
    taken: list[Entry] = []
    entries, revision, more = await _read_chunk(api, wanted, start, limit or LIST_CHUNK_SIZE)
    while True:
        for position, entry in enumerate(entries):
            if wanted.matches(entry.key, entry.value):
                taken.append(entry)
                if limit and len(taken) == limit:
                    rest = more or position < len(entries) - 1
                    return (
                        taken,
                        revision,
                        _write_token(ContinueToken(start.resource, revision, entry.key.path)) if rest else "",
                    )
        if not more:
            return taken, revision, ""
        entries, revision, more = await _read_chunk(
            api, wanted, ContinueToken(start.resource, revision, entries[-1].key.path), LIST_CHUNK_SIZE
        )


async def delete_collection(api: Api, call: Call) -> Reply:
    """Delete every matching object; answers with what was there."""
    options = read_options(call.query)
    how = delete_options(call.query, read_delete_options(call))
    wanted = build_selection(call, options)
    entries, revision, _ = await _page(api, wanted, _start(wanted, options))
    for entry in entries:
        found: Entry | None = entry
        while found is not None:
            try:
                await delete_entry(api, call, found, how)
                break
            except RevisionConflict:
                found = await api.store.get(entry.key)
    return list_reply(list_encoding(api, call, {"resourceVersion": str(revision)}), entries)
