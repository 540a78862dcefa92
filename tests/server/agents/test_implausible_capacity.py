"""Implausible or flapping capacity is refused and the node is quarantined (abuse case 4)."""

import msgspec
import pytest
from build.agent_world import Leader, a_registration, leading_server
from build.scripted_agent import ScriptedAgent, peer

from lattice.kinds.node import LatticeNode
from lattice.server.agents.join import node_key
from lattice.server.agents.registration import MAX_CHANGES_PER_WINDOW
from lattice.wire import agent_pb2 as pb


async def test_node_with_flapping_capacity_is_quarantined() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        for number in range(MAX_CHANGES_PER_WINDOW):
            await ScriptedAgent(leader, peer()).welcomed(
                registration=a_registration(capacity={"cpu": 1000 + number})
            )
        agent = ScriptedAgent(leader, peer())
        await agent.hello(registration=a_registration(capacity={"cpu": 1}))
        assert [message.refusal.reason for message in await agent.answers()] == ["REGISTRATION"]
        assert "the agent changed its registration 10 times within 60 s" in await quarantine(leader)
        await clock.advance(61)
        await ScriptedAgent(leader, peer()).welcomed(registration=a_registration(capacity={"cpu": 1}))
        assert await quarantine(leader) == ""


async def quarantine(leader: Leader, node: str = "n1") -> str:
    """The reason why the node is quarantined, or ""."""
    entry = await leader.store.get(node_key(node))
    assert entry is not None
    found = msgspec.json.decode(entry.value, type=LatticeNode).status.conditions
    return next((each.message for each in found if (each.type, each.status) == ("Quarantined", "True")), "")


IMPOSSIBLE = [
    pytest.param(a_registration(capacity={"cpu": 10**12}), "cpu is 1000000000000, which is implausible: it must be 0 to 10000000", id="a thousand million cores"),
    pytest.param(a_registration(capacity={"cpu": -1}), "cpu is -1", id="less than no cores"),
    pytest.param(a_registration(reserved={"cpu": 5000}), "5000 of cpu are reserved, but the capacity is 4000", id="more reserved than there is"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "words"), IMPOSSIBLE)
async def test_node_is_quarantined_while_capacity_is_implausible(said: pb.Registration, words: str) -> None:
    async with leading_server("n1", "n2") as (leader, _clock):
        before = ScriptedAgent(leader, peer())
        await before.welcomed()
        agent = ScriptedAgent(leader, peer())
        await agent.hello(registration=said)
        [answer] = await agent.answers()
        assert answer.refusal.reason == "REGISTRATION"
        assert words in answer.refusal.message
        await before.ended()
        assert leader.links.sessions == {}, "the former session ends as well"
        assert words in await quarantine(leader)
        revision = await leader.store.revision()
        again = ScriptedAgent(leader, peer())
        await again.hello(registration=a_registration(capacity={"cpu": -2}))
        await again.ended()
        assert await leader.store.revision() == revision, "it is marked once"
        await ScriptedAgent(leader, peer()).welcomed()
        assert await quarantine(leader) == ""


async def test_agent_cannot_quarantine_another_node() -> None:
    async with leading_server("n1", "n2") as (leader, _clock):
        revision = await leader.store.revision()
        agent = ScriptedAgent(leader, peer("n1", key="another"))
        await agent.hello(registration=a_registration(capacity={"cpu": -1}))
        assert [message.refusal.reason for message in await agent.answers()] == ["UNKNOWN_NODE"]
        assert await leader.store.revision() == revision
