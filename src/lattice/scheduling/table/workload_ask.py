"""The scheduling request of one workload, read once from the stored workload, with the values that plugins
use."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from lattice.kinds.constraints import (
    MachineImage,
    NodeTerm,
    PlannedNodes,
    PreferredNodes,
    PreferredWorkloads,
    Spread,
    Toleration,
    Volume,
    WorkloadTerm,
)
from lattice.kinds.meta.base import DEFAULT_NAMESPACE
from lattice.kinds.qos import Qos, qos_of
from lattice.kinds.workload import LatticeWorkload, WorkloadSpec

GPU = "gpu"
MILLI_PER_GPU = 1000
# The resource that limits the number of workloads on a node. A node that states no amount has no limit.
WORKLOAD_SLOTS = "workloads"
PORTS = "ports"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """The GPUs that a workload requests: `count` whole GPUs, or a part of one GPU (`count` is 1 and `milli`
    below 1,000).

    An empty `models` accepts every GPU model.
    """

    count: int
    milli: int
    models: tuple[str, ...] = ()

    @property
    def total_milli(self) -> int:
        return self.count * self.milli


@dataclass(frozen=True, slots=True)
class Demands:
    """The requirements of a workload, without its name, priority and gang. Workloads with equal demands get
    equal decisions, unless a gang or preemption plays a part."""

    namespace: str = "default"
    labels: Labels = ()
    service: str = ""
    cluster: str = ""
    # Amounts by resource name: milli-cores, bytes, counts. GPUs are in `gpu`.
    requests: tuple[tuple[str, int], ...] = ()
    gpu: GpuNeed | None = None
    ports: int = 0  # number of ports that the scheduler chooses on the node
    host_ports: tuple[tuple[int, str], ...] = ()  # fixed (number, protocol) pairs
    runtime: str = ""  # process or container; "": any runtime
    node_selector: Labels = ()
    node_terms: tuple[NodeTerm, ...] = ()
    node_preferences: tuple[PreferredNodes, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    affinity_terms: tuple[WorkloadTerm, ...] = ()
    affinity_preferences: tuple[PreferredWorkloads, ...] = ()
    anti_affinity_terms: tuple[WorkloadTerm, ...] = ()
    anti_affinity_preferences: tuple[PreferredWorkloads, ...] = ()
    spread: tuple[Spread, ...] = ()
    volumes: tuple[Volume, ...] = ()
    licences: tuple[str, ...] = ()
    image: MachineImage | None = None
    planned_nodes: PlannedNodes | None = None
    is_best_effort: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadAsk:
    """The scheduling request of a workload, as an engine Ask.

    `needs` are (resource number, amount) pairs in the resource numbers of one node table. `shape` and
    `fixed_shape` are numbers that stand for the demands, and for the part of the demands that plugins of
    scope "fixed" use.
    """

    name: str  # namespace/name
    demands: Demands
    shape: Hashable
    needs: tuple[tuple[int, int], ...]
    priority: int = 0
    group: str = ""
    min_member: int = 0
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    fixed_shape: Hashable = None

    def matches_term(self, term: WorkloadTerm, owner_namespace: str = "") -> bool:
        """Whether the workload matches an affinity term of a workload in `owner_namespace`; without it, a
        term of its own."""
        namespace = self.demands.namespace
        return term.matches(namespace, self.labels, owner_namespace or namespace)

    @property
    def is_additive(self) -> bool:
        return self.demands.gpu is None and not self.demands.host_ports


def fixed_shape_of(demands: Demands) -> Hashable:
    """The part of the demands that plugins of scope "fixed" use; these plugins depend only on fixed columns
    of a node."""
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
        demands.is_best_effort,
    )


def demands_of(workload: LatticeWorkload) -> Demands:
    spec, constraints = workload.spec, workload.spec.constraints
    affinity = constraints.affinity
    node = affinity.node if affinity else None
    workload_affinity = affinity.workload if affinity else None
    workload_anti_affinity = affinity.anti_workload if affinity else None
    ports = [port for container in spec.containers.values() for port in container.ports]
    return Demands(
        namespace=workload.metadata.namespace or DEFAULT_NAMESPACE,
        labels=tuple(sorted(workload.metadata.labels.items())),
        service=spec.service,
        cluster=spec.cluster,
        requests=tuple(
            sorted(
                (name, amount) for name, amount in spec.request_amounts.items() if name != GPU and amount > 0
            )
        ),
        gpu=_gpu_need(spec),
        ports=sum(port.port is None for port in ports),
        host_ports=tuple(sorted((port.port, port.protocol) for port in ports if port.port is not None)),
        runtime=_runtime_of(spec),
        node_selector=tuple(sorted(constraints.node_selector.items())),
        node_terms=node.required if node else (),
        node_preferences=node.preferred if node else (),
        tolerations=constraints.tolerations,
        affinity_terms=workload_affinity.required if workload_affinity else (),
        affinity_preferences=workload_affinity.preferred if workload_affinity else (),
        anti_affinity_terms=workload_anti_affinity.required if workload_anti_affinity else (),
        anti_affinity_preferences=workload_anti_affinity.preferred if workload_anti_affinity else (),
        spread=constraints.spread,
        volumes=constraints.volumes,
        licences=constraints.licences,
        image=constraints.machine_image,
        planned_nodes=constraints.planned_nodes if spec.service else None,
        is_best_effort=qos_of(spec) is Qos.BestEffort,
    )


def _gpu_need(spec: WorkloadSpec) -> GpuNeed | None:
    """The GPU request of a workload spec in thousandths; requests above one GPU are rounded up to whole GPUs."""
    milli = spec.request_amounts.get(GPU, 0)
    if milli <= 0:
        return None
    if milli < MILLI_PER_GPU:
        return GpuNeed(1, milli, spec.constraints.gpu_models)
    return GpuNeed(-(-milli // MILLI_PER_GPU), MILLI_PER_GPU, spec.constraints.gpu_models)


def _runtime_of(spec: WorkloadSpec) -> str:
    """The runtime that a workload needs: a container image needs a container runtime, a command runs as a
    process."""
    if any(container.image for container in spec.containers.values()):
        return "container"
    return "process" if spec.containers else ""
