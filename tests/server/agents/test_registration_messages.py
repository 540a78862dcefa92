"""Validation of hellos, registrations and heartbeats of agents."""

from contextlib import suppress
from typing import Any

import pytest
from build.agent_world import ROLE, a_node, a_registration, leading_server
from build.scripted_agent import ScriptedAgent, peer

from lattice.errors import Fenced, Unavailable
from lattice.kinds.meta.base import Metadata
from lattice.kinds.node import LatticeNode, NodeSpec
from lattice.kinds.node_class import ClassResources, LatticeNodeClass, NodeClassSpec
from lattice.server.access.node_certificates import NodeIdentity
from lattice.server.agents.join import node_key
from lattice.store.protocol import Delete
from lattice.wire import agent_pb2 as pb
from lattice.wire.connection import PROTOCOL_VERSION


@pytest.mark.parametrize(
    ("hello", "reason", "words"),
    [
        pytest.param({"protocol": PROTOCOL_VERSION + 1, "version": "9.9"}, "PROTOCOL", f"agent 9.9 speaks protocol {PROTOCOL_VERSION + 1}", id="a later protocol"),
        pytest.param({"protocol": 0}, "PROTOCOL", "speaks protocol 0", id="no protocol"),
        pytest.param({"registration": a_registration(labels={"compliance": "hipaa"})}, "REGISTRATION", "may only set labels agent.lattice.dev/", id="a label that attracts work"),
        pytest.param({"registration": a_registration(labels={"region": "eu"})}, "REGISTRATION", "may only set labels", id="another region"),
        pytest.param({"registration": a_registration(labels={"agent.lattice.dev/a b": "x"})}, "REGISTRATION", "label", id="an invalid label"),
        pytest.param({"registration": a_registration(runtimes=["magic"])}, "REGISTRATION", 'unknown runtime "magic"', id="an unknown runtime"),
        pytest.param({"registration": a_registration(first_port=9, last_port=70000)}, "REGISTRATION", "not a valid port range", id="ports out of range"),
        pytest.param({"registration": a_registration(addresses=[pb.Address(type="InternalIP", address="x; rm")])}, "REGISTRATION", "is not a valid InternalIP", id="an invalid address"),
    ],
)  # fmt: skip
async def test_invalid_hello_is_refused_without_write(hello: dict[str, Any], reason: str, words: str) -> None:
    async with leading_server("n1", "n2") as (leader, _clock):
        revision = await leader.store.revision()
        agent = ScriptedAgent(leader, peer())
        await agent.hello(**hello)
        [answer] = await agent.answers()
        assert answer.refusal.reason == reason
        assert words in answer.refusal.message
        await agent.ended()
        assert await leader.store.revision() == revision
        assert leader.links.sessions == {}


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        pytest.param(peer("n9"), "UNKNOWN_NODE", id="an unknown node"),
        pytest.param(peer("n1", key="another"), "UNKNOWN_NODE", id="a key of another machine"),
    ],
)
async def test_certificate_is_valid_for_its_own_node_only(who: NodeIdentity, reason: str) -> None:
    async with leading_server("n1", "n2") as (leader, _clock):
        agent = ScriptedAgent(leader, who)
        await agent.hello()
        [answer] = await agent.answers()
        assert answer.refusal.reason == reason
        await agent.ended()


@pytest.mark.parametrize(
    ("beat", "words"),
    [
        pytest.param({"reports": [pb.Report(workload="default/w", state="Dancing")]}, "not a workload state", id="an unknown state"),
        pytest.param({"reports": [pb.Report(workload="default/w", state="Failed", failure="rm -rf")]}, "not a workload state", id="an invalid failure reason"),
        pytest.param({"reports": [pb.Report(workload="../../etc", state="Running")]}, "is not the name of a workload", id="an invalid workload path"),
        pytest.param({"reports": [pb.Report(workload="default/w", state="Failed", log="x" * 5000)]}, "the maximum is 4096", id="too long a log"),
        pytest.param({"gone": ["default/w"] * 5000}, "more than 4096 workloads", id="too many"),
    ],
)  # fmt: skip
async def test_invalid_heartbeat_ends_connection(beat: dict[str, Any], words: str) -> None:
    async with leading_server("n1", "n2") as (leader, _clock):
        agent = ScriptedAgent(leader, peer())
        await agent.welcomed()
        await agent.beat(**beat)
        *_, last = await agent.answers()
        assert (last.refusal.reason, words in last.refusal.message) == ("TOO_MUCH", True)
        await agent.ended()


