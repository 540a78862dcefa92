"""LatticeService: what does a team run, how much of it, and what must hold for the places where it goes?"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.constraint import Spread, Toleration
from lattice.kinds.container import (
    Container,
    Disconnect,
    amount_problems,
    container_problems,
    parse_amounts,
    total_amounts,
    total_limit_problems,
)
from lattice.kinds.meta.base import LIST_SET, Column, Kind, OpaqueJson, Part, Resource, Status
from lattice.kinds.meta.quantity import Amount, Quantity, gib_to_bytes, number_problems, parse_cores
from lattice.kinds.meta.selector import LabelSelector, dns_label_problem, label_problems
from lattice.kinds.meta.validator import join_path


class PlacementResources(Part):
    """What one replica needs, if its containers do not say so themselves."""

    cores: Annotated[Amount, Meta(description="Cores.")] = Decimal(0)
    memory_gi: Annotated[Amount, Meta(description="Memory in GiB.")] = Decimal(0)
    storage_gi: Annotated[Amount, Meta(description="Local disk in GiB.")] = Decimal(0)
    gpu: Annotated[Amount, Meta(description="GPUs; a part of one (0.5) may share it.")] = Decimal(0)
    gpu_model: Annotated[str, Meta(description="Model that the GPUs must be, such as nvidia-a100.")] = ""
    extended: Annotated[
        dict[str, Quantity], Meta(description="Whole numbers of anything else, by name.")
    ] = {}

    @property
    def amounts(self) -> dict[str, int]:
        """Milli-cores, bytes and milli-GPUs by resource name; what is not asked for is not listed."""
        asked = {
            "cpu": parse_cores(self.cores),
            "memory": gib_to_bytes(self.memory_gi),
            "storage": gib_to_bytes(self.storage_gi),
            "gpu": parse_cores(self.gpu),
        }
        return {name: amount for name, amount in asked.items() if amount} | parse_amounts(self.extended)


class Latency(Part):
    """How near a dependency must be."""

    max_ms: Annotated[
        int,
        Meta(
            ge=1, description="Most milliseconds from each replica to the nearest replica of the dependency."
        ),
    ]


class Placement(Part):
    """What must hold for the places where the service goes."""

    pools: (
        Annotated[
            LabelSelector, Meta(description="Labels of the pools that it may run in; absent means all.")
        ]
        | None
    ) = None
    required_regions: Annotated[
        tuple[str, ...],
        LIST_SET,
        Meta(description="Regions or pools that must each have at least one replica."),
    ] = ()
    resources: Annotated[PlacementResources, Meta(description="What one replica needs.")] = (
        PlacementResources()
    )
    latency: Annotated[
        dict[str, Latency], Meta(description="How near dependencies must be, by their name in `resources`.")
    ] = {}
    compliance: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Certificates that every pool used must have.")
    ] = ()
    capabilities: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Capabilities that every pool used must have.")
    ] = ()
    data_residency: Annotated[
        str, Meta(description="Jurisdiction that every pool used must be in, such as eu.")
    ] = ""
    tolerations: Annotated[
        tuple[Toleration, ...], Meta(description="Taints of nodes that it puts up with.")
    ] = ()
    node_selector: Annotated[
        dict[str, str], Meta(description="Labels that its nodes must have with exactly these values.")
    ] = {}

    def problems(self, path: str) -> Iterator[Cause]:
        if self.pools:
            yield from self.pools.problems(f"{path}.pools")
        yield from amount_problems(self.resources.extended, f"{path}.resources.extended")
        yield from label_problems(self.node_selector, f"{path}.nodeSelector")
        if self.resources.gpu > 1 and self.resources.gpu % 1:
            yield Cause(
                f"{path}.resources.gpu", f"must be a part of one or a whole number, got {self.resources.gpu}"
            )
        for index, toleration in enumerate(self.tolerations):
            yield from toleration.problems(f"{path}.tolerations[{index}]")


class Dependency(Part):
    """Something that the service talks to, or that talks to it."""

    type: Annotated[
        str,
        Meta(
            min_length=1,
            description="Service (in either case), external-service, volume, or a type of your own.",
        ),
    ]
    direction: Annotated[
        Literal["outbound", "inbound", "both"],
        Meta(
            description="outbound (the default): it calls the other; inbound: it lets the other call; traffic needs both sides to say so."
        ),
    ] = "outbound"
    id: Annotated[str, Meta(description="Name of the other, if it differs from the key of this entry.")] = ""
    namespace: Annotated[str, Meta(description="Namespace of the other; its own if absent.")] = ""
    class_: Annotated[
        str, Meta(description="Variant of a resource that is provisioned, in its own words.")
    ] = msgspec.field(name="class", default="")
    params: Annotated[OpaqueJson, Meta(description="Settings of the resource, in its own words.")] = {}

    @property
    def is_service(self) -> bool:
        return self.type.lower() == "service"

    @property
    def is_outbound(self) -> bool:
        return self.direction in ("outbound", "both")

    @property
    def is_inbound(self) -> bool:
        return self.direction in ("inbound", "both")


class Replicas(Part):
    """How many copies run."""

    min: (
        Annotated[
            int, Meta(ge=0, le=100_000, description="So many run; 1 by default. `scale` moves this number.")
        ]
        | None
    ) = None
    max: (
        Annotated[
            int,
            Meta(ge=0, le=100_000, description="There are never more than this; absent means no ceiling."),
        ]
        | None
    ) = None


class ServiceSpec(Part):
    """What runs, how much of it, and what it needs."""

    containers: Annotated[dict[str, Container], Meta(description="Programs of one replica, by name.")]
    placement: Annotated[Placement, Meta(description="What must hold for the places where it goes.")] = (
        Placement()
    )
    resources: Annotated[
        dict[str, Dependency],
        Meta(description='What it depends on and who may call it, by name; "*" is everybody.'),
    ] = {}
    replicas: Annotated[Replicas, Meta(description="How many copies run.")] = Replicas()
    priority: Annotated[
        int,
        Meta(
            ge=-1_000_000_000,
            le=1_000_000_000,
            description="Higher ones go first and may displace lower ones; 0.",
        ),
    ] = 0
    disconnect: Annotated[
        Disconnect, Meta(description="What becomes of a replica whose node is cut off.")
    ] = Disconnect()
    spread: Annotated[tuple[Spread, ...], Meta(description="How evenly its replicas are laid out.")] = ()

    @property
    def min_replicas(self) -> int:
        """Replicas that run when nothing else demands more."""
        return 1 if self.replicas.min is None else self.replicas.min

    def desired_replicas(self, min_regions: int = 0) -> int:
        """Replicas that run: enough for `min`, for one in each required region, and for a policy's `minRegions`."""
        return max(self.min_replicas, len(self.placement.required_regions), min_regions)

    @property
    def requests(self) -> dict[str, int]:
        """What one replica needs: the sum over its containers if any of them says, else `placement.resources`."""
        return total_amounts(self.containers, "requests") or self.placement.resources.amounts

    @property
    def limits(self) -> dict[str, int]:
        return total_amounts(self.containers, "limits")


