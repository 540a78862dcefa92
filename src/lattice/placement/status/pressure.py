"""How full is a place, by the limits that it states?"""

from collections.abc import Iterable

from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT

PRESSURE = 800_000  # millionths in use from which a place is under pressure
Use = tuple[int, int]  # in use, of how much


def uses(fleet: Fleet, row: int) -> dict[str, Use]:
    """Machines, cores, memory and clusters, as far as they are limited."""
    limits, table = fleet.offers[row].limits, fleet.table
    stated = {
        "nodes": limits.nodes,
        "cpu": limits.milli,
        "memory": limits.memory,
        "clusters": limits.clusters,
    }
    return {
        name: (int(table.taken(table.index[name])[row]), limit)
        for name, limit in stated.items()
        if limit < NO_LIMIT
    }


def scarcest_in(fleet: Fleet, row: int) -> Use | None:
    """Of machines, cores and memory; None: none of them is limited."""
    return scarcest(use for name, use in uses(fleet, row).items() if name != "clusters" and use[1] > 0)


def scarcest(found: Iterable[Use]) -> Use | None:
    return max(found, key=lambda each: each[0] / each[1], default=None)


def is_pressed(use: Use) -> bool:
    return use[0] * 1_000_000 >= use[1] * PRESSURE
