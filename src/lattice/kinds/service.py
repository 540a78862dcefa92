"""LatticeService: the containers of a team's application, the number of replicas, and the requirements on
their placement."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.constraints import PlannedNodes, Spread, Toleration
from lattice.kinds.container import (
    Container,
    Disconnect,
    amount_problems,
    container_problems,
    parse_amounts,
    total_amounts,
    total_limit_problems,
)
from lattice.kinds.meta.base import (
    DEFAULT_NAMESPACE,
    LIST_SET,
    Column,
    Kind,
    OpaqueJson,
    Part,
    Resource,
    Status,
)
from lattice.kinds.meta.quantity import (
    Amount,
    Cores,
    Quantity,
    cores_problems,
    gib_to_bytes,
    number_problems,
    parse_cores,
)
from lattice.kinds.meta.selector import LabelSelector, dns_label_problem, label_problems
from lattice.kinds.meta.validator import join_path
from lattice.kinds.service_affinity import ServiceAffinity
from lattice.kinds.workload import WorkloadGroup

# Replicas of a service that states no number.
DEFAULT_REPLICAS = 1
# Condition: whether all replicas are placed.
PLACED_CONDITION = "Placed"
# Condition: whether placement would decide otherwise today.
STALE_CONDITION = "PlacementStale"
# Condition: whether a rollout replaces replicas.
PROGRESSING_CONDITION = "Progressing"
# The reason of Progressing after a rollout has replaced all replicas.
ROLLOUT_COMPLETE = "Complete"
# The reason of Progressing while the surge replica of a rollout waits for a node.
NO_SURGE_CAPACITY = "NoRoomForSurge"
# The reason of Progressing while a scale-down waits for replicas that are not ready.
SCALE_DOWN_WAITS = "ScaleDownWaits"
# Condition: whether at least `replicas.min` replicas are ready.
AVAILABLE_CONDITION = "Available"
# Condition: whether replicas fail again and again.
CRASHING_CONDITION = "Crashing"

ServicePhase = Literal[
    # On the way to the first ready replica: not decided, not placed, without a node, not ready yet.
    "Pending",
    "Placing",
    "Provisioning",
    "Starting",
    # All wanted replicas are ready.
    "Running",
    # All wanted replicas are ready, and some have an earlier revision.
    "Updating",
    # Fewer replicas are ready than wanted.
    "Degraded",
    # No replica is ready, although the service was available or a replica has started before.
    "Down",
    # No replica is ready, and all are reported as failed.
    "Failed",
    "Deleting",
]


class PlacementResources(Part):
    """Resources that one replica needs, if its containers state none."""

    cores: Annotated[Cores, Meta(description='Cores: 2, 0.5 or "500m".')] = 0
    memory_gi: Annotated[Amount, Meta(description="Memory in GiB.")] = Decimal(0)
    storage_gi: Annotated[Amount, Meta(description="Local disk in GiB.")] = Decimal(0)
    gpu: Annotated[
        Amount, Meta(description="GPUs; a fraction such as 0.5 shares one GPU with other replicas.")
    ] = Decimal(0)
    gpu_model: Annotated[str, Meta(description="Required GPU model, such as nvidia-a100.")] = ""
    extended: Annotated[dict[str, Quantity], Meta(description="Counts of other resources, by name.")] = {}

    @property
    def amounts(self) -> dict[str, int]:
        """Milli-cores, bytes and milli-GPUs by resource name, without resources that are not requested."""
        amounts = {
            "cpu": parse_cores(self.cores),
            "memory": gib_to_bytes(self.memory_gi),
            "storage": gib_to_bytes(self.storage_gi),
            "gpu": parse_cores(self.gpu),
        }
        return {name: amount for name, amount in amounts.items() if amount} | parse_amounts(self.extended)


class Latency(Part):
    """How near a dependency must be."""

    max_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum milliseconds from each replica to the nearest replica of the dependency.",
        ),
    ]


class Placement(Part):
    """Requirements on the pools and nodes of the service."""

    pools: (
        Annotated[
            LabelSelector,
            Meta(description="Labels of the pools that the service may use; absent means all pools."),
        ]
        | None
    ) = None
    required_regions: Annotated[
        tuple[str, ...],
        LIST_SET,
        Meta(description="Regions or pools that must each have at least one replica."),
    ] = ()
    resources: Annotated[PlacementResources, Meta(description="Resources that one replica needs.")] = (
        PlacementResources()
    )
    latency: Annotated[
        dict[str, Latency], Meta(description="Maximum latency to dependencies, by their name in `resources`.")
    ] = {}
    compliance: Annotated[
        tuple[str, ...],
        LIST_SET,
        Meta(description="Compliance standards that every pool must have, such as gdpr."),
    ] = ()
    capabilities: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Capabilities that every pool must have.")
    ] = ()
    data_residency: Annotated[
        str, Meta(description="Jurisdiction that every pool must be in, such as eu.")
    ] = ""
    tolerations: Annotated[
        tuple[Toleration, ...], Meta(description="Taints of nodes that the replicas tolerate.")
    ] = ()
    node_selector: Annotated[
        dict[str, str], Meta(description="Labels that the nodes must have with exactly these values.")
    ] = {}

    def problems(self, path: str) -> Iterator[Cause]:
        if self.pools:
            yield from self.pools.problems(f"{path}.pools")
        yield from amount_problems(self.resources.extended, f"{path}.resources.extended")
        yield from label_problems(self.node_selector, f"{path}.nodeSelector")
        # A replica gets whole GPUs, or a part of one GPU.
        if self.resources.gpu > 1 and self.resources.gpu % 1:
            yield Cause(
                f"{path}.resources.gpu",
                f"must be a fraction up to 1 or a whole number, got {self.resources.gpu}",
            )
        for index, toleration in enumerate(self.tolerations):
            yield from toleration.problems(f"{path}.tolerations[{index}]")


class Dependency(Part):
    """A service or resource that the service calls, or that calls the service."""

    type: Annotated[
        str,
        Meta(
            min_length=1,
            description="service (in upper or lower case), external-service, volume, or a type of your own.",
        ),
    ]
    direction: Annotated[
        Literal["outbound", "inbound", "both"],
        Meta(
            description=(
                "outbound (the default): the service calls the dependency; inbound: the dependency "
                "may call the service. Traffic needs both sides to declare it."
            )
        ),
    ] = "outbound"
    id: Annotated[
        str, Meta(description="Name of the dependency, if it differs from the key of this entry.")
    ] = ""
    namespace: Annotated[
        str, Meta(description="Namespace of the dependency; the namespace of the service if absent.")
    ] = ""
    class_: Annotated[
        str,
        Meta(description="Variant of a provisioned resource; Lattice stores the value and does not read it."),
    ] = msgspec.field(name="class", default="")
    params: Annotated[
        OpaqueJson, Meta(description="Settings of the resource; Lattice stores them and does not read them.")
    ] = {}

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
    """Number of replicas."""

    min: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=100_000,
                description="Number of replicas that run; 1 by default. `scale` changes this number.",
            ),
        ]
        | None
    ) = None
    max: (
        Annotated[
            int,
            Meta(ge=0, le=100_000, description="Maximum number of replicas; absent means no limit."),
        ]
        | None
    ) = None


class ServiceSpec(Part):
    """Containers, replicas and requirements of the service."""

    containers: Annotated[dict[str, Container], Meta(description="Containers of one replica, by name.")]
    placement: Annotated[
        Placement, Meta(description="Requirements on the pools and nodes of the service.")
    ] = Placement()
    resources: Annotated[
        dict[str, Dependency],
        Meta(
            description=(
                'Dependencies of the service, and services that may call it, by name; "*" means all services.'
            )
        ),
    ] = {}
    replicas: Annotated[Replicas, Meta(description="Number of replicas.")] = Replicas()
    restart_policy: Annotated[
        str,
        Meta(
            description=(
                "Always, which is the default and the only value: the replicas of a service run until the "
                "service is deleted. For a program that ends, use a LatticeWorkload."
            )
        ),
    ] = "Always"
    priority: Annotated[
        int,
        Meta(
            ge=-1_000_000_000,
            le=1_000_000_000,
            description=(
                "Services of higher priority go first and may preempt services of lower priority; 0 "
                "by default."
            ),
        ),
    ] = 0
    disconnect: Annotated[
        Disconnect,
        Meta(
            description="What happens to a replica when its node loses the connection to the control plane."
        ),
    ] = Disconnect()
    spread: Annotated[tuple[Spread, ...], Meta(description="How evenly the replicas are distributed.")] = ()
    affinity: (
        Annotated[ServiceAffinity, Meta(description="Services whose replicas run near, or apart.")] | None
    ) = None
    group: (
        Annotated[
            WorkloadGroup,
            Meta(
                description=(
                    "Gang of the service: fewer than `minMember` replicas of all services of the group are "
                    "never placed or bound."
                )
            ),
        ]
        | None
    ) = None

    @property
    def min_replicas(self) -> int:
        """Number of replicas, unless regions require more."""
        return DEFAULT_REPLICAS if self.replicas.min is None else self.replicas.min

    def desired_replicas(self, min_regions: int = 0) -> int:
        """Number of replicas: at least `min`, one for each required region, and one for each of `min_regions`
        of the policies."""
        return max(self.min_replicas, len(self.placement.required_regions), min_regions)

    @property
    def requests(self) -> dict[str, int]:
        """Amounts that one replica needs: the total of its containers if any container states requests, else
        `placement.resources`."""
        return total_amounts(self.containers, "requests") or self.placement.resources.amounts

    @property
    def limits(self) -> dict[str, int]:
        return total_amounts(self.containers, "limits")


class HourlyCost(Part):
    """Cost per hour."""

    hourly: Annotated[Amount, Meta(description="Dollars per hour.")] | None = None


class TotalCost(Part):
    """Total cost."""

    hourly: Annotated[Amount, Meta(description="Dollars per hour.")] | None = None
    projected30_day: (
        Annotated[Amount, Meta(description="Dollars in 30 days (720 hours) at this rate.")] | None
    ) = None


class ServicePlacement(Part):
    """Replicas of the service in one cluster on machines of one class."""

    pool: Annotated[str, Meta(description="Pool, or {infrastructure}/{region}.")]
    cluster: Annotated[str, Meta(description="LatticeCluster of the replicas.")] = ""
    replicas: Annotated[int, Meta(description="Number of replicas.")] | None = None
    node: Annotated[str, Meta(description="LatticeNodeClass of the machines.")] = ""
    machines: (
        Annotated[
            PlannedNodes,
            Meta(
                description=(
                    "Machines that the replicas use; stated where affinity decides which services share a "
                    "machine."
                )
            ),
        ]
        | None
    ) = None
    cost: (
        Annotated[HourlyCost, Meta(description="Share of the machines' cost for these replicas.")] | None
    ) = None


class Health(Part):
    """Number of running and ready replicas, and of failures."""

    available: Annotated[int, Meta(description="Replicas that run.")] | None = None
    ready: Annotated[int, Meta(description="Replicas that run and pass their readiness probe.")] | None = None
    failures: (
        Annotated[
            int,
            Meta(
                description=(
                    "Failures of the replicas that are not forgotten yet. A replica's failures are forgotten "
                    "when it has been ready for 10 minutes."
                )
            ),
        ]
        | None
    ) = None
    restarts: Annotated[int, Meta(description="Restarts of the present replicas after failures.")] | None = (
        None
    )


class Alternative(Part):
    """A pool that was not chosen."""

    pool: Annotated[str, Meta(description="Name of the pool.")]
    rejected: Annotated[str, Meta(description="Why the pool was not chosen.")] = ""


class SchedulerDecision(Part):
    """Why placement chose the pools of the replicas, or why the service is not placed."""

    reason: Annotated[str, Meta(description="Reason, in one sentence.")] = ""
    verdict: Annotated[
        str,
        Meta(
            description=(
                "Placed, or why the service is not placed. Never: no pool could run it, even if empty. "
                "NotNow: there is no free capacity, or a dependency is not placed. OverBudget: a budget has "
                "too little left. NoPrice: a budget applies, and the price of the machines is unknown. "
                "NotHere: no pool is in a required region, or the real machines lack what the replicas need."
            )
        ),
    ] = ""
    alternatives: Annotated[
        tuple[Alternative, ...], Meta(description="Pools that were not chosen, and why.")
    ] = ()
    required: Annotated[
        OpaqueJson, Meta(description="Properties that new infrastructure needs for this service to fit.")
    ] = {}
    digest: Annotated[str, Meta(description="Hash of the input of the decision.")] = ""


class Remediation(Part):
    """Machines that Lattice bought because no node accepted a replica of the service, in one offer and of one
    class. The record limits further purchases."""

    offer: Annotated[str, Meta(description="Pool, {infrastructure}/{region}, or data center.")]
    node_class: Annotated[str, Meta(description="LatticeNodeClass of the machines.")] = ""
    cluster: Annotated[str, Meta(description="LatticeCluster that got the last machine.")] = ""
    attempts: Annotated[
        int, Meta(ge=0, description="Purchases since the replicas were last scheduled for a while.")
    ] = 0
    next_at: (
        Annotated[str, Meta(description="Time before which no further machine is bought for the service.")]
        | None
    ) = None
    refused: Annotated[
        bool,
        Meta(
            description=(
                "true: an empty, ready machine did not accept a replica; no more such machines are bought for "
                "replicas of this shape until the spec of the class changes."
            )
        ),
    ] = False
    surge_machines: Annotated[
        int, Meta(ge=0, description="Machines bought for the surge replica of an update or a drain.")
    ] = 0
    reason: Annotated[
        str, Meta(description="Why no machine is bought at present, or why the machine was refused.")
    ] = ""
    need: Annotated[str, Meta(description="What the replica needs.")] = ""
    have: Annotated[str, Meta(description="What the machine or the budget has.")] = ""
    shape: Annotated[
        str,
        Meta(
            description=(
                "Digest of what a replica asks of a machine. The record holds for this shape; a record without a "
                "shape holds for one generation of the service."
            )
        ),
    ] = ""
    generation: Annotated[int, Meta(description="Generation of the service.")] = 0
    class_generation: Annotated[int, Meta(description="Generation of the class.")] = 0


class ServiceStatus(Status):
    """Placement, cost and health of the service, and the reason of the placement."""

    wanted_replicas: (
        Annotated[
            int,
            Meta(
                description=(
                    "Replicas that should be ready: `replicas.min`, 1 by default, or more if required regions or "
                    "policies demand more."
                )
            ),
        ]
        | None
    ) = None
    replicas: Annotated[int, Meta(description="Replicas that exist.")] | None = None
    updated_replicas: Annotated[int, Meta(description="Replicas of the current revision.")] | None = None
    has_been_available: Annotated[
        bool,
        Meta(
            description=(
                "Whether the service was available before: from then on, missing replicas make it Degraded or "
                "Down instead of Starting."
            )
        ),
    ] = False
    placements: Annotated[
        tuple[ServicePlacement, ...], Meta(description="Pools, clusters and node classes of the replicas.")
    ] = ()
    total_cost: Annotated[TotalCost, Meta(description="Cost of all replicas.")] | None = None
    health: Annotated[Health, Meta(description="Number of running and ready replicas.")] | None = None
    last_scheduled: Annotated[str, Meta(description="Time of the last placement decision.")] | None = None
    scheduler_decision: (
        Annotated[
            SchedulerDecision,
            Meta(description="Why placement chose the pools, or why the service is not placed."),
        ]
        | None
    ) = None
    remediation: Annotated[
        tuple[Remediation, ...],
        Meta(description="Purchases for replicas that no node accepts, by offer and class."),
    ] = ()


class LatticeService(Kind):
    """An application of a team: containers, number of replicas, and requirements. Lattice chooses the pools,
    creates the clusters, and explains the decision."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeService",
        plural="latticeservices",
        short_names=("lsvc",),
        categories=("lattice", "all"),
        namespaced=True,
        scale_path="spec.replicas.min",
        scale_default=DEFAULT_REPLICAS,
        columns=(
            Column(
                "Wanted",
                ".status.wantedReplicas",
                "integer",
                description="Desired number of replicas; 1 by default.",
                default=DEFAULT_REPLICAS,
            ),
            Column("Ready", ".status.health.ready", "integer"),
            Column(
                "Updated",
                ".status.updatedReplicas",
                "integer",
                description="Replicas of the current revision.",
            ),
            Column("Pools", ".status.placements[*].pool"),
            Column("Cost/h", ".status.totalCost.hourly", "number", description="Dollars per hour."),
            Column("Phase", ".status.phase"),
            Column("Verdict", ".status.schedulerDecision.verdict"),
            Column("Replicas", ".status.replicas", "integer", 1, "Replicas that exist."),
            Column("Restarts", ".status.health.restarts", "integer", 1, "Restarts after failures."),
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
        bad_numbers += cores_problems("spec.placement.resources.cores", spec.placement.resources.cores)
        yield from bad_numbers
        wrong_alone = list(container_problems(spec.containers, "spec.containers"))
        # The placement requirements compare numbers: check the requirements only if all numbers are valid.
        if not bad_numbers:
            wrong_alone += spec.placement.problems("spec.placement")
        yield from wrong_alone
        # Totals need amounts that can be parsed.
        if not bad_numbers and not wrong_alone:
            yield from total_limit_problems(spec.requests, spec.limits, "spec.placement.resources")
        if spec.restart_policy != "Always":
            yield Cause(
                "spec.restartPolicy",
                f'must be Always, got "{spec.restart_policy}": the replicas of a service run until it is deleted; '
                "use a LatticeWorkload for a program that ends",
            )
        max_replicas, regions = spec.replicas.max, spec.placement.required_regions
        if max_replicas is not None and spec.min_replicas > max_replicas:
            yield Cause(
                "spec.replicas.min",
                f"must be at most replicas.max ({max_replicas}), got {spec.min_replicas}",
            )
        if max_replicas is not None and len(regions) > max_replicas:
            yield Cause(
                "spec.placement.requiredRegions",
                f"names {len(regions)} regions, but replicas.max allows only {max_replicas} replicas",
            )
        yield from spec.disconnect.problems("spec.disconnect")
        for index, spread in enumerate(spec.spread):
            yield from spread.problems(f"spec.spread[{index}]")
        if spec.affinity:
            yield from spec.affinity.problems("spec.affinity")
        if spec.group and (wrong := dns_label_problem(spec.group.name)):
            yield Cause("spec.group.name", wrong)
        for name in spec.resources:
            # The name "*" stands for all services.
            if name != "*" and (wrong := dns_label_problem(name)):
                yield Cause(join_path("spec.resources", name), f"name of a dependency {wrong}")


def service_key(service: LatticeService) -> str:
    return f"{service.metadata.namespace or DEFAULT_NAMESPACE}/{service.metadata.name}"