class HourlyCost(Part):
    """Money per hour."""

    hourly: Annotated[Amount, Meta(description="Dollars per hour.")] | None = None


class TotalCost(Part):
    """Money for the whole."""

    hourly: Annotated[Amount, Meta(description="Dollars per hour.")] | None = None
    projected30_day: (
        Annotated[Amount, Meta(description="Dollars in 30 days (720 hours) at this rate.")] | None
    ) = None


class ServicePlacement(Part):
    """Replicas of the service in one cluster on machines of one class."""

    pool: Annotated[str, Meta(description="Pool, or {infrastructure}/{region}.")]
    cluster: Annotated[str, Meta(description="LatticeCluster that they run in.")] = ""
    replicas: Annotated[int, Meta(description="How many.")] | None = None
    node: Annotated[str, Meta(description="LatticeNodeClass of the machines.")] = ""
    cost: Annotated[HourlyCost, Meta(description="Their share of what these machines cost.")] | None = None


class Health(Part):
    """How its replicas are."""

    available: Annotated[int, Meta(description="Replicas that run.")] | None = None
    ready: Annotated[int, Meta(description="Replicas that run and answer their readiness probe.")] | None = (
        None
    )


class Alternative(Part):
    """A pool that was not chosen."""

    pool: Annotated[str, Meta(description="Name of the pool.")]
    rejected: Annotated[str, Meta(description="Why it was not chosen.")] = ""


