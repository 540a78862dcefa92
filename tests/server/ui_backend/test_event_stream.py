"""The event stream of the page: lists, batched changes, resumption and access."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from build.agent_world import a_node, a_workload
from build.apis import ADMIN, VIEWER, an_api
from build.virtual import VirtualClock

from lattice.controllers.runtime.object_writes import put_new
from lattice.errors import Denied, Gone, Malformed
from lattice.kinds.core import Event, Secret
from lattice.kinds.meta.base import Condition, Kind
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, WorkloadStatus
from lattice.server.access.authentication import TokenAuthenticator, new_token, token_secret
from lattice.server.requests.call import User
from lattice.server.resources.api import Api
from lattice.server.ui_backend.event_stream import (
    CHANGE_BATCH_INTERVAL_S,
    KEEPALIVE_COMMENT,
    KEEPALIVE_INTERVAL_S,
    PageEventStream,
    Reauthenticate,
)
from lattice.store.memory import MemoryStore
from lattice.store.protocol import ABSENT, Delete, Key, Put

NOTE = {"event": "change"}
REVOCATION_LIMIT_S = 10  # a stream of a revoked token ends within this


@dataclass
class Listener:
    """The pieces of one stream, as they arrive."""

    pieces: AsyncIterator[bytes]
    heard: list[bytes] = field(default_factory=list)

    def listen(self) -> None:
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for piece in self.pieces:
            self.heard.append(piece)

    def take(self) -> list[tuple[str, Any]]:
        """Events since the last call, by name and data; a keepalive has neither."""
        said, self.heard = b"".join(self.heard).decode(), []
        return [_parsed(block) for block in said.split("\n\n") if block]

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


def _parsed(block: str) -> tuple[str, Any]:
    fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
    return fields.get("event", ""), json.loads(fields.get("data", "null"))


class World:
    def __init__(self, api: Api, clock: VirtualClock) -> None:
        self.api, self.clock, self.listeners = api, clock, list[Listener]()

    async def admin(self) -> User:
        return ADMIN

    async def put(self, obj: Kind) -> None:
        await self.api.store.commit([put_new(obj, uid=f"u-{obj.metadata.name}", now="2026-01-01T00:00:00Z")])

    async def cordon(self, name: str, *, held: bool) -> None:
        from lattice.controllers.runtime.object_writes import with_spec

        entry = await self.api.store.get(Key(LatticeNode.resource.id, "", name))
        assert entry is not None
        node = msgspec.json.decode(entry.value, type=LatticeNode)
        spec = msgspec.structs.replace(node.spec, unschedulable=held)
        await self.api.store.commit([with_spec(entry, spec, node.status)])

    async def remove(self, name: str) -> None:
        await self.api.store.commit([Delete(Key(LatticeNode.resource.id, "", name))])

    async def open(self, user: User = ADMIN, again: Reauthenticate | None = None, **query: str) -> Listener:
        async def same() -> User:
            return user

        reply = await PageEventStream(self.api).open(user, query, again or same)
        assert not isinstance(reply.body, bytes)
        assert reply.content_type == "text/event-stream"
        listener = Listener(reply.body)
        listener.listen()
        self.listeners.append(listener)
        await self.clock.advance(0.01)
        return listener


@asynccontextmanager
async def event_stream(window: int = 10_000) -> AsyncIterator[World]:
    clock = VirtualClock()
    world = World(await an_api(MemoryStore(clock, window), clock), clock)
    yield world
    for listener in world.listeners:
        await listener.close()


async def test_stream_lists_then_sends_changes() -> None:
    async with event_stream() as world:
        for name in ("n1", "n2"):
            await world.put(a_node(name))
        stream = await world.open(kinds="latticenodes,latticeworkloads", list="latticenodes")
        (kind, listed), (last, note) = stream.take()
        assert (kind, listed["kind"], [row["path"] for row in listed["rows"]], listed["more"]) == (
            "rows",
            "latticenodes",
            ["/n1", "/n2"],
            False,
        )
        assert (last, note) == ("change", {"revision": await world.api.store.revision(), "changes": {}})
        await world.put(a_workload("web"))
        await world.clock.advance(CHANGE_BATCH_INTERVAL_S)
        [(_, note)] = stream.take()
        assert [row["path"] for row in note["changes"]["latticeworkloads"]["rows"]] == ["default/web"]
        assert list(note["changes"]) == ["latticeworkloads"]


async def test_empty_kind_is_listed_as_empty() -> None:
    async with event_stream() as world:
        stream = await world.open(kinds="latticeworkloads", list="latticeworkloads")
        assert stream.take()[0] == (
            "rows",
            {"kind": "latticeworkloads", "rows": [], "more": False, "cut": False},
        )


async def test_long_list_is_sent_in_chunks() -> None:
    async with event_stream() as world:
        for number in range(250):
            await world.put(a_node(f"n{number:03}"))
        stream = await world.open(kinds="latticenodes", list="latticenodes")
        await world.clock.advance(0.1)
        told = [data for kind, data in stream.take() if kind == "rows"]
        assert [len(each["rows"]) for each in told] == [100, 100, 50]
        assert [each["more"] for each in told] == [True, True, False]


async def test_rapid_changes_are_batched_to_latest_state() -> None:
    async with event_stream() as world:
        for name in ("n1", "n2"):
            await world.put(a_node(name))
        stream = await world.open(kinds="latticenodes")
        stream.take()
        for held in (True, False, True):
            await world.cordon("n1", held=held)
        await world.remove("n2")
        await world.clock.advance(CHANGE_BATCH_INTERVAL_S / 2)
        assert stream.take() == []
        await world.clock.advance(CHANGE_BATCH_INTERVAL_S)
        [(_, note)] = stream.take()
        told = note["changes"]["latticenodes"]
        assert [(row["path"], row["unschedulable"]) for row in told["rows"]] == [("/n1", True)]
        assert told["gone"] == ["/n2"]
        assert note["revision"] == await world.api.store.revision()


async def test_stream_resumes_from_revision() -> None:
    async with event_stream() as world:
        await world.put(a_node("n1"))
        stream = await world.open(kinds="latticenodes")
        [(_, note)] = stream.take()
        await stream.close()
        await world.cordon("n1", held=True)
        again = await world.open(kinds="latticenodes", after=str(note["revision"]))
        await world.clock.advance(CHANGE_BATCH_INTERVAL_S)
        told = [
            row for _, data in again.take() for row in data["changes"].get("latticenodes", {}).get("rows", [])
        ]
        assert [(row["path"], row["unschedulable"]) for row in told] == [("/n1", True)]


async def test_change_during_send_is_in_next_batch() -> None:
    async with event_stream() as world:
        reply = await PageEventStream(world.api).open(ADMIN, {"kinds": "latticenodes"}, world.admin)
        assert not isinstance(reply.body, bytes)
        slow = aiter(reply.body)  # reads a piece, and the next one only later
        await anext(slow)
        waiting = asyncio.ensure_future(anext(slow))
        await world.clock.advance(0.01)
        await world.put(a_node("n1"))
        await world.clock.advance(CHANGE_BATCH_INTERVAL_S)
        assert b"/n1" in await waiting
        await world.put(a_node("n2"))
        await world.clock.advance(0.01)
        waiting = asyncio.ensure_future(anext(slow))
        await world.clock.advance(2 * CHANGE_BATCH_INTERVAL_S)
        assert waiting.done(), "it waits for the next beat"
        assert b"/n2" in waiting.result()
        await reply.body.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("restless", [False, True], ids=["while nothing happens", "while much happens"])
async def test_revoked_token_ends_stream(restless: bool) -> None:
    async with event_stream() as world:
        token, name = new_token()
        key = Key(Secret.resource.id, "lattice-system", name)
        secret = new_object(
            token_secret(token, "vic", ["lattice:viewers"]), uid="u", now=format_timestamp(world.clock.now())
        )
        await world.api.store.commit([Put(key, pack(Secret.resource, secret), ABSENT)])
        tokens = TokenAuthenticator(world.api.store, world.clock)
        stream = await world.open(
            await tokens.user_of_token(token), lambda: tokens.user_of_token(token), kinds="latticenodes"
        )
        await world.api.store.commit([Delete(key)])
        for second in range(REVOCATION_LIMIT_S):
            if restless:
                await world.put(a_node(f"n{second}"))
            await world.clock.advance(1)
        assert stream.task.done()
        assert b"/n3" in b"".join(stream.heard) or not restless
        assert b"/n6" not in b"".join(stream.heard)


def an_event(name: str, **said: str) -> Event:
    body = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"}, **said}
    return msgspec.convert({**body, "involvedObject": {"kind": "LatticeNode", "name": "n1"}}, Event)


@pytest.mark.parametrize(
    ("scope", "found", "cut"),
    [
        pytest.param(
            {"newest": 2}, ["default/a", "default/c"], True, id="the newest, however they are called"
        ),
        pytest.param(
            {"newest": 9}, ["default/a", "default/c", "default/b"], False, id="all, if there are no more"
        ),
        pytest.param({"newest": 1, "words": "WENT n1"}, ["default/c"], True, id="matching words"),
        pytest.param({"newest": 9, "type": "Warning"}, ["default/a"], False, id="of one type"),
    ],
)
async def test_newest_matching_events_are_listed(scope: dict[str, Any], found: list[str], cut: bool) -> None:
    async with event_stream() as world:
        await world.put(an_event("b", message="node went", type="Normal"))
        await world.put(an_event("c", message="node went", type="Normal"))
        await world.put(an_event("a", message="node came", type="Warning"))
        stream = await world.open(kinds="events", list="events", only=json.dumps({"events": scope}))
        told = [data for kind, data in stream.take() if kind == "rows"]
        assert [row["path"] for data in told for row in data["rows"]] == found
        assert (told[-1]["more"], told[-1]["cut"]) == (False, cut)


async def test_unplaced_workload_shows_reason() -> None:
    async with event_stream() as world:
        why = Condition(
            type="Scheduled",
            status="False",
            reason="NoNodeFits",
            message="0 of 2 nodes: 2 without 1 cpu free",
        )
        told = WorkloadStatus(conditions=(why,))
        await world.put(msgspec.structs.replace(a_workload("web-0"), status=told))
        await world.put(
            msgspec.structs.replace(
                a_workload("web-1"), status=msgspec.structs.replace(told, binding=Binding(node="n1"))
            )
        )
        await world.put(a_workload("web-2"))
        only = json.dumps({"latticeworkloads": {"unplaced": True}})
        stream = await world.open(kinds="latticeworkloads", list="latticeworkloads", only=only)
        (_, listed), *_ = stream.take()
        assert [(row["path"], row["why"]) for row in listed["rows"]] == [("default/web-0", why.message)]


async def test_workload_changes_are_limited_to_scope() -> None:
    async with event_stream() as world:
        for number in range(150):
            await world.put(a_workload(f"web-{number:03}", service="web"))
        await world.put(a_workload("api-0", service="api"))
        only = json.dumps({"latticeworkloads": {"service": "default/api"}})
        stream = await world.open(kinds="latticeworkloads", list="latticeworkloads", only=only)
        await world.clock.advance(0.1)
        (_, first), *_ = stream.take()
        assert ([row["path"] for row in first["rows"]], first["more"]) == (["default/api-0"], True)
        await world.put(a_workload("api-1", service="api"))
        await world.put(a_workload("web-200", service="web"))
        await world.clock.advance(CHANGE_BATCH_INTERVAL_S)
        [(_, note)] = stream.take()
        told = note["changes"]["latticeworkloads"]
        assert ([row["path"] for row in told["rows"]], told["gone"]) == (
            ["default/api-1"],
            ["default/web-200"],
        )


async def test_idle_stream_sends_keepalive() -> None:
    async with event_stream() as world:
        stream = await world.open(kinds="latticenodes")
        stream.take()
        await world.clock.advance(KEEPALIVE_INTERVAL_S + 0.1)
        assert stream.heard == [KEEPALIVE_COMMENT]


async def test_compacted_revision_is_gone() -> None:
    async with event_stream(window=2) as world:
        await world.put(a_node("n1"))
        for held in (True, False) * 3:
            await world.cordon("n1", held=held)
        await world.api.store.compact(await world.api.store.revision())
        with pytest.raises(Gone):
            await world.open(kinds="latticenodes", after="1")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        pytest.param({}, "at least one kind is required", id="no kinds"),
        pytest.param({"kinds": "pods"}, "there is no kind 'pods'", id="unknown"),
        pytest.param(
            {"kinds": "latticenodes", "after": "yesterday"},
            "'yesterday' is not a revision",
            id="not a revision",
        ),
        pytest.param(
            {"kinds": "events", "only": '{"events": {"oldest": 3}}'},
            "unknown field `oldest`",
            id="not a scope",
        ),
    ],
)
async def test_malformed_stream_queries_are_rejected(query: dict[str, str], words: str) -> None:
    async with event_stream() as world:
        with pytest.raises(Malformed, match=words.replace("?", r"\?")):
            await world.open(**query)


@pytest.mark.parametrize(
    ("user", "kinds", "allowed"),
    [
        pytest.param(VIEWER, "latticenodes,events", True, id="viewers see the fleet"),
        pytest.param(VIEWER, "latticenodes,secrets", False, id="but no secrets"),
        pytest.param(User("eve"), "latticenodes", False, id="others see nothing"),
    ],
)
async def test_stream_requires_watch_access(user: User, kinds: str, allowed: bool) -> None:
    async with event_stream() as world:
        if allowed:
            assert (await world.open(user, kinds=kinds)).take()[0][0] == "change"
        else:
            with pytest.raises(Denied):
                await world.open(user, kinds=kinds)
