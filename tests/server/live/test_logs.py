"""GET …/log: the output of a workload from its node through the leader, or its last known lines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from build.agent_world import AUTHORITY, Leader, Node, a_leader, a_machine, a_workload, applied
from build.apis import ADMIN, SERVER, VIEWER, about, an_api, text
from build.virtual import VirtualClock

from lattice.agent.runtimes.fake import Behaviour
from lattice.errors import Malformed, MethodNotAllowed, NotFound, Unavailable
from lattice.kinds.container import Container
from lattice.server.agents.leader_proxy import LeaderProxy, leader_proxy_tls
from lattice.server.live import logs as worklogs
from lattice.server.live.logs import WorkloadLogs
from lattice.server.requests.call import Call, Reply, User
from lattice.server.resources.api import Api

HOME = "leader:7444"


@dataclass
class LogWorld:
    leader: Leader
    node: Node
    clock: VirtualClock
    api: Api
    logs: WorkloadLogs

    async def read(self, name: str = "web", method: str = "GET", user: User = ADMIN, **query: str) -> Reply:
        return await self.logs.read(self.api, Call(method, about(name, "log"), user, query))


@asynccontextmanager
async def log_service(tmp_path: Path, *names: str, **status: Any) -> AsyncIterator[LogWorld]:
    """A log service and a node that runs the workload web with these containers; the workload waiting is unbound."""
    clock = VirtualClock()
    async with a_leader(clock, 10.0, "n1") as leader:
        containers = {name: Container(command=("serve",)) for name in names or ("main",)}
        await leader.add(a_workload(containers=containers))
        await leader.add(a_workload("waiting"))
        await leader.bind("web", applied("n1", **status))
        await clock.advance(0.1)
        node = a_machine(clock, {HOME: leader})
        node.machine.behaviours["default/web"] = Behaviour(prints="one\ntwo\nthree\n", exits_after=60)
        node.start()
        await clock.advance(2)
        proxy = LeaderProxy(lambda: None, lambda: "https://me", leader_proxy_tls(AUTHORITY, tmp_path))
        api = await an_api(leader.store, clock)
        logs = WorkloadLogs(lambda: leader.context, leader.links.logs, proxy)
        yield LogWorld(leader, node, clock, api, logs)
        await node.kill()
        await proxy.close()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        pytest.param({}, "one\ntwo\nthree\n", id="everything"),
        pytest.param({"tail": "2"}, "two\nthree\n", id="the last lines"),
        pytest.param({"tailLines": "1", "container": "main"}, "three\n", id="as kubectl asks"),
        pytest.param({"tail": "0"}, "", id="nothing"),
        pytest.param({"tail": "-1"}, "one\ntwo\nthree\n", id="all, as a negative number"),
    ],
)
async def test_log_returns_printed_lines(query: dict[str, str], said: str, tmp_path: Path) -> None:
    async with log_service(tmp_path) as world:
        reply = await world.read(**query)
        assert await text(reply) == said
        assert (reply.content_type, reply.warnings) == ("text/plain; charset=utf-8", ())


@pytest.mark.parametrize(
    ("query", "words"),
    [
        pytest.param(
            {"tail": "many", "container": "main"},
            "must be a whole number of lines, got 'many'",
            id="no number",
        ),
        pytest.param(
            {"tail": "-5", "container": "main"}, "must be a whole number of lines, got '-5'", id="too few"
        ),
        pytest.param({}, "the workload has more than one container", id="no container named"),
        pytest.param({"container": "third"}, "there is no container 'third'", id="an unknown container"),
    ],
)
async def test_malformed_log_queries_are_rejected(query: dict[str, str], words: str, tmp_path: Path) -> None:
    async with log_service(tmp_path, "main", "side") as world:
        with pytest.raises(Malformed) as refused:
            await world.read(**query)
        assert words in refused.value.message


async def test_log_subresource_is_read_only(tmp_path: Path) -> None:
    async with log_service(tmp_path) as world:
        with pytest.raises(MethodNotAllowed):
            await world.read(method="PUT", user=SERVER)
        with pytest.raises(NotFound):
            await world.read("nope", user=VIEWER)
        with pytest.raises(NotFound, match="the workload is not bound to a node"):
            await world.read("waiting")


async def test_disconnected_node_shows_last_known_lines(tmp_path: Path) -> None:
    async with log_service(tmp_path, last_log="bye") as world:
        await world.node.kill()
        await world.clock.advance(1)
        reply = await world.read()
        assert await text(reply) == "bye\n"
        assert reply.warnings == ("node n1 is not connected: showing the last lines that the node reported",)


async def test_silent_node_shows_last_known_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worklogs, "LOG_ANSWER_TIMEOUT_S", 0.05)
    async with log_service(tmp_path, last_log="bye\n") as world:
        line = world.leader.links.sessions["n1"]
        asks: list[object] = []
        line.send_log_request = asks.append  # type: ignore[method-assign,assignment]
        reply = await world.read()
        assert await text(reply) == "bye\n"
        assert reply.warnings[0].startswith("node n1 does not respond")
        assert [ask.end for ask in asks] == [False, True], "the question is taken back"  # type: ignore[attr-defined]


async def test_disconnected_node_without_lines_is_unavailable(tmp_path: Path) -> None:
    async with log_service(tmp_path) as world:
        await world.node.kill()
        await world.clock.advance(1)
        with pytest.raises(Unavailable, match="no log available: node n1 is not connected"):
            await world.read()


async def test_log_is_followed_until_end_or_reader_closes(tmp_path: Path) -> None:
    async with log_service(tmp_path) as world:
        reply = await world.read(follow="true")
        assert reply.is_idle_stream
        pieces: Any = reply.body
        assert await anext(pieces) == b"one\ntwo\nthree\n"
        await pieces.aclose()
        assert world.leader.links.logs._readers == {}
        reply = await world.read(follow="true")
        reading = asyncio.create_task(text(reply))
        await world.clock.advance(120)
        assert await reading == "one\ntwo\nthree\n"


async def test_log_without_leader_is_unavailable(tmp_path: Path) -> None:
    async with log_service(tmp_path) as world:
        world.leader.step_down()
        with pytest.raises(Unavailable, match="no server is leader at present"):
            await world.read()
