"""Which loads are so alike that the optimiser may count them as one, and how is its answer shared among them?"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lattice.placement.optimise.bin_packing import ModelKey, ProblemIndex, ReplicaCounts
from lattice.placement.optimise.problem import Load, PlacementProblem


@dataclass(frozen=True)
class MergedProblem:
    problem: PlacementProblem
    members: Mapping[
        str, tuple[Load, ...]
    ]  # by the name of the load that stands for them, which is the first of theirs


def merge_loads(world: ProblemIndex) -> MergedProblem:
    """Loads without rules that tie their replicas together become one load with all their replicas."""
    alike: dict[tuple[object, ...], list[Load]] = {}
    needed = {
        near.target_load for name in world.proximity_bound for near in world.loads[name].proximity_rules
    }
    for name, load in world.loads.items():
        shape = (name,) if name in needed else _shape(world, load, world.keys[name])
        alike.setdefault(shape, []).append(load)
    members = {loads[0].name: tuple(loads) for loads in alike.values()}
    return MergedProblem(
        replace(world.problem, loads=tuple(_sum(loads) for _, loads in sorted(members.items()))), members
    )


def _shape(world: ProblemIndex, load: Load, keys: tuple[ModelKey, ...]) -> tuple[object, ...]:
    staying = sum(count for key, count in load.current_counts.items() if key in keys)
    tied = load.required_source_groups or load.min_regions > 1 or load.caps or load.proximity_rules
    if (
        tied or staying > load.replicas
    ):  # who shrinks may drop its own replicas for nothing, not its neighbour's
        return (load.name,)
    return (load.needs, keys, world.problem.move_price(load) if staying else 0, staying > 0)


def _sum(loads: tuple[Load, ...]) -> Load:
    if len(loads) == 1:
        return loads[0]
    current: dict[ModelKey, int] = {}
    for load in loads:
        for key, count in load.current_counts.items():
            current[key] = current.get(key, 0) + count
    return replace(loads[0], replicas=sum(load.replicas for load in loads), current_counts=current)


def split_counts(merged: MergedProblem, counts: ReplicaCounts) -> ReplicaCounts:
    """Who is there already stays there first; the rest is dealt out by name."""
    parts: ReplicaCounts = {}
    for name, placed in counts.items():
        left = dict(sorted(placed.items()))
        loads = merged.members[name]
        parts |= {load.name: {} for load in loads}
        if len(loads) > 1:
            for load in loads:
                for key, count in sorted(load.current_counts.items()):
                    _deal(load, left, parts[load.name], {key: count})
        for load in loads:
            _deal(load, left, parts[load.name], left.copy())
    return parts


def _deal(
    load: Load, left: dict[ModelKey, int], part: dict[ModelKey, int], most: Mapping[ModelKey, int]
) -> None:
    """Up to so many replicas of each, as far as there are any left."""
    for key, count in most.items():
        taken = min(left.get(key, 0), count, load.replicas - sum(part.values()))
        if taken:
            left[key] -= taken
            part[key] = part.get(key, 0) + taken
