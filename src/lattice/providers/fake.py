"""The fake provider: machines as records, created after a delay, rejected or lost on demand, for simulations
and tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from lattice.clock import Clock
from lattice.providers.protocol import AvailableCapacity, MachineSpec, MachineStatus, ProvisioningUnavailable


@dataclass
class FakeProvider:
    """A provider whose machines are only records. `on_created` is called for every new machine, so that a
    test can start an agent.

    `quota`, `regions` and `outage_reason` inject faults and may change at any time.
    """

    clock: Clock
    name: str = "fake"
    creates_machines: bool = True
    # Per creation or deletion.
    latency_s: float = 0.0
    # Maximum count of machines.
    quota: int | None = None
    regions: frozenset[str] | None = None
    # The runtimes that machines have; None: unknown.
    machine_runtimes: frozenset[str] | None = None
    # While set, calls fail with this message, except `close` and `create` for an existing machine.
    outage_reason: str = ""
    on_created: Callable[[MachineSpec], None] = lambda _: None
    on_deleted: Callable[[str], None] = lambda _: None
    # Machines are saved in this file, so that a restarted server finds them.
    state_file: Path | None = None
    _machines: dict[str, MachineStatus] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state_file is not None and self.state_file.exists():
            machines = msgspec.json.decode(self.state_file.read_bytes(), type=list[MachineStatus])
            self._machines = {machine.node: machine for machine in machines}

    async def runtimes(self) -> frozenset[str] | None:
        return self.machine_runtimes

    async def available_capacity(self) -> AvailableCapacity:
        self._raise_if_unavailable()
        remaining = None if self.quota is None else self.quota - len(self._machines)
        return AvailableCapacity(self.regions, remaining)

    async def create(self, machine: MachineSpec) -> str:
        status = self._machines.get(machine.node)
        # A repeated call for a node creates no second machine: an ended machine is started again.
        if status is None:
            (await self.available_capacity()).check(machine.region)
            status = self._machines[machine.node] = MachineStatus(
                machine.node, machine.cluster, f"{self.name}://{machine.node}", "Starting"
            )
            self._save()
        if status.state != "Running":
            await self.clock.sleep(self.latency_s)
            # A concurrent call may have deleted the machine during the delay.
            if machine.node in self._machines:
                self._machines[machine.node] = replace(status, state="Running", message="")
                self._save()
                self.on_created(machine)
        return status.provider_id

    async def delete(self, node: str) -> None:
        self._raise_if_unavailable()
        if node in self._machines:
            await self.clock.sleep(self.latency_s)
            self._machines.pop(node, None)
            self._save()
            self.on_deleted(node)

    async def list(self) -> Sequence[MachineStatus]:
        self._raise_if_unavailable()
        return [self._machines[node] for node in sorted(self._machines)]

    async def close(self) -> None:
        return None

    def end_machine(self, node: str, message: str = "the machine ended by itself") -> None:
        """End the machine as a fault, without a deletion by Lattice."""
        self._machines[node] = replace(self._machines[node], state="Ended", message=message)
        self._save()
        self.on_deleted(node)

    def _save(self) -> None:
        if self.state_file is not None:
            self.state_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.state_file.write_bytes(msgspec.json.encode(list(self._machines.values())))

    def _raise_if_unavailable(self) -> None:
        if self.outage_reason:
            raise ProvisioningUnavailable(
                self.outage_reason, where=self.name, fix="wait until the provider responds again"
            )
