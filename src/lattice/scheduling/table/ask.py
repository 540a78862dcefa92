"""What one workload asks of a node: its manifest, read once, with everything that plugins look at."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from lattice.kinds.constraint import (
    MachineImage,
    NodeTerm,
    PreferredNodes,
    PreferredWorkloads,
    Spread,
    Toleration,
    Volume,
    WorkloadTerm,
)
from lattice.kinds.workload import LatticeWorkload, WorkloadSpec

GPU = "gpu"
MILLI_PER_GPU = 1000  # thousandths
WORKLOAD_SLOTS = "workloads"  # how many workloads a node takes; a node that does not say takes any number
PORTS = "ports"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """`count` whole GPUs, or with count 1 a part of one; of these models, any if none is named."""

    count: int
    milli: int
    models: tuple[str, ...] = ()

    @property
    def total_milli(self) -> int:
        return self.count * self.milli


@dataclass(frozen=True, slots=True)
class Demands:
    """Everything besides name and priority. Equal demands get equal answers."""

    namespace: str = "default"
    labels: Labels = ()
    service: str = ""
    cluster: str = ""
    requests: tuple[tuple[str, int], ...] = ()  # by resource name: milli-cores, bytes, counts; GPUs are apart
    gpu: GpuNeed | None = None
    ports: int = 0  # ports to be chosen on the node
    host_ports: tuple[tuple[int, str], ...] = ()  # (number, protocol) that must be free
    runtime: str = ""  # process or container; "": either
    node_selector: Labels = ()
    node_terms: tuple[NodeTerm, ...] = ()
    node_preferences: tuple[PreferredNodes, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    near: tuple[WorkloadTerm, ...] = ()
    near_preferences: tuple[PreferredWorkloads, ...] = ()
    far: tuple[WorkloadTerm, ...] = ()
    far_preferences: tuple[PreferredWorkloads, ...] = ()
    spread: tuple[Spread, ...] = ()
    volumes: tuple[Volume, ...] = ()
    licences: tuple[str, ...] = ()
    image: MachineImage | None = None


@dataclass(frozen=True, slots=True)
class WorkloadAsk:
    """An engine Ask. `needs` are the requests in the numbers of one table."""

    name: str  # namespace/name
    demands: Demands
    shape: Hashable
    needs: tuple[tuple[int, int], ...]
    priority: int = 0
    group: str = ""
    min_member: int = 0
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    fixed_shape: Hashable = None

    @property
    def is_additive(self) -> bool:
        return self.demands.gpu is None and not self.demands.host_ports


def fixed_shape_of(demands: Demands) -> Hashable:
    """What plugins look at whose answers depend on fixed facts of a node only."""
    return (
        bool(demands.service),
        demands.cluster,
        demands.runtime,
        demands.node_selector,
        demands.node_terms,
        demands.node_preferences,
        demands.tolerations,
        demands.volumes,
        demands.licences,
        demands.image,
    )


def demands_of(workload: LatticeWorkload) -> Demands:
    spec, constraints = workload.spec, workload.spec.constraints
    affinity = constraints.affinity
    node = affinity.node if affinity else None
    near = affinity.workload if affinity else None
    far = affinity.anti_workload if affinity else None
    ports = [port for container in spec.containers.values() for port in container.ports]
    return Demands(
        namespace=workload.metadata.namespace or "default",
        labels=tuple(sorted(workload.metadata.labels.items())),
        service=spec.service,
        cluster=spec.cluster,
        requests=tuple(
            sorted(
                (name, amount) for name, amount in spec.request_amounts.items() if name != GPU and amount > 0
            )
        ),
        gpu=gpu_need(spec),
        ports=sum(port.port is None for port in ports),
        host_ports=tuple(sorted((port.port, port.protocol) for port in ports if port.port is not None)),
        runtime=runtime_of(spec),
        node_selector=tuple(sorted(constraints.node_selector.items())),
        node_terms=node.required if node else (),
        node_preferences=node.preferred if node else (),
        tolerations=constraints.tolerations,
        near=near.required if near else (),
        near_preferences=near.preferred if near else (),
        far=far.required if far else (),
        far_preferences=far.preferred if far else (),
        spread=constraints.spread,
        volumes=constraints.volumes,
        licences=constraints.licences,
        image=constraints.machine_image,
    )


def gpu_need(spec: WorkloadSpec) -> GpuNeed | None:
    milli = spec.request_amounts.get(GPU, 0)
    if milli <= 0:
        return None
    if milli < MILLI_PER_GPU:
        return GpuNeed(1, milli, spec.constraints.gpu_models)
    return GpuNeed(-(-milli // MILLI_PER_GPU), MILLI_PER_GPU, spec.constraints.gpu_models)


def runtime_of(spec: WorkloadSpec) -> str:
    """An image needs a container runtime; a command alone runs as a process."""
    if any(container.image for container in spec.containers.values()):
        return "container"
    return "process" if spec.containers else ""
