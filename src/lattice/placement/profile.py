"""Which plugins place services on offers, and how much each counts."""

from functools import lru_cache
from typing import cast

from lattice.engine.plugin import Filter, Profile, Score
from lattice.placement.demand import CHEAPEST_FIRST, Preferences
from lattice.placement.plugins.available import Available
from lattice.placement.plugins.available_capacity import AvailableCapacity
from lattice.placement.plugins.budget import Budget
from lattice.placement.plugins.capabilities import Capabilities
from lattice.placement.plugins.capacity import Capacity
from lattice.placement.plugins.compliance import Compliance
from lattice.placement.plugins.cost import Cost
from lattice.placement.plugins.even import Even
from lattice.placement.plugins.labels import Labels
from lattice.placement.plugins.latency import Latency
from lattice.placement.plugins.overflow import Overflow
from lattice.placement.plugins.overflow_region import OverflowRegion
from lattice.placement.plugins.proximity import Proximity
from lattice.placement.plugins.region import Region
from lattice.placement.plugins.residency import Residency
from lattice.placement.plugins.spread import Spread
from lattice.placement.plugins.suited import Suited
from lattice.placement.plugins.tier import Tier

FILTERS = (
    Labels(), Compliance(), Capabilities(), Residency(), Region(), Latency(), Spread(), Overflow(), Available(), Capacity(), Budget(),
)  # fmt: skip
# One criterion goes before the next: each weighs more than everything after it together.
TIER, OVERFLOW_REGION, PROXIMITY, EVEN, PREFERENCES = 256.0, 128.0, 64.0, 16.0, 1.0
SUITED = 0.125  # among data centers, which all cost nothing


@lru_cache(maxsize=256)
def profile_of(preferences: Preferences) -> Profile:
    """Owned before rented, then near before far, then evenly, then the policies' preferences; without any the cheapest."""
    wishes = preferences or CHEAPEST_FIRST
    whole = sum(weight for _, _, weight in wishes)
    scores: list[tuple[object, float]] = [
        (Tier(), TIER), (OverflowRegion(), OVERFLOW_REGION), (Proximity(), PROXIMITY), (Even(), EVEN),
    ]  # fmt: skip
    for sort, ascending, weight in wishes:
        scores.append((Cost(ascending) if sort == "cost" else AvailableCapacity(not ascending), PREFERENCES * weight / whole))
    if not any(sort == "availableCapacity" for sort, _, _ in wishes):
        scores.append((Suited(), SUITED))
    return Profile("fleet", cast("tuple[Filter, ...]", FILTERS), cast("tuple[tuple[Score, float], ...]", tuple(scores)))
