"""The simulated world: fake hosts, clocks, network and store in a single event loop, with real servers,
agents and API verbs."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from lattice.controllers.runtime.context import uid_generator
from lattice.kinds.join_token import Grant
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import NodeSpec
from lattice.kinds.node_class import MachineSize
from lattice.providers.fake import FakeProvider
from lattice.providers.protocol import MachineSpec
from lattice.scheduling.cycle.profile import DEFAULT_PROFILE, PRESETS, BindingModeName, ProfileSpec
from lattice.server.resources.admission import PERMANENT_NAMESPACES, apply_kind_defaults
from lattice.sim.world.clocks import SimClock
from lattice.sim.world.cloud import Cloud
from lattice.sim.world.event_loop import Process, SimLoop
from lattice.sim.world.machines import SimMachine
from lattice.sim.world.network import Network
from lattice.sim.world.recording_client import Client, OperationRecord
from lattice.sim.world.servers import ServerHost, SimServer, catalog, mint_token
from lattice.sim.world.settings import RESERVATION_TIMEOUT_S
from lattice.sim.world.store import HistoryStore, StoreClient, run_synchronously
from lattice.store.protocol import ABSENT, Put

EPOCH = datetime(2026, 3, 10, 9, 0, tzinfo=UTC)
RACK_SIZE = MachineSize(2000, 4 << 30, 10 << 30, 0, {})


@dataclass(frozen=True)
class WorldConfig:
    """Size of the world, binding mode and clock errors."""

    servers: int = 3
    # Machines that join with a token at the start, outside of any cluster.
    racks: int = 3
    epoch: datetime = EPOCH
    binding: BindingModeName = "optimistic"
    # Ratio by which monotonic clocks may run fast or slow.
    max_clock_rate_error: float = 0.0
    # Seconds by which wall clocks may be wrong.
    max_clock_offset_s: float = 0.0


@dataclass
class World:
    """All state of a simulation; the same seed gives the same world."""

    seed: int
    config: WorldConfig = field(default_factory=WorldConfig)
    # Simulation time and description of every fault.
    fault_log: list[tuple[float, str]] = field(default_factory=list)
    # Called for every new machine: sets the behaviour of containers on the machine.
    configure_machine: Callable[[SimMachine], None] = lambda machine: None

    def __post_init__(self) -> None:
        # Every draw comes from this generator or from a child of the generator, so the order of draws
        # determines the run of a seed.
        self.rng = random.Random(self.seed)  # noqa: S311
        self.loop = SimLoop(random.Random(self.rng.getrandbits(64)))  # noqa: S311
        self.net = Network(self.loop, random.Random(self.rng.getrandbits(64)))  # noqa: S311
        self.true_clock = SimClock(self.loop, self.config.epoch)
        self.store = HistoryStore(self.true_clock, self.loop.time)
        self.profile: ProfileSpec = replace(
            PRESETS[DEFAULT_PROFILE], binding=self.config.binding, reservation_timeout=RESERVATION_TIMEOUT_S
        )
        self.operations: list[OperationRecord] = []
        self.machines: dict[str, SimMachine] = {}
        # Simulation time and node of every heartbeat that a leader accepted, and of every further message.
        self.heartbeats: list[tuple[float, str]] = []
        self.other_messages: list[tuple[float, str]] = []
        self.store_clients: list[StoreClient] = []
        # By node class: changes a new machine of the cloud before its agent starts.
        self.machine_differences: dict[str, Callable[[SimMachine], None]] = {}
        # Removed machines; the checker reads their history.
        self.removed_machines: list[SimMachine] = []
        provider = FakeProvider(self.true_clock, latency_s=0.8)
        provider.on_created, provider.on_deleted = self.machine_created, self.machine_removed
        self.cloud = Cloud(self.loop, self.net, provider)
        self.hosts = [
            ServerHost(f"s{number + 1}", self._new_clock()) for number in range(self.config.servers)
        ]

    def log_fault(self, words: str) -> None:
        self.fault_log.append((self.loop.time(), words))

    def start(self) -> None:
        """Create namespaces, servers and racks; call `start` inside the event loop."""
        for name in sorted(PERMANENT_NAMESPACES):
            served = catalog().by_id("namespaces")
            obj = apply_kind_defaults(
                served,
                new_object(
                    {"metadata": {"name": name}},
                    uid=uid_generator(self.rng)(),
                    now=format_timestamp(self.true_clock.now()),
                ),
                None,
            )
            run_synchronously(
                self.store.commit([Put(served.key("", name), pack(served.resource, obj), ABSENT)])
            )
        for host in self.hosts:
            self.start_server(host)
        for number in range(self.config.racks):
            grant = Grant(
                expires="2099-01-01T00:00:00Z",
                spec=NodeSpec(zone=f"hall-{number % 2}"),
                labels={"kind": "rack"},
            )
            token, put = mint_token(self.rng, self.true_clock, grant)
            run_synchronously(self.store.commit([put]))
            self.add_machine(f"rack-{number + 1}", RACK_SIZE, token)

    def client(self, name: str) -> Client:
        return Client(self, name, self.operations)

    def start_server(self, host: ServerHost) -> None:
        if host.server is not None and host.server.process.is_alive:
            return
        host.start_count += 1
        process = Process(f"{host.name}#{host.start_count}", host.name)
        host.server = SimServer(self, host, process)
        self.loop.spawn(process, host.server.run())

    def kill_server(self, host: ServerHost) -> None:
        if host.server is not None and host.server.process.is_alive:
            process = host.server.process
            self.loop.kill(process)
            self.net.process_died(process)
            # The store must not deliver to a dead process.
            self.store.listeners.remove(host.server.store._on_commit)

    def heal(self, src: str, dst: str) -> None:
        self.net.heal(src, dst)
        for host in self.hosts:
            if host.server is not None and host.name in (src, dst):
                # A healed connection delivers the missed changes.
                host.server.store.on_healed()

    def add_machine(self, name: str, size: MachineSize, token: str, node_class: str = "") -> SimMachine:
        machine = self.machines[name] = SimMachine(self, name, size, token, self._new_clock())
        machine.node_class = node_class
        self.configure_machine(machine)
        if node_class in self.machine_differences:
            self.machine_differences[node_class](machine)
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

    async def sleep_until(self, when: float) -> None:
        await asyncio.sleep(max(0.0, when - self.loop.time()))

    def _new_clock(self) -> SimClock:
        uniform = self.rng.uniform
        rate, offset = self.config.max_clock_rate_error, self.config.max_clock_offset_s
        return SimClock(
            self.loop,
            self.config.epoch,
            1 + uniform(-rate, rate),
            uniform(-offset, offset),
            # Monotonic clocks of two hosts have different origins and must not be compared.
            uniform(10, 10_000),
        )

    def machine_created(self, machine: MachineSpec) -> None:
        """Add the machine, or power on a machine that the provider starts again."""
        existing = self.machines.get(machine.node)
        if existing is not None:
            existing.token = machine.token or existing.token
            existing.restore_power()
            return
        self.add_machine(machine.node, machine.size, machine.token, machine.node_class)
        self.cloud.record_change(machine, 1)

    def machine_removed(self, node: str) -> None:
        machine = self.machines.pop(node, None)
        if machine is not None:
            machine.lose_power()
            self.removed_machines.append(machine)
            self.cloud.record_change(node, -1)
