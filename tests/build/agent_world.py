"""A leader and its agents for tests: a store in memory, a controller context with running caches, and agents that connect through memory or gRPC."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from build.virtual import VirtualClock
from lattice.agent.executor import Executor
from lattice.agent.runtimes.fake import FakeMachine, FakeRuntime
from lattice.agent.session import Agent
from lattice.clock import Clock
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.object_writes import put_new, with_status
from lattice.errors import Unavailable
from lattice.kinds.container import Container
from lattice.kinds.core import Secret
from lattice.kinds.join_token import AGENT_KEY_ANNOTATION, Grant, JoinToken, fingerprint, token_secret
from lattice.kinds.meta.base import Metadata
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload, Retry, WorkloadSpec, WorkloadStatus
from lattice.presence import Presence
from lattice.server.access.certificate_authority import CertificateAuthority, new_authority
from lattice.server.access.node_certificates import NodeIdentity
from lattice.server.agents.join import NodeJoinService
from lattice.server.agents.sessions import AgentSessions
from lattice.sim.world.machines import MemoryStateFile
from lattice.store.memory import MemoryStore
from lattice.store.protocol import ABSENT, Key, Put, Term
from lattice.wire import agent_pb2 as pb
from lattice.wire.connection import AgentConnection, connected_pair

REVISION = "a" * 24
ROLE = "controllers"
ROOM = {"cpu": 4000, "memory": 8 << 30, "storage": 100 << 30}
AUTHORITY, AUTHORITY_PAIR = new_authority()
FOREVER = datetime(2100, 1, 1, tzinfo=UTC)


def a_rng() -> random.Random:
    return random.Random(7)


def a_node_with_key(name: str = "n1", key: str = "key-n1", **rest: Any) -> LatticeNode:
    metadata = Metadata(name=name, annotations={AGENT_KEY_ANNOTATION: key} if key else {})
    return LatticeNode(api_version="lattice.dev/v1alpha1", kind="LatticeNode", metadata=metadata, **rest)


def a_sleeping_workload(name: str = "web", **spec: Any) -> LatticeWorkload:
    spec.setdefault("containers", {"main": Container(command=("sleep", "60"))})
    return LatticeWorkload(
        api_version="lattice.dev/v1alpha1",
        kind="LatticeWorkload",
        metadata=Metadata(name=name, namespace="default"),
        spec=WorkloadSpec(revision=spec.pop("revision", REVISION), **spec),
    )


def applied(node: str, run: int = 1, action: str = "Apply", **rest: Any) -> WorkloadStatus:
    """The status of a workload that is bound to a node and ordered there."""
    retry = Retry(attempts=0, max=5, revision=rest.pop("revision", REVISION), run=run)
    return WorkloadStatus(binding=Binding(node=node, term=1), retry=retry, last_action=action, **rest)


@dataclass
class Leader:
    """A server that leads while `context` is set."""

    store: MemoryStore
    clock: Clock
    heartbeat: float = 10.0
    context: ControllerContext | None = None
    elsewhere: str = ""
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.links = AgentSessions(
            self.clock, lambda: self.context, lambda: self.elsewhere or None, self.heartbeat
        )
        self.tasks.append(asyncio.create_task(self.links.run()))

    async def lead(self, holder: str = "me") -> ControllerContext:
        term = await self.store.campaign(ROLE, holder, 15.0)
        assert term is not None
        return self.leads(term)

    def leads(self, term: Term) -> ControllerContext:
        self.context = ControllerContext(self.store, self.clock, term, a_rng(), Presence(self.clock))
        self.tasks += [asyncio.create_task(copy.run()) for copy in self.context.caches]
        self.links.leadership_changed()
        return self.context

    def step_down(self, leader: str = "") -> None:
        self.context, self.elsewhere = None, leader
        self.links.leadership_changed()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def add(self, obj: Any) -> None:
        context = self.context
        assert context is not None
        await context.store.commit([put_new(obj, uid=f"uid-{obj.metadata.name}", now=context.timestamp)])

    async def bind(self, name: str, status: WorkloadStatus) -> None:
        entry = await self.store.get(Key("latticeworkloads.lattice.dev", "default", name))
        assert entry is not None
        await self.store.commit([with_status(entry, status)])


@asynccontextmanager
async def a_leader(clock: Clock, heartbeat: float = 10.0, *nodes: str) -> AsyncIterator[Leader]:
    leader = Leader(MemoryStore(clock), clock, heartbeat)
    await leader.lead()
    for name in nodes:
        await leader.add(a_node_with_key(name, f"key-{name}"))
    try:
        yield leader
    finally:
        await leader.close()


@asynccontextmanager
async def leading_server(*nodes: str) -> AsyncIterator[tuple[Leader, VirtualClock]]:
    """A leader of these nodes in virtual time, with its caches filled."""
    clock = VirtualClock()
    async with a_leader(clock, 10.0, *nodes) as leader:
        await clock.advance(0.1)
        yield leader, clock


@dataclass
class MemoryNetwork:
    """Servers by address; a connection carries the certificate of the machine that opens it."""

    servers: dict[str, Leader]
    peer: NodeIdentity
    is_cut: bool = False
    dialled: list[str] = field(default_factory=list)
    room: int = 16
    _open: list[AgentConnection] = field(default_factory=list)

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[AgentConnection]:
        self.dialled.append(address)
        server = self.servers.get(address)
        if server is None or self.is_cut:
            raise Unavailable("no connection", where=address)
        mine, theirs = connected_pair(self.room)
        serving = asyncio.create_task(server.links.serve(self.peer, theirs))
        self._open.append(mine)
        try:
            yield mine
        finally:
            mine.close()
            self._open.remove(mine)
            await asyncio.gather(serving, return_exceptions=True)

    async def renew_certificate(self, address: str, request: bytes) -> bytes:
        raise Unavailable("not here")

    def cut(self) -> None:
        self.is_cut = True
        for end in list(self._open):
            end.close()


def a_registration(**rest: Any) -> pb.Registration:
    given: dict[str, Any] = {
        "capacity": ROOM,
        "runtimes": ["process"],
        "first_port": 20000,
        "last_port": 20199,
    } | rest
    return pb.Registration(**given)


@dataclass
class Node:
    """A simulated machine with its agent."""

    agent: Agent
    net: MemoryNetwork
    machine: FakeMachine
    memory: MemoryStateFile
    task: "asyncio.Task[Any] | None" = None

    def start(self) -> None:
        self.task = asyncio.create_task(self.agent.run())

    async def kill(self) -> None:
        """Kill the agent; the machine's instances keep running."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[Node]:
    node.start()
    try:
        yield node
    finally:
        await node.kill()


