"""Machines on paper: made after a while, refused or lost on demand. For the simulator, for tests, and to try plans out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from lattice.clock import Clock
from lattice.providers.protocol import Found, Machine, Offered, Refused


def _nobody(_: Machine) -> None:
    return None


@dataclass
class FakeProvider:
    """`made` is told of each machine once it is there: whoever wants an agent on it starts one. Faults are set at any time."""

    clock: Clock
    name: str = "fake"
    latency: float = 0.0  # seconds that making and removing take
    quota: int | None = None  # machines in all
    regions: frozenset[str] | None = None
    refusing: str = ""  # why nothing is made or listed at present
    made: Callable[[Machine], None] = _nobody
    removed: Callable[[str], None] = lambda _: None
    note: Path | None = None  # file of the machines that there are: they outlive the server
    _machines: dict[str, Found] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.note is not None and self.note.exists():
            self._machines = {
                each.node: each for each in msgspec.json.decode(self.note.read_bytes(), type=list[Found])
            }

    async def offers(self) -> Offered:
        self._refuse()
        left = None if self.quota is None else self.quota - len(self._machines)
        return Offered(self.regions, left)

    async def create(self, machine: Machine) -> str:
        known = self._machines.get(machine.node)
        if known is None:
            (await self.offers()).check(machine.region)
            known = self._machines[machine.node] = Found(
                machine.node, machine.cluster, f"{self.name}://{machine.node}", "Starting"
            )
            self._keep()
        if known.state != "Running":
            await self.clock.sleep(self.latency)
            if machine.node in self._machines:  # unless it was deleted meanwhile
                self._machines[machine.node] = replace(known, state="Running", message="")
                self._keep()
                self.made(machine)
        return known.provider_id

    async def delete(self, node: str) -> None:
        self._refuse()
        if node in self._machines:
            await self.clock.sleep(self.latency)
            self._machines.pop(node, None)
            self._keep()
            self.removed(node)

    async def list(self) -> Sequence[Found]:
        self._refuse()
        return [self._machines[node] for node in sorted(self._machines)]

    async def close(self) -> None:
        return None

    def lose(self, node: str, message: str = "it ended by itself") -> None:
        """The machine ends without anybody having asked for it."""
        self._machines[node] = replace(self._machines[node], state="Ended", message=message)
        self._keep()
        self.removed(node)

    def _keep(self) -> None:
        if self.note is not None:
            self.note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.note.write_bytes(msgspec.json.encode(list(self._machines.values())))

    def _refuse(self) -> None:
        if self.refusing:
            raise Refused(self.refusing, where=self.name, fix="wait until the provider answers again")
