"""Build the workloads of a service: the spec, name, labels and slot of a replica.

The slot is the number of the replica in its service, from 0; the name of the workload ends with the slot.
"""

from collections import Counter
from collections.abc import Collection, Iterator

import msgspec

from lattice.kinds.constraints import Constraints, PlannedNodes
from lattice.kinds.container import Quantities
from lattice.kinds.meta.base import Metadata, OwnerReference
from lattice.kinds.node import NODE_CLASS_LABEL
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import (
    SERVICE_LABEL,
    WORKLOAD_FINALIZER,
    LatticeWorkload,
    WorkloadSpec,
    compute_revision,
)

# Placement spreads replicas over these keys when it chooses clusters. The scheduler cannot: it binds a
# replica only to a node of the cluster that placement has chosen.
FLEET_TOPOLOGY_KEYS = ("region", "provider", "pool", "cluster")
# Resources that a service counts in thousandths.
MILLI_RESOURCES = ("cpu", "gpu")

# Cluster and node class.
NodeGroupKey = tuple[str, str]


def desired_node_groups(service: LatticeService) -> Counter[NodeGroupKey]:
    """Return the number of replicas per node group, as placed and paid for."""
    counts: Counter[NodeGroupKey] = Counter()
    for placement in service.status.placements:
        counts[placement.cluster, placement.node] += placement.replicas or 0
    return +counts


def node_group_of(workload: LatticeWorkload) -> NodeGroupKey:
    """Return the node group that the workload's spec requires; the class is empty if the spec requires no
    class."""
    return (workload.spec.cluster, workload.spec.constraints.node_selector.get(NODE_CLASS_LABEL, ""))


def workload_template(service: LatticeService) -> WorkloadSpec:
    """Return the spec that the replicas of the service share, before a node group and a slot are chosen."""
    spec = service.spec
    requests: Quantities = {}
    # If a container states requests of its own, the workload states none.
    if not any(
        container.resources and container.resources.requests for container in spec.containers.values()
    ):
        for name, amount in sorted(spec.requests.items()):
            requests[name] = f"{amount}m" if name in MILLI_RESOURCES else amount
    workload = WorkloadSpec(
        containers=spec.containers,
        service=service.metadata.name,
        requests=requests,
        priority=spec.priority,
        group=spec.group,
        constraints=Constraints(
            node_selector=dict(sorted(spec.placement.node_selector.items())),
            # Placement has already met the terms with other topology keys.
            affinity=spec.affinity.on_nodes() if spec.affinity else None,
            tolerations=spec.placement.tolerations,
            # Placement has already spread the replicas over the fleet topology keys.
            spread=tuple(entry for entry in spec.spread if entry.topology_key not in FLEET_TOPOLOGY_KEYS),
            gpu_models=(spec.placement.resources.gpu_model,) if spec.placement.resources.gpu_model else (),
        ),
        disconnect=spec.disconnect,
    )
    return msgspec.structs.replace(workload, revision=compute_revision(workload))


def planned_machines(service: LatticeService) -> dict[NodeGroupKey, PlannedNodes]:
    """Return the machines that placement counts for the replicas in a node group, where it states them."""
    return {
        (placement.cluster, placement.node): placement.machines
        for placement in service.status.placements
        if placement.machines
    }


def in_node_group(
    spec: WorkloadSpec, node_group: NodeGroupKey, machines: PlannedNodes | None = None
) -> WorkloadSpec:
    """Return the spec with the cluster of the node group, a node selector for the node class that was paid
    for, and the machines that placement counts for the service there."""
    cluster, node_class = node_group
    constraints = spec.constraints
    if machines:
        constraints = msgspec.structs.replace(constraints, planned_nodes=machines)
    if node_class:
        selector = constraints.node_selector | {NODE_CLASS_LABEL: node_class}
        constraints = msgspec.structs.replace(constraints, node_selector=selector)
    return msgspec.structs.replace(spec, cluster=cluster, constraints=constraints)


def labels_for(service: LatticeService) -> dict[str, str]:
    return {**service.metadata.labels, SERVICE_LABEL: service.metadata.name}


def build_workload(
    service: LatticeService, spec: WorkloadSpec, slot: int, owner: OwnerReference
) -> LatticeWorkload:
    resource = LatticeWorkload.resource
    return LatticeWorkload(
        api_version=resource.api_version,
        kind=resource.kind,
        metadata=Metadata(
            name=f"{service.metadata.name}-{slot}",
            namespace=service.metadata.namespace,
            labels=labels_for(service),
            finalizers=(WORKLOAD_FINALIZER,),
            owner_references=(owner,),
        ),
        spec=msgspec.structs.replace(spec, slot=slot),
    )


def free_slots(used_slots: Collection[int]) -> Iterator[int]:
    """Yield the slots that are not taken, lowest first, without end."""
    occupied, slot = set(used_slots), 0
    while True:
        if slot not in occupied:
            yield slot
        slot += 1
