"""Cost: prefer offers where one replica costs less; room on machines that are paid for costs nothing."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.placement.demand import ReplicaAsk
from lattice.placement.offer import NO_LIMIT
from lattice.placement.reason import fleet_of

LEAST = 0.001


@dataclass(frozen=True, slots=True)
class Cost:
    """`cheap_first`: else the dearest is best."""

    name: ClassVar[str] = "Cost"
    scope: ClassVar[Scope] = "table"
    cheap_first: bool = True

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """1 for the cheapest that would take it, next to nothing for the dearest, 0 where the price is not known."""
        unit = fleet_of(rows).table.quotes.of(ask).unit
        known = (unit < NO_LIMIT) & ~rows.column("lost")
        score = np.zeros(rows.count, np.float32)
        if known.any():
            least, most = int(unit[known].min()), int(unit[known].max())
            span = max(1, most - least)
            score[known] = 1.0 - (unit[known] - least) / span * (1.0 - LEAST)
        return score if self.cheap_first else np.where(known, np.float32(1 + LEAST) - score, np.float32(0)).astype(np.float32)
