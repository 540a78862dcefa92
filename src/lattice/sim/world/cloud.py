"""The fake cloud provider of the simulation, and how servers reach it over the network."""

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from lattice.errors import LatticeError
from lattice.providers.fake import FakeProvider
from lattice.providers.protocol import AvailableCapacity, MachineSpec, MachineStatus
from lattice.sim.world.event_loop import Process, SimLoop
from lattice.sim.world.network import AnswerCallback, Network, answer_request
from lattice.sim.world.store import run_synchronously

CLOUD_HOST = "cloud"


@dataclass
class Cloud:
    """The fake cloud provider of all servers; a requested machine is created even if the requesting server
    has died."""

    loop: SimLoop
    net: Network
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
            self.count_changes.append((self.loop.time(), cluster, kind, change))
            spans = self.machine_spans.setdefault(machine if isinstance(machine, str) else machine.node, [])
            if change > 0:
                spans.append([self.loop.time(), inf])
            # Only an unrequested end counts as lost and excuses the removal of a node with workloads (I-27).
            elif spans and self._is_losing:
                spans[-1][1] = self.loop.time()

    def was_lost(self, node: str, at: float) -> bool:
        """Report whether the node had no machine at `at`: the machine was never created, or its last machine
        ended without a request."""
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
        return CloudClient(self, process, self.net)

    def lose_machine(self, node: str) -> None:
        """End a machine without a request; the provider reports the end in its list."""
        with suppress(LatticeError):
            if node in {status.node for status in run_synchronously(self.provider.list())}:
                self._is_losing = True
                self.provider.end_machine(node)
                self._is_losing = False

    def handle(self, work: Callable[[], Coroutine[Any, Any, Any]], answer: AnswerCallback) -> None:
        # Runs outside of every process, so that the request continues if the requesting server dies.
        self.loop.spawn(None, answer_request(work, answer))


@dataclass
class CloudClient:
    """The fake provider as reached by a server process over the network."""

    cloud: Cloud
    process: Process
    net: Network
    name: str = "fake"
    creates_machines: bool = True

    async def runtimes(self) -> frozenset[str] | None:
        return await self.cloud.provider.runtimes()

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
