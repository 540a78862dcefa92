"""Merge equal loads into one load for the optimiser, and split the solution among the merged loads."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lattice.placement.optimise.bin_packing import ModelKey, ProblemIndex, ReplicaCounts
from lattice.placement.optimise.problem import Load, PlacementProblem


@dataclass(frozen=True)
class MergedProblem:
    """A problem with merged loads."""

    problem: PlacementProblem
    # The merged loads by the name of their representative, which is the first of them.
    members: Mapping[str, tuple[Load, ...]]


def merge_loads(index: ProblemIndex) -> MergedProblem:
    """Merge loads of equal shape; a load with rules that tie its replicas together, or that other loads must
    be near, stays alone."""
    by_shape: dict[tuple[object, ...], list[Load]] = {}
    # Loads that proximity rules refer to.
    proximity_targets: set[str] = set()
    for name in index.proximity_bound:
        proximity_targets.update(rule.target_load for rule in index.loads[name].proximity_rules)
    for name, load in index.loads.items():
        keys = index.keys[name]
        shape: tuple[object, ...] = (name,)
        staying = sum(count for key, count in load.current_counts.items() if key in keys)
        has_rules = (
            load.required_source_groups
            or load.min_regions > 1
            or load.caps
            or load.spreads
            or load.proximity_rules
        )
        # A load that shrinks drops its own replicas without a move, but not replicas of a merged load.
        if not has_rules and name not in proximity_targets and staying <= load.replicas:
            shape = (load.needs, keys, index.problem.move_price(load) if staying else 0, staying > 0)
        by_shape.setdefault(shape, []).append(load)
    members = {loads[0].name: tuple(loads) for loads in by_shape.values()}
    merged = []
    for _, loads in sorted(members.items()):
        current: dict[ModelKey, int] = {}
        for load in loads:
            for key, count in load.current_counts.items():
                current[key] = current.get(key, 0) + count
        replicas = sum(load.replicas for load in loads)
        # A load that is merged with no other stays as it is.
        is_single = len(loads) == 1
        merged.append(loads[0] if is_single else replace(loads[0], replicas=replicas, current_counts=current))
    return MergedProblem(replace(index.problem, loads=tuple(merged)), members)


def split_counts(merged: MergedProblem, counts: ReplicaCounts) -> ReplicaCounts:
    """Split the replicas of merged loads: current replicas stay first, the remaining replicas are assigned in
    the order of names."""
    parts: ReplicaCounts = {}
    for name, placed in counts.items():
        remaining = dict(sorted(placed.items()))
        loads = merged.members[name]
        parts |= {load.name: {} for load in loads}
        # Replicas that exist stay with their own load: a split must not cause moves.
        if len(loads) > 1:
            for load in loads:
                for key, count in sorted(load.current_counts.items()):
                    _deal(load, remaining, parts[load.name], {key: count})
        for load in loads:
            _deal(load, remaining, parts[load.name], remaining.copy())
    return parts


def _deal(
    load: Load, remaining: dict[ModelKey, int], part: dict[ModelKey, int], limits: Mapping[ModelKey, int]
) -> None:
    """Assign replicas to the load, at most `limits` per model, as long as replicas remain."""
    for key, limit in limits.items():
        count = min(remaining.get(key, 0), limit, load.replicas - sum(part.values()))
        if count:
            remaining[key] -= count
            part[key] = part.get(key, 0) + count
