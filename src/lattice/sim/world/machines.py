"""Simulated machines: machines that outlive their agents, and the real agent on every machine."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lattice.agent.executor import Executor
from lattice.agent.host.machine_info import MachineInfo
from lattice.agent.host.runtime_protocol import Failure, InstanceId, InstanceRecord, RunSpec
from lattice.agent.plan import Assignment
from lattice.agent.runtimes.fake import Behaviour, FakeMachine, FakeProcess, FakeRuntime
from lattice.agent.session import Agent
from lattice.agent.state_file import AgentState
from lattice.errors import LatticeError, Unavailable
from lattice.kinds.node_class import MachineSize
from lattice.server.access.node_certificates import NodeIdentity, node_identity
from lattice.server.agents.join import node_key
from lattice.sim.world.clocks import SimClock
from lattice.sim.world.event_loop import Process, SimLoop
from lattice.sim.world.network import AnswerCallback, Network
from lattice.sim.world.servers import ServerHost, SimServer
from lattice.sim.world.store import HistoryStore, run_synchronously
from lattice.wire import agent_pb2 as pb
from lattice.wire.connection import AgentConnection, ServerConnection

# Time that an instance has to stop before the agent kills the instance.
STOP_GRACE_S = 4.0
JOIN_RETRY_S = 1.5


@dataclass(slots=True)
class Ground(FakeMachine):
    """The instances that really run on a machine, with a log of every start attempt and failure for the
    checker."""

    started_specs: list[RunSpec] = field(default_factory=list)
    # Time, spec and success of every start attempt. Times are monotonic times of the machine.
    start_attempts: list[tuple[float, RunSpec, bool]] = field(default_factory=list)
    # Instances that failed by themselves.
    failures: list[tuple[float, InstanceId]] = field(default_factory=list)
    # Starts by an agent that had not received assignments (I-19).
    starts_without_assignments: list[tuple[float, RunSpec]] = field(default_factory=list)
    # True after assignments have reached the current agent process.
    has_assignments: bool = False

    def begin(self, spec: RunSpec) -> Failure | None:
        failure, now = FakeMachine.begin(self, spec), self.clock.monotonic()
        self.start_attempts.append((now, spec, failure is None))
        if not self.has_assignments:
            self.starts_without_assignments.append((now, spec))
        if failure is None:
            self.started_specs.append(spec)
        return failure

    def _end(self, process: FakeProcess, at: float, end: tuple[int, str, Failure | None]) -> None:
        FakeMachine._end(self, process, at, end)
        # A stop after a disconnection is no failure for the back-off (I-35).
        if end[2] is not None and end[2].reason != "DISCONNECTED":
            self.failures.append((at, process.spec.id))


@dataclass
class MemoryStateFile:
    """The agent's state file on disk, which survives the agent process."""

    state: AgentState = field(default_factory=AgentState)
    # Terms of accepted assignments, in order; assignments of the same term in a row count once.
    accepted_terms: list[int] = field(default_factory=list)
    # Called after the agent has accepted new assignments.
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def write_record(self, record: InstanceRecord) -> None:
        records = [stored for stored in self.state.records if stored.spec.id != record.spec.id]
        self.state = msgspec.structs.replace(self.state, records=(*records, record))

    def delete_record(self, instance_id: InstanceId) -> None:
        self.state = msgspec.structs.replace(
            self.state,
            records=tuple(stored for stored in self.state.records if stored.spec.id != instance_id),
        )

    def save_assignments(self, assignments: tuple[Assignment, ...], term: int) -> None:
        are_new = assignments != self.state.wanted
        self.state = msgspec.structs.replace(self.state, wanted=assignments, term=term)
        self.accepted_terms += [term] if self.accepted_terms[-1:] != [term] else []
        for listener in list(self.listeners) if are_new else ():
            listener()


class MachineWorld(Protocol):
    """The parts of the world that a machine and its agent use."""

    rng: random.Random
    loop: SimLoop
    net: Network
    store: HistoryStore
    hosts: list[ServerHost]
    machines: dict[str, "SimMachine"]
    heartbeats: list[tuple[float, str]]
    other_messages: list[tuple[float, str]]


