"""Lists: consistent at one revision, in pages or streamed whole, filtered by label and field."""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from lattice.errors import Ahead, Cause, Gone, Malformed, NotAcceptable
from lattice.kinds.meta.stored import labels_of, unpack
from lattice.server.resources.api import Api
from lattice.server.requests.call import Call, Reply
from lattice.server.requests.catalog import Served
from lattice.server.requests.options import ReadOptions, delete_options, read_options
from lattice.server.resources.negotiation import ListForm, form_of, list_form
from lattice.server.resources.verbs import delete_entry, read_delete_options
from lattice.store.protocol import Clash, Entry, Key

CHUNK = 500  # entries read at a time
TOO_LARGE = Cause("", "Too large resource version", "ResourceVersionTooLarge")


class Token(msgspec.Struct, array_like=True):
    """Where a list goes on: at the same revision, after this path."""

    resource: str
    revision: int
    after: str


@dataclass(frozen=True, slots=True)
class Selection:
    """Which entries of a resource are meant."""

    served: Served
    namespace: str
    options: ReadOptions

    @property
    def everything(self) -> bool:
        return not self.options.selects

    def takes(self, key: Key, value: bytes) -> bool:
        if self.namespace and key.namespace != self.namespace:
            return False
        if not self.options.selects:
            return True
        fields = self.options.fields
        if fields.name and fields.name != key.name:
            return False
        if self.options.labels.requirements and not self.options.labels.matches(labels_of(value)):
            return False
        return not fields.demands or fields.matches(unpack(value, 0))


def selection(call: Call, options: ReadOptions) -> Selection:
    options.fields.refuse_unsupported(call.target.served.resource)
    return Selection(call.target.served, call.target.namespace, options)


async def list_objects(api: Api, call: Call) -> Reply:
    options = read_options(call.query)
    wanted = selection(call, options)
    if form_of(call.accept).kind == "yaml":
        raise NotAcceptable(
            "lists are given as JSON, single objects also as YAML", fix="send Accept: application/json"
        )
    start = _start(wanted, options)
    if options.limit:
        entries, revision, token = await _page(api, wanted, start)
        metadata: dict[str, Any] = {"resourceVersion": str(revision)} | ({"continue": token} if token else {})
        return tell(list_form(api, call, metadata), entries)
    entries, revision, more = await _first(api, wanted, start, CHUNK)
    how = list_form(api, call, {"resourceVersion": str(revision)})
    if not more:
        return tell(how, _taken(wanted, entries))
    rest = Token(start.resource, revision, entries[-1].key.path)
    return Reply(_pieces(how, _all(api, wanted, entries, rest)))


def tell(how: ListForm, entries: list[Entry]) -> Reply:
    """A short list at once, a longer one in pieces."""
    if len(entries) <= how.at_once:
        return Reply(b"".join([how.opening, how.items(entries), b"]}"]))
    return Reply(_pieces(how, _once(entries)))


def _taken(wanted: Selection, entries: list[Entry]) -> list[Entry]:
    return (
        entries if wanted.everything else [entry for entry in entries if wanted.takes(entry.key, entry.value)]
    )


async def _once(entries: list[Entry]) -> AsyncIterator[list[Entry]]:
    yield entries


async def _all(api: Api, wanted: Selection, entries: list[Entry], start: Token) -> AsyncIterator[list[Entry]]:
    """Everything that is wanted, chunk by chunk, at one revision."""
    rest: Token | None = start
    while True:
        yield _taken(wanted, entries)
        if rest is None:
            return
        entries, _, more = await _first(api, wanted, rest, CHUNK)
        rest = Token(rest.resource, rest.revision, entries[-1].key.path) if more else None


async def _pieces(how: ListForm, chunks: AsyncIterator[list[Entry]]) -> AsyncIterator[bytes]:
    """A little at a time: other requests go in between, and there is never much garbage at once."""
    yield how.opening
    begun = False
    async for entries in chunks:
        for start in range(0, len(entries), how.at_once):
            items = how.items(entries[start : start + how.at_once])
            yield b"," + items if begun else items
            begun = True
            await asyncio.sleep(0)
    yield b"]}"


def _start(wanted: Selection, options: ReadOptions) -> Token:
    identifier = wanted.served.resource.id
    if options.token:
        token = read_token(options.token)
        if token.resource != f"{identifier}/{wanted.namespace}":
            raise Malformed(
                "continue key is not valid: it belongs to another list",
                where="continue",
                fix="start the list again",
            )
        return token
    exact = int(options.revision) if options.revision and options.match == "Exact" else 0
    return Token(f"{identifier}/{wanted.namespace}", exact, "")


def read_token(text: str) -> Token:
    try:
        return msgspec.json.decode(urlsafe_b64decode(text.encode()), type=Token)
    except (ValueError, msgspec.DecodeError) as error:
        raise Malformed("continue key is not valid", where="continue", fix="start the list again") from error


def _write_token(token: Token) -> str:
    return urlsafe_b64encode(msgspec.json.encode(token)).decode()


async def _first(api: Api, wanted: Selection, start: Token, limit: int) -> tuple[list[Entry], int, bool]:
    """The first chunk tells the revision that the rest is read at."""
    store = api.store_of(wanted.served)
    try:
        page = await store.list(
            wanted.served.resource.id,
            wanted.namespace or None,
            limit=limit,
            after=start.after,
            revision=start.revision,
        )
    except Gone as gone:
        if start.after:
            raise Gone(
                "The provided continue parameter is too old to display a consistent list result",
                fix="start the list again",
            ) from gone
        raise
    demand_fresh(wanted.options, page.revision)
    return page.entries, page.revision, page.more


def demand_fresh(options: ReadOptions, have: int) -> None:
    """NotOlderThan, spoken or not: a revision that has not happened yet cannot be shown."""
    wanted = int(options.revision or 0)
    if wanted > have:
        raise Ahead(f"Too large resource version: {wanted}, current: {have}", causes=[TOO_LARGE])


async def _page(api: Api, wanted: Selection, start: Token) -> tuple[list[Entry], int, str]:
    """Up to `limit` matching entries, and the token for the rest."""
    limit = wanted.options.limit
    taken: list[Entry] = []
    entries, revision, more = await _first(api, wanted, start, limit or CHUNK)
    while True:
        for position, entry in enumerate(entries):
            if wanted.takes(entry.key, entry.value):
                taken.append(entry)
                if limit and len(taken) == limit:
                    rest = more or position < len(entries) - 1
                    return (
                        taken,
                        revision,
                        _write_token(Token(start.resource, revision, entry.key.path)) if rest else "",
                    )
        if not more:
            return taken, revision, ""
        entries, revision, more = await _first(
            api, wanted, Token(start.resource, revision, entries[-1].key.path), CHUNK
        )


async def delete_collection(api: Api, call: Call) -> Reply:
    """Delete every matching object; answers with what was there."""
    options = read_options(call.query)
    how = delete_options(call.query, read_delete_options(call))
    wanted = selection(call, options)
    entries, revision, _ = await _page(api, wanted, _start(wanted, options))
    for entry in entries:
        found: Entry | None = entry
        while found is not None:
            try:
                await delete_entry(api, call, found, how)
                break
            except Clash:
                found = await api.store.get(entry.key)
    return tell(list_form(api, call, {"resourceVersion": str(revision)}), entries)
