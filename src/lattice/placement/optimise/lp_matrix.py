"""The program as rows and columns for a linear solver, built so that its optimum never exceeds that of the real packing.

Replicas are counted per load and model, machines per model. Where no two replicas fit on one machine, the replica is the machine. Elsewhere
machines have to hold the sum of what their replicas need: in every resource as it is, and once more with needs rounded up by functions
that no packing can break (dual feasible functions, Fekete and Schepers 2001), which sees that three halves-and-a-bit need three machines.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from lattice.placement.optimise.bin_packing import ModelKey, ProblemIndex
from lattice.placement.optimise.problem import SOLVER_NO_LIMIT, Load, MachineMinimum

ROUNDINGS = (1, 2, 3, 4)
MAX_COEFFICIENT = 1e6  # of a row's coefficients; beyond it the solver's tolerances mean nothing

# ("x", load, source, model) replicas, ("n", source, model) machines, ("y", load, region) has one, ("m", load, source, model) leave,
# ("b", source, model) any machine of those that have to be so many, ("u", load) outside, ("w", load) wholly so
Column = tuple[str, ...]
ConstraintRow = tuple[float, dict[Column, int], float]  # lower, coefficients, upper


@dataclass
class Matrix:
    """Columns with their greatest value and cost; rows with their limits."""

    upper_bounds: dict[Column, int] = field(default_factory=dict)
    cost: dict[Column, int] = field(default_factory=dict)
    rows: list[ConstraintRow] = field(default_factory=list)
    offset: int = 0

    def add_column(self, name: Column, most: int, cost: int = 0) -> None:
        self.upper_bounds[name] = most
        self.cost[name] = cost

    def add_at_most(self, terms: Mapping[Column, int], limit: int) -> None:
        self.rows.append((-math.inf, dict(terms), limit))

    def add_at_least(self, terms: Mapping[Column, int], limit: int) -> None:
        self.rows.append((limit, dict(terms), math.inf))


def build_matrix(world: ProblemIndex, allow_unplaced: bool = False) -> Matrix:
    """The cheapest answer; or with `leave_out` the one that leaves out fewest replicas, whatever it costs."""
    shape = _ModelUse(world)
    matrix = Matrix()
    for name, load in world.loads.items():
        slack = _add_slack(matrix, load) if allow_unplaced and load.replicas else None
        _add_load(matrix, world, load, (shape.keys[name], slack))
        _add_moves(matrix, world, load, shape.keys[name])
    for key in sorted({*shape.users, *shape.in_minimums}):
        _add_machines(matrix, world, key, (shape.users.get(key, []), key in shape.single_replica))
    _add_supply_limits(matrix, world, shape)
    for name in world.proximity_bound:
        _add_proximity(matrix, world.loads[name], shape)
    _add_move_limit(matrix, world)
    if allow_unplaced:
        matrix.cost = {column: 1 if column[0] == "u" else 0 for column in matrix.cost}
        matrix.offset = 0
    return matrix


@dataclass(frozen=True)
class _Slack:
    """What lets a load stay outside: how many replicas, and whether all of them, for then its rules are void."""

    unplaced: Column
    all_unplaced: Column


def _add_slack(matrix: Matrix, load: Load) -> _Slack:
    slack = _Slack(("u", load.name), ("w", load.name))
    matrix.add_column(slack.unplaced, load.replicas)
    matrix.add_column(slack.all_unplaced, 1)
    matrix.add_at_least({slack.unplaced: 1, slack.all_unplaced: -load.replicas}, 0)
    return slack


class _ModelUse:
    """Which models hold one replica each, and which models each load need not look at."""

    def __init__(self, world: ProblemIndex) -> None:
        everyone: dict[ModelKey, list[Load]] = {}
        for name, load in world.loads.items():
            for key in world.keys[name] if load.replicas else ():
                everyone.setdefault(key, []).append(load)
        together = [
            [(name, model) for model in least.models]
            for name, source in world.sources.items()
            for least in source.minimums
        ]
        self.in_minimums = {key for keys in together if any(key in everyone for key in keys) for key in keys}
        self.single_replica = {
            key
            for key, loads in everyone.items()
            if key not in self.in_minimums
            and world.models[key].max_machines is None
            and _no_two_fit(world.models[key].size, loads)
        }
        self.keys = {
            name: self._undominated(world, world.loads[name], keys) for name, keys in world.keys.items()
        }
        self.users: dict[ModelKey, list[Load]] = {}
        for name, load in world.loads.items():
            for key in self.keys[name] if load.replicas else ():
                self.users.setdefault(key, []).append(load)

    def _undominated(
        self, world: ProblemIndex, load: Load, keys: tuple[ModelKey, ...]
    ) -> tuple[ModelKey, ...]:
        """Of models that hold one replica each, those that another of the same source beats are left aside, but not where it is now."""
        kept: list[ModelKey] = []
        for key in sorted(
            keys, key=lambda key: (key[0], world.models[key].price, sum(world.models[key].size), key[1])
        ):
            alone = key in self.single_replica and not load.current_counts.get(key)
            beaten = alone and any(
                other in self.single_replica and other[0] == key[0] and _dominates(world, other, key)
                for other in kept
            )
            kept += () if beaten else (key,)
        return tuple(sorted(kept))


def _no_two_fit(size: tuple[int, ...], loads: list[Load]) -> bool:
    return any(2 * min(load.needs[r] for load in loads) > whole for r, whole in enumerate(size))


def _dominates(world: ProblemIndex, other: ModelKey, key: ModelKey) -> bool:
    source, better, worse = world.sources[key[0]], world.models[other], world.models[key]
    limited = [r for r in range(len(worse.size)) if world.resource_limit(source, r) < SOLVER_NO_LIMIT]
    return better.price <= worse.price and all(better.size[r] <= worse.size[r] for r in limited)


def replica_column(load: Load, key: ModelKey) -> Column:
    return ("x", load.name, *key)


def _add_load(
    matrix: Matrix, world: ProblemIndex, load: Load, columns: tuple[tuple[ModelKey, ...], _Slack | None]
) -> None:
    keys, slack = columns
    for key in keys:
        matrix.add_column(replica_column(load, key), load.replicas)
    outside = {slack.unplaced: 1} if slack else {}
    matrix.rows.append(
        (load.replicas, {replica_column(load, key): 1 for key in keys} | outside, load.replicas)
    )
    if not load.replicas:
        return
    for group in load.required_source_groups:
        matrix.add_at_least(
            {replica_column(load, key): 1 for key in keys if key[0] in group}
            | ({slack.all_unplaced: 1} if slack else {}),
            1,
        )
    regions: dict[str, dict[Column, int]] = {}
    for key in keys:
        regions.setdefault(world.sources[key[0]].region, {})[replica_column(load, key)] = 1
    for cap in load.caps:
        if cap.max_replicas < load.replicas:
            matrix.add_at_most(
                {replica_column(load, key): 1 for key in keys if key[0] in cap.sources}, cap.max_replicas
            )
    if load.min_regions > 1:
        _add_regions(matrix, load, regions, slack)


def _add_regions(
    matrix: Matrix, load: Load, regions: dict[str, dict[Column, int]], slack: _Slack | None
) -> None:
    """Two regions: nowhere all of them. More: a mark for each region that has one."""
    wanted = load.min_regions
    for terms in regions.values():
        matrix.add_at_most(
            terms | ({slack.unplaced: 1, slack.all_unplaced: 1 - wanted} if slack else {}),
            load.replicas - wanted + 1,
        )
    if wanted > 2 or wanted > len(regions):
        for region, terms in regions.items():
            matrix.add_column(("y", load.name, region), 1)
            matrix.add_at_least({**terms, ("y", load.name, region): -1}, 0)
        marks: dict[Column, int] = {("y", load.name, region): 1 for region in regions}
        matrix.add_at_least(marks | ({slack.all_unplaced: wanted} if slack else {}), wanted)


def _add_moves(matrix: Matrix, world: ProblemIndex, load: Load, keys: tuple[ModelKey, ...]) -> None:
    price = world.problem.move_price(load)
    staying = {
        key: count
        for key, count in sorted(load.current_counts.items())
        if count and key in world.keys[load.name]
    }
    if not price and world.problem.max_moves is None:
        return
    for key, count in staying.items():
        matrix.add_column(("m", load.name, *key), count, price)
        kept = {replica_column(load, key): 1} if key in keys else {}
        matrix.add_at_least({**kept, ("m", load.name, *key): 1}, count)
    matrix.offset -= price * max(0, sum(staying.values()) - load.replicas)


def _add_move_limit(matrix: Matrix, world: ProblemIndex) -> None:
    """Replicas that shrinking drops, or that stay outside, are no moves."""
    most = world.problem.max_moves
    if most is None:
        return
    staying: dict[str, int] = {}
    for column, count in matrix.upper_bounds.items():
        if column[0] == "m":
            staying[column[1]] = staying.get(column[1], 0) + count
    most += sum(max(0, count - world.loads[name].replicas) for name, count in staying.items())
    outside: dict[Column, int] = {("u", name): -1 for name in staying if ("u", name) in matrix.upper_bounds}
    matrix.add_at_most({column: 1 for column in matrix.upper_bounds if column[0] == "m"} | outside, most)


def _add_machines(matrix: Matrix, world: ProblemIndex, key: ModelKey, users: tuple[list[Load], bool]) -> None:
    loads, alone = users
    model = world.models[key]
    if alone:
        for load in loads:
            matrix.cost[replica_column(load, key)] += model.price
        return
    number: Column = ("n", *key)
    matrix.add_column(
        number,
        min(_machine_upper_bound(world, key, loads), world.machine_limit(world.sources[key[0]])),
        model.price,
    )
    for resource, whole in enumerate(model.size):
        asking = {replica_column(load, key): load.needs[resource] for load in loads if load.needs[resource]}
        if not asking:
            continue
        matrix.add_at_most({**asking, number: -whole}, 0)
        for k in ROUNDINGS:
            rounded = {column: _rounded(need, whole, k) for column, need in asking.items()}
            if any(value * whole > k * (k + 1) * asking[column] for column, value in rounded.items()):
                matrix.add_at_most({**rounded, number: -k * (k + 1)}, 0)
    for load in loads:
        if not any(load.needs):
            matrix.add_at_most({replica_column(load, key): 1, number: -load.replicas}, 0)


def _machine_upper_bound(world: ProblemIndex, key: ModelKey, loads: list[Load]) -> int:
    """More than these nobody needs, or may have."""
    model = world.models[key]
    least = max(
        (each.min_machines for each in world.sources[key[0]].minimums if key[1] in each.models), default=0
    )
    needed = max(least, sum(load.replicas for load in loads))
    return needed if model.max_machines is None else min(needed, model.max_machines)


def _rounded(need: int, whole: int, k: int) -> int:
    """The share of a machine, rounded by the k-th dual feasible function, in units of 1 / k(k + 1)."""
    steps, rest = divmod(need * (k + 1), whole)
    return (k if rest == 0 else k + 1) * steps


def _add_supply_limits(matrix: Matrix, world: ProblemIndex, shape: _ModelUse) -> None:
    paid: dict[str, dict[Column, int]] = {}
    for name, source in world.sources.items():
        counted = {model.name: _machine_terms(shape, (name, model.name)) for model in source.models}
        users = {load.name: load for key in counted for load in shape.users.get((name, key), ())}
        needed = sum(load.replicas for load in users.values()) + sum(
            least.min_machines for least in source.minimums
        )
        if world.machine_limit(source) < needed:
            matrix.add_at_most(
                {column: 1 for columns in counted.values() for column in columns}, world.machine_limit(source)
            )
        for resource in range(len(world.problem.resources)):
            if (limit := world.resource_limit(source, resource)) < SOLVER_NO_LIMIT:
                matrix.add_at_most(
                    {
                        column: model.size[resource]
                        for model in source.models
                        for column in counted[model.name]
                    },
                    limit,
                )
        for least in source.minimums:
            _add_minimum(matrix, shape, (name, least))
        for ledger in source.ledgers:
            paid.setdefault(ledger, {}).update(
                {
                    column: model.price
                    for model in source.models
                    for column in counted[model.name]
                    if model.price
                }
            )
    for ledger, terms in sorted(paid.items()):
        if world.ledger_limit(ledger) < SOLVER_NO_LIMIT:
            matrix.add_at_most(terms, world.ledger_limit(ledger))


def _add_minimum(matrix: Matrix, shape: _ModelUse, rule: tuple[str, MachineMinimum]) -> None:
    """A mark where any replica is, and enough machines where the mark is."""
    source, least = rule
    keys = [key for model in least.models if (key := (source, model)) in shape.in_minimums]
    if not keys:
        return
    mark: Column = ("b", *keys[0])
    matrix.add_column(mark, 1)
    replicas: dict[str, dict[Column, int]] = {}
    for key in keys:
        for load in shape.users.get(key, ()):
            replicas.setdefault(load.name, {mark: -load.replicas})[replica_column(load, key)] = 1
    for terms in replicas.values():
        matrix.add_at_most(terms, 0)
    matrix.add_at_least({**{("n", *key): 1 for key in keys}, mark: -least.min_machines}, 0)


def _add_proximity(matrix: Matrix, load: Load, shape: _ModelUse) -> None:
    """As many as like where one of the other is near, none elsewhere."""
    for near in load.proximity_rules:
        there: dict[str, dict[Column, int]] = {}
        for key in shape.keys[load.name]:
            if key[0] in near.reachable_sources:
                there.setdefault(key[0], {})[replica_column(load, key)] = 1
        for source, terms in there.items():
            beside = near.reachable_sources[source]
            others = [
                ("x", near.target_load, *key)
                for key in shape.keys.get(near.target_load, ())
                if key[0] in beside
            ]
            matrix.add_at_most({**terms, **dict.fromkeys(others, -load.replicas)}, 0)


def _machine_terms(shape: _ModelUse, key: ModelKey) -> list[Column]:
    """The columns whose sum is the number of machines of this model."""
    if key in shape.single_replica:
        return [replica_column(load, key) for load in shape.users.get(key, ())]
    return [("n", *key)] if key in shape.users or key in shape.in_minimums else []
