"""The agent's handling of single server messages: their order, their term, and its timeouts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from build.agent_world import REVISION, Node, an_agent_node, running
from build.virtual import VirtualClock, settle

from lattice.agent.host.runtime_protocol import Failure, Instance
from lattice.agent.runtimes.fake import Behaviour
from lattice.agent.session import DENIED_RETRY_DELAY_S, MAX_HEARTBEAT_BYTES
from lattice.errors import Unavailable
from lattice.wire import agent_pb2 as pb
from lattice.wire.connection import PROTOCOL_VERSION, AgentConnection, MemoryConnection, connected_pair


@dataclass
class ScriptedServer:
    """A server that sends exactly the messages of the test."""

    ends: list[MemoryConnection[pb.ToAgent, pb.FromAgent]] = field(default_factory=list)
    said: list[pb.FromAgent] = field(default_factory=list)

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[AgentConnection]:
        mine, theirs = connected_pair()
        self.ends.append(theirs)
        listening = asyncio.create_task(self._listen(theirs))
        try:
            yield mine
        finally:
            mine.close()
            listening.cancel()

    async def _listen(self, end: MemoryConnection[pb.ToAgent, pb.FromAgent]) -> None:
        while (said := await end.receive()) is not None:
            self.said.append(said)

    async def renew_certificate(self, address: str, request: bytes) -> bytes:
        raise Unavailable("not here")

    async def say(self, **said: Any) -> None:
        with suppress(Unavailable):  # the agent has hung up
            await self.ends[-1].send(pb.ToAgent(**said))
        await settle()

    async def welcome(self, term: int = 5, **rest: Any) -> None:
        given: dict[str, Any] = {"protocol": PROTOCOL_VERSION, "term": term, "heartbeat": 10.0} | rest
        await self.say(welcome=pb.Welcome(**given))

    @property
    def beats(self) -> list[pb.Beat]:
        return [message.beat for message in self.said if message.WhichOneof("said") == "beat"]


@asynccontextmanager
async def scripted_server() -> AsyncIterator[tuple[ScriptedServer, Node, VirtualClock]]:
    clock, server = VirtualClock(), ScriptedServer()
    node = an_agent_node(clock, {}, addresses=["s"])
    node.agent.transport = server
    async with running(node):
        await clock.advance(0.1)
        yield server, node, clock


def orders(
    term: int, number: int, *names: str, whole: bool = False, state: str = "Running"
) -> dict[str, pb.Orders]:
    assignments = [
        pb.Assignment(workload=f"default/{name}", uid=name, state=state, revision=REVISION, run=1, containers=b'{"main":{"command":["x"]}}', disconnect="keep", stop_after_ms=90000)
        for name in names
    ]  # fmt: skip
    return {"orders": pb.Orders(term=term, number=number, is_whole=whole, assignments=assignments)}


async def restarted_agent(server: ScriptedServer, node: Node, clock: VirtualClock) -> Node:
    """The same machine with a new agent; it runs the orders that the former agent got in term 5."""
    await server.welcome(term=5)
    await server.say(**orders(5, 1, "web", whole=True))
    await clock.advance(2)
    await node.kill()
    again = an_agent_node(clock, {}, former=node, addresses=["s"])
    again.agent.transport = server
    return again


def live_uids(node: Node) -> list[str]:
    return [instance.uid for instance in node.machine.live_instances()]


async def test_agent_rejects_server_with_other_protocol() -> None:
    async with scripted_server() as (server, node, clock):
        assert server.said[0].hello.protocol == PROTOCOL_VERSION
        await server.welcome(protocol=PROTOCOL_VERSION + 1)
        await server.say(**orders(5, 1, "web", whole=True))
        await clock.advance(5)
        assert not node.agent.is_connected.is_set()
        assert live_uids(node) == []
        assert len(server.ends) == 1
        await clock.advance(DENIED_RETRY_DELAY_S)
        assert len(server.ends) == 2


@pytest.mark.parametrize(
    ("then", "runs"),
    [
        pytest.param(orders(4, 2, "old"), ["web"], id="a lower term"),
        pytest.param(orders(5, 1, "old", whole=True), ["web"], id="the same number again"),
        pytest.param(orders(5, 2, "new"), ["new", "web"], id="the next number"),
        pytest.param(orders(5, 2, "new", whole=True), ["new"], id="a whole list"),
    ],
)
async def test_older_orders_are_ignored(then: dict[str, Any], runs: list[str]) -> None:
    async with scripted_server() as (server, node, clock):
        await server.welcome()
        await server.say(**orders(5, 1, "web", whole=True))
        await clock.advance(2)
        assert live_uids(node) == ["web"]
        await server.say(**then)
        await clock.advance(2)
        assert live_uids(node) == runs


async def test_deltas_before_full_orders_are_ignored() -> None:
    async with scripted_server() as (server, node, clock):
        await server.welcome()
        await server.say(**orders(5, 2, "web"))
        await clock.advance(2)
        assert live_uids(node) == []


async def test_older_term_is_ignored_after_restart() -> None:
    async with scripted_server() as (server, node, clock):
        again = await restarted_agent(server, node, clock)
        async with running(again):
            await clock.advance(1)
            assert server.said[-1].hello.term == 5
            before = again.machine.last_contact_at
            await server.welcome(term=4)
            assert again.machine.last_contact_at == before, "it is no contact either"
            await server.say(**orders(4, 1, whole=True))
            await clock.advance(2)
            assert live_uids(again) == ["web"]
            assert not again.agent.is_connected.is_set()
        node.start()


async def test_first_report_is_complete_despite_slow_runtime() -> None:
    async with scripted_server() as (server, node, clock):
        again = await restarted_agent(server, node, clock)
        runtime = again.agent.executor.runtime
        quick = runtime.list

        async def slow() -> list[Instance]:
            await clock.sleep(5)
            return await quick()

        runtime.list = slow  # type: ignore[method-assign]
        heard, known = len(server.beats), len(server.ends)
        async with running(again):
            while len(server.ends) == known:
                await clock.advance(0.5)
            await server.welcome(term=5)
            await clock.advance(1)
            first = server.beats[heard]
            assert first.is_whole
            assert [report.workload for report in first.reports] == ["default/web"]
        node.start()


async def test_contact_counts_from_sent_heartbeat() -> None:
    async with scripted_server() as (server, node, clock):
        await clock.advance(4)
        await server.welcome()
        assert node.machine.last_contact_at == 0.0, "when hello was sent, not when it was answered"
        await clock.advance(6)
        sent = clock.monotonic()
        await clock.advance(4)
        first, second = server.beats[-2:]
        assert first.is_whole
        assert not second.is_whole
        await clock.advance(5)
        await server.say(heard=pb.Heard(beat=second.number))
        assert node.machine.last_contact_at is not None
        assert sent <= node.machine.last_contact_at <= sent + 5


async def test_unresponsive_server_is_left() -> None:
    async with scripted_server() as (server, _node, clock):
        await server.welcome()
        await clock.advance(29)
        assert len(server.ends) == 1
        await clock.advance(15)
        assert len(server.ends) > 1


async def test_oversized_heartbeat_omits_logs() -> None:
    async with scripted_server() as (server, node, clock):
        node.machine.behaviours[""] = Behaviour(
            start_fails=Failure("RUNTIME_ERROR", "broken"), prints="x" * 1999 + "\n"
        )
        await server.welcome()
        await server.say(**orders(5, 1, *(f"w{number}" for number in range(400)), whole=True))
        await clock.advance(3)
        failed = [report for beat in server.beats for report in beat.reports if report.state == "Failed"]
        assert len(failed) == 400
        assert max(beat.ByteSize() for beat in server.beats) < MAX_HEARTBEAT_BYTES


async def test_unchanged_reports_are_sent_once() -> None:
    async with scripted_server() as (server, _node, clock):
        await server.welcome()
        await server.say(**orders(5, 1, "web", whole=True))
        for _ in range(6):
            await clock.advance(10)
            await server.say(heard=pb.Heard(beat=server.beats[-1].number))
        spoken = [len(beat.reports) for beat in server.beats]
        assert sum(spoken) <= 2, "starting, running"
        assert 7 <= len(server.beats) <= 10
        assert server.beats[-1].order == 1
