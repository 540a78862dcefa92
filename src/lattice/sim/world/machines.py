"""Machines and their agents: a cloud that makes machines, machines that outlive their agents, and the real agent on each."""

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
from lattice.agent.host import machine_info as described
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
STOP_GRACE_S = 4.0  # seconds that something may take to end
JOIN_RETRY_S = 1.5


@dataclass(slots=True)
class Ground(FakeMachine):
    """What really happens on a machine, with what each copy was started as, and when which workload was tried, in vain too."""

    started_specs: list[RunSpec] = field(default_factory=list)
    start_attempts: list[tuple[float, RunSpec, bool]] = field(
        default_factory=list
    )  # every start, and whether it came to something
    failures: list[tuple[float, InstanceId]] = field(
        default_factory=list
    )  # copies that ended by themselves, and not well
    starts_without_assignments: list[tuple[float, RunSpec]] = field(
        default_factory=list
    )  # starts by an agent that nobody had told anything
    has_assignments: bool = False  # whether orders have reached the agent that is there now

    def begin(self, spec: RunSpec) -> Failure | None:
        failure, now = FakeMachine.begin(self, spec), self.clock.monotonic()
        self.start_attempts.append((now, spec, failure is None))
        if not self.has_assignments:
            self.starts_without_assignments.append((now, spec))
        if failure is None:
            self.started_specs.append(spec)
        return failure

    def _end(self, copy: FakeProcess, at: float, end: tuple[int, str, Failure | None]) -> None:
        FakeMachine._end(self, copy, at, end)
        if end[2] is not None and end[2].reason != "DISCONNECTED":
            self.failures.append((at, copy.spec.id))


@dataclass
class MemoryStateFile:
    """What an agent writes to its disk: an agent.work.Memory that survives it."""

    state: AgentState = field(default_factory=AgentState)
    accepted_terms: list[int] = field(default_factory=list)  # of the orders that it took, one after the other
    listeners: list[Callable[[], None]] = field(default_factory=list)  # told when it has taken orders

    def write_record(self, record: InstanceRecord) -> None:
        others = [each for each in self.state.records if each.spec.id != record.spec.id]
        self.state = msgspec.structs.replace(self.state, records=(*others, record))

    def delete_record(self, which: InstanceId) -> None:
        self.state = msgspec.structs.replace(
            self.state, records=tuple(each for each in self.state.records if each.spec.id != which)
        )

    def save_assignments(self, wanted: tuple[Assignment, ...], term: int) -> None:
        is_news = wanted != self.state.wanted
        self.state = msgspec.structs.replace(self.state, wanted=wanted, term=term)
        self.accepted_terms += [term] if self.accepted_terms[-1:] != [term] else []
        for ear in list(self.listeners) if is_news else ():
            ear()


class SimMachine:
    """`size` is what its agent says it has, `whole` when nothing is wrong with it; `token` lets it in once."""

    def __init__(self, world: "World", name: str, size: MachineSize, token: str, clock: SimClock) -> None:
        self.world, self.name, self.size, self.token, self.clock = world, name, size, token, clock
        self.full_size = size
        self.rng = random.Random(world.rng.getrandbits(64))  # noqa: S311
        self.ground = Ground(clock, self.rng)
        self.default_behaviour = Behaviour()  # of what runs there, when nothing is wrong
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
        """What runs runs on."""
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
        work = Executor(
            FakeRuntime(self.ground, self.state_file), self.state_file, self.clock, grace=STOP_GRACE_S
        )
        addresses = [host.address for host in self.world.hosts]
        self.rng.shuffle(addresses)
        agent = Agent(
            work, SimTransport(self, process), self.clock, self.rng, self._machine().registration, addresses
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
        pem = self._certificate_request()
        body = msgspec.json.encode({"request": pem, "token": self.token, "name": self.name})
        host = self.rng.choice(self.world.hosts)

        def serve(answer: AnswerCallback) -> None:
            server = host.server
            if server is None:
                answer(None, Unavailable("nobody listens there"))
            else:
                server.handle(f"join {self.name}", lambda: server.joining.join(body, self.address), answer)

        said = await self.world.net.request(process, host.name, serve, 8.0)
        self.peer = node_identity(said["certificate"].encode())

    def _certificate_request(self) -> str:
        request = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([]))
            .sign(self._key, hashes.SHA256())
        )
        return request.public_bytes(serialization.Encoding.PEM).decode()

    def _machine(self) -> described.MachineInfo:
        room = {"cpu": self.size.millicores, "memory": self.size.memory, "storage": self.size.storage}
        return described.MachineInfo(
            room, ("container", "process"), (20000, 20199), addresses=[("InternalIP", self.address)]
        )


