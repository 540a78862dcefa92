"""BinPacking: prefer the node that would be fullest, by what is asked for: idle GPUs do not make it look empty to a CPU job."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.utilisation import mean_after


@dataclass(frozen=True, slots=True)
class BinPacking:
    name: ClassVar[str] = "BinPacking"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """The mean share of the asked resources, GPUs among them, the workload included."""
        return mean_after(ask, rows)
