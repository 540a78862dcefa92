"""LatticeNode: what is one machine, what room has it, and is it well?"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.constraint import Taint
from lattice.kinds.meta.base import LIST_SET, Column, Kind, Part, Resource, Status

DRAINING_TAINT = "lattice.dev/draining"

NODE_FINALIZER = (
    "lattice.dev/node"  # of a machine that came by itself: what runs on it leaves before its record does
)
QUARANTINED = "Quarantined"  # condition: what its agent says of it cannot be; nothing is put there
AGENT_LABEL_PREFIX = "agent.lattice.dev/"  # the only label keys that an agent may set on its own node

ResourceAmounts = dict[str, int]  # milli-cores, bytes, milli-GPUs and counts by resource name


class NodeSpec(Part):
    """Where the machine belongs and whether it may be used."""

    cluster: Annotated[str, Meta(description="LatticeCluster that it belongs to.")] = ""
    pool: Annotated[str, Meta(description="Offer that it was made from.")] = ""
    provider: Annotated[str, Meta(description="Who supplied it.")] = ""
    region: Annotated[str, Meta(description="Region that it is in.")] = ""
    zone: Annotated[str, Meta(description="Zone that it is in.")] = ""
    node_class: Annotated[str, Meta(description="LatticeNodeClass that it was made from.")] = ""
    provider_id: Annotated[str, Meta(description="The provider's own name of the machine.")] = msgspec.field(
        name="providerID", default=""
    )
    unschedulable: Annotated[bool, Meta(description="true: nothing new is put on it; what runs stays.")] = (
        False
    )
    taints: Annotated[
        tuple[Taint, ...], Meta(description="Marks that keep replicas away unless they tolerate them.")
    ] = ()
    machine_image: Annotated[str, Meta(description="Image that it was started from.")] = ""
    licences: Annotated[tuple[str, ...], LIST_SET, Meta(description="Licences that it holds.")] = ()


class NodeGpu(Part):
    """One GPU of the machine."""

    model: Annotated[str, Meta(description="Model, such as nvidia-a100.")]
    milli_free: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Thousandths that workloads may have, 1000 is all of it; what bound workloads use is counted by Lattice.",
        ),
    ] = 1000


class NodeAddress(Part):
    """One way to reach the machine."""

    type: Annotated[
        Literal["InternalIP", "ExternalIP", "Hostname"], Meta(description="What kind of address it is.")
    ]
    address: Annotated[str, Meta(description="The address.")]


class PortRange(Part):
    """Ports that may be given to workloads."""

    first: Annotated[int, Meta(ge=1, le=65535, description="Lowest port.")]
    last: Annotated[int, Meta(ge=1, le=65535, description="Highest port.")]


class NodeUsage(Part):
    """What is really in use, as measured."""

    cpu: Annotated[int, Meta(description="Milli-cores.")] | None = None
    memory: Annotated[int, Meta(description="Bytes of memory.")] | None = None
    disk: Annotated[int, Meta(description="Bytes of disk.")] | None = None


class NodeHeartbeat(Part):
    """Who last said how the machine is; written when that changes, not with every beat."""

    reason: Annotated[str, Meta(description="Why it was said.")] = ""
    by: Annotated[str, Meta(description="Who said it: register, heartbeat or monitor.")] = ""
    at: Annotated[str, Meta(description="When it was said.")] | None = None


class NodeStatus(Status):
    """What room it has and how it is."""

    capacity: Annotated[
        ResourceAmounts, Meta(description="Everything there is: milli-cores, bytes, milli-GPUs, counts.")
    ] = {}
    reserved: Annotated[ResourceAmounts, Meta(description="Kept for the machine itself.")] = {}
    allocatable: Annotated[
        ResourceAmounts, Meta(description="What workloads may have: capacity less reserved.")
    ] = {}
    gpus: Annotated[tuple[NodeGpu, ...], Meta(description="Its GPUs, one by one.")] = ()
    addresses: Annotated[tuple[NodeAddress, ...], Meta(description="Ways to reach it.")] = ()
    runtimes: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="What it can run: process, container.")
    ] = ()
    port_range: Annotated[PortRange, Meta(description="Ports that may be given to workloads.")] | None = None
    usage: Annotated[NodeUsage, Meta(description="What is really in use.")] | None = None
    heartbeat: Annotated[NodeHeartbeat, Meta(description="Who last said how it is.")] | None = None
    taints_since: Annotated[
        dict[str, str],
        Meta(
            description="When each NoExecute taint was first seen, by key=value: tolerations with a time count from there."
        ),
    ] = {}
    taken_ports: Annotated[
        dict[str, str],
        Meta(
            description="Ports of its range that another program was found to have, and until when they are not given out."
        ),
    ] = {}
    agent_version: Annotated[str, Meta(description="Version of the agent on it.")] = ""
    workloads: Annotated[int, Meta(description="Workloads bound to it.")] | None = None


class LatticeNode(Kind):
    """One machine. It appears when its agent registers or a provider makes it."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeNode",
        plural="latticenodes",
        short_names=("ln",),
        managed_hint="nodes register themselves: run `lattice agent` on the machine, or let a LatticePool make machines",
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

    def problems(self) -> Iterator[Cause]:
        for index, taint in enumerate(self.spec.taints):
            yield from taint.problems(f"spec.taints[{index}]")
        ports = self.status.port_range
        if ports and ports.first > ports.last:
            yield Cause("status.portRange.first", f"must be at most last ({ports.last}), got {ports.first}")
