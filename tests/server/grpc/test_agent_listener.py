"""Agents over real connections: a machine joins with a token, connects with its certificate and runs its
orders."""

import asyncio
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
import pytest
from build.agent_world import (
    AUTHORITY,
    Leader,
    a_joining,
    a_registration,
    a_rng,
    a_token,
    a_workload,
    applied,
    store_token,
)
from build.assignments import until

from lattice.agent.certificate_renewal import CertificateRenewal
from lattice.agent.executor import Executor
from lattice.agent.identity import Identity, JoinRecord
from lattice.agent.runtimes.router import detect_runtimes
from lattice.agent.session import Agent, raise_on_session_end
from lattice.agent.state_file import StateFile
from lattice.agent.transport import GrpcTransport
from lattice.clock import SystemClock
from lattice.errors import Denied, Unavailable
from lattice.kinds.node import LatticeNode
from lattice.server.access.certificate_authority import CertificateKeyPair, new_authority
from lattice.server.agents.join import NodeJoinService
from lattice.server.grpc.listener import AgentListener, Tls
from lattice.store.memory import MemoryStore
from lattice.wire import agent_pb2 as pb
from lattice.wire.connection import PROTOCOL_VERSION, AgentConnection

clock = SystemClock()


@dataclass
class ListenerWorld:
    leader: Leader
    joining: NodeJoinService
    server: AgentListener

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def join(self, identity: Identity, name: str = "n1", number: int = 1) -> None:
        token = a_token(number=number)
        await store_token(self.leader.store, clock, token, node=name)
        body = msgspec.json.encode({"token": str(token), "request": identity.signing_request().decode()})
        answer = await self.joining.join(body, "127.0.0.1")
        identity.save_credentials(
            answer["certificate"].encode(),
            answer["authority"].encode(),
            JoinRecord(answer["node"], "", (self.address,)),
        )


@asynccontextmanager
async def agent_listener() -> AsyncIterator[ListenerWorld]:
    leader = Leader(MemoryStore(clock), clock, heartbeat=0.5)
    await leader.lead()
    joining = a_joining(leader.store, clock)
    pair = AUTHORITY.issue_server(["127.0.0.1", "localhost"])
    async with AgentListener(leader.links, joining, Tls(pair.certificate, pair.key, AUTHORITY.pem)) as server:
        yield ListenerWorld(leader, joining, server)
    await leader.close()


@asynccontextmanager
async def an_agent(folder: Path, identity: Identity) -> AsyncIterator[Agent]:
    memory = StateFile(folder)
    runtime = await detect_runtimes(folder, memory, clock)
    work = Executor(runtime, memory, clock, grace=2.0)
    agent = Agent(
        work,
        GrpcTransport(lambda: identity),
        clock,
        a_rng(),
        a_registration,
        list(identity.join_record.agents),
    )
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await work.clear()
        await runtime.close()
        memory.close()


async def test_machine_joins_and_runs_its_orders(tmp_path: Path) -> None:
    async with agent_listener() as world:
        identity = Identity.load(tmp_path)
        await world.join(identity)
        assert identity.name == "n1"
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir() if path.is_file()} == {0o600}
        context = world.leader.context
        assert context is not None
        await world.leader.add(a_workload())
        async with an_agent(tmp_path, identity) as agent:
            await until(lambda: (heard := context.presence.get("n1")) and heard.has_full_report)
            await world.leader.bind("web", applied("n1"))
            spoken = await until(
                lambda: (
                    (heard := context.presence.get("n1"))
                    and (said := heard.workloads.get("default/web"))
                    and said.state == "Running"
                    and said
                )
            )
            assert (spoken.uid, spoken.run, spoken.ready) == ("uid-web", 1, True)
            node = context.cache(LatticeNode).get("/n1")
            assert node is not None
            assert node.status.allocatable["cpu"] == 4000
            assert [instance.state for instance in await agent.executor.runtime.list()] == ["Running"]


async def test_renewed_certificate_opens_new_connection(tmp_path: Path) -> None:
    async with agent_listener() as world:
        identity = Identity.load(tmp_path)
        await world.join(identity)
        before = identity.certificate
        async with an_agent(tmp_path, identity) as agent:
            first = await until(lambda: world.leader.links.sessions.get("n1"))
            assert await CertificateRenewal(identity, agent, clock, a_rng()).renew()
            assert identity.certificate != before
            await until(lambda: world.leader.links.sessions.get("n1") not in (None, first))


