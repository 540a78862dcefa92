"""The placement profile: the plugins that filter and score offers, with their weights."""

from functools import lru_cache
from typing import cast

from lattice.engine.plugin import Filter, Profile, Score
from lattice.placement.model.demand import CHEAPEST_FIRST, Preferences
from lattice.placement.plugins.filters.affinity import Affinity
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
from lattice.placement.plugins.scores.preferred_affinity import PreferredAffinity
from lattice.placement.plugins.scores.proximity import Nearness, Proximity
from lattice.placement.plugins.scores.soft_spread import SoftSpread
from lattice.placement.plugins.scores.static_headroom import StaticHeadroom

FILTERS = (
    PoolSelector(),
    Compliance(),
    Capabilities(),
    Residency(),
    Region(),
    Latency(),
    Affinity(),
    Spread(),
    Overflow(),
    Available(),
    Capacity(),
    BudgetFilter(),
)
# The scores form a ranking: every weight exceeds the sum of all lower weights.
OWNED_FIRST_WEIGHT = 256.0
OVERFLOW_ORDER_WEIGHT = 128.0
PROXIMITY_WEIGHT = 64.0
SOFT_SPREAD_WEIGHT = 16.0
PREFERRED_AFFINITY_WEIGHT = 4.0
PREFERENCES_WEIGHT = 1.0
# Breaks ties between data centers, which all cost nothing.
STATIC_HEADROOM_WEIGHT = 0.125


@lru_cache(maxsize=256)
def profile_of(preferences: Preferences) -> Profile:
    """Return the profile for the preferences: owned before rented, then the order of overflow regions, then
    the nearness to neighbours with a latency limit, then soft spread, then preferred affinity, then the
    preferences.

    Every preference is normalised over the candidates. Without preferences the cheapest offer wins.
    """
    effective_preferences = preferences or CHEAPEST_FIRST
    total_weight = sum(weight for _, _, weight in effective_preferences)
    scores: list[tuple[object, float]] = [
        (OwnedFirst(), OWNED_FIRST_WEIGHT),
        (OverflowOrder(), OVERFLOW_ORDER_WEIGHT),
        (Proximity(), PROXIMITY_WEIGHT),
        (SoftSpread(), SOFT_SPREAD_WEIGHT),
        (PreferredAffinity(), PREFERRED_AFFINITY_WEIGHT),
    ]
    for sort, ascending, weight in effective_preferences:
        plugin: object
        match sort:
            case "cost":
                plugin = Cost(ascending)
            case "availableCapacity":
                plugin = LeastAllocated(not ascending)
            case "proximity":
                plugin = Nearness()
        scores.append((plugin, PREFERENCES_WEIGHT * weight / total_weight))
    if not any(sort == "availableCapacity" for sort, _, _ in effective_preferences):
        scores.append((StaticHeadroom(), STATIC_HEADROOM_WEIGHT))
    return Profile(
        "fleet", cast("tuple[Filter, ...]", FILTERS), cast("tuple[tuple[Score, float], ...]", tuple(scores))
    )
