"""Which plugins place services on offers, and how much each counts."""

from functools import lru_cache
from typing import cast

from lattice.engine.plugin import Filter, Profile, Score
from lattice.placement.model.demand import CHEAPEST_FIRST, Preferences
from lattice.placement.plugins.filters.available import Available
from lattice.placement.plugins.filters.budget import BudgetFilter
from lattice.placement.plugins.filters.capabilities import Capabilities
from lattice.placement.plugins.filters.capacity import Capacity
from lattice.placement.plugins.filters.compliance import Compliance
from lattice.placement.plugins.filters.latency import Latency
from lattice.placement.plugins.filters.overflow import Overflow
from lattice.placement.plugins.filters.pool_selector import PoolSelector
from lattice.placement.plugins.filters.region import Region
from lattice.placement.plugins.filters.residency import Residency
from lattice.placement.plugins.filters.spread import Spread
from lattice.placement.plugins.scores.cost import Cost
from lattice.placement.plugins.scores.least_allocated import LeastAllocated
from lattice.placement.plugins.scores.overflow_order import OverflowOrder
from lattice.placement.plugins.scores.owned_first import OwnedFirst
from lattice.placement.plugins.scores.proximity import Proximity
from lattice.placement.plugins.scores.soft_spread import SoftSpread
from lattice.placement.plugins.scores.static_headroom import StaticHeadroom

FILTERS = (
    PoolSelector(), Compliance(), Capabilities(), Residency(), Region(), Latency(), Spread(), Overflow(), Available(), Capacity(), BudgetFilter(),
)  # fmt: skip
# One criterion goes before the next: each weighs more than everything after it together.
OWNED_FIRST_WEIGHT, OVERFLOW_ORDER_WEIGHT, PROXIMITY_WEIGHT, SOFT_SPREAD_WEIGHT, PREFERENCES_WEIGHT = (
    256.0,
    128.0,
    64.0,
    16.0,
    1.0,
)
STATIC_HEADROOM_WEIGHT = 0.125  # among data centers, which all cost nothing


@lru_cache(maxsize=256)
def profile_of(preferences: Preferences) -> Profile:
    """Owned before rented, then near before far, then evenly, then the policies' preferences; without any the cheapest."""
    wishes = preferences or CHEAPEST_FIRST
    whole = sum(weight for _, _, weight in wishes)
    scores: list[tuple[object, float]] = [
        (OwnedFirst(), OWNED_FIRST_WEIGHT), (OverflowOrder(), OVERFLOW_ORDER_WEIGHT), (Proximity(), PROXIMITY_WEIGHT), (SoftSpread(), SOFT_SPREAD_WEIGHT),
    ]  # fmt: skip
    for sort, ascending, weight in wishes:
        scores.append(
            (
                Cost(ascending) if sort == "cost" else LeastAllocated(not ascending),
                PREFERENCES_WEIGHT * weight / whole,
            )
        )
    if not any(sort == "availableCapacity" for sort, _, _ in wishes):
        scores.append((StaticHeadroom(), STATIC_HEADROOM_WEIGHT))
    return Profile(
        "fleet", cast("tuple[Filter, ...]", FILTERS), cast("tuple[tuple[Score, float], ...]", tuple(scores))
    )