def an_agent_node(
    clock: Clock, servers: dict[str, Leader], name: str = "n1", former: Node | None = None, **rest: Any
) -> Node:
    machine = former.machine if former else FakeMachine(clock, a_rng())
    memory = former.memory if former else MemoryStateFile()
    net = MemoryNetwork(
        servers, NodeIdentity(name, rest.pop("key", f"key-{name}"), rest.pop("until", FOREVER))
    )
    net.room = rest.pop("room", 16)
    registration = rest.pop("registration", a_registration())
    work = Executor(FakeRuntime(machine, memory), memory, clock)
    agent = Agent(
        work, net, clock, random.Random(name), lambda: registration, rest.pop("addresses", list(servers))
    )
    assert not rest, rest
    return Node(agent, net, machine, memory)


def a_token(authority: CertificateAuthority = AUTHORITY, number: int = 1) -> JoinToken:
    return JoinToken(f"{number:012x}", "s" * 32, fingerprint(authority.pem))


async def store_token(
    store: MemoryStore, clock: Clock, token: JoinToken, ttl: float = 900.0, **grant: Any
) -> None:
    kept = Grant(expires=format_timestamp(clock.now() + timedelta(seconds=ttl)), **grant)
    secret = new_object(token_secret(token, kept), uid=f"uid-{token.id}", now=format_timestamp(clock.now()))
    await store.commit(
        [Put(Key("secrets", "lattice-system", f"join-{token.id}"), pack(Secret.resource, secret), ABSENT)]
    )


def a_joining(store: MemoryStore, clock: Clock, agents: str = "127.0.0.1:7444") -> NodeJoinService:
    names = iter(range(1, 10_000))
    return NodeJoinService(store, AUTHORITY, clock, lambda: f"uid-{next(names)}", lambda: agents)


def a_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def a_request(key: Any, subject: x509.Name | None = None, *extensions: x509.ExtensionType) -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject or x509.Name([]))
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
