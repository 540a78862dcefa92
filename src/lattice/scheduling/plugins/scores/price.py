"""Price: prefer cheaper nodes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass(frozen=True, slots=True)
class Price:
    name: ClassVar[str] = "Price"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: WorkloadAsk) -> bool:
        return True

    def score(self, ask: WorkloadAsk, rows: Rows) -> Floats:
        """1 minus the price as a share of the highest price in the table; a node without a price is free."""
        prices = rows.column("price").astype(np.float32)
        highest: np.float32 = rows.aggregate(
            self.name, lambda table: table.column("price").max(initial=0).astype(np.float32)
        )
        if highest > 0:
            prices /= highest
        return np.subtract(np.float32(1), prices, out=prices)