async def test_flooding_agent_is_refused() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        agent = ScriptedAgent(leader, peer())
        await agent.welcomed()
        for number in range(1, 2000):
            await agent.end.send(pb.FromAgent(beat=pb.Beat(number=number)))
            await clock.advance(0.05)  # twenty a second, for as long as it likes
            await agent.answers()
        with suppress(Unavailable):
            for _ in range(1000):
                await agent.end.send(pb.FromAgent(log=pb.LogPiece(id=1)))
        *_, last = await agent.answers()
        assert last.refusal.reason == "TOO_MUCH"
        await agent.ended()


@pytest.mark.parametrize(
    "said", [{"beat": pb.Beat(number=1)}, {"log": pb.LogPiece(id=1)}, {}], ids=["a beat", "a log", "nothing"]
)
async def test_message_before_hello_is_refused(said: dict[str, Any]) -> None:
    async with leading_server("n1", "n2") as (leader, _clock):
        agent = ScriptedAgent(leader, peer())
        await agent.say(**said)
        [answer] = await agent.answers()
        assert answer.refusal.reason == "OUT_OF_TURN"
        await agent.ended()


async def test_connection_without_hello_times_out() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        agent = ScriptedAgent(leader, peer())
        await clock.advance(11)
        assert [message.refusal.reason for message in await agent.answers()] == ["OUT_OF_TURN"]
        await agent.ended()


async def test_registration_writes_allowed_fields_once() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        await leader.add(a_node("n3", "key-n3", spec=NodeSpec(cluster="east", zone="a", unschedulable=True)))
        said = a_registration(
            labels={"agent.lattice.dev/disk": "ssd"},
            reserved={"cpu": 500},
            addresses=[pb.Address(type="InternalIP", address="10.0.0.7")],
        )
        await ScriptedAgent(leader, peer("n3")).welcomed(registration=said)
        revision = await leader.store.revision()
        await clock.advance(0.1)
        assert leader.context is not None
        node = leader.context.cache(LatticeNode).get("/n3")
        assert node is not None
        assert (node.spec.cluster, node.spec.zone, node.spec.unschedulable) == ("east", "a", True)
        assert (node.status.capacity["cpu"], node.status.allocatable["cpu"]) == (4000, 3500)
        assert node.metadata.labels == {"agent.lattice.dev/disk": "ssd"}
        assert (node.status.agent_version, node.status.runtimes) == ("1", ("process",))
        await ScriptedAgent(leader, peer("n3")).welcomed(registration=said)
        assert await leader.store.revision() == revision, "an unchanged registration writes nothing"


async def test_capacity_is_capped_by_node_class() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        metadata, resources = Metadata(name="small"), ClassResources(cores=2, memory_gi=4)  # type: ignore[arg-type]
        await leader.add(
            LatticeNodeClass(
                api_version="lattice.dev/v1alpha1",
                kind="LatticeNodeClass",
                metadata=metadata,
                spec=NodeClassSpec(resources=resources),
            )
        )
        await leader.add(a_node("n3", "key-n3", spec=NodeSpec(node_class="small", provider="aws")))
        await clock.advance(0.1)
        said = a_registration(
            capacity={"cpu": 64000, "memory": 3 << 30, "gpu": 8000},
            gpus=[pb.Gpu(model="a100", milli_free=1000)],
        )
        await ScriptedAgent(leader, peer("n3")).welcomed(registration=said)
        await clock.advance(0.1)
        assert leader.context is not None
        node = leader.context.cache(LatticeNode).get("/n3")
        assert node is not None
        assert node.status.allocatable == {"cpu": 2000, "gpu": 0, "memory": 3 << 30}
        assert node.status.gpus == ()


async def test_fenced_leader_registers_no_node() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        await clock.advance(20)  # its lease is over, and it has not noticed
        assert await leader.store.campaign(ROLE, "another", 15.0) is not None
        assert leader.context is not None
        with pytest.raises(Fenced):
            await leader.context.commit([Delete(node_key("n2"))])
        agent = ScriptedAgent(leader, peer())
        await agent.hello()
        assert [message.refusal.reason for message in await agent.answers()] == ["UNAVAILABLE"]
        assert leader.links.sessions == {}
