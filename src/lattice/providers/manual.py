"""The manual provider: machines that their owners join; Lattice creates, starts and deletes none of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from lattice.providers.protocol import AvailableCapacity, MachineSpec, MachineStatus, ProvisioningRejected

JOIN_FIX = "join a machine with the token of `lattice tokens create --pool POOL`"


@dataclass
class ManualProvider:
    """A provider without machines of its own. A machine of its pools is a node that joined by itself."""

    name: str = "manual"
    creates_machines: bool = False

    async def runtimes(self) -> frozenset[str] | None:
        return None

    async def available_capacity(self) -> AvailableCapacity:
        return AvailableCapacity(max_machines=0)

    async def create(self, machine: MachineSpec) -> str:
        raise ProvisioningRejected(
            f"provider {self.name} creates no machines", where=f"latticenode/{machine.node}", fix=JOIN_FIX
        )

    async def delete(self, node: str) -> None:
        return None

    async def list(self) -> Sequence[MachineStatus]:
        return ()

    async def close(self) -> None:
        return None
