"""How many machines do these replicas really need, and does the whole keep every limit? First fit, in exact integers.

Equal machines are counted, not listed, so a thousand of them cost as much as one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lattice.placement.optimise.problem import (
    SOLVER_NO_LIMIT,
    Load,
    MachineModel,
    MachineSource,
    PlacementProblem,
)

ModelKey = tuple[str, str]  # source and model
Vector = tuple[int, ...]
ReplicaCounts = dict[str, dict[ModelKey, int]]  # load -> where its replicas are
Bins = tuple[tuple[Vector, int], ...]  # what is free on a machine, and how many machines are like that


def count_fitting(needs: Vector, free: Vector) -> int:
    """How many of these go into one of those; UNLIMITED if it asks for nothing."""
    return min(
        (have // need for need, have in zip(needs, free, strict=True) if need), default=SOLVER_NO_LIMIT
    )


def subtract_needs(free: Vector, needs: Vector, times: int) -> Vector:
    return tuple(have - times * need for need, have in zip(needs, free, strict=True))


def free_slots(bins: Bins, needs: Vector) -> int:
    """Replicas that fit without another machine."""
    return sum(count_fitting(needs, free) * count for free, count in bins)


def fill(bins: Bins, needs: Vector, replicas: int) -> tuple[Bins, int]:
    """Into the first that have room; returns how many stay outside."""
    after: list[tuple[Vector, int]] = []
    for free, count in bins:
        each = count_fitting(needs, free)
        if not each or not replicas:
            after.append((free, count))
            continue
        full, rest = divmod(min(replicas, each * count), each)
        replicas -= full * each + rest
        split = [
            (subtract_needs(free, needs, each), full),
            (subtract_needs(free, needs, rest), 1 if rest else 0),
            (free, count - full - (1 if rest else 0)),
        ]
        after += [(left, machines) for left, machines in split if machines]
    return tuple(after), replicas


def fill_or_open(bins: Bins, size: Vector, needs: Vector, replicas: int) -> Bins:
    """Into the first that have room, then onto as many new machines as it takes."""
    bins, outside = fill(bins, needs, replicas)
    if not outside:
        return bins
    fresh, _ = fill(((size, -(-outside // count_fitting(needs, size))),), needs, outside)
    return bins + fresh


def pack(size: Vector, items: Iterable[tuple[Vector, int]]) -> int:
    """Fewest machines over several orders of first fit decreasing."""
    listed = [(needs, count) for needs, count in items if count]
    if not listed:
        return 0
    best = SOLVER_NO_LIMIT
    for order in (max, sum):
        bins: Bins = ()
        for needs, count in sorted(listed, key=lambda item: (-order(_part(item[0], size)), item[0])):
            bins = fill_or_open(bins, size, needs, count)
        best = min(best, sum(count for _, count in bins))
    return best


def _part(needs: Vector, size: Vector) -> list[float]:
    return [need / max(1, whole) for need, whole in zip(needs, size, strict=True)]


@dataclass(frozen=True)
class ProblemIndex:
    """The program, by name."""

    problem: PlacementProblem
    sources: Mapping[str, MachineSource]
    models: Mapping[ModelKey, MachineModel]
    loads: Mapping[str, Load]
    keys: Mapping[str, tuple[ModelKey, ...]]  # load -> where a replica fits, sorted
    committed: Mapping[str, int] = field(default_factory=dict)  # ledger -> what its existing machines cost
    proximity_bound: tuple[str, ...] = ()  # loads that have to be near others

    def ledger_limit(self, ledger: str) -> int:
        return max(self.problem.ledger_limits.get(ledger, SOLVER_NO_LIMIT), self.committed.get(ledger, 0))

    def machine_limit(self, source: MachineSource) -> int:
        existing = sum(model.existing for model in source.models)
        return SOLVER_NO_LIMIT if source.max_machines is None else max(source.max_machines, existing)

    def resource_limit(self, source: MachineSource, resource: int) -> int:
        limit = source.resource_limits[resource] if source.resource_limits else None
        return (
            SOLVER_NO_LIMIT
            if limit is None
            else max(limit, sum(model.size[resource] * model.existing for model in source.models))
        )


def index_problem(program: PlacementProblem) -> ProblemIndex:
    sources = {source.name: source for source in sorted(program.sources, key=lambda source: source.name)}
    models = {(source.name, model.name): model for source in sources.values() for model in source.models}
    loads = {load.name: load for load in sorted(program.loads, key=lambda load: load.name)}
    known: dict[tuple[object, ...], tuple[ModelKey, ...]] = {}
    keys = {}
    for load in loads.values():
        shape = (load.needs, tuple(sorted((source, *names) for source, names in load.usable_models.items())))
        if shape not in known:
            pairs = sorted(
                (source, name) for source, names in load.usable_models.items() for name in set(names)
            )
            known[shape] = tuple(
                key for key in pairs if key in models and count_fitting(load.needs, models[key].size)
            )
        keys[load.name] = known[shape]
    committed: Counter[str] = Counter()
    for source in sources.values():
        for ledger in source.ledgers:
            committed[ledger] += sum(model.price * model.existing for model in source.models)
    tied = tuple(load.name for load in loads.values() if load.proximity_rules)
    return ProblemIndex(program, sources, models, loads, keys, committed, tied)


def machines_needed(
    world: ProblemIndex, counts: ReplicaCounts, keys: Iterable[ModelKey] | None = None
) -> dict[ModelKey, int]:
    """Machines that the replicas pack onto, for these keys or all."""
    wanted = None if keys is None else set(keys)
    items: dict[ModelKey, list[tuple[Vector, int]]] = {}
    for name, placed in counts.items():
        for key, count in placed.items():
            if count and (wanted is None or key in wanted):
                items.setdefault(key, []).append((world.loads[name].needs, count))
    return {key: pack(world.models[key].size, listed) for key, listed in sorted(items.items())}


def with_minimums(world: ProblemIndex, machines: Mapping[ModelKey, int]) -> dict[ModelKey, int]:
    """And as many more, of the cheapest that may be had, as have to be there where one is."""
    found = dict(machines)
    for name, source in world.sources.items():
        for least in source.minimums:
            keys = sorted(
                ((name, model) for model in least.models), key=lambda key: (world.models[key].price, key)
            )
            missing = least.min_machines - (there := sum(found.get(key, 0) for key in keys))
            for key in keys if there and missing > 0 else ():
                most = world.models[key].max_machines
                more = missing if most is None else min(missing, max(0, most - found.get(key, 0)))
                found[key] = found.get(key, 0) + more
                missing -= more
    return found


def count_load_moves(load: Load, keys: Sequence[ModelKey], placed: Mapping[ModelKey, int]) -> int:
    """Replicas that leave machines which could keep them; shrinking is no move, nor is leaving what no longer serves."""
    keepable = {key: count for key, count in load.current_counts.items() if key in keys}
    leaving = sum(max(0, count - placed.get(key, 0)) for key, count in keepable.items())
    return max(0, leaving - max(0, sum(keepable.values()) - sum(placed.values())))


def hourly_cost(world: ProblemIndex, machines: Mapping[ModelKey, int]) -> int:
    return sum(world.models[key].price * count for key, count in machines.items())


def moves_and_penalty(world: ProblemIndex, counts: ReplicaCounts) -> tuple[int, int]:
    """Moves, and what they weigh an hour."""
    moves = {
        name: count_load_moves(world.loads[name], world.keys[name], placed) for name, placed in counts.items()
    }
    return sum(moves.values()), sum(
        world.problem.move_price(world.loads[name]) * count for name, count in moves.items()
    )


def violations(world: ProblemIndex, counts: ReplicaCounts, machines: Mapping[ModelKey, int]) -> list[str]:
    """Every rule that this answer breaks; empty if it may be used."""
    found = list(supply_violations(world, machines))
    for name, placed in counts.items():
        if sum(placed.values()):
            found += [f"load {name}: {what}" for what in load_violations(world, world.loads[name], placed)]
    found += [f"load {name}: too far from {other}" for name, other in proximity_violations(world, counts)]
    most = world.problem.max_moves
    if most is not None and (moves := moves_and_penalty(world, counts)[0]) > most:
        found.append(f"{moves} moves, {most} allowed")
    return found


def supply_violations(world: ProblemIndex, machines: Mapping[ModelKey, int]) -> Iterable[str]:
    spent: Counter[str] = Counter()
    for name, source in world.sources.items():
        here = [(model, machines.get((name, model.name), 0)) for model in source.models]
        if sum(count for _, count in here) > world.machine_limit(source):
            yield f"source {name}: too many machines"
        yield from (
            f"source {name}: too many {model.name}"
            for model, count in here
            if model.max_machines is not None and count > model.max_machines
        )
        for least in source.minimums:
            if 0 < sum(machines.get((name, model), 0) for model in least.models) < least.min_machines:
                yield f"source {name}: fewer than {least.min_machines} machines"
        for resource, word in enumerate(world.problem.resources):
            if sum(model.size[resource] * count for model, count in here) > world.resource_limit(
                source, resource
            ):
                yield f"source {name}: too much {word}"
        for ledger in source.ledgers:
            spent[ledger] += sum(model.price * count for model, count in here)
    yield from (
        f"ledger {ledger}: {amount} spent"
        for ledger, amount in sorted(spent.items())
        if amount > world.ledger_limit(ledger)
    )


def load_violations(world: ProblemIndex, load: Load, placed: Mapping[ModelKey, int]) -> Iterable[str]:
    sources: Counter[str] = Counter()
    regions: Counter[str] = Counter()
    for (source, _), count in placed.items():
        sources[source] += count
        regions[world.sources[source].region] += count
    yield from (
        f"too many in {sorted(cap.sources)}"
        for cap in load.caps
        if sum(sources[each] for each in cap.sources) > cap.max_replicas
    )
    if len(+regions) < load.min_regions:
        yield "too few regions"
    yield from (
        f"none in {sorted(group)}"
        for group in load.required_source_groups
        if not any(sources[source] for source in group)
    )


def proximity_violations(world: ProblemIndex, counts: ReplicaCounts) -> Iterable[tuple[str, str]]:
    """Loads with replicas that are not near enough to another, and that other."""
    for name in world.proximity_bound:
        for near in world.loads[name].proximity_rules:
            others = {source for (source, _), count in counts.get(near.target_load, {}).items() if count}
            used = (source for (source, _), count in counts[name].items() if count)
            if any(
                source in near.reachable_sources and not near.reachable_sources[source] & others
                for source in used
            ):
                yield name, near.target_load