class SimMachine:
    """A machine with its agent. `size` is the reported capacity, `full_size` the capacity without a fault;
    `token` allows the first join."""

    def __init__(
        self, world: MachineWorld, name: str, size: MachineSize, token: str, clock: SimClock
    ) -> None:
        self.world, self.name, self.size, self.token, self.clock = world, name, size, token, clock
        self.full_size = size
        # Empty for a machine that no node class describes.
        self.node_class = ""
        # What the agent reports beside the size.
        self.runtimes: tuple[str, ...] = ("container", "process")
        self.ports = (20000, 20199)
        self.rng = random.Random(world.rng.getrandbits(64))  # noqa: S311
        self.ground = Ground(clock, self.rng)
        # Behaviour of containers without a fault.
        self.default_behaviour = Behaviour()
        self.state_file = MemoryStateFile()
        self.process: Process | None = None
        self.start_count = 0
        self.is_powered_on = True
        self.peer: NodeIdentity | None = None
        self.address = f"10.0.0.{len(world.machines) + 1}"
        self._key = ec.derive_private_key(self.rng.getrandbits(200) + 2, ec.SECP256R1())

    def start_agent(self) -> None:
        # A removed machine starts no agent, even if a fault of the machine heals later.
        if (
            not self.is_powered_on
            or self.world.machines.get(self.name) is not self
            or (self.process is not None and self.process.is_alive)
        ):
            return
        self.start_count += 1
        # A new process must not act on the assignments of its predecessor (I-19).
        self.ground.has_assignments = False
        self.process = Process(f"{self.name}#{self.start_count}", self.name)
        self.world.loop.spawn(self.process, self._run_agent(self.process))

    def kill_agent(self) -> None:
        """Kill the agent process; instances continue to run."""
        if self.process is not None and self.process.is_alive:
            self.world.loop.kill(self.process)
            self.world.net.process_died(self.process)

    def lose_power(self) -> None:
        self.is_powered_on = False
        if self.process is not None and self.process.is_alive:
            self.world.loop.kill(self.process)
            # Without power no kernel closes the connections.
            self.world.net.process_died(self.process, silently=True)
        self.ground.lose_power()

    def restore_power(self) -> None:
        self.is_powered_on = True
        self.start_agent()

    async def _run_agent(self, process: Process) -> None:
        # The identity outlives the agent process, like a certificate on disk.
        while self.peer is None:
            try:
                await self._request_join(process)
            except LatticeError:
                await self.clock.sleep(JOIN_RETRY_S * (0.5 + self.rng.random()))
        executor = Executor(
            FakeRuntime(self.ground, self.state_file), self.state_file, self.clock, grace=STOP_GRACE_S
        )
        # Agents try the servers in different orders.
        addresses = [host.address for host in self.world.hosts]
        self.rng.shuffle(addresses)
        capacity = {"cpu": self.size.millicores, "memory": self.size.memory, "storage": self.size.storage}
        info = MachineInfo(capacity, self.runtimes, self.ports, addresses=[("InternalIP", self.address)])
        agent = Agent(
            executor,
            SimTransport(self, process),
            self.clock,
            self.rng,
            info.registration,
            addresses,
        )

        async def rejoin() -> bool:
            try:
                await self._request_join(process)
            except LatticeError:
                return False
            return True

        agent.rejoin = rejoin
        await agent.run()

    async def _request_join(self, process: Process) -> None:
        request = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([]))
            .sign(self._key, hashes.SHA256())
        )
        pem = request.public_bytes(serialization.Encoding.PEM).decode()
        body = msgspec.json.encode({"request": pem, "token": self.token, "name": self.name})
        host = self.rng.choice(self.world.hosts)

        def serve(answer: AnswerCallback) -> None:
            server = host.server
            if server is None:
                answer(None, Unavailable("no server process listens at this address"))
            else:
                server.handle(f"join {self.name}", lambda: server.joining.join(body, self.address), answer)

        reply = await self.world.net.request(process, host.name, serve, 8.0)
        self.peer = node_identity(reply["certificate"].encode())


@dataclass
class SimTransport:
    """The agent's transport over the simulated network."""

    machine: SimMachine
    process: Process

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[AgentConnection]:
        world, peer = self.machine.world, self.machine.peer
        host = next(candidate for candidate in world.hosts if candidate.address == address)

        def serve(answer: AnswerCallback) -> None:
            server = host.server
            if server is None or not server.process.is_alive or peer is None:
                answer(None, Unavailable("no server process listens at this address", where=address))
                return
            stream = world.net.open_stream(self.process, server.process)
            world.loop.spawn(
                server.process,
                server.sessions.serve(peer, _RecordingServerEnd(world, server, peer, stream.far_end)),
            )
            answer(stream.near_end, None)

        connection: AgentConnection = await world.net.request(self.process, host.name, serve, 5.0)
        try:
            yield _RecordingAgentEnd(self.machine.ground, connection)
        finally:
            connection.close()

    async def renew_certificate(self, address: str, request: bytes) -> bytes:
        raise Unavailable("certificates outlive the simulation", where=address)


@dataclass
class _RecordingAgentEnd:
    """The agent's end of a connection; records that assignments have arrived."""

    ground: Ground
    end: AgentConnection

    async def send(self, message: pb.FromAgent) -> None:
        await self.end.send(message)

    async def receive(self) -> pb.ToAgent | None:
        message = await self.end.receive()
        self.ground.has_assignments |= message is not None and message.WhichOneof("said") == "orders"
        return message

    def close(self) -> None:
        self.end.close()


@dataclass
class _RecordingServerEnd:
    """The server's end of a connection; records when a leader received a message of a node."""

    world: MachineWorld
    server: SimServer
    peer: NodeIdentity
    end: ServerConnection

    async def send(self, message: pb.ToAgent) -> None:
        await self.end.send(message)

    async def receive(self) -> pb.FromAgent | None:
        message = await self.end.receive()
        # Only messages to a leader are recorded, because only a leader concludes anything from contact or
        # silence (I-13).
        if message is None or self.server.leadership.leading_context() is None:
            return message
        entry = run_synchronously(self.world.store.get(node_key(self.peer.node)))
        # The message of a replaced machine does not count: its key differs from the key of the stored node.
        if entry is not None and self.peer.key_digest.encode() in entry.value:
            is_heartbeat = message.WhichOneof("said") == "beat"
            messages = self.world.heartbeats if is_heartbeat else self.world.other_messages
            messages.append((self.world.loop.time(), self.peer.node))
        return message

    def close(self) -> None:
        self.end.close()
