"""AvailableCapacity: prefer offers with a larger free share of their limits."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.offer import NO_LIMIT


@dataclass(frozen=True, slots=True)
class LeastAllocated:
    """Score plugin: ranks offers by free share; without `least_allocated_first` the fullest offer scores
    best."""

    name: ClassVar[str] = "AvailableCapacity"
    # The score depends on the usage of the offer alone.
    scope: ClassVar[Scope] = "row"
    least_allocated_first: bool = True

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """The smallest free share of machines, cores and memory, or without `least_allocated_first` 1 minus
        that share; an offer without limits is entirely free."""
        free = np.ones(rows.count, np.float32)
        for resource in ("nodes", "cpu", "memory"):
            resource_row = rows.table.resource_index[resource]
            total = rows.total(resource_row)
            limited = (total > 0) & (total < NO_LIMIT)
            share = np.divide(rows.free(resource_row), total, out=np.ones(rows.count), where=limited)
            np.minimum(free, share.astype(np.float32), out=free)
        free = np.clip(free, 0, 1)
        return free if self.least_allocated_first else np.float32(1) - free