def _foreign(identity: Identity) -> CertificateKeyPair:
    return new_authority()[0].issue_client("node:n1", ["lattice:nodes"])


def _over(identity: Identity) -> CertificateKeyPair:
    return AUTHORITY.issue_client("node:n1", ["lattice:nodes"], timedelta(minutes=-1))


def _server(identity: Identity) -> CertificateKeyPair:
    return AUTHORITY.issue_server(["127.0.0.1"])


def _self_made(identity: Identity) -> CertificateKeyPair:
    return CertificateKeyPair(b"", b"")


def _admin(identity: Identity) -> CertificateKeyPair:
    return AUTHORITY.issue_client("lattice-admin", ["lattice:admins"])


def _both(identity: Identity) -> CertificateKeyPair:
    return AUTHORITY.issue_client("node:n1", ["lattice:nodes", "lattice:admins"])


def _other_key(identity: Identity) -> CertificateKeyPair:
    return AUTHORITY.issue_client("node:n1", ["lattice:nodes"])


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        pytest.param(_foreign, Unavailable, "connection", id="another authority's"),
        pytest.param(_over, Unavailable, "connection", id="expired certificate"),
        pytest.param(_server, (Unavailable, Denied), "connection|not a node's", id="a server's"),
        pytest.param(_self_made, Unavailable, "connection", id="no certificate"),
        pytest.param(_admin, Denied, "does not belong to a node", id="an administrator's"),
        pytest.param(_both, Denied, "does not belong to a node", id="node and administrator certificate"),
        pytest.param(_other_key, Denied, "UNKNOWN_NODE", id="certificate of an unknown key"),
    ],
)
async def test_peer_without_node_certificate_is_rejected(
    tmp_path: Path, make: Callable[[Identity], CertificateKeyPair], error: Any, words: str
) -> None:
    async with agent_listener() as world:
        identity = Identity.load(tmp_path)
        await world.join(identity)
        pair = make(identity)
        stranger = Identity(tmp_path, pair.key, pair.certificate, AUTHORITY.pem)
        revision = await world.leader.store.revision()
        async with GrpcTransport(lambda: stranger).connect(world.address) as end:
            with pytest.raises(error, match=words):
                await _introduce(end)
        if pair.key:
            with pytest.raises((Unavailable, Denied)):
                await GrpcTransport(lambda: stranger).renew_certificate(
                    world.address, identity.signing_request()
                )
        assert world.leader.links.sessions == {}
        assert await world.leader.store.revision() == revision


async def _introduce(end: AgentConnection) -> None:
    await end.send(pb.FromAgent(hello=pb.Hello(protocol=PROTOCOL_VERSION, registration=a_registration())))
    said = await end.receive()
    assert said is not None
    raise_on_session_end(said)


async def test_agent_rejects_server_of_another_authority(tmp_path: Path) -> None:
    async with agent_listener() as world:
        identity = Identity.load(tmp_path)
        await world.join(identity)
        identity.authority = new_authority()[0].pem
        async with GrpcTransport(lambda: identity).connect(world.address) as end:
            with pytest.raises(Unavailable):
                await _introduce(end)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        pytest.param("127.0.0.1:{closed}", "connection refused", id="closed port"),
        pytest.param("127.0.0.1", "no connection: ", id="no port"),
        pytest.param("nowhere.invalid:7", "no connection: ", id="no such host"),
    ],
)
async def test_no_channel_is_opened_to_unreachable_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, words: str
) -> None:
    """gRPC would retry after the channel is closed and keep its sockets."""
    channels: list[Any] = []
    monkeypatch.setattr(grpc.aio, "secure_channel", lambda *given, **_: channels.append(given))

    link = GrpcTransport(lambda: Identity.load(tmp_path))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        where = address.format(closed=closed.getsockname()[1])
        with pytest.raises(Unavailable, match=words):
            async with link.connect(where):
                pass
        with pytest.raises(Unavailable, match=words):
            await link.renew_certificate(where, b"")
    assert channels == []
