"""The provider protocol: a provider creates, deletes and lists machines by node name, at most one machine per
node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from lattice.errors import Unavailable
from lattice.kinds.node_class import MachineSize

MachineState = Literal["Starting", "Running", "Ended"]


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """The desired machine of a node, and the token with which its agent joins."""

    node: str
    cluster: str
    region: str
    zone: str
    node_class: str
    size: MachineSize
    gpu_model: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    # One-time join token; a machine that joined before does not need a token.
    token: str = ""


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """An existing machine as reported by its provider."""

    node: str
    cluster: str
    provider_id: str
    state: MachineState = "Running"
    message: str = ""


@dataclass(frozen=True, slots=True)
class AvailableCapacity:
    """What a provider can create at present; None means unlimited."""

    regions: frozenset[str] | None = None
    max_machines: int | None = None

    def check(self, region: str, machines: int = 1) -> None:
        """Raise `ProvisioningRejected` or `ProvisioningUnavailable` unless the region has capacity for the
        machines."""
        # The region first: an unknown region stays rejected, a used quota may become free.
        if self.regions is not None and region not in self.regions:
            offered = f"available regions: {', '.join(sorted(self.regions)) or 'none'}"
            raise ProvisioningRejected(
                f"region {region or 'unnamed'} is not available; {offered}", fix="use another region"
            )
        if self.max_machines is not None and self.max_machines < machines:
            raise ProvisioningUnavailable(
                "the machine quota is used up", fix="delete machines, or raise the quota"
            )


class ProvisioningFailed(Unavailable):
    """The provider did not create the machine."""


class ProvisioningUnavailable(ProvisioningFailed):
    """The provider does not create the machine now: quota, credentials, or no capacity. A later attempt may
    succeed."""


class ProvisioningRejected(ProvisioningFailed):
    """The provider can never create the machine as requested, for example in an unknown region. The user must
    change the request."""


class Provider(Protocol):
    """An adapter that creates and deletes machines."""

    name: str
    # False: the owners of the machines join them, and `create` always raises `ProvisioningRejected`.
    creates_machines: bool

    async def runtimes(self) -> frozenset[str] | None:
        """The runtimes that new machines have: process, container. None: unknown, so every runtime counts as
        possible until a machine reports."""
        ...

    async def available_capacity(self) -> AvailableCapacity: ...

    async def create(self, machine: MachineSpec) -> str:
        """Create the machine of a node and return the provider's id.

        A running machine stays as it is; an ended machine is started again. Raises `ProvisioningFailed` if
        the provider does not create the machine.
        """
        ...

    async def delete(self, node: str) -> None:
        """Delete the machine and everything on it; return when the machine is gone. A missing machine is no
        error."""
        ...

    async def list(self) -> Sequence[MachineStatus]:
        """Machines created through this provider and not deleted, sorted by node name."""
        ...

    async def close(self) -> None: ...


def adapter_name(name: str, provider: Provider) -> str:
    """The name of a provider for placement: NAME, or NAME=manual for a provider that creates no machines."""
    return name if provider.creates_machines else f"{name}=manual"
