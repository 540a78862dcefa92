"""The placement of a workload on a node of the node table."""

from dataclasses import dataclass
from typing import Literal

from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class Placement:
    """A workload on a node: assumed until its binding is durable, then bound."""

    ask: WorkloadAsk
    row: int
    state: Literal["assumed", "bound"]
    gpus: tuple[int, ...] = ()  # numbers of the GPUs on the node
    ports: tuple[int, ...] = ()