@dataclass
class SimTransport:
    """An agent.link.Link over the simulated network."""

    machine: SimMachine
    process: Process

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[AgentConnection]:
        world, peer = self.machine.world, self.machine.peer
        host = next(each for each in world.hosts if each.address == address)

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

        end: AgentConnection = await world.net.request(self.process, host.name, serve, 5.0)
        try:
            yield _RecordingAgentEnd(self.machine.ground, end)
        finally:
            end.close()

    async def renew_certificate(self, address: str, request: bytes) -> bytes:
        raise Unavailable("certificates outlive the simulation", where=address)


@dataclass
class _RecordingAgentEnd:
    """An agent's end, which notes that orders have come."""

    ground: Ground
    end: AgentConnection

    async def send(self, said: pb.FromAgent) -> None:
        await self.end.send(said)

    async def receive(self) -> pb.ToAgent | None:
        said = await self.end.receive()
        self.ground.has_assignments |= said is not None and said.WhichOneof("said") == "orders"
        return said

    def close(self) -> None:
        self.end.close()


@dataclass
class _RecordingServerEnd:
    """A server's end, which notes when a leader took in what a node said."""

    world: "World"
    server: "SimServer"
    peer: NodeIdentity
    end: ServerConnection

    async def send(self, said: pb.ToAgent) -> None:
        await self.end.send(said)

    async def receive(self) -> pb.FromAgent | None:
        said = await self.end.receive()
        if (
            said is not None
            and self.server.leadership.leading_context() is not None
            and self._is_current_peer()
        ):
            is_beat = said.WhichOneof("said") == "beat"
            (self.world.heartbeats if is_beat else self.world.other_messages).append(
                (self.world.loop.time(), self.peer.node)
            )
        return said

    def _is_current_peer(self) -> bool:
        """Not a machine in whose place another one has joined."""
        entry = run_synchronously(self.world.store.get(node_key(self.peer.node)))
        return entry is not None and self.peer.key_digest.encode() in entry.value

    def close(self) -> None:
        self.end.close()


@dataclass
class Cloud:
    """The provider that all servers ask: its machines are made whether or not whoever asked is still there."""

    world: "World"
    provider: FakeProvider

    def __post_init__(self) -> None:
        self.count_changes: list[tuple[float, str, str, int]] = []  # when, cluster, class, one more or less
        self.machine_spans: dict[
            str, list[list[float]]
        ] = {}  # by node: when each of its machines was made, and ended by itself
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
        """Whether its machine was none by then, though nobody had asked for that."""
        known = [lost for made, lost in self.machine_spans.get(node, ()) if made <= at]
        return not known or known[-1] <= at

    def machine_counts(self, at: float) -> list[tuple[str, str, int]]:
        """Machines there were at that time, by cluster and class; ask with growing times."""
        while self._position < len(self.count_changes) and self.count_changes[self._position][0] <= at:
            _, cluster, kind, change = self.count_changes[self._position]
            self._machine_counts[cluster, kind] += change
            self._position += 1
        return [(cluster, kind, count) for (cluster, kind), count in self._machine_counts.items()]

    def client_for(self, process: Process) -> "CloudClient":
        return CloudClient(self, process, self.world.net)

    def lose_machine(self, node: str) -> None:
        """A machine ends, unasked; its provider says so when it is asked."""
        with suppress(LatticeError):
            if node in {each.node for each in run_synchronously(self.provider.list())}:
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
    """A providers.protocol.Provider behind the network."""

    cloud: Cloud
    process: Process
    net: Network
    name: str = "fake"

    async def available_capacity(self) -> AvailableCapacity:
        found: AvailableCapacity = await self._request(self.cloud.provider.available_capacity)
        return found

    async def create(self, machine: MachineSpec) -> str:
        found: str = await self._request(lambda: self.cloud.provider.create(machine))
        return found

    async def delete(self, node: str) -> None:
        await self._request(lambda: self.cloud.provider.delete(node))

    async def list(self) -> Sequence[MachineStatus]:
        found: Sequence[MachineStatus] = await self._request(self.cloud.provider.list)
        return found

    async def close(self) -> None:
        return None

    async def _request(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await self.net.request(
            self.process, CLOUD_HOST, lambda answer: self.cloud.handle(work, answer), 20.0
        )
