"""Which workloads does a placement come to: what each is made of, and which slot it has?"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import msgspec

from lattice.kinds.constraint import Constraints, Spread
from lattice.kinds.container import Quantities
from lattice.kinds.meta.base import Metadata, OwnerReference
from lattice.kinds.service import LatticeService, ServiceSpec
from lattice.kinds.workload import LatticeWorkload, WorkloadSpec, compute_revision

NODE_CLASS_LABEL = "lattice.dev/node-class"  # label of a node: the class of the machine
SERVICE_LABEL = "lattice.dev/service"
WORKLOAD_FINALIZER = "lattice.dev/workload"  # it goes only when its node says that it is gone
FLEET_TOPOLOGY_KEYS = (
    "region",
    "provider",
    "pool",
    "cluster",
)  # spread over these is decided when clusters are chosen, not among nodes of one
MILLI_RESOURCES = ("cpu", "gpu")

NodeGroupKey = tuple[str, str]  # a cluster, and a class of its machines


def desired_node_groups(service: LatticeService) -> Counter[NodeGroupKey]:
    """Replicas by cluster and class, as they were placed and paid for."""
    found: Counter[NodeGroupKey] = Counter()
    for each in service.status.placements:
        found[each.cluster, each.node] += each.replicas or 0
    return +found


def node_group_of(workload: LatticeWorkload) -> NodeGroupKey:
    return (workload.spec.cluster, workload.spec.constraints.node_selector.get(NODE_CLASS_LABEL, ""))


def template(service: LatticeService) -> WorkloadSpec:
    """Any replica of it, wherever it goes."""
    spec = service.spec
    made = WorkloadSpec(
        containers=spec.containers,
        service=service.metadata.name,
        requests=_requests(spec),
        priority=spec.priority,
        constraints=Constraints(
            node_selector=dict(sorted(spec.placement.node_selector.items())),
            tolerations=spec.placement.tolerations,
            spread=_spread(spec.spread),
            gpu_models=(spec.placement.resources.gpu_model,) if spec.placement.resources.gpu_model else (),
        ),
        disconnect=spec.disconnect,
    )
    return msgspec.structs.replace(made, revision=compute_revision(made))


def _requests(spec: ServiceSpec) -> Quantities:
    """What containers state themselves is theirs to state."""
    if any(each.resources and each.resources.requests for each in spec.containers.values()):
        return {}
    return {
        name: f"{amount}m" if name in MILLI_RESOURCES else amount
        for name, amount in sorted(spec.requests.items())
    }


def _spread(stated: Iterable[Spread]) -> tuple[Spread, ...]:
    return tuple(each for each in stated if each.topology_key not in FLEET_TOPOLOGY_KEYS)


def in_node_group(spec: WorkloadSpec, cell: NodeGroupKey) -> WorkloadSpec:
    """On machines of the class that was paid for."""
    cluster, kind = cell
    constraints = spec.constraints
    if kind:
        selector = constraints.node_selector | {NODE_CLASS_LABEL: kind}
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
            name=workload_name(service.metadata.name, slot),
            namespace=service.metadata.namespace,
            labels=labels_for(service),
            finalizers=(WORKLOAD_FINALIZER,),
            owner_references=(owner,),
        ),
        spec=msgspec.structs.replace(spec, slot=slot),
    )


def workload_name(service: str, slot: int) -> str:
    return f"{service}-{slot}"


def free_slots(taken: Collection[int]) -> Iterator[int]:
    """The lowest first."""
    used, slot = set(taken), 0
    while True:
        if slot not in used:
            yield slot
        slot += 1
