"""Machines on paper: made after a while, refused or lost on demand. For the simulator, for tests, and to try plans out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from lattice.clock import Clock
from lattice.providers.protocol import AvailableCapacity, MachineSpec, MachineStatus, ProvisioningUnavailable


def _ignore(_: MachineSpec) -> None:
    return None


@dataclass
class FakeProvider:
    """`made` is told of each machine once it is there: whoever wants an agent on it starts one. Faults are set at any time."""

    clock: Clock
    name: str = "fake"
    latency: float = 0.0  # seconds that making and removing take
    quota: int | None = None  # machines in all
    regions: frozenset[str] | None = None
    outage_reason: str = ""  # why nothing is made or listed at present
    on_created: Callable[[MachineSpec], None] = _ignore
    on_deleted: Callable[[str], None] = lambda _: None
    state_file: Path | None = None  # file of the machines that there are: they outlive the server
    _machines: dict[str, MachineStatus] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state_file is not None and self.state_file.exists():
            self._machines = {
                each.node: each
                for each in msgspec.json.decode(self.state_file.read_bytes(), type=list[MachineStatus])
            }

    async def available_capacity(self) -> AvailableCapacity:
        self._raise_if_unavailable()
        left = None if self.quota is None else self.quota - len(self._machines)
        return AvailableCapacity(self.regions, left)

    async def create(self, machine: MachineSpec) -> str:
        known = self._machines.get(machine.node)
        if known is None:
            (await self.available_capacity()).check(machine.region)
            known = self._machines[machine.node] = MachineStatus(
                machine.node, machine.cluster, f"{self.name}://{machine.node}", "Starting"
            )
            self._save()
        if known.state != "Running":
            await self.clock.sleep(self.latency)
            if machine.node in self._machines:  # unless it was deleted meanwhile
                self._machines[machine.node] = replace(known, state="Running", message="")
                self._save()
                self.on_created(machine)
        return known.provider_id

    async def delete(self, node: str) -> None:
        self._raise_if_unavailable()
        if node in self._machines:
            await self.clock.sleep(self.latency)
            self._machines.pop(node, None)
            self._save()
            self.on_deleted(node)

    async def list(self) -> Sequence[MachineStatus]:
        self._raise_if_unavailable()
        return [self._machines[node] for node in sorted(self._machines)]

    async def close(self) -> None:
        return None

    def end_machine(self, node: str, message: str = "it ended by itself") -> None:
        """The machine ends without anybody having asked for it."""
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
                self.outage_reason, where=self.name, fix="wait until the provider answers again"
            )
