"""LatticeNodeClass: size and price of a machine template on each provider."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, ClassVar, Literal, NamedTuple

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.constraints import Taint
from lattice.kinds.container import amount_problems, parse_amounts
from lattice.kinds.meta.base import LIST_SET, Column, Kind, Part, Resource, Status
from lattice.kinds.meta.quantity import (
    MIB,
    Amount,
    Cores,
    Quantity,
    cores_problems,
    dollars_to_micros,
    gib_to_bytes,
    number_problems,
    parse_cores,
    parse_docker_bytes,
    quantity_problems,
)
from lattice.kinds.meta.selector import label_problems
from lattice.kinds.meta.validator import join_path

# Condition of a node class or a data center: its real machines offer less than stated.
MACHINES_DIFFER_CONDITION = "MachinesDiffer"
RuntimeName = Literal["process", "container"]


class MachineSize(NamedTuple):
    """Capacity of one machine: milli-cores, bytes, milli-GPUs, and counts of extended resources."""

    millicores: int
    memory: int
    storage: int
    gpu: int
    extended: dict[str, int]


class ProviderNodeClass(Part):
    """How one provider creates a machine of this class. A size stated here overrides `resources`."""

    instance_type: Annotated[
        str, Meta(description="The provider's name of the machine type, such as m5.xlarge.")
    ] = ""
    ami: Annotated[str, Meta(description="Machine image on aws.")] = ""
    image: Annotated[str, Meta(description="Machine or container image on other providers.")] = ""
    template: Annotated[str, Meta(description="Template that the provider clones, as on proxmox.")] = ""
    cores: (
        Annotated[Cores, Meta(description='Cores of the machine on this provider: 2, 0.5 or "500m".')] | None
    ) = None
    cpus: Annotated[Cores, Meta(description="Docker's name for cores.")] | None = None
    memory: (
        Annotated[
            Quantity,
            Meta(
                description=(
                    "Memory of the machine on this provider: a plain number is MiB; units are docker's, "
                    'so "4g" is 4 GiB.'
                )
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
    """Size of a machine for scheduling, where the provider entry states none."""

    cores: Annotated[Cores, Meta(description='Cores: 2, 0.5 or "500m".')] = 0
    memory_gi: Annotated[Amount, Meta(description="Memory in GiB.")] = Decimal(0)
    storage_gi: Annotated[Amount, Meta(description="Local disk in GiB.")] = Decimal(0)
    gpu: Annotated[int, Meta(ge=0, description="Whole GPUs.")] = 0
    gpu_model: Annotated[str, Meta(description="Model of these GPUs, such as nvidia-a100.")] = ""
    extended: Annotated[dict[str, Quantity], Meta(description="Counts of other resources, by name.")] = {}


class NodeClassSpec(Part):
    """Templates by provider, size and price."""

    providers: Annotated[
        dict[str, ProviderNodeClass],
        Meta(
            description=(
                "How each provider creates a machine of this class. The class is not available on a "
                "provider without an entry."
            )
        ),
    ] = {}
    resources: Annotated[ClassResources, Meta(description="Size of a machine for scheduling.")] = (
        ClassResources()
    )
    cost_per_hour: Annotated[
        dict[str, Amount],
        Meta(description="Dollars per hour by provider; an absent price is unknown, 0 is free."),
    ] = {}
    labels: Annotated[dict[str, str], Meta(description="Labels of machines of this class.")] = {}
    taints: Annotated[tuple[Taint, ...], Meta(description="Taints of machines of this class.")] = ()
    licences: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Licences of machines of this class.")
    ] = ()
    machine_image: Annotated[str, Meta(description="Machine image of machines of this class.")] = ""
    runtimes: (
        Annotated[
            tuple[RuntimeName, ...],
            LIST_SET,
            Meta(
                description=(
                    "Runtimes of machines of this class: process runs commands, container runs images. "
                    "Absent: not stated; every runtime that the provider can have is possible."
                )
            ),
        ]
        | None
    ) = None

    @property
    def default_size(self) -> MachineSize:
        """The size where the provider entry states none."""
        resources = self.resources
        return MachineSize(
            millicores=parse_cores(resources.cores),
            memory=gib_to_bytes(resources.memory_gi),
            storage=gib_to_bytes(resources.storage_gi),
            # Milli-GPUs; the machines of a class have whole GPUs.
            gpu=resources.gpu * 1000,
            extended=parse_amounts(resources.extended),
        )

    def size_on(self, provider: str) -> MachineSize | None:
        """The size of a machine of this class on a provider; None if the class is not available there."""
        provider_class = self.providers.get(provider)
        if provider_class is None:
            return None
        size = self.default_size
        return size._replace(
            millicores=size.millicores if provider_class.millicores is None else provider_class.millicores,
            memory=size.memory if provider_class.memory_bytes is None else provider_class.memory_bytes,
        )

    def price_on(self, provider: str) -> int | None:
        """Micro-dollars per hour on a provider; None if the class states no price there."""
        price = self.cost_per_hour.get(provider)
        return None if price is None else dollars_to_micros(price)


class ObservedGpus(Part):
    """GPUs of one model on a machine."""

    model: Annotated[str, Meta(description="Model, such as nvidia-a100.")]
    count: Annotated[int, Meta(ge=0, description="Number of GPUs of this model.")] = 0


class ObservedMachine(Part):
    """What the real machines of a class report in one offer, if that is less than the class states."""

    offer: Annotated[
        str, Meta(description="Pool, {infrastructure}/{region}, or data center of the machines.")
    ]
    allocatable: Annotated[
        dict[str, int],
        Meta(description="Capacity for workloads: milli-cores, bytes, milli-GPUs, counts, by resource."),
    ] = {}
    gpus: Annotated[tuple[ObservedGpus, ...], Meta(description="GPUs by model.")] = ()
    runtimes: Annotated[tuple[str, ...], LIST_SET, Meta(description="Runtimes that the machines have.")] = ()
    provider: Annotated[str, Meta(description="Provider of the machines.")] = ""
    node: Annotated[str, Meta(description="The machine that reported last.")] = ""
    generation: Annotated[
        int, Meta(description="Generation of the class; a record of another generation does not count.")
    ] = 0
    at: Annotated[str, Meta(description="Time of the record.")] | None = None


OBSERVED_BY_OFFER = Meta(
    extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["offer"]}
)


class NodeClassStatus(Status):
    """Usage of the class, and what its real machines offer."""

    nodes: Annotated[int, Meta(description="Number of machines of this class in all pools.")] | None = None
    observed: Annotated[
        tuple[ObservedMachine, ...],
        OBSERVED_BY_OFFER,
        Meta(
            description=(
                "Offers whose real machines have less than the class states. No machine is bought for a "
                "resource that the real machines lack, until the spec of the class changes or a newer "
                "machine reports more."
            )
        ),
    ] = ()


class LatticeNodeClass(Kind):
    """A machine template: its name at each provider, its size, and its price per hour."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeNodeClass",
        plural="latticenodeclasses",
        short_names=("lnc",),
        columns=(
            Column("Cores", ".spec.resources.cores"),
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
        yield from cores_problems("spec.resources.cores", spec.resources.cores)
        yield from label_problems(spec.labels, "spec.labels")
        yield from amount_problems(spec.resources.extended, "spec.resources.extended")
        for index, taint in enumerate(spec.taints):
            yield from taint.problems(f"spec.taints[{index}]")
        for name, provider_class in spec.providers.items():
            path = join_path("spec.providers", name)
            yield from quantity_problems(f"{path}.memory", provider_class.memory, _parse_memory)
            stated = [("cores", provider_class.cores), ("cpus", provider_class.cpus)]
            bad_cores = [
                cause for field, value in stated for cause in cores_problems(f"{path}.{field}", value)
            ]
            yield from bad_cores
            amounts = (
                {parse_cores(value) for _, value in stated if value is not None} if not bad_cores else ()
            )
            if len(amounts) > 1:
                yield Cause(
                    f"{path}.cpus",
                    f"must equal cores ({provider_class.cores}) or be omitted, got {provider_class.cpus}",
                )


def _parse_memory(value: Quantity) -> int:
    # A plain number counts MiB, unlike docker, where it counts bytes.
    plain = not isinstance(value, str) or value.isdigit()
    return parse_docker_bytes(value) * MIB if plain else parse_docker_bytes(value)
