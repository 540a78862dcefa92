"""What every provider promises: machines made, removed and listed by the name of their node, each at most once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from lattice.errors import Unavailable
from lattice.kinds.node_class import MachineSize

MachineState = Literal["Starting", "Running", "Ended"]


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A machine that is to be there, and how its agent joins."""

    node: str
    cluster: str
    region: str
    zone: str
    node_class: str
    size: MachineSize
    gpu_model: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    token: str = ""  # one-time; a machine that joined before does not need it again


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """A machine that is there, as its provider says."""

    node: str
    cluster: str
    provider_id: str
    state: MachineState = "Running"
    message: str = ""


@dataclass(frozen=True, slots=True)
class AvailableCapacity:
    """What can be had just now. None: as much as one likes."""

    regions: frozenset[str] | None = None
    max_machines: int | None = None

    def check(self, region: str, machines: int = 1) -> None:
        """So many more can be had there, or Refused is raised."""
        if self.regions is not None and region not in self.regions:
            offered = f"there are {', '.join(sorted(self.regions)) or 'none'}"
            raise ProvisioningRejected(
                f"region {region or 'unnamed'} is not offered; {offered}", fix="use another region"
            )
        if self.max_machines is not None and self.max_machines < machines:
            raise ProvisioningUnavailable(
                "its quota of machines is used up", fix="free some machines, or raise the quota"
            )


class ProvisioningUnavailable(Unavailable):
    """The provider does not make this machine now: a quota, a wrong login, nothing left. Asking again later may help."""


class ProvisioningRejected(ProvisioningUnavailable):
    """It never will, as things are: a region that it does not have. Somebody must change what is asked for."""


class Provider(Protocol):
    name: str

    async def available_capacity(self) -> AvailableCapacity: ...

    async def create(self, machine: MachineSpec) -> str:
        """The provider's own name of it. One that is there stays as it is; one that ended is started again. Raises Refused."""
        ...

    async def delete(self, node: str) -> None:
        """It is gone on return, with everything on it. Nothing there is no error."""
        ...

    async def list(self) -> Sequence[MachineStatus]:
        """All machines that were made through this provider and not deleted, in order of their node's name."""
        ...

    async def close(self) -> None: ...
