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

from lattice.agent.host import machine_facts as described
from lattice.agent.session import Agent
from lattice.agent.plan import Assignment
from lattice.agent.runtimes.fake import Behaviour, Copy, FakeMachine, FakeRuntime
from lattice.agent.host.runtime_protocol import Failure, InstanceId, Record, RunSpec
from lattice.agent.state_file import State
from lattice.agent.executor import Work
from lattice.errors import LatticeError, Unavailable
from lattice.kinds.node_class import Size
from lattice.providers.fake import FakeProvider
from lattice.providers.protocol import Found, Machine, Offered
from lattice.server.agents.join import node_key
from lattice.server.access.node_certificates import Peer, peer_of
from lattice.sim.world.clocks import SimClock
from lattice.sim.world.event_loop import Process
from lattice.sim.world.network import Answer, Network
from lattice.sim.world.store import finished
from lattice.wire import agent_pb2 as pb
from lattice.wire.channel import AgentEnd, ServerEnd

if TYPE_CHECKING:
    from lattice.sim.world.servers import SimServer
    from lattice.sim.world.world import World

CLOUD = "cloud"
GRACE = 4.0  # seconds that something may take to end
JOIN_PAUSE = 1.5


@dataclass(slots=True)
class Ground(FakeMachine):
    """What really happens on a machine, with what each copy was started as, and when which workload was tried, in vain too."""

    begun: list[RunSpec] = field(default_factory=list)
    tried: list[tuple[float, RunSpec, bool]] = field(
        default_factory=list
    )  # every start, and whether it came to something
    failures: list[tuple[float, InstanceId]] = field(
        default_factory=list
    )  # copies that ended by themselves, and not well
    unasked: list[tuple[float, RunSpec]] = field(
        default_factory=list
    )  # starts by an agent that nobody had told anything
    is_told: bool = False  # whether orders have reached the agent that is there now

    def begin(self, spec: RunSpec) -> Failure | None:
        failure, now = FakeMachine.begin(self, spec), self.clock.monotonic()
        self.tried.append((now, spec, failure is None))
        if not self.is_told:
            self.unasked.append((now, spec))
        if failure is None:
            self.begun.append(spec)
        return failure

    def _end(self, copy: Copy, at: float, end: tuple[int, str, Failure | None]) -> None:
        FakeMachine._end(self, copy, at, end)
        if end[2] is not None and end[2].reason != "DISCONNECTED":
            self.failures.append((at, copy.spec.id))


@dataclass
class Notes:
    """What an agent writes to its disk: an agent.work.Memory that survives it."""

    state: State = field(default_factory=State)
    terms: list[int] = field(default_factory=list)  # of the orders that it took, one after the other
    ears: list[Callable[[], None]] = field(default_factory=list)  # told when it has taken orders

    def write(self, record: Record) -> None:
        others = [each for each in self.state.records if each.spec.id != record.spec.id]
        self.state = msgspec.structs.replace(self.state, records=(*others, record))

    def strike(self, which: InstanceId) -> None:
        self.state = msgspec.structs.replace(
            self.state, records=tuple(each for each in self.state.records if each.spec.id != which)
        )

    def told(self, wanted: tuple[Assignment, ...], term: int) -> None:
        is_news = wanted != self.state.wanted
        self.state = msgspec.structs.replace(self.state, wanted=wanted, term=term)
        self.terms += [term] if self.terms[-1:] != [term] else []
        for ear in list(self.ears) if is_news else ():
            ear()


