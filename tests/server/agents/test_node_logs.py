"""Logs over the agent's connection: pieces in order, and no reader waits for a closed connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from build.agent_world import Leader, a_leader, a_machine, a_workload, applied
from build.virtual import VirtualClock, settle

from lattice.agent.runtimes.fake import Behaviour
from lattice.errors import LatticeError, NotFound, Unavailable
from lattice.kinds.container import Container
from lattice.server.agents.node_logs import MAX_BUFFERED_PIECES, LogRequest
from lattice.wire import agent_pb2 as pb

HOME = "leader:7444"


@asynccontextmanager
async def leader_with_logs(**containers: Container) -> AsyncIterator[tuple[Leader, VirtualClock]]:
    """A leader whose node n1 runs the workload web, which has printed three lines."""
    clock = VirtualClock()
    async with a_leader(clock, 10.0, "n1") as leader:
        await leader.add(a_workload(containers=containers or {"main": Container(command=("serve",))}))
        await leader.bind("web", applied("n1"))
        await clock.advance(0.1)
        node = a_machine(clock, {HOME: leader})
        node.machine.behaviours["default/web"] = Behaviour(prints="one\ntwo\nthree\n", exits_after=60)
        node.start()
        await clock.advance(2)
        yield leader, clock
        await node.kill()


def log_request(**rest: Any) -> LogRequest:
    fields: dict[str, Any] = {"node": "n1", "workload": "default/web", "uid": "uid-web"} | rest
    return LogRequest(**fields)


async def read(leader: Leader, question: LogRequest) -> str:
    return "".join([text async for text in leader.links.logs.read(question)])


async def test_tail_lines_are_read() -> None:
    async with leader_with_logs() as (leader, _clock):
        assert await read(leader, log_request(tail_lines=2)) == "two\nthree\n"
        assert await read(leader, log_request(tail_lines=100, container="main")) == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("question", "error", "words"),
    [
        pytest.param(
            log_request(uid="uid-earlier"),
            NotFound,
            "the node does not have the workload",
            id="an earlier workload of that name",
        ),
        pytest.param(
            log_request(container="side"),
            NotFound,
            "no container side; its containers are main",
            id="no such container",
        ),
        pytest.param(
            log_request(node="n9"), Unavailable, "node n9 is not connected", id="a node that is not connected"
        ),
    ],
)
async def test_unreadable_log_says_why(question: LogRequest, error: type[LatticeError], words: str) -> None:
    async with leader_with_logs() as (leader, _clock):
        with pytest.raises(error, match=words):
            await read(leader, question)


async def test_log_of_several_containers_needs_a_name() -> None:
    async with leader_with_logs(a=Container(command=("a",)), b=Container(command=("b",))) as (leader, _clock):
        with pytest.raises(NotFound, match="more than one container: a, b; choose one"):
            await read(leader, log_request())
        assert await read(leader, log_request(container="b", tail_lines=1)) == "three\n"


async def test_follow_ends_when_container_exits() -> None:
    async with leader_with_logs() as (leader, clock):
        reading = asyncio.create_task(read(leader, log_request(follow=True, tail_lines=1)))
        await clock.advance(30)
        assert not reading.done()
        await clock.advance(40)
        assert await reading == "three\n"


async def test_follow_fails_when_node_disconnects() -> None:
    async with leader_with_logs() as (leader, clock):
        reading = asyncio.create_task(read(leader, log_request(follow=True)))
        await clock.advance(1)
        leader.step_down()
        await settle()
        with pytest.raises(Unavailable, match="connection to the node was lost"):
            await reading


async def test_closing_reader_stops_reading_on_node() -> None:
    async with leader_with_logs() as (leader, _clock):
        pieces = leader.links.logs.read(log_request(follow=True))
        assert await anext(pieces) == "one\ntwo\nthree\n"
        await pieces.aclose()  # type: ignore[attr-defined]
        line = leader.links.sessions["n1"]
        assert [request.end for request in line.pending_log_requests] == [True]
        await settle()
        assert line.pending_log_requests == []


async def test_slow_log_reader_is_dropped() -> None:
    async with leader_with_logs() as (leader, _clock):
        pieces = leader.links.logs.read(log_request(follow=True, tail_lines=0))
        first = asyncio.ensure_future(anext(pieces))
        await settle()
        line = leader.links.sessions["n1"]
        for number in range(MAX_BUFFERED_PIECES + 10):
            leader.links.logs.deliver(line, pb.LogPiece(id=1, text=f"{number}\n"))
        assert await first == "0\n"
        with pytest.raises(LatticeError, match="reads the log more slowly than the node sends it"):
            async for _ in pieces:
                pass
