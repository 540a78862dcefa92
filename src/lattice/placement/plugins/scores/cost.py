"""Cost: prefer offers where one replica costs less; free capacity on paid machines costs nothing."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Flags, Floats, Integers, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.plugins.rejection_reasons import fleet_of

# The most expensive offer still scores above an offer without a known price, which scores 0.
MIN_PRICED_SCORE = 0.001


@dataclass(frozen=True, slots=True)
class Cost:
    """Score plugin: ranks offers by the price of one replica; without `cheapest_first` the most expensive
    offer scores best."""

    name: ClassVar[str] = "Cost"
    # Scores are relative to the cheapest and the most expensive offer of the table.
    scope: ClassVar[Scope] = "table"
    cheapest_first: bool = True

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        """1 for the cheapest offer that accepts the replica, almost 0 for the most expensive (without
        `cheapest_first` the other way round); 0 where the offer is lost, its price is unknown or it accepts
        no replica."""
        rates, is_lost = fleet_of(rows).quotes.quote_for(ask).rate_per_replica, rows.column("lost")
        score = cost_scores(rates, is_lost)
        if self.cheapest_first:
            return score
        return np.where(
            (rates < NO_LIMIT) & ~is_lost, np.float32(1 + MIN_PRICED_SCORE) - score, np.float32(0)
        ).astype(np.float32)


def cost_scores(rates: Integers, is_lost: Flags) -> Floats:
    """Scores by offer from the price of one replica; NO_LIMIT: the price is unknown, or the offer accepts no
    replica."""
    is_priced = (rates < NO_LIMIT) & ~is_lost
    score = np.zeros(len(rates), np.float32)
    if is_priced.any():
        priced = rates[is_priced]
        least, most = int(priced.min()), int(priced.max())
        score[is_priced] = 1.0 - (priced - least) / max(1, most - least) * (1.0 - MIN_PRICED_SCORE)
    return score
