"""Simulated machines: a fake cloud provider, machines that outlive their agents, and the real agent on every
machine."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

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
from lattice.providers.fake import FakeProvider
from lattice.providers.protocol import AvailableCapacity, MachineSpec, MachineStatus
from lattice.server.access.node_certificates import NodeIdentity, node_identity
from lattice.server.agents.join import node_key
from lattice.sim.world.clocks import SimClock
from lattice.sim.world.event_loop import Process
from lattice.sim.world.network import AnswerCallback, Network
from lattice.sim.world.store import run_synchronously
from lattice.wire import agent_pb2 as pb
from lattice.wire.connection import AgentConnection, ServerConnection

if TYPE_CHECKING:
    from lattice.sim.world.servers import SimServer
    from lattice.sim.world.world import World

CLOUD_HOST = "cloud"
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
    # Assignments have reached the current agent process.
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
    # Terms of accepted assignments, in order, without repeats.
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


class SimMachine:
    """A machine with its agent. `size` is the reported capacity, `full_size` the capacity without a fault;
    `token` allows the first join."""

    def __init__(self, world: "World", name: str, size: MachineSize, token: str, clock: SimClock) -> None:
        self.world, self.name, self.size, self.token, self.clock = world, name, size, token, clock
        self.full_size = size
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
        if (
            not self.is_powered_on
            or self.world.machines.get(self.name) is not self
            or (self.process is not None and self.process.is_alive)
        ):
            return
        self.start_count += 1
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
            self.world.net.process_died(self.process, silently=True)
        self.ground.lose_power()

    def restore_power(self) -> None:
        self.is_powered_on = True
        self.start_agent()

    async def _run_agent(self, process: Process) -> None:
        await self._join(process)
        executor = Executor(
            FakeRuntime(self.ground, self.state_file), self.state_file, self.clock, grace=STOP_GRACE_S
        )
        # Agents try the servers in different orders.
        addresses = [host.address for host in self.world.hosts]
        self.rng.shuffle(addresses)
        agent = Agent(
            executor,
            SimTransport(self, process),
            self.clock,
            self.rng,
            self._machine_info().registration,
            addresses,
        )
        agent.rejoin = lambda: self._rejoin(process)
        await agent.run()

    async def _join(self, process: Process) -> None:
        while self.peer is None:
            try:
                await self._request_join(process)
            except LatticeError:
                await self.clock.sleep(JOIN_RETRY_S * (0.5 + self.rng.random()))

    async def _rejoin(self, process: Process) -> bool:
        try:
            await self._request_join(process)
        except LatticeError:
            return False
        return True

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
                answer(None, Unavailable("nobody listens there"))
            else:
                server.handle(f"join {self.name}", lambda: server.joining.join(body, self.address), answer)

        reply = await self.world.net.request(process, host.name, serve, 8.0)
        self.peer = node_identity(reply["certificate"].encode())

    def _machine_info(self) -> MachineInfo:
        capacity = {"cpu": self.size.millicores, "memory": self.size.memory, "storage": self.size.storage}
        return MachineInfo(
            capacity, ("container", "process"), (20000, 20199), addresses=[("InternalIP", self.address)]
        )


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
                answer(None, Unavailable("nobody listens there", where=address))
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

    world: "World"
    server: "SimServer"
    peer: NodeIdentity
    end: ServerConnection

    async def send(self, message: pb.ToAgent) -> None:
        await self.end.send(message)

    async def receive(self) -> pb.FromAgent | None:
        message = await self.end.receive()
        if (
            message is not None
            and self.server.leadership.leading_context() is not None
            and self._is_current_peer()
        ):
            is_heartbeat = message.WhichOneof("said") == "beat"
            (self.world.heartbeats if is_heartbeat else self.world.other_messages).append(
                (self.world.loop.time(), self.peer.node)
            )
        return message

    def _is_current_peer(self) -> bool:
        """Report whether the peer's key is the key of the stored node; a replaced machine has another key."""
        entry = run_synchronously(self.world.store.get(node_key(self.peer.node)))
        return entry is not None and self.peer.key_digest.encode() in entry.value

    def close(self) -> None:
        self.end.close()


