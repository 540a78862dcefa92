"""Cost: prefer offers where one replica costs less; room on machines that are paid for costs nothing."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Flags, Floats, Integers, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.rejection_reasons import fleet_of

MIN_PRICED_SCORE = 0.001


@dataclass(frozen=True, slots=True)
class Cost:
    """`cheap_first`: else the dearest is best."""

    name: ClassVar[str] = "Cost"
    scope: ClassVar[Scope] = "table"
    cheapest_first: bool = True

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """1 for the cheapest that would take it, next to nothing for the dearest, 0 where the price is not known."""
        unit, is_lost = fleet_of(rows).table.quotes.quote_for(ask).rate_per_replica, rows.column("lost")
        score = cost_scores(unit, is_lost)
        if self.cheapest_first:
            return score
        return np.where(
            (unit < NO_LIMIT) & ~is_lost, np.float32(1 + MIN_PRICED_SCORE) - score, np.float32(0)
        ).astype(np.float32)


def cost_scores(unit: Integers, is_lost: Flags) -> Floats:
    """By offer, of what one replica costs there; NO_LIMIT: nobody knows, or it takes none."""
    known = (unit < NO_LIMIT) & ~is_lost
    score = np.zeros(len(unit), np.float32)
    if known.any():
        stated = unit[known]
        least, most = int(stated.min()), int(stated.max())
        score[known] = 1.0 - (stated - least) / max(1, most - least) * (1.0 - MIN_PRICED_SCORE)
    return score
