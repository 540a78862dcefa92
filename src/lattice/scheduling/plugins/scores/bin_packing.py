"""BinPacking: prefer the node that would be fullest by the requested resources. Idle GPUs do not make a node
look empty to a CPU workload."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.scheduling.table.utilisation import mean_share_with_workload
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class BinPacking:
    name: ClassVar[str] = "BinPacking"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """The mean allocated share of the requested resources, GPUs included, with the workload on the node."""
        return mean_share_with_workload(ask, rows)