class SimMachine:
    """`size` is what its agent says it has, `whole` when nothing is wrong with it; `token` lets it in once."""

    def __init__(self, world: "World", name: str, size: Size, token: str, clock: SimClock) -> None:
        self.world, self.name, self.size, self.token, self.clock = world, name, size, token, clock
        self.whole = size
        self.rng = random.Random(world.rng.getrandbits(64))  # noqa: S311
        self.ground = Ground(clock, self.rng)
        self.usual = Behaviour()  # of what runs there, when nothing is wrong
        self.notes = Notes()
        self.process: Process | None = None
        self.starts = 0
        self.is_on = True
        self.peer: Peer | None = None
        self.address = f"10.0.0.{len(world.machines) + 1}"
        self._key = ec.derive_private_key(self.rng.getrandbits(200) + 2, ec.SECP256R1())

    def start_agent(self) -> None:
        if (
            not self.is_on
            or self.world.machines.get(self.name) is not self
            or (self.process is not None and self.process.is_alive)
        ):
            return
        self.starts += 1
        self.ground.is_told = False
        self.process = Process(f"{self.name}#{self.starts}", self.name)
        self.world.loop.spawn(self.process, self._agent(self.process))

    def kill_agent(self) -> None:
        """What runs runs on."""
        if self.process is not None and self.process.is_alive:
            self.world.loop.kill(self.process)
            self.world.net.died(self.process)

    def lose_power(self) -> None:
        self.is_on = False
        if self.process is not None and self.process.is_alive:
            self.world.loop.kill(self.process)
            self.world.net.died(self.process, silently=True)
        self.ground.lose_power()

    def restore_power(self) -> None:
        self.is_on = True
        self.start_agent()

    async def _agent(self, process: Process) -> None:
        await self._join(process)
        work = Work(FakeRuntime(self.ground, self.notes), self.notes, self.clock, grace=GRACE)
        addresses = [host.address for host in self.world.hosts]
        self.rng.shuffle(addresses)
        agent = Agent(
            work, SimLink(self, process), self.clock, self.rng, self._machine().registration, addresses
        )
        agent.rejoin = lambda: self._rejoined(process)
        await agent.run()

    async def _join(self, process: Process) -> None:
        while self.peer is None:
            try:
                await self._ask_to_join(process)
            except LatticeError:
                await self.clock.sleep(JOIN_PAUSE * (0.5 + self.rng.random()))

    async def _rejoined(self, process: Process) -> bool:
        try:
            await self._ask_to_join(process)
        except LatticeError:
            return False
        return True

    async def _ask_to_join(self, process: Process) -> None:
        pem = self._request()
        body = msgspec.json.encode({"request": pem, "token": self.token, "name": self.name})
        host = self.rng.choice(self.world.hosts)

        def serve(answer: Answer) -> None:
            server = host.server
            if server is None:
                answer(None, Unavailable("nobody listens there"))
            else:
                server.serve(f"join {self.name}", lambda: server.joining.join(body, self.address), answer)

        said = await self.world.net.request(process, host.name, serve, 8.0)
        self.peer = peer_of(said["certificate"].encode())

    def _request(self) -> str:
        request = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([]))
            .sign(self._key, hashes.SHA256())
        )
        return request.public_bytes(serialization.Encoding.PEM).decode()

    def _machine(self) -> described.Machine:
        room = {"cpu": self.size.milli, "memory": self.size.memory, "storage": self.size.storage}
        return described.Machine(
            room, ("container", "process"), (20000, 20199), addresses=[("InternalIP", self.address)]
        )


@dataclass
class SimLink:
    """An agent.link.Link over the simulated network."""

    machine: SimMachine
    process: Process

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[AgentEnd]:
        world, peer = self.machine.world, self.machine.peer
        host = next(each for each in world.hosts if each.address == address)

        def serve(answer: Answer) -> None:
            server = host.server
            if server is None or not server.process.is_alive or peer is None:
                answer(None, Unavailable("nobody listens there", where=address))
                return
            stream = world.net.connected(self.process, server.process)
            world.loop.spawn(
                server.process, server.links.serve(peer, _Ear(world, server, peer, stream.far_end))
            )
            answer(stream.near_end, None)

        end: AgentEnd = await world.net.request(self.process, host.name, serve, 5.0)
        try:
            yield _Hearing(self.machine.ground, end)
        finally:
            end.close()

    async def renew(self, address: str, request: bytes) -> bytes:
        raise Unavailable("certificates outlive the simulation", where=address)


@dataclass
class _Hearing:
    """An agent's end, which notes that orders have come."""

    ground: Ground
    end: AgentEnd

    async def send(self, said: pb.FromAgent) -> None:
        await self.end.send(said)

    async def receive(self) -> pb.ToAgent | None:
        said = await self.end.receive()
        self.ground.is_told |= said is not None and said.WhichOneof("said") == "orders"
        return said

    def close(self) -> None:
        self.end.close()


