"""AvailableCapacity: prefer offers with a larger free share of their limits."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.normalization import min_max
from lattice.engine.plugin import Scope
from lattice.engine.table import Doubles, Flags, Floats, Rows, Table
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.offer import NO_LIMIT


@dataclass(frozen=True, slots=True)
class LeastAllocated:
    """Score plugin: ranks offers by free share; without `least_allocated_first` the fullest offer scores
    best."""

    name: ClassVar[str] = "AvailableCapacity"
    # Scores are relative to the emptiest and the fullest candidate.
    scope: ClassVar[Scope] = "table"
    least_allocated_first: bool = True

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """The score with every row as a candidate."""
        return self.normalized(ask, rows.table, np.ones(rows.table.count, np.bool_)).astype(np.float32)

    def normalized(self, ask: ReplicaAsk, table: Table, candidates: Flags) -> Doubles:
        """1 for the candidate with the largest free share, 0 for the smallest, or without
        `least_allocated_first` the other way round."""
        return min_max(free_shares(table), candidates, largest_first=self.least_allocated_first)


def free_shares(table: Table) -> Doubles:
    """The smallest free share of machines, cores and memory by offer; an offer without limits is entirely
    free."""
    free: Doubles = np.ones(table.count)
    for resource in ("nodes", "cpu", "memory"):
        index = table.resource_index[resource]
        total = table.total(index)
        limited = (total > 0) & (total < NO_LIMIT)
        np.minimum(
            free, np.divide(table.free(index), total, out=np.ones(table.count), where=limited), out=free
        )
    return np.clip(free, 0, 1)
