"""An agent whose node was removed stops its instances and says how to rejoin; only the leader of its control
plane can declare that."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from build.agent_world import (
    AUTHORITY,
    FOREVER,
    Leader,
    Node,
    a_joining,
    a_leader,
    a_node_with_key,
    a_registration,
    a_rng,
    a_sleeping_workload,
    an_agent_node,
    applied,
    leading_server,
)
from build.virtual import VirtualClock

from lattice.agent.certificate_renewal import CertificateRenewal
from lattice.agent.identity import Identity, JoinRecord
from lattice.agent.runtimes.fake import Behaviour
from lattice.agent.session import NodeRemoved
from lattice.agent.transport import GrpcTransport
from lattice.clock import SystemClock
from lattice.controllers.services.cluster_nodes import MACHINE_FINALIZER
from lattice.errors import Denied, NotFound, Unavailable
from lattice.kinds.node import NODE_FINALIZER, LatticeNode
from lattice.server.access.certificate_authority import CertificateKeyPair, new_authority
from lattice.server.access.node_certificates import NodeIdentity, parse_signing_request, sign_node_certificate
from lattice.server.grpc.listener import AgentListener, Tls
from lattice.store.protocol import Delete, Key, Put
from lattice.wire.connection import AgentConnection

HOME = "leader:7444"
NODE = Key(LatticeNode.resource.id, "", "n1")


async def delete_node(leader: Leader) -> None:
    await leader.store.commit([Delete(NODE)])


async def replace_node(leader: Leader) -> None:
    """Another machine joins under the node's name."""
    await delete_node(leader)
    await leader.add(a_node_with_key("n1", "key-of-another"))


@asynccontextmanager
async def at_work(clock: VirtualClock, leader: Leader, **rest: Any) -> AsyncIterator[Node]:
    """A machine that runs the workload web, which it keeps while it is disconnected."""
    node = an_agent_node(clock, {HOME: leader}, **rest)
    node.start()
    await leader.add(a_sleeping_workload())
    await leader.bind("web", applied("n1"))
    await clock.advance(3)
    assert [instance.uid for instance in node.machine.live_instances()] == ["uid-web"]
    try:
        yield node
    finally:
        await node.kill()


def outcome(node: Node) -> BaseException | None:
    assert node.task is not None
    return node.task.exception() if node.task.done() else None


@pytest.mark.parametrize(
    "befalls",
    [pytest.param(delete_node, id="deleted"), pytest.param(replace_node, id="replaced by another machine")],
)
@pytest.mark.parametrize(
    "is_cut_off",
    [pytest.param(False, id="while it is connected"), pytest.param(True, id="while it is cut off")],
)
async def test_instances_of_removed_node_are_stopped(
    befalls: Callable[[Leader], Awaitable[None]], is_cut_off: bool
) -> None:
    async with leading_server("n1") as (leader, clock), at_work(clock, leader) as node:
        if is_cut_off:
            node.net.cut()
            await clock.advance(300)
        await befalls(leader)
        await clock.advance(60)
        if is_cut_off:
            assert node.machine.live_instances() != [], "it does not know yet"
            node.net.is_cut = False
            await clock.advance(30)
        assert node.machine.live_instances() == []
        assert (node.memory.state.wanted, node.memory.state.records) == ((), ())
        why = outcome(node)
        assert isinstance(why, NodeRemoved)
        assert why.exit_code != 0
        assert "lattice tokens create" in why.fix


async def test_removed_node_stops_with_grace_period() -> None:
    async with leading_server("n1") as (leader, clock), at_work(clock, leader) as node:
        node.machine.behaviours[""] = node.machine.behaviours["default/web"] = Behaviour(stop_takes=20)
        await delete_node(leader)
        await clock.advance(20)
        assert node.machine.live_instances() != []
        assert outcome(node) is None
        await clock.advance(30)
        assert isinstance(outcome(node), NodeRemoved)


async def _cut(leader: Leader, node: Node, clock: VirtualClock) -> None:
    node.net.cut()


