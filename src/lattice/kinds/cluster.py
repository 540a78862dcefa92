"""LatticeCluster: the machines that Lattice creates in one pool, and their cost."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import Column, Kind, Part, Resource, Status
from lattice.kinds.meta.quantity import Amount, number_problems
from lattice.kinds.meta.selector import label_problems
from lattice.kinds.service import TotalCost

# Label of clusters and nodes that a data center reserves: only services that match `reservedFor` use them.
RESERVE_LABEL = "lattice.dev/reserve-of"

NodeCount = Annotated[int, Meta(ge=0, description="Number of machines of this class.")]


class ClusterSpec(Part):
    """Location and desired size of the cluster."""

    pool: Annotated[
        str,
        Meta(
            min_length=1,
            description=(
                "Offer that the cluster was created from: a pool, {infrastructure}/{region}, or a "
                "StaticInfrastructure."
            ),
        ),
    ]
    infrastructure: Annotated[
        str, Meta(description="CloudInfrastructure or StaticInfrastructure of the offer; empty for a pool.")
    ] = ""
    provider: Annotated[str, Meta(description="Provider of the machines.")] = ""
    region: Annotated[str, Meta(description="Region of the cluster.")] = ""
    zone: Annotated[str, Meta(description="Zone of the cluster, if it is confined to one zone.")] = ""
    nodes: Annotated[
        dict[str, NodeCount], Meta(description="Desired number of machines by LatticeNodeClass.")
    ] = {}
    min_nodes: Annotated[int, Meta(ge=0, description="Minimum number of machines.")] = 0
    max_nodes: Annotated[int, Meta(ge=1, description="Maximum number of machines.")] | None = None
    policy_hash: Annotated[
        str,
        Meta(
            description=(
                "Hash of the merged cluster policy. Only services with the same hash share the cluster."
            )
        ),
    ] = ""
    labels: Annotated[dict[str, str], Meta(description="Labels of the cluster's nodes.")] = {}

    @property
    def desired_nodes(self) -> int:
        return sum(self.nodes.values())


class ClusterUtilization(Part):
    """Shares of the cluster's resources that workloads request, 0 to 1."""

    cores: Annotated[Amount, Meta(description="Share of the cores.")] | None = None
    memory: Annotated[Amount, Meta(description="Share of the memory.")] | None = None


class WorkerPool(Part):
    """Machines of one class in the cluster."""

    desired: Annotated[int, Meta(description="Desired number of machines.")] = 0
    current: Annotated[int, Meta(description="Machines that exist, ready or not.")] = 0
    ready: Annotated[int, Meta(description="Machines that are ready.")] = 0
    message: Annotated[str, Meta(description="The provider's message if machines are missing.")] = ""


class ClusterStatus(Status):
    """Current machines, workloads and cost of the cluster."""

    message: Annotated[str, Meta(description="Explanation of the phase, in one sentence.")] = ""
    nodes: Annotated[int, Meta(description="Machines that exist.")] | None = None
    ready_nodes: Annotated[int, Meta(description="Machines that are ready.")] | None = None
    ready_workers: Annotated[int, Meta(description="Ready machines of all worker pools.")] | None = None
    worker_pools: Annotated[dict[str, WorkerPool], Meta(description="Machines by LatticeNodeClass.")] = {}
    endpoint: Annotated[str, Meta(description="Address at which the machines reach the control plane.")] = ""
    services: Annotated[int, Meta(description="Number of services in the cluster.")] | None = None
    workloads: Annotated[int, Meta(description="Number of replicas in the cluster.")] | None = None
    utilization: (
        Annotated[ClusterUtilization, Meta(description="Shares of the resources that workloads request.")]
        | None
    ) = None
    cost: Annotated[TotalCost, Meta(description="Cost of the machines.")] | None = None
    sequence: Annotated[int, Meta(description="Number of the cluster in its pool; never reused.")] | None = (
        None
    )


class LatticeCluster(Kind):
    """A group of machines in one pool. Lattice creates clusters for services, and grows or deletes them as
    services change."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeCluster",
        plural="latticeclusters",
        short_names=("lc",),
        managed_hint=(
            "Lattice creates clusters for services: declare a LatticeService, and set the size "
            "of its clusters with a LatticePlacementPolicy"
        ),
        columns=(
            Column("Pool", ".spec.pool"),
            Column("Region", ".spec.region"),
            Column("Nodes", ".status.nodes", "integer"),
            Column("Ready", ".status.readyNodes", "integer"),
            Column("Services", ".status.services", "integer"),
            Column("Cost/h", ".status.cost.hourly", "number", description="Dollars per hour."),
            Column("Phase", ".status.phase"),
            Column("Provider", ".spec.provider", priority=1),
            Column("Max", ".spec.maxNodes", "integer", 1),
            Column("Message", ".status.message", priority=1),
        ),
    )

    spec: ClusterSpec
    status: ClusterStatus = ClusterStatus()

    def problems(self) -> Iterator[Cause]:
        spec = self.spec
        yield from number_problems(spec, "spec")
        yield from label_problems(spec.labels, "spec.labels")
        if spec.max_nodes is None:
            return
        if spec.min_nodes > spec.max_nodes:
            yield Cause("spec.minNodes", f"must be at most maxNodes ({spec.max_nodes}), got {spec.min_nodes}")
        if spec.desired_nodes > spec.max_nodes:
            yield Cause(
                "spec.nodes", f"must add up to at most maxNodes ({spec.max_nodes}), got {spec.desired_nodes}"
            )
