"""A quote, and the interface through which plugins and the placement algorithm read quotes of a fleet."""

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lattice.engine.table import Flags, Integers
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.machine_catalog import MachineCatalog, MachineFit

TypeIds = NDArray[np.int16]
# The type id where no machine can be bought, and the version of a value that is not computed yet.
UNSET = -1


@dataclass(slots=True)
class Quote:
    """Columns with an entry per offer for one demand shape.

    Where `has_free_capacity`, no machine is bought; otherwise `machine_count` machines of `type_id` are
    bought, for `rate` micro-dollars per hour in total.
    """

    version: int
    # Some machine type is feasible, were there no limits.
    can_host: Flags
    has_free_capacity: Flags
    # Within the limits on machines, cores, memory and clusters.
    within_limits: Flags
    # Within the limits and within the budgets.
    affordable: Flags
    type_id: TypeIds
    machine_count: Integers
    rate: Integers
    # Micro-dollars per hour and replica, averaged over all replicas of the demand.
    rate_per_replica: Integers


class QuoteSource(Protocol):
    """What readers of `OfferTable.quotes` use of the quotes of a fleet.

    The fleet holds its quotes through this interface, since `Quotes`, the implementation, reads the fleet.
    """

    catalog: MachineCatalog
    # Existing machines without a known price, by the ledger that pays for the machines.
    unpriced_machines: Counter[str]
    has_unknown_prices: bool

    def machine_fit(self, demand: Demand) -> MachineFit:
        """The machine fit of the demand, cached by machine shape."""
        ...

    def quote_for(self, ask: ReplicaAsk) -> Quote:
        """The current quote of the ask. Later calls update the same quote in place."""
        ...

    def may_provision(self, ask: ReplicaAsk, row: int, node_class: str) -> bool:
        """Whether machines of the class may be bought in the offer for the ask."""
        ...

    def limit_shortfalls(self, ask: ReplicaAsk, replicas: int) -> dict[str, Integers]:
        """By name of the limit and by offer, the missing amount for so many replicas; `price` is the price of
        the new machines."""
        ...

    def unpriced_ledger(self, row: int, overflow: str = "") -> str:
        """A hard budget of the offer that already pays for machines of unknown price; "" if none."""
        ...