async def _end_certificate(leader: Leader, node: Node, clock: VirtualClock) -> None:
    """The certificate expires by the server's clock, which ends the connection."""
    node.net.peer = NodeIdentity("n1", "key-n1", clock.now() + timedelta(seconds=1))
    node.agent.certificate_renewed.set()


async def _step_down(leader: Leader, node: Node, clock: VirtualClock) -> None:
    """The server steps down; it no longer leads when it deletes the node."""
    leader.step_down()
    await delete_node(leader)


async def _lead_in_an_earlier_term(leader: Leader, node: Node, clock: VirtualClock) -> None:
    node.agent.executor.term = 99
    node.agent.certificate_renewed.set()
    await delete_node(leader)


@pytest.mark.parametrize(
    "befalls",
    [
        pytest.param(_cut, id="the network is gone"),
        pytest.param(_end_certificate, id="its certificate ends"),
        pytest.param(_step_down, id="a server that does not lead"),
        pytest.param(_lead_in_an_earlier_term, id="a leader of an earlier term"),
    ],
)
async def test_only_leader_can_declare_node_removed(
    befalls: Callable[[Leader, Node, VirtualClock], Awaitable[None]],
) -> None:
    async with leading_server("n1") as (leader, clock), at_work(clock, leader) as node:
        await befalls(leader, node, clock)
        await clock.advance(400)
        assert not node.agent.is_connected.is_set()
        assert [instance.uid for instance in node.machine.live_instances()] == ["uid-web"]
        assert outcome(node) is None


async def test_rejoin_is_retried_while_unavailable() -> None:
    async with leading_server("n1") as (leader, clock), at_work(clock, leader) as node:
        asked: list[float] = []

        async def rejoin() -> bool:
            asked.append(clock.monotonic())
            if len(asked) == 1:
                raise Unavailable("nobody answers")
            await leader.add(a_node_with_key("n1", "key-of-now"))
            node.net.peer = NodeIdentity("n1", "key-of-now", FOREVER)
            return True

        node.agent.rejoin = rejoin
        await delete_node(leader)
        await clock.advance(90)
        assert len(asked) == 2
        assert node.agent.is_connected.is_set()
        assert outcome(node) is None


@pytest.mark.parametrize(
    ("answer", "is_final"),
    [
        pytest.param(
            NotFound("there is no node n1 (fix: let the machine join again)"), True, id="its node is gone"
        ),
        pytest.param(NotFound("there is no such path"), False, id="another object is missing"),
        pytest.param(Denied("the certificate ended too long ago"), False, id="too long ago"),
        pytest.param(Unavailable("no connection"), False, id="no server answers"),
    ],
)
async def test_expired_agent_learns_removal_on_renewal(
    tmp_path: Path, answer: Exception, is_final: bool
) -> None:
    async with leading_server("n1") as (leader, clock), at_work(clock, leader) as node:
        identity = Identity.load(tmp_path)
        certificate = sign_node_certificate(
            AUTHORITY,
            parse_signing_request(identity.signing_request()),
            "n1",
            clock.now() - timedelta(hours=72),
        )
        identity.save_credentials(certificate, AUTHORITY.pem, JoinRecord("n1", "https://s:7443", ("s:7444",)))
        node.net.cut()

        async def come_back() -> bytes:
            raise answer

        assert not await CertificateRenewal(identity, node.agent, clock, a_rng(), come_back).renew()
        await clock.advance(60)
        assert isinstance(outcome(node), NodeRemoved) == is_final
        assert (node.machine.live_instances() == []) == is_final


def _servers(own: CertificateKeyPair) -> CertificateKeyPair:
    return AUTHORITY.issue_server(["127.0.0.1"])


def _foreign(own: CertificateKeyPair) -> CertificateKeyPair:
    return new_authority()[0].issue_server(["127.0.0.1"])


def _nodes(own: CertificateKeyPair) -> CertificateKeyPair:
    return own


def _users(own: CertificateKeyPair) -> CertificateKeyPair:
    return AUTHORITY.issue_client("lattice-admin", ["lattice:admins"])