class SchedulerDecision(Part):
    """Why the replicas are where they are, or nowhere."""

    reason: Annotated[str, Meta(description="One sentence.")] = ""
    verdict: Annotated[
        str, Meta(description="Placed; or Never, NotNow, OverBudget, NoPrice, NotHere: what it would take.")
    ] = ""
    alternatives: Annotated[
        tuple[Alternative, ...], Meta(description="Pools that were not chosen, and why.")
    ] = ()
    required: Annotated[
        OpaqueJson, Meta(description="Properties that new infrastructure would need for this service to fit.")
    ] = {}
    digest: Annotated[str, Meta(description="Hash of what the decision was made from.")] = ""


class ServiceStatus(Status):
    """Where it runs, what that costs, how it is, and why."""

    replicas: Annotated[int, Meta(description="Replicas that exist.")] | None = None
    placements: Annotated[tuple[ServicePlacement, ...], Meta(description="Where its replicas are.")] = ()
    total_cost: Annotated[TotalCost, Meta(description="What all of them cost.")] | None = None
    health: Annotated[Health, Meta(description="How its replicas are.")] | None = None
    last_scheduled: Annotated[str, Meta(description="When the placement was last decided.")] | None = None
    scheduler_decision: (
        Annotated[SchedulerDecision, Meta(description="Why they are where they are.")] | None
    ) = None


class LatticeService(Kind):
    """What a team runs: containers, how many replicas, and requirements. Lattice finds the places, makes the clusters and says why."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeService",
        plural="latticeservices",
        short_names=("lsvc",),
        categories=("lattice", "all"),
        namespaced=True,
        scale_path="spec.replicas.min",
        columns=(
            Column(
                "Wanted",
                ".spec.replicas.min",
                "integer",
                description="Replicas that should run; 1 if nothing is said.",
            ),
            Column("Ready", ".status.health.ready", "integer"),
            Column("Replicas", ".status.replicas", "integer"),
            Column("Pools", ".status.placements[*].pool"),
            Column("Cost/h", ".status.totalCost.hourly", "number", description="Dollars per hour."),
            Column("Phase", ".status.phase"),
            Column("Verdict", ".status.schedulerDecision.verdict"),
            Column("Clusters", ".status.placements[*].cluster", priority=1),
            Column("Cost/30d", ".status.totalCost.projected30Day", "number", 1, "Dollars in 30 days."),
            Column("Why", ".status.schedulerDecision.reason", priority=1),
        ),
    )

    spec: ServiceSpec
    status: ServiceStatus = ServiceStatus()

    def problems(self) -> Iterator[Cause]:
        spec = self.spec
        bad_numbers = list(number_problems(spec, "spec"))
        yield from bad_numbers
        wrong_alone = list(container_problems(spec.containers, "spec.containers"))
        if not bad_numbers:
            wrong_alone += spec.placement.problems("spec.placement")
        yield from wrong_alone
        if not bad_numbers and not wrong_alone:
            yield from total_limit_problems(spec.requests, spec.limits, "spec.placement.resources")
        yield from _replica_problems(spec)
        yield from spec.disconnect.problems("spec.disconnect")
        for index, spread in enumerate(spec.spread):
            yield from spread.problems(f"spec.spread[{index}]")
        for name in spec.resources:
            if name != "*" and (wrong := dns_label_problem(name)):
                yield Cause(join_path("spec.resources", name), f"name of a dependency {wrong}")


def _replica_problems(spec: ServiceSpec) -> Iterator[Cause]:
    most, regions = spec.replicas.max, spec.placement.required_regions
    if most is None:
        return
    if spec.min_replicas > most:
        yield Cause("spec.replicas.min", f"must be at most replicas.max ({most}), got {spec.min_replicas}")
    if len(regions) > most:
        yield Cause(
            "spec.placement.requiredRegions",
            f"names {len(regions)} regions, but replicas.max allows only {most} replicas",
        )


def service_key(service: LatticeService) -> str:
    return f"{service.metadata.namespace or 'default'}/{service.metadata.name}"