@dataclass
class _Ear:
    """A server's end, which notes when a leader took in what a node said."""

    world: "World"
    server: "SimServer"
    peer: Peer
    end: ServerEnd

    async def send(self, said: pb.ToAgent) -> None:
        await self.end.send(said)

    async def receive(self) -> pb.FromAgent | None:
        said = await self.end.receive()
        if said is not None and self.server.lead.leading() is not None and self._is_known():
            is_beat = said.WhichOneof("said") == "beat"
            (self.world.heard if is_beat else self.world.greeted).append(
                (self.world.loop.time(), self.peer.node)
            )
        return said

    def _is_known(self) -> bool:
        """Not a machine in whose place another one has joined."""
        entry = finished(self.world.store.get(node_key(self.peer.node)))
        return entry is not None and self.peer.key.encode() in entry.value

    def close(self) -> None:
        self.end.close()


@dataclass
class Cloud:
    """The provider that all servers ask: its machines are made whether or not whoever asked is still there."""

    world: "World"
    provider: FakeProvider

    def __post_init__(self) -> None:
        self.counted: list[tuple[float, str, str, int]] = []  # when, cluster, class, one more or less
        self.lost_at: dict[
            str, list[list[float]]
        ] = {}  # by node: when each of its machines was made, and ended by itself
        self._is_losing = False
        self._made: dict[str, tuple[str, str]] = {}
        self._position = 0
        self._standing: Counter[tuple[str, str]] = Counter()

    def count(self, machine: Machine | str, change: int) -> None:
        if isinstance(machine, Machine):
            self._made[machine.node] = (machine.cluster, machine.node_class)
        cluster, kind = self._made.get(machine if isinstance(machine, str) else machine.node, ("", ""))
        if cluster:
            self.counted.append((self.world.loop.time(), cluster, kind, change))
            spans = self.lost_at.setdefault(machine if isinstance(machine, str) else machine.node, [])
            if change > 0:
                spans.append([self.world.loop.time(), inf])
            elif spans and self._is_losing:
                spans[-1][1] = self.world.loop.time()

    def was_lost(self, node: str, at: float) -> bool:
        """Whether its machine was none by then, though nobody had asked for that."""
        known = [lost for made, lost in self.lost_at.get(node, ()) if made <= at]
        return not known or known[-1] <= at

    def standing(self, at: float) -> list[tuple[str, str, int]]:
        """Machines there were at that time, by cluster and class; ask with growing times."""
        while self._position < len(self.counted) and self.counted[self._position][0] <= at:
            _, cluster, kind, change = self.counted[self._position]
            self._standing[cluster, kind] += change
            self._position += 1
        return [(cluster, kind, count) for (cluster, kind), count in self._standing.items()]

    def seen_by(self, process: Process) -> "CloudClient":
        return CloudClient(self, process, self.world.net)

    def lose(self, node: str) -> None:
        """A machine ends, unasked; its provider says so when it is asked."""
        with suppress(LatticeError):
            if node in {each.node for each in finished(self.provider.list())}:
                self._is_losing = True
                self.provider.lose(node)
                self._is_losing = False

    def ask(self, work: Callable[[], Coroutine[Any, Any, Any]], answer: Answer) -> None:
        self.world.loop.spawn(None, self._ask(work, answer))

    async def _ask(self, work: Callable[[], Coroutine[Any, Any, Any]], answer: Answer) -> None:
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

    async def offers(self) -> Offered:
        found: Offered = await self._ask(self.cloud.provider.offers)
        return found

    async def create(self, machine: Machine) -> str:
        found: str = await self._ask(lambda: self.cloud.provider.create(machine))
        return found

    async def delete(self, node: str) -> None:
        await self._ask(lambda: self.cloud.provider.delete(node))

    async def list(self) -> Sequence[Found]:
        found: Sequence[Found] = await self._ask(self.cloud.provider.list)
        return found

    async def close(self) -> None:
        return None

    async def _ask(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await self.net.request(self.process, CLOUD, lambda answer: self.cloud.ask(work, answer), 20.0)