@pytest.mark.parametrize(
    ("shown", "is_believed"),
    [
        pytest.param(_servers, True, id="a server of its own control plane"),
        pytest.param(_foreign, False, id="a server of another authority"),
        pytest.param(_nodes, False, id="a node that pretends to be a server"),
        pytest.param(_users, False, id="a user who pretends to be a server"),
    ],
)
async def test_removal_is_trusted_from_own_servers_only(
    tmp_path: Path, shown: Callable[[CertificateKeyPair], CertificateKeyPair], is_believed: bool
) -> None:
    clock = SystemClock()
    async with a_leader(clock, 0.5) as leader:  # it knows no node
        identity = Identity.load(tmp_path)
        certificate = sign_node_certificate(
            AUTHORITY, parse_signing_request(identity.signing_request()), "n1", clock.now()
        )
        pair = shown(CertificateKeyPair(certificate, identity.key))
        joining = a_joining(leader.store, clock)
        async with AgentListener(
            leader.links, joining, Tls(pair.certificate, pair.key, AUTHORITY.pem)
        ) as server:
            identity.save_credentials(
                certificate, AUTHORITY.pem, JoinRecord("n1", "", (f"127.0.0.1:{server.port}",))
            )
            node = an_agent_node(
                clock, {}, addresses=list(identity.join_record.agents), registration=a_registration()
            )
            link = _Counted(GrpcTransport(lambda: identity))
            node.agent.transport = link
            node.start()
            with suppress(TimeoutError):
                async with asyncio.timeout(30):
                    while outcome(node) is None and link.attempts < 3:
                        await asyncio.sleep(0.02)
            assert isinstance(outcome(node), NodeRemoved) == is_believed
            assert link.attempts >= (1 if is_believed else 3)
            await node.kill()


class _Counted:
    """A transport that counts its connection attempts."""

    def __init__(self, link: GrpcTransport) -> None:
        self._link = link
        self.attempts = 0

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[AgentConnection]:
        try:
            async with self._link.connect(address) as end:
                yield end
        finally:
            self.attempts += 1

    async def renew_certificate(self, address: str, request: bytes) -> bytes:
        return await self._link.renew_certificate(address, request)


async def stored_node(leader: Leader) -> LatticeNode:
    entry = await leader.store.get(NODE)
    assert entry is not None
    return msgspec.json.decode(entry.value, type=LatticeNode)


@pytest.mark.parametrize(
    ("finalizer", "is_marked"),
    [
        pytest.param(NODE_FINALIZER, True, id="the owner takes a joined machine back"),
        pytest.param(MACHINE_FINALIZER, False, id="a machine of a provider is the provider's"),
    ],
)
async def test_leaving_machine(finalizer: str, is_marked: bool) -> None:
    """The server drains the node by its deletion; the agent works until the node is gone, and then does not
    join again."""
    async with leading_server("n1") as (leader, clock), at_work(clock, leader) as node:
        joined = await stored_node(leader)
        metadata = msgspec.structs.replace(joined.metadata, finalizers=(finalizer,))
        entry = await leader.store.get(NODE)
        assert entry is not None
        changed = msgspec.structs.replace(joined, metadata=metadata)
        await leader.store.commit([Put(NODE, msgspec.json.encode(changed), entry.revision)])
        await clock.advance(2)
        joins: list[str] = []

        async def rejoin() -> bool:
            joins.append("again")
            return True

        node.agent.rejoin = rejoin
        node.agent.leave()
        await clock.advance(3)
        assert bool((await stored_node(leader)).metadata.deletion_timestamp) is is_marked
        assert (node.agent.is_leaving, "made this machine" in node.agent.leave_rejection) == (
            is_marked,
            not is_marked,
        )
        assert node.machine.live_instances() != [], "until the drain has moved them"
        revision = await leader.store.revision()
        await clock.advance(30)
        assert await leader.store.revision() == revision, "the repeated request changes nothing"
        if is_marked:
            await delete_node(leader)
            await clock.advance(60)
            assert isinstance(outcome(node), NodeRemoved)
            assert (node.machine.live_instances(), joins) == ([], [])
