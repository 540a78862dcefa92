"""LatticeNodeClass: how big is a machine of this class on each provider, and what does it cost?"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, ClassVar, NamedTuple

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.constraint import Taint
from lattice.kinds.container import amount_problems, parse_amounts
from lattice.kinds.meta.base import Column, Kind, Part, Resource, Status
from lattice.kinds.meta.quantity import (
    MIB,
    Amount,
    Quantity,
    dollars_to_micros,
    gib_to_bytes,
    number_problems,
    parse_cores,
    parse_docker_bytes,
    quantity_problems,
)
from lattice.kinds.meta.selector import label_problems
from lattice.kinds.meta.validator import join_path


class MachineSize(NamedTuple):
    """What one machine has: milli-cores, bytes, milli-GPUs, and counts of extended resources."""

    millicores: int
    memory: int
    storage: int
    gpu: int
    extended: dict[str, int]


class ProviderNodeClass(Part):
    """How one provider makes a machine of this class; a size given here wins over `resources`."""

    instance_type: Annotated[
        str, Meta(description="The provider's name of the machine type, such as m5.xlarge.")
    ] = ""
    ami: Annotated[str, Meta(description="Machine image on aws.")] = ""
    image: Annotated[str, Meta(description="Machine or container image elsewhere.")] = ""
    template: Annotated[str, Meta(description="Template that the machine is cloned from, as on proxmox.")] = (
        ""
    )
    cores: Annotated[Amount, Meta(description="Cores of the machine there.")] | None = None
    cpus: Annotated[Amount, Meta(description="The same as cores, in docker's words.")] | None = None
    memory: (
        Annotated[
            Quantity,
            Meta(
                description='Memory there: a plain number is MiB, otherwise docker\'s units, so "4g" is 4 GiB.'
            ),
        ]
        | None
    ) = None

    @property
    def millicores(self) -> int | None:
        stated = self.cpus if self.cores is None else self.cores
        return None if stated is None else parse_cores(stated)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else _parse_memory(self.memory)


class ClassResources(Part):
    """Size that scheduling counts with, wherever a provider states none."""

    cores: Annotated[Amount, Meta(description="Cores.")] = Decimal(0)
    memory_gi: Annotated[Amount, Meta(description="Memory in GiB.")] = Decimal(0)
    storage_gi: Annotated[Amount, Meta(description="Local disk in GiB.")] = Decimal(0)
    gpu: Annotated[int, Meta(ge=0, description="Whole GPUs.")] = 0
    gpu_model: Annotated[str, Meta(description="Model of these GPUs, such as nvidia-a100.")] = ""
    extended: Annotated[
        dict[str, Quantity], Meta(description="Whole numbers of anything else, by name.")
    ] = {}


class NodeClassSpec(Part):
    """Templates per provider, size and price."""

    providers: Annotated[
        dict[str, ProviderNodeClass],
        Meta(
            description="How each provider makes such a machine; without an entry it is not available there."
        ),
    ] = {}
    resources: Annotated[ClassResources, Meta(description="Size that scheduling counts with.")] = (
        ClassResources()
    )
    cost_per_hour: Annotated[
        dict[str, Amount],
        Meta(description="Dollars per hour by provider; absent means unknown, 0 means free."),
    ] = {}
    labels: Annotated[dict[str, str], Meta(description="Labels that machines of this class get.")] = {}
    taints: Annotated[tuple[Taint, ...], Meta(description="Taints that machines of this class get.")] = ()

    @property
    def default_size(self) -> MachineSize:
        """Where no provider says otherwise."""
        resources = self.resources
        return MachineSize(
            millicores=parse_cores(resources.cores),
            memory=gib_to_bytes(resources.memory_gi),
            storage=gib_to_bytes(resources.storage_gi),
            gpu=resources.gpu * 1000,
            extended=parse_amounts(resources.extended),
        )

    def size_on(self, provider: str) -> MachineSize | None:
        """The one answer to how big a machine is there; None when this class is not available there."""
        there = self.providers.get(provider)
        if there is None:
            return None
        size = self.default_size
        return size._replace(
            millicores=size.millicores if there.millicores is None else there.millicores,
            memory=size.memory if there.memory_bytes is None else there.memory_bytes,
        )

    def price_on(self, provider: str) -> int | None:
        """Micro-dollars per hour; None when this class states no price there."""
        price = self.cost_per_hour.get(provider)
        return None if price is None else dollars_to_micros(price)


class NodeClassStatus(Status):
    """Who uses the class."""

    nodes: Annotated[int, Meta(description="Machines of this class, over all pools.")] | None = None


class LatticeNodeClass(Kind):
    """A machine template: what it is called at each provider, how big it is, what it costs per hour."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeNodeClass",
        plural="latticenodeclasses",
        short_names=("lnc",),
        columns=(
            Column("Cores", ".spec.resources.cores", "number"),
            Column("MemoryGi", ".spec.resources.memoryGi", "number"),
            Column("StorageGi", ".spec.resources.storageGi", "number", 1),
            Column("GPU", ".spec.resources.gpu", "integer"),
            Column("Nodes", ".status.nodes", "integer"),
            Column("Phase", ".status.phase", priority=1),
        ),
    )

    spec: NodeClassSpec
    status: NodeClassStatus = NodeClassStatus()

    def problems(self) -> Iterator[Cause]:
        spec = self.spec
        yield from number_problems(spec, "spec")
        yield from label_problems(spec.labels, "spec.labels")
        yield from amount_problems(spec.resources.extended, "spec.resources.extended")
        for index, taint in enumerate(spec.taints):
            yield from taint.problems(f"spec.taints[{index}]")
        for name, there in spec.providers.items():
            path = join_path("spec.providers", name)
            yield from quantity_problems(f"{path}.memory", there.memory, _parse_memory)
            if None not in (there.cores, there.cpus) and there.cores != there.cpus:
                yield Cause(
                    f"{path}.cpus", f"must agree with cores ({there.cores}) or be left out, got {there.cpus}"
                )


def _parse_memory(value: Quantity) -> int:
    plain = not isinstance(value, str) or value.isdigit()
    return parse_docker_bytes(value) * MIB if plain else parse_docker_bytes(value)