@dataclass
class Cloud:
    """The fake cloud provider of all servers; a requested machine is created even if the requesting server
    has died."""

    world: "World"
    provider: FakeProvider

    def __post_init__(self) -> None:
        # Simulation time, cluster, class, and 1 or -1.
        self.count_changes: list[tuple[float, str, str, int]] = []
        # By node: creation and unrequested end of every machine.
        self.machine_spans: dict[str, list[list[float]]] = {}
        self._is_losing = False
        self._machine_groups: dict[str, tuple[str, str]] = {}
        self._position = 0
        self._machine_counts: Counter[tuple[str, str]] = Counter()

    def record_change(self, machine: MachineSpec | str, change: int) -> None:
        if isinstance(machine, MachineSpec):
            self._machine_groups[machine.node] = (machine.cluster, machine.node_class)
        cluster, kind = self._machine_groups.get(
            machine if isinstance(machine, str) else machine.node, ("", "")
        )
        if cluster:
            self.count_changes.append((self.world.loop.time(), cluster, kind, change))
            spans = self.machine_spans.setdefault(machine if isinstance(machine, str) else machine.node, [])
            if change > 0:
                spans.append([self.world.loop.time(), inf])
            elif spans and self._is_losing:
                spans[-1][1] = self.world.loop.time()

    def was_lost(self, node: str, at: float) -> bool:
        """Report whether the node's machine had ended by `at` without a request."""
        lost_times = [lost_at for created_at, lost_at in self.machine_spans.get(node, ()) if created_at <= at]
        return not lost_times or lost_times[-1] <= at

    def machine_counts(self, at: float) -> list[tuple[str, str, int]]:
        """Machines at simulation time `at` by cluster and class; call with growing times."""
        # Replays changes only once: the checker asks with growing times.
        while self._position < len(self.count_changes) and self.count_changes[self._position][0] <= at:
            _, cluster, kind, change = self.count_changes[self._position]
            self._machine_counts[cluster, kind] += change
            self._position += 1
        return [(cluster, kind, count) for (cluster, kind), count in self._machine_counts.items()]

    def client_for(self, process: Process) -> "CloudClient":
        return CloudClient(self, process, self.world.net)

    def lose_machine(self, node: str) -> None:
        """End a machine without a request; the provider reports the end in its list."""
        with suppress(LatticeError):
            if node in {status.node for status in run_synchronously(self.provider.list())}:
                self._is_losing = True
                self.provider.end_machine(node)
                self._is_losing = False

    def handle(self, work: Callable[[], Coroutine[Any, Any, Any]], answer: AnswerCallback) -> None:
        self.world.loop.spawn(None, self._handle(work, answer))

    async def _handle(self, work: Callable[[], Coroutine[Any, Any, Any]], answer: AnswerCallback) -> None:
        try:
            answer(await work(), None)
        except LatticeError as error:
            answer(None, error)


@dataclass
class CloudClient:
    """The fake provider as reached by a server process over the network."""

    cloud: Cloud
    process: Process
    net: Network
    name: str = "fake"

    async def available_capacity(self) -> AvailableCapacity:
        reply: AvailableCapacity = await self._request(self.cloud.provider.available_capacity)
        return reply

    async def create(self, machine: MachineSpec) -> str:
        reply: str = await self._request(lambda: self.cloud.provider.create(machine))
        return reply

    async def delete(self, node: str) -> None:
        await self._request(lambda: self.cloud.provider.delete(node))

    async def list(self) -> Sequence[MachineStatus]:
        reply: Sequence[MachineStatus] = await self._request(self.cloud.provider.list)
        return reply

    async def close(self) -> None:
        return None

    async def _request(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await self.net.request(
            self.process, CLOUD_HOST, lambda answer: self.cloud.handle(work, answer), 20.0
        )
