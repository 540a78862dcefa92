"""LatticeNode: one machine, its capacity and its health."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.constraints import Taint
from lattice.kinds.container import amount_problems
from lattice.kinds.meta.base import LIST_SET, Column, Kind, Part, Resource, Status
from lattice.kinds.meta.quantity import Quantity
from lattice.kinds.meta.validator import join_path

# Reason of the Ready condition of a node whose agent has not joined yet.
NOT_JOINED = "NotJoined"
DRAINING_TAINT = "lattice.dev/draining"
# Annotation of a node: the generation of the LatticeNodeClass that the machine was made from.
CLASS_GENERATION_ANNOTATION = "lattice.dev/node-class-generation"

# Label of a node, and key in the node selector of a replica; the value is the name of the LatticeNodeClass.
NODE_CLASS_LABEL = "lattice.dev/node-class"
# Finalizer of a node that a joining agent created. A deleted node that is ready is removed only after its
# last workload is gone; a deleted node that is not ready is removed immediately.
NODE_FINALIZER = "lattice.dev/node"
# Annotation of a joined machine: the cluster that its join token names.
PINNED_CLUSTER_ANNOTATION = "lattice.dev/joined-cluster"
# Condition of a draining node: True when all its workloads are gone.
DRAINED_CONDITION = "Drained"
# Condition of a node whose agent reports implausible values; the scheduler binds no workload to the node.
QUARANTINED = "Quarantined"
# Conditions of a node with little memory or disk available; the scheduler binds no BestEffort workload to it.
MEMORY_PRESSURE_CONDITION, DISK_PRESSURE_CONDITION = "MemoryPressure", "DiskPressure"
# Resources that the agent measures: no join token grants them.
MEASURED_RESOURCES = ("cpu", "memory", "storage", "ephemeral-storage", "gpu")
# The only label keys that an agent may set on its own node.
AGENT_LABEL_PREFIX = "agent.lattice.dev/"

# Milli-cores, bytes, milli-GPUs and counts, by resource name.
ResourceAmounts = dict[str, int]


class NodeSpec(Part):
    """Location and class of the machine, and whether new workloads may be bound to it."""

    cluster: Annotated[str, Meta(description="LatticeCluster of the node.")] = ""
    pool: Annotated[
        str, Meta(description="Offer that the machine belongs to: a pool, a cloud region or a data center.")
    ] = ""
    provider: Annotated[str, Meta(description="Provider of the machine.")] = ""
    region: Annotated[str, Meta(description="Region of the machine.")] = ""
    zone: Annotated[str, Meta(description="Zone of the machine.")] = ""
    node_class: Annotated[str, Meta(description="LatticeNodeClass of the machine.")] = ""
    provider_id: Annotated[str, Meta(description="The provider's identifier of the machine.")] = (
        msgspec.field(name="providerID", default="")
    )
    unschedulable: Annotated[
        bool,
        Meta(description="true (cordoned): no new workload is bound to the node; running workloads stay."),
    ] = False
    taints: Annotated[
        tuple[Taint, ...],
        Meta(description="Taints that keep replicas off the node unless they tolerate them."),
    ] = ()
    machine_image: Annotated[str, Meta(description="Image that the machine was started from.")] = ""
    licences: Annotated[tuple[str, ...], LIST_SET, Meta(description="Licences of the node.")] = ()
    extended: Annotated[
        dict[str, Quantity],
        Meta(
            description=(
                "Other resources of the machine that its join token grants, by name; an amount that the agent "
                "reports under the same name does not count."
            )
        ),
    ] = {}


class NodeGpu(Part):
    """One GPU of the machine."""

    model: Annotated[str, Meta(description="Model, such as nvidia-a100.")]
    milli_free: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description=(
                "Thousandths of the GPU that workloads may use in total; 1000 is the whole GPU. The amount "
                "does not fall when a workload is bound."
            ),
        ),
    ] = 1000


class NodeAddress(Part):
    """One address of the machine."""

    type: Annotated[Literal["InternalIP", "ExternalIP", "Hostname"], Meta(description="Type of the address.")]
    address: Annotated[str, Meta(description="The address.")]


class PortRange(Part):
    """Ports that workloads may use."""

    first: Annotated[int, Meta(ge=1, le=65535, description="Lowest port.")]
    last: Annotated[int, Meta(ge=1, le=65535, description="Highest port.")]


class NodeUsage(Part):
    """Measured resource usage."""

    cpu: Annotated[int, Meta(description="Milli-cores.")] | None = None
    memory: Annotated[int, Meta(description="Bytes of memory.")] | None = None
    disk: Annotated[int, Meta(description="Bytes of disk.")] | None = None


class NodeHeartbeat(Part):
    """The last report about the health of the node; written when the health changes, not with every
    heartbeat."""

    reason: Annotated[str, Meta(description="Reason of the report.")] = ""
    by: Annotated[
        str, Meta(description="Source of the report: heartbeat if the node became ready, else monitor.")
    ] = ""
    at: Annotated[str, Meta(description="Time of the report.")] | None = None


class NodeStatus(Status):
    """Capacity, usage and health of the node."""

    capacity: Annotated[
        ResourceAmounts, Meta(description="Total capacity: milli-cores, bytes, milli-GPUs, counts.")
    ] = {}
    reserved: Annotated[ResourceAmounts, Meta(description="Capacity reserved for the machine itself.")] = {}
    allocatable: Annotated[
        ResourceAmounts, Meta(description="Capacity for workloads: capacity minus reserved.")
    ] = {}
    gpus: Annotated[tuple[NodeGpu, ...], Meta(description="GPUs of the machine.")] = ()
    addresses: Annotated[tuple[NodeAddress, ...], Meta(description="Addresses of the machine.")] = ()
    runtimes: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Available runtimes: process, container.")
    ] = ()
    licences: Annotated[
        tuple[str, ...],
        LIST_SET,
        Meta(description="Licences that the agent reports; they count only where the spec states none."),
    ] = ()
    machine_image: Annotated[
        str,
        Meta(description="Machine image that the agent reports; it counts only where the spec states none."),
    ] = ""
    port_range: Annotated[PortRange, Meta(description="Ports that workloads may use.")] | None = None
    usage: Annotated[NodeUsage, Meta(description="Measured resource usage.")] | None = None
    heartbeat: (
        Annotated[NodeHeartbeat, Meta(description="Last report about the health of the node.")] | None
    ) = None
    taints_since: Annotated[
        dict[str, str],
        Meta(
            description=(
                "Time when each NoExecute taint was first observed, by key=value. tolerationSeconds "
                "counts from this time."
            )
        ),
    ] = {}
    taken_ports: Annotated[
        dict[str, str],
        Meta(
            description=(
                "Ports of the range that another program uses, with the time until which no workload "
                "gets them."
            )
        ),
    ] = {}
    agent_version: Annotated[str, Meta(description="Version of the agent.")] = ""
    workloads: Annotated[int, Meta(description="Number of workloads bound to the node.")] | None = None


def extended_problems(extended: Mapping[str, Quantity], path: str) -> Iterator[Cause]:
    """The problems of the other resources that a join token grants."""
    yield from amount_problems(extended, path)
    for name in extended:
        if name in MEASURED_RESOURCES:
            yield Cause(join_path(path, name), f"must be another resource: the agent measures {name}")


class LatticeNode(Kind):
    """One machine. The node appears when its agent registers or when a provider creates the machine."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeNode",
        plural="latticenodes",
        short_names=("ln",),
        managed_hint=(
            "nodes register themselves: run `lattice agent` on the machine, or declare a "
            "LatticePool in which Lattice creates machines"
        ),
        columns=(
            Column("Pool", ".spec.pool"),
            Column("Cluster", ".spec.cluster"),
            Column("Class", ".spec.nodeClass"),
            Column("Zone", ".spec.zone"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Workloads", ".status.workloads", "integer"),
            Column("Phase", ".status.phase"),
            Column("Address", ".status.addresses[*].address", priority=1),
            Column("Runtimes", ".status.runtimes[*]", priority=1),
            Column("Version", ".status.agentVersion", priority=1),
        ),
    )

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def effective_licences(self) -> tuple[str, ...]:
        """The licences of the spec, which an administrator, a join token or a class states; without any, the
        licences that the agent reports."""
        return self.spec.licences or self.status.licences

    @property
    def effective_machine_image(self) -> str:
        """The machine image of the spec, else the image that the agent reports."""
        return self.spec.machine_image or self.status.machine_image

    @property
    def is_joined_machine(self) -> bool:
        """Whether the owner of the machine joined it: no provider made it, and Lattice never removes it."""
        return NODE_FINALIZER in self.metadata.finalizers

    def problems(self) -> Iterator[Cause]:
        for index, taint in enumerate(self.spec.taints):
            yield from taint.problems(f"spec.taints[{index}]")
        yield from extended_problems(self.spec.extended, "spec.extended")
        ports = self.status.port_range
        if ports and ports.first > ports.last:
            yield Cause("status.portRange.first", f"must be at most last ({ports.last}), got {ports.first}")
