"""Price: prefer cheaper nodes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows, Table
from lattice.scheduling.table.ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class Price:
    name: ClassVar[str] = "Price"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """1 less its price as a share of the highest in the table; a node without a price is free."""
        prices = rows.column("price").astype(np.float32)
        highest = rows.aggregate(self.name, _highest)
        if highest > 0:
            prices /= highest
        return np.subtract(np.float32(1), prices, out=prices)


def _highest(table: Table) -> np.float32:
    highest: np.float32 = table.column("price").max(initial=0).astype(np.float32)
    return highest
