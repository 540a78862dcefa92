"""Cost: prefer offers where one replica costs less; free capacity on paid machines costs nothing."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Doubles, Flags, Floats, Integers, Rows, Table
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.plugins.rejection_reasons import fleet_of

# Beside an offer without a known price, which scores 0, the most expensive offer scores this much.
MIN_PRICED_SCORE = 0.001


@dataclass(frozen=True, slots=True)
class Cost:
    """Score plugin: ranks offers by the price of one replica; without `cheapest_first` the most expensive
    offer scores best."""

    name: ClassVar[str] = "Cost"
    # Scores are relative to the cheapest and the most expensive candidate.
    scope: ClassVar[Scope] = "table"
    cheapest_first: bool = True

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """The score with every row as a candidate."""
        return self.normalized(ask, rows.table, np.ones(rows.table.count, np.bool_)).astype(np.float32)

    def normalized(self, ask: ReplicaAsk, table: Table, candidates: Flags) -> Doubles:
        """1 for the cheapest candidate, 0 for the most expensive (without `cheapest_first` the other way
        round), and 0 for a candidate without a known price."""
        rates = fleet_of(table).quotes.quote_for(ask).rate_per_replica
        return cost_scores(rates, candidates, cheapest_first=self.cheapest_first)


def cost_scores(rates: Integers, candidates: Flags, *, cheapest_first: bool = True) -> Doubles:
    """Scores by offer from the price of one replica; NO_LIMIT: the price is unknown."""
    is_priced = candidates & (rates < NO_LIMIT)
    is_unknown = candidates & ~is_priced
    score = np.zeros(len(rates))
    if is_priced.any():
        priced = rates[is_priced]
        least, most = int(priced.min()), int(priced.max())
        worse = (priced - least if cheapest_first else most - priced) / max(1, most - least)
        lowest = MIN_PRICED_SCORE if is_unknown.any() else 0.0
        score[is_priced] = 1.0 - worse * (1.0 - lowest)
    return score
