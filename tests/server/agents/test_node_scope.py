"""A node receives only its own orders while they are bound to it; the agent protocol has no queries."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from build.agent_world import Leader, a_leader, a_workload, applied
from build.scripted_agent import ScriptedAgent, peer
from build.virtual import VirtualClock, settle
from structlog.testing import capture_logs

from lattice.kinds.container import Container
from lattice.server.agents.node_logs import LogRequest
from lattice.store.protocol import Delete, Key
from lattice.wire import agent_pb2 as pb

SECRET = "k3Zq-only-for-n2"


@asynccontextmanager
async def leader_with_secret() -> AsyncIterator[tuple[Leader, VirtualClock]]:
    """A leader of two nodes and one unbound workload with a password in its environment."""
    clock = VirtualClock()
    async with a_leader(clock, 10.0, "n1", "n2") as leader:
        container = Container(command=("serve",), env={"PASSWORD": SECRET})
        await leader.add(a_workload(containers={"main": container}))
        await clock.advance(0.1)
        yield leader, clock


def text(said: list[pb.ToAgent]) -> str:
    return "".join(str(message) for message in said)


def test_agent_protocol_has_no_query_messages() -> None:
    assert [field.name for field in pb.FromAgent.DESCRIPTOR.fields] == ["hello", "beat", "log"]
    asks = {"hello": {"protocol", "version", "term", "registration"}, "log": {"id", "text", "end", "problem"}}
    for part, names in asks.items():
        assert {
            field.name for field in pb.FromAgent.DESCRIPTOR.fields_by_name[part].message_type.fields
        } == names


async def test_only_bound_node_receives_workload_secrets() -> None:
    async with leader_with_secret() as (leader, clock):
        one, two = ScriptedAgent(leader, peer("n1")), ScriptedAgent(leader, peer("n2"))
        assert SECRET not in text(await one.welcomed() + await two.welcomed()), "not bound yet"
        await leader.bind("web", applied("n2"))
        await clock.advance(0.1)
        assert SECRET in text(await two.answers())
        assert SECRET not in text(await one.answers())
        await leader.bind("web", applied("n1"))
        await clock.advance(0.1)
        assert SECRET in text(await one.answers())
        assert SECRET not in text(await two.answers()), "only an order to drop it"
        again = ScriptedAgent(leader, peer("n2"))
        assert SECRET not in text(await again.welcomed()), "a former node gets it no more"


async def test_report_does_not_grant_a_workload() -> None:
    async with leader_with_secret() as (leader, clock):
        await leader.bind("web", applied("n2"))
        await clock.advance(0.1)
        revision = await leader.store.revision()
        thief = ScriptedAgent(leader, peer("n1"))
        said = await thief.welcomed()
        await thief.beat(
            1, reports=[pb.Report(workload="default/web", uid="uid-web", state="Running")], is_whole=True
        )
        await thief.beat(2, gone=["default/web"], order=99)
        said += await thief.answers()
        assert SECRET not in text(said)
        assert await leader.store.revision() == revision + 1, "its own registration, and nothing else"


async def test_log_is_accepted_from_requested_node_only() -> None:
    async with leader_with_secret() as (leader, _clock):
        await leader.bind("web", applied("n2"))
        thief, asked = ScriptedAgent(leader, peer("n1")), ScriptedAgent(leader, peer("n2"))
        await thief.welcomed()
        await asked.welcomed()
        reading = asyncio.create_task(_read(leader))
        await settle()
        question = next(
            message.log for message in await asked.answers() if message.WhichOneof("said") == "log"
        )
        assert not any(message.WhichOneof("said") == "log" for message in await thief.answers()), (
            "what others are asked is not shown"
        )
        await thief.say(log=pb.LogPiece(id=question.id, text="forged", end=True))
        await settle()
        assert not reading.done()
        await asked.say(log=pb.LogPiece(id=question.id, text="true", end=True))
        assert await reading == "true"


async def _read(leader: Leader) -> str:
    return "".join(
        [piece async for piece in leader.links.logs.read(LogRequest("n2", "default/web", "uid-web"))]
    )


async def test_removed_node_is_refused_and_logged() -> None:
    async with leader_with_secret() as (leader, clock):
        speaker = ScriptedAgent(leader, peer("n2"))
        await speaker.welcomed()
        await leader.store.commit([Delete(Key("latticenodes.lattice.dev", "", "n2"))])
        await clock.advance(0.1)
        revision = await leader.store.revision()
        with capture_logs() as logs:
            await speaker.beat(1)
            *_, last = await speaker.answers()
        assert last.refusal.reason == "UNKNOWN_NODE"
        assert [(entry["event"], entry["node"], entry["reason"]) for entry in logs] == [
            ("agent rejected", "n2", "UNKNOWN_NODE")
        ]
        assert await leader.store.revision() == revision
