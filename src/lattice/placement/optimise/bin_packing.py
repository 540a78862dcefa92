"""Bin packing of replicas onto machines, and the check of a solution against every limit and rule, in exact
integers.

Equal machines are counted, not listed: a thousand equal machines cost as much time as one.
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

# Source and model.
ModelKey = tuple[str, str]
Vector = tuple[int, ...]
# Load -> replicas by source and model.
ReplicaCounts = dict[str, dict[ModelKey, int]]
# Free capacity of a machine, and the number of machines with the same free capacity.
Bins = tuple[tuple[Vector, int], ...]


def count_fitting(needs: Vector, free: Vector) -> int:
    """Return how many replicas fit into the free capacity; SOLVER_NO_LIMIT for a replica without needs."""
    return min(
        (have // need for need, have in zip(needs, free, strict=True) if need), default=SOLVER_NO_LIMIT
    )


def subtract_needs(free: Vector, needs: Vector, times: int) -> Vector:
    return tuple(have - times * need for need, have in zip(needs, free, strict=True))


def free_slots(bins: Bins, needs: Vector) -> int:
    """Return the number of replicas that fit without another machine."""
    return sum(count_fitting(needs, free) * count for free, count in bins)


def fill(bins: Bins, needs: Vector, replicas: int) -> tuple[Bins, int]:
    """Place replicas on the first machines with free capacity; return the machines and the number of replicas
    that do not fit."""
    filled: list[tuple[Vector, int]] = []
    for free, count in bins:
        fitting = count_fitting(needs, free)
        if not fitting or not replicas:
            filled.append((free, count))
            continue
        full, partial = divmod(min(replicas, fitting * count), fitting)
        replicas -= full * fitting + partial
        # Full machines, the partially filled machine, and unchanged machines.
        split = [
            (subtract_needs(free, needs, fitting), full),
            (subtract_needs(free, needs, partial), 1 if partial else 0),
            (free, count - full - (1 if partial else 0)),
        ]
        filled += [(remaining, machines) for remaining, machines in split if machines]
    return tuple(filled), replicas


def fill_or_open(bins: Bins, size: Vector, needs: Vector, replicas: int) -> Bins:
    """Place replicas on the first machines with free capacity, then on as many new machines as needed."""
    bins, unplaced = fill(bins, needs, replicas)
    if not unplaced:
        return bins
    opened, _ = fill(((size, -(-unplaced // count_fitting(needs, size))),), needs, unplaced)
    return bins + opened


def pack(size: Vector, items: Iterable[tuple[Vector, int]]) -> int:
    """Return the smallest number of machines over two orders of first-fit decreasing: by the largest share
    and by the sum of shares."""
    listed = [(needs, count) for needs, count in items if count]
    if not listed:
        return 0
    sized = []
    for needs, count in listed:
        shares = [need / max(1, capacity) for need, capacity in zip(needs, size, strict=True)]
        sized.append((shares, needs, count))
    best = SOLVER_NO_LIMIT
    for measure in (max, sum):
        bins: Bins = ()
        for _, needs, count in sorted(sized, key=lambda item: (-measure(item[0]), item[1])):
            bins = fill_or_open(bins, size, needs, count)
        best = min(best, sum(count for _, count in bins))
    return best


@dataclass(frozen=True)
class ProblemIndex:
    """The problem, indexed by name."""

    problem: PlacementProblem
    sources: Mapping[str, MachineSource]
    models: Mapping[ModelKey, MachineModel]
    loads: Mapping[str, Load]
    # Load -> models on which a replica fits, sorted.
    keys: Mapping[str, tuple[ModelKey, ...]]
    # Ledger -> cost of the existing machines.
    committed: Mapping[str, int] = field(default_factory=dict)
    # Loads with proximity rules.
    proximity_bound: tuple[str, ...] = ()

    def ledger_limit(self, ledger: str) -> int:
        """The limit of the ledger, at least the cost of the existing machines."""
        return max(self.problem.ledger_limits.get(ledger, SOLVER_NO_LIMIT), self.committed.get(ledger, 0))

    def machine_limit(self, source: MachineSource) -> int:
        """The limit of machines, at least the number of existing machines."""
        existing = sum(model.existing for model in source.models)
        return SOLVER_NO_LIMIT if source.max_machines is None else max(source.max_machines, existing)

    def resource_limit(self, source: MachineSource, resource: int) -> int:
        """The limit of the resource, at least the size of the existing machines."""
        limit = source.resource_limits[resource] if source.resource_limits else None
        if limit is None:
            return SOLVER_NO_LIMIT
        return max(limit, sum(model.size[resource] * model.existing for model in source.models))


def index_problem(problem: PlacementProblem) -> ProblemIndex:
    """Index the problem; sources and loads are sorted by name, so that the order in the problem does not
    matter."""
    sources = {source.name: source for source in sorted(problem.sources, key=lambda source: source.name)}
    models = {}
    for source in sources.values():
        models.update({(source.name, model.name): model for model in source.models})
    loads = {load.name: load for load in sorted(problem.loads, key=lambda load: load.name)}
    keys_by_shape: dict[tuple[object, ...], tuple[ModelKey, ...]] = {}
    keys = {}
    for load in loads.values():
        shape = (load.needs, tuple(sorted((source, *names) for source, names in load.usable_models.items())))
        if shape not in keys_by_shape:
            pairs: set[ModelKey] = set()
            for source_name, names in load.usable_models.items():
                pairs.update((source_name, name) for name in names)
            keys_by_shape[shape] = tuple(
                key for key in sorted(pairs) if key in models and count_fitting(load.needs, models[key].size)
            )
        keys[load.name] = keys_by_shape[shape]
    committed: Counter[str] = Counter()
    for source in sources.values():
        for ledger in source.ledgers:
            committed[ledger] += sum(model.price * model.existing for model in source.models)
    proximity_bound = tuple(load.name for load in loads.values() if load.proximity_rules)
    return ProblemIndex(problem, sources, models, loads, keys, committed, proximity_bound)


def machines_needed(
    index: ProblemIndex, counts: ReplicaCounts, keys: Iterable[ModelKey] | None = None
) -> dict[ModelKey, int]:
    """Return the number of machines onto which the replicas pack, for the keys or for all models."""
    selected = None if keys is None else set(keys)
    items: dict[ModelKey, list[tuple[Vector, int]]] = {}
    for name, placed in counts.items():
        for key, count in placed.items():
            if count and (selected is None or key in selected):
                items.setdefault(key, []).append((index.loads[name].needs, count))
    return {key: pack(index.models[key].size, listed) for key, listed in sorted(items.items())}


def with_minimums(index: ProblemIndex, machines: Mapping[ModelKey, int]) -> dict[ModelKey, int]:
    """Return the machines with the minimums of sources added, from the cheapest available models."""
    counts = dict(machines)
    for name, source in index.sources.items():
        for minimum in source.minimums:
            keys = sorted(
                ((name, model) for model in minimum.models), key=lambda key: (index.models[key].price, key)
            )
            present = sum(counts.get(key, 0) for key in keys)
            missing = minimum.min_machines - present
            for key in keys if present and missing > 0 else ():
                most = index.models[key].max_machines
                added = missing if most is None else min(missing, max(0, most - counts.get(key, 0)))
                counts[key] = counts.get(key, 0) + added
                missing -= added
    return counts


def count_load_moves(load: Load, keys: Sequence[ModelKey], placed: Mapping[ModelKey, int]) -> int:
    """Return the number of replicas that leave machines on which they could stay.

    Replicas that a smaller load drops do not count, nor do replicas on machines that the load may no longer
    use.
    """
    keepable = {key: count for key, count in load.current_counts.items() if key in keys}
    leaving = sum(max(0, count - placed.get(key, 0)) for key, count in keepable.items())
    return max(0, leaving - max(0, sum(keepable.values()) - sum(placed.values())))


def hourly_cost(index: ProblemIndex, machines: Mapping[ModelKey, int]) -> int:
    """Return the price of the machines, in micro-dollars per hour."""
    return sum(index.models[key].price * count for key, count in machines.items())


def moves_and_penalty(index: ProblemIndex, counts: ReplicaCounts) -> tuple[int, int]:
    """Return the number of moves and their price, in micro-dollars per hour."""
    total = penalty = 0
    for name, placed in counts.items():
        moves = count_load_moves(index.loads[name], index.keys[name], placed)
        total += moves
        penalty += index.problem.move_price(index.loads[name]) * moves
    return total, penalty


def violations(index: ProblemIndex, counts: ReplicaCounts, machines: Mapping[ModelKey, int]) -> list[str]:
    """Return every rule that the solution breaks; empty for a valid solution."""
    broken = list(supply_violations(index, machines))
    for name, placed in counts.items():
        if sum(placed.values()):
            broken += [f"load {name}: {rule}" for rule in load_violations(index, index.loads[name], placed)]
    broken += [f"load {name}: too far from {target}" for name, target in proximity_violations(index, counts)]
    most = index.problem.max_moves
    if most is not None and (moves := moves_and_penalty(index, counts)[0]) > most:
        broken.append(f"{moves} moves, {most} allowed")
    return broken


def supply_violations(index: ProblemIndex, machines: Mapping[ModelKey, int]) -> Iterable[str]:
    """Yield the limits of sources and ledgers that the machines exceed."""
    spent: Counter[str] = Counter()
    for name, source in index.sources.items():
        counts = [(model, machines.get((name, model.name), 0)) for model in source.models]
        if sum(count for _, count in counts) > index.machine_limit(source):
            yield f"source {name}: too many machines"
        for model, count in counts:
            if model.max_machines is not None and count > model.max_machines:
                yield f"source {name}: too many {model.name}"
        for minimum in source.minimums:
            if 0 < sum(machines.get((name, model), 0) for model in minimum.models) < minimum.min_machines:
                yield f"source {name}: fewer than {minimum.min_machines} machines"
        for resource, resource_name in enumerate(index.problem.resources):
            size = sum(model.size[resource] * count for model, count in counts)
            if size > index.resource_limit(source, resource):
                yield f"source {name}: too much {resource_name}"
        for ledger in source.ledgers:
            spent[ledger] += sum(model.price * count for model, count in counts)
    for ledger, amount in sorted(spent.items()):
        if amount > index.ledger_limit(ledger):
            yield f"ledger {ledger}: {amount} spent"


def load_violations(index: ProblemIndex, load: Load, placed: Mapping[ModelKey, int]) -> Iterable[str]:
    """Yield the rules of the load that the placed replicas break, apart from proximity."""
    sources: Counter[str] = Counter()
    regions: Counter[str] = Counter()
    for (source, _), count in placed.items():
        sources[source] += count
        regions[index.sources[source].region] += count
    for cap in load.caps:
        if sum(sources[source] for source in cap.sources) > cap.max_replicas:
            yield f"too many in {sorted(cap.sources)}"
    for rule in load.spreads:
        counts = [sum(sources[source] for source in domain) for domain in rule.domains]
        if counts and max(counts) - min(counts) > rule.max_skew:
            yield f"skew {max(counts) - min(counts)}, at most {rule.max_skew}"
    if len(+regions) < load.min_regions:
        yield "too few regions"
    for group in load.required_source_groups:
        if not any(sources[source] for source in group):
            yield f"none in {sorted(group)}"


def proximity_violations(index: ProblemIndex, counts: ReplicaCounts) -> Iterable[tuple[str, str]]:
    """Yield loads with replicas that are not near enough to their target load, with the target load."""
    for name in index.proximity_bound:
        for rule in index.loads[name].proximity_rules:
            target_sources = {
                source for (source, _), count in counts.get(rule.target_load, {}).items() if count
            }
            used = (source for (source, _), count in counts[name].items() if count)
            if any(
                source in rule.reachable_sources and not rule.reachable_sources[source] & target_sources
                for source in used
            ):
                yield name, rule.target_load
