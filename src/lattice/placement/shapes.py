"""Which loads are so alike that the optimiser may count them as one, and how is its answer shared among them?"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lattice.placement.layout import Counts, Index, Key
from lattice.placement.program import Load, Program


@dataclass(frozen=True)
class Merged:
    program: Program
    members: Mapping[str, tuple[Load, ...]]  # by the name of the load that stands for them, which is the first of theirs


def merge(world: Index) -> Merged:
    """Loads without rules that tie their replicas together become one load with all their replicas."""
    alike: dict[tuple[object, ...], list[Load]] = {}
    for name, load in world.loads.items():
        alike.setdefault(_shape(world, load, world.keys[name]), []).append(load)
    members = {loads[0].name: tuple(loads) for loads in alike.values()}
    return Merged(replace(world.program, loads=tuple(_sum(loads) for _, loads in sorted(members.items()))), members)


def _shape(world: Index, load: Load, keys: tuple[Key, ...]) -> tuple[object, ...]:
    staying = sum(count for source, count in load.current.items() if any(source == key[0] for key in keys))
    tied = load.groups or load.min_regions > 1 or load.most_per_source is not None or load.most_per_region is not None
    if tied or staying > load.replicas:  # who shrinks may drop its own replicas for nothing, not its neighbour's
        return (load.name,)
    return (load.needs, keys, world.program.move_price(load) if staying else 0, staying > 0)


def _sum(loads: tuple[Load, ...]) -> Load:
    if len(loads) == 1:
        return loads[0]
    current: dict[str, int] = {}
    for load in loads:
        for source, count in load.current.items():
            current[source] = current.get(source, 0) + count
    return replace(loads[0], replicas=sum(load.replicas for load in loads), current=current)


def split(merged: Merged, counts: Counts) -> Counts:
    """Who is there already stays there first; the rest is dealt out by name."""
    parts: Counts = {}
    for name, placed in counts.items():
        left = dict(sorted(placed.items()))
        loads = merged.members[name]
        parts |= {load.name: {} for load in loads}
        if len(loads) > 1:
            for load in loads:
                for source, count in sorted(load.current.items()):
                    _deal(load, left, parts[load.name], (count, source))
        for load in loads:
            _deal(load, left, parts[load.name], (load.replicas, ""))
    return parts


def _deal(load: Load, left: dict[Key, int], part: dict[Key, int], most: tuple[int, str]) -> None:
    """Up to so many replicas, from one source or from any."""
    count, source = most
    for key in left:
        taken = min(left[key], count, load.replicas - sum(part.values())) if source in ("", key[0]) else 0
        if taken:
            left[key] -= taken
            count -= taken
            part[key] = part.get(key, 0) + taken
