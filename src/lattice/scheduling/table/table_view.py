"""The parts of the node table that its component modules read, as one protocol per reader: these modules must
not import the table."""

from typing import Any, Protocol

from numpy.typing import NDArray

from lattice.engine.table import Integers
from lattice.scheduling.table.gpu_allocator import GpuAllocator
from lattice.scheduling.table.label_codes import CodeArray, LabelCodes
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.port_allocator import PortAllocator
from lattice.scheduling.table.workload_ask import WorkloadAsk


class ResourceView(Protocol):
    """Resources, GPUs and ports by node: what the checks of one node read."""

    resources: list[str]
    names: list[str]
    gpus: GpuAllocator
    ports: PortAllocator

    def column(self, name: str) -> NDArray[Any]: ...

    def free(self, resource: int) -> Integers: ...

    def allocated(self, resource: int) -> Integers: ...

    def needs_on(self, ask: WorkloadAsk, row: int) -> tuple[tuple[int, int], ...]: ...


class GpuDemandView(Protocol):
    """Nodes, placements and free GPUs: what the learner of the GPU demand reads."""

    row_of: dict[str, int]
    placements: dict[str, Placement]
    gpus: GpuAllocator

    def column(self, name: str) -> NDArray[Any]: ...

    def free(self, resource: int) -> Integers: ...


class TopologyView(Protocol):
    """Placements, and the topology domains of nodes: what the index of placed workloads reads."""

    count: int
    placements: dict[str, Placement]

    def label_codes(self, key: str) -> LabelCodes: ...

    def domain_codes(self, key: str) -> CodeArray: ...
