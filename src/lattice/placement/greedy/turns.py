"""Whose turn is it when the offer that was chosen is sold out? Where price alone counts, without asking every plugin again."""

import numpy as np

from lattice.engine.decide import RULED_OUT, Decision, best
from lattice.engine.table import Floats, Integers
from lattice.placement.model.demand import CHEAPEST_FIRST, Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT, MachineType
from lattice.placement.plugins.scores.cost import cheapness
from lattice.placement.model.quotes import NONE, Shorts

DIGITS = 22  # of a score, in bits: what differs by less than that may come out as equal


def only_price_counts(demand: Demand, fleet: Fleet) -> bool:
    """Among what is rented: do neither other services, nor where its own replicas are, nor what is free make a difference?"""
    looks_around = demand.neighbours or demand.latency or demand.spread or demand.even or fleet.spilling
    return (
        not looks_around and demand.preferences in ((), CHEAPEST_FIRST) and "capacity" not in demand.ignoring
    )


class Turns:
    """The offers of one decision, by what a replica costs there, while nothing changes but that those chosen have no machine left."""

    def __init__(self, ask: ReplicaAsk, fleet: Fleet, decision: Decision) -> None:
        self.fleet, self.decision, self._room_for = fleet, decision, ask.room_for
        quote = fleet.table.quotes.of(ask)
        self._unit: Integers = quote.unit.copy()
        self._type: Shorts = np.where(quote.affordable & quote.fits, quote.type, NONE)
        self._is_lost = fleet.table.column("lost").copy()
        self._dearest = int(self._unit[self._unit < NO_LIMIT].max(initial=0))
        self._closed: Floats = np.where(decision.totals == RULED_OUT, RULED_OUT, np.float32(0))

    def hold_for(self, ask: ReplicaAsk, row: int) -> bool:
        """Is all the same, but that in the offer that was chosen not one machine more may be made, of whatever class?"""
        table = self.fleet.table
        return ask.room_for == self._room_for and bool(table.free(table.index["nodes"])[row] < 1)

    def next(self, row: int, *, has_room: bool) -> int:
        """The best, now that `row` is sold out, and has room on its machines or not."""
        self._unit[row], self._type[row] = NO_LIMIT, NONE
        if has_room:
            cheapest = int(self._unit.min())
            self._unit[row] = 0
            if cheapest > self._dearest >> DIGITS:
                return row
        else:
            self._closed[row] = RULED_OUT
        return best(self.fleet.table, cheapness(self._unit, self._is_lost) + self._closed)

    def to(self, row: int, ask: ReplicaAsk) -> Decision:
        """Its scores and reasons are those of before."""
        before = self.decision
        return Decision(
            ask, before.table, before.profile, row, before.runner_up, before.totals, before.reasons
        )

    def offered(self, row: int) -> MachineType | None:
        """The class that a new machine would be of."""
        catalogue, number = self.fleet.table.quotes.catalogue, int(self._type[row])
        return None if number == NONE else catalogue.types[row][catalogue.names[number]]
