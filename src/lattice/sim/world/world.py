"""A whole world in one loop: hosts, clocks, a network and a store that are fakes, and servers, agents and verbs that are not."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from lattice.clock import stamp
from lattice.controllers.runtime.context import uids
from lattice.kinds.join_token import Grant
from lattice.kinds.meta.object_rules import born
from lattice.kinds.node import NodeSpec
from lattice.kinds.node_class import Size
from lattice.kinds.meta.stored import pack
from lattice.providers.fake import FakeProvider
from lattice.providers.protocol import Machine
from lattice.scheduling.cycle.profile import DEFAULT, PRESETS, Binding, ProfileSpec
from lattice.server.resources.admission import PERMANENT_NAMESPACES, complete
from lattice.sim.world.clocks import SimClock
from lattice.sim.world.event_loop import Process, SimLoop
from lattice.sim.world.machines import Cloud, SimMachine
from lattice.sim.world.network import Network
from lattice.sim.world.servers import ServerHost, SimServer, catalog, minted
from lattice.sim.world.settings import RESERVED
from lattice.sim.world.store import HistoryStore, StoreClient, finished
from lattice.sim.world.users import Client, Told
from lattice.store.protocol import ABSENT, Put

EPOCH = datetime(2026, 3, 10, 9, 0, tzinfo=UTC)
RACK = Size(2000, 4 << 30, 10 << 30, 0, {})


@dataclass(frozen=True)
class Shape:
    """How large the world is and how its parts are."""

    servers: int = 3
    racks: int = 3  # machines that joined by themselves
    epoch: datetime = EPOCH
    binding: Binding = "optimistic"
    rate: float = 0.0  # by which clocks may run fast or slow
    offset: float = 0.0  # seconds by which wall clocks may be off


@dataclass
class World:
    seed: int
    shape: Shape = field(default_factory=Shape)
    notes: list[tuple[float, str]] = field(default_factory=list)  # what was done to it, and when
    tune: Callable[["SimMachine"], None] = lambda machine: (
        None
    )  # told of each new machine: how what runs there behaves

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)  # noqa: S311
        self.loop = SimLoop(random.Random(self.rng.getrandbits(64)))  # noqa: S311
        self.net = Network(self.loop, random.Random(self.rng.getrandbits(64)))  # noqa: S311
        self.true_clock = SimClock(self.loop, self.shape.epoch)
        self.store = HistoryStore(self.true_clock, self.loop.time)
        self.profile: ProfileSpec = replace(
            PRESETS[DEFAULT], binding=self.shape.binding, reservation_timeout=RESERVED
        )
        self.told: list[Told] = []
        self.machines: dict[str, SimMachine] = {}
        self.heard: list[tuple[float, str]] = []  # when a leader took in a node's beat
        self.greeted: list[tuple[float, str]] = []  # and when something else that it said
        self.store_clients: list[StoreClient] = []
        self.gone: list[SimMachine] = []  # machines that are no more, for the record
        provider = FakeProvider(self.true_clock, latency=0.8)
        provider.made, provider.removed = self._made, self._removed
        self.cloud = Cloud(self, provider)
        self.hosts = [ServerHost(f"s{number + 1}", self._clock()) for number in range(self.shape.servers)]

    def note(self, words: str) -> None:
        self.notes.append((self.loop.time(), words))

    def begin(self) -> None:
        """Call it inside the loop."""
        for name in sorted(PERMANENT_NAMESPACES):
            served = catalog().by_id("namespaces")
            obj = complete(
                served,
                born({"metadata": {"name": name}}, uid=uids(self.rng)(), now=stamp(self.true_clock.now())),
                None,
            )
            finished(self.store.commit([Put(served.key("", name), pack(served.resource, obj), ABSENT)]))
        for host in self.hosts:
            self.start_server(host)
        for number in range(self.shape.racks):
            grant = Grant(
                expires="2099-01-01T00:00:00Z",
                spec=NodeSpec(zone=f"hall-{number % 2}"),
                labels={"kind": "rack"},
            )
            token, put = minted(self.rng, self.true_clock, grant)
            finished(self.store.commit([put]))
            self.add_machine(f"rack-{number + 1}", RACK, token)

    def client(self, name: str) -> Client:
        return Client(self, name, self.told)

    def start_server(self, host: ServerHost) -> None:
        if host.server is not None and host.server.process.is_alive:
            return
        host.starts += 1
        process = Process(f"{host.name}#{host.starts}", host.name)
        host.server = SimServer(self, host, process)
        self.loop.spawn(process, host.server.run())

    def kill_server(self, host: ServerHost) -> None:
        if host.server is not None and host.server.process.is_alive:
            process = host.server.process
            self.loop.kill(process)
            self.net.died(process)
            self.store.ears.remove(host.server.store._published)

    def heal(self, src: str, dst: str) -> None:
        self.net.heal(src, dst)
        for host in self.hosts:
            if host.server is not None and host.name in (src, dst):
                host.server.store.healed()

    def add_machine(self, name: str, size: Size, token: str) -> SimMachine:
        machine = self.machines[name] = SimMachine(self, name, size, token, self._clock())
        self.tune(machine)
        machine.start_agent()
        return machine

    def leader(self) -> ServerHost | None:
        for host in self.hosts:
            if (
                host.server is not None
                and host.server.process.is_alive
                and host.server.election.term is not None
            ):
                return host
        return None

    async def until(self, when: float) -> None:
        await asyncio.sleep(max(0.0, when - self.loop.time()))

    def _clock(self) -> SimClock:
        draw = self.rng.uniform
        rate, offset = self.shape.rate, self.shape.offset
        return SimClock(
            self.loop, self.shape.epoch, 1 + draw(-rate, rate), draw(-offset, offset), draw(10, 10_000)
        )

    def _made(self, machine: Machine) -> None:
        """Also told when one that ended is started again."""
        known = self.machines.get(machine.node)
        if known is not None:
            known.token = machine.token or known.token
            known.restore_power()
            return
        self.add_machine(machine.node, machine.size, machine.token)
        self.cloud.count(machine, 1)

    def _removed(self, node: str) -> None:
        machine = self.machines.pop(node, None)
        if machine is not None:
            machine.lose_power()
            self.gone.append(machine)
            self.cloud.count(node, -1)
