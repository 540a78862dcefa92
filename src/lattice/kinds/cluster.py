"""LatticeCluster: which machines did Lattice make in one pool, and for how much?"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import Column, Kind, Part, Resource, Status
from lattice.kinds.meta.quantity import Amount, number_problems
from lattice.kinds.meta.selector import label_problems
from lattice.kinds.service import TotalCost

RESERVE_LABEL = (
    "lattice.dev/reserve-of"  # a data center: cluster and nodes are only for those whom its reserve is for
)

NodeCount = Annotated[int, Meta(ge=0, description="Machines of this class.")]


class ClusterSpec(Part):
    """Where the cluster is and how many machines it has."""

    pool: Annotated[
        str,
        Meta(
            min_length=1,
            description="Offer that it was made from: a pool, {infrastructure}/{region}, or a static place.",
        ),
    ]
    infrastructure: Annotated[
        str, Meta(description="CloudInfrastructure or StaticInfrastructure behind the offer, if it is one.")
    ] = ""
    provider: Annotated[str, Meta(description="Who supplies the machines.")] = ""
    region: Annotated[str, Meta(description="Region that it is in.")] = ""
    zone: Annotated[str, Meta(description="Zone that it is in, if it is confined to one.")] = ""
    nodes: Annotated[dict[str, NodeCount], Meta(description="Wanted machines by LatticeNodeClass.")] = {}
    min_nodes: Annotated[int, Meta(ge=0, description="It never has fewer machines.")] = 0
    max_nodes: Annotated[int, Meta(ge=1, description="It never has more machines.")] | None = None
    policy_hash: Annotated[
        str,
        Meta(
            description="Hash of the merged cluster policy; only services with an equal one share the cluster."
        ),
    ] = ""
    labels: Annotated[dict[str, str], Meta(description="Labels that its nodes get.")] = {}

    @property
    def desired_nodes(self) -> int:
        return sum(self.nodes.values())


class ClusterUtilization(Part):
    """Shares that the requests of its workloads take, 0 to 1."""

    cores: Annotated[Amount, Meta(description="Share of the cores.")] | None = None
    memory: Annotated[Amount, Meta(description="Share of the memory.")] | None = None


class WorkerPool(Part):
    """Machines of one class."""

    desired: Annotated[int, Meta(description="Machines that are wanted.")] = 0
    current: Annotated[int, Meta(description="Machines that exist, ready or not.")] = 0
    ready: Annotated[int, Meta(description="Machines that are ready.")] = 0
    message: Annotated[str, Meta(description="Why there are fewer than wanted, as the provider says.")] = ""


class ClusterStatus(Status):
    """What is there and what it costs."""

    message: Annotated[str, Meta(description="One sentence about the phase.")] = ""
    nodes: Annotated[int, Meta(description="Machines that exist.")] | None = None
    ready_nodes: Annotated[int, Meta(description="Machines that are ready.")] | None = None
    ready_workers: (
        Annotated[int, Meta(description="Machines that are ready, of all worker pools.")] | None
    ) = None
    worker_pools: Annotated[dict[str, WorkerPool], Meta(description="Machines by LatticeNodeClass.")] = {}
    endpoint: Annotated[str, Meta(description="Where its machines reach the control plane.")] = ""
    services: Annotated[int, Meta(description="Services that run in it.")] | None = None
    workloads: Annotated[int, Meta(description="Replicas that run in it.")] | None = None
    utilization: Annotated[ClusterUtilization, Meta(description="Shares in use.")] | None = None
    cost: Annotated[TotalCost, Meta(description="What its machines cost.")] | None = None
    sequence: Annotated[int, Meta(description="Its number in the pool; never given twice.")] | None = None


class LatticeCluster(Kind):
    """A group of machines that Lattice made in one pool, and grows or removes as services need it."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeCluster",
        plural="latticeclusters",
        short_names=("lc",),
        managed_hint="clusters follow from services: declare a LatticeService, and size its clusters with a LatticePlacementPolicy",
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
