"""AvailableCapacity: prefer offers of which a larger share is still free."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.offer import NO_LIMIT


@dataclass(frozen=True, slots=True)
class LeastAllocated:
    """`most_first`: else the fullest is best."""

    name: ClassVar[str] = "AvailableCapacity"
    scope: ClassVar[Scope] = "row"
    least_allocated_first: bool = True

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """The free share of machines, cores or memory, whichever is least; an offer without limits is all free."""
        free = np.ones(rows.count, np.float32)
        for resource in ("nodes", "cpu", "memory"):
            number = rows.table.resource_index[resource]
            total = rows.total(number)
            limited = (total > 0) & (total < NO_LIMIT)
            share = np.divide(rows.free(number), total, out=np.ones(rows.count), where=limited)
            np.minimum(free, share.astype(np.float32), out=free)
        free = np.clip(free, 0, 1)
        return free if self.least_allocated_first else np.float32(1) - free
