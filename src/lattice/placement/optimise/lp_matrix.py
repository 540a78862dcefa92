"""The program as rows and columns for a linear solver, built so that its optimum never exceeds that of the real packing.

Replicas are counted per load and model, machines per model. Where no two replicas fit on one machine, the replica is the machine. Elsewhere
machines have to hold the sum of what their replicas need: in every resource as it is, and once more with needs rounded up by functions
that no packing can break (dual feasible functions, Fekete and Schepers 2001), which sees that three halves-and-a-bit need three machines.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from lattice.placement.optimise.bin_packing import Index, Key
from lattice.placement.optimise.problem import UNLIMITED, Least, Load

ROUNDINGS = (1, 2, 3, 4)
LARGEST = 1e6  # of a row's coefficients; beyond it the solver's tolerances mean nothing

# ("x", load, source, model) replicas, ("n", source, model) machines, ("y", load, region) has one, ("m", load, source, model) leave,
# ("b", source, model) any machine of those that have to be so many, ("u", load) outside, ("w", load) wholly so
Column = tuple[str, ...]
Row = tuple[float, dict[Column, int], float]  # lower, coefficients, upper


@dataclass
class Matrix:
    """Columns with their greatest value and cost; rows with their limits."""

    most: dict[Column, int] = field(default_factory=dict)
    cost: dict[Column, int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    offset: int = 0

    def column(self, name: Column, most: int, cost: int = 0) -> None:
        self.most[name] = most
        self.cost[name] = cost

    def at_most(self, terms: Mapping[Column, int], limit: int) -> None:
        self.rows.append((-math.inf, dict(terms), limit))

    def at_least(self, terms: Mapping[Column, int], limit: int) -> None:
        self.rows.append((limit, dict(terms), math.inf))


def build(world: Index, leave_out: bool = False) -> Matrix:
    """The cheapest answer; or with `leave_out` the one that leaves out fewest replicas, whatever it costs."""
    shape = _Shape(world)
    matrix = Matrix()
    for name, load in world.loads.items():
        slack = _slack(matrix, load) if leave_out and load.replicas else None
        _load(matrix, world, load, (shape.keys[name], slack))
        _moves(matrix, world, load, shape.keys[name])
    for key in sorted({*shape.users, *shape.counted}):
        _machines(matrix, world, key, (shape.users.get(key, []), key in shape.alone))
    _supply(matrix, world, shape)
    for name in world.tied:
        _near(matrix, world.loads[name], shape)
    _most_moves(matrix, world)
    if leave_out:
        matrix.cost = {column: 1 if column[0] == "u" else 0 for column in matrix.cost}
        matrix.offset = 0
    return matrix


@dataclass(frozen=True)
class _Slack:
    """What lets a load stay outside: how many replicas, and whether all of them, for then its rules are void."""

    outside: Column
    wholly: Column


def _slack(matrix: Matrix, load: Load) -> _Slack:
    slack = _Slack(("u", load.name), ("w", load.name))
    matrix.column(slack.outside, load.replicas)
    matrix.column(slack.wholly, 1)
    matrix.at_least({slack.outside: 1, slack.wholly: -load.replicas}, 0)
    return slack


class _Shape:
    """Which models hold one replica each, and which models each load need not look at."""

    def __init__(self, world: Index) -> None:
        everyone: dict[Key, list[Load]] = {}
        for name, load in world.loads.items():
            for key in world.keys[name] if load.replicas else ():
                everyone.setdefault(key, []).append(load)
        together = [
            [(name, model) for model in least.models]
            for name, source in world.sources.items()
            for least in source.least
        ]
        self.counted = {key for keys in together if any(key in everyone for key in keys) for key in keys}
        self.alone = {
            key
            for key, loads in everyone.items()
            if key not in self.counted
            and world.models[key].most is None
            and _no_two_fit(world.models[key].size, loads)
        }
        self.keys = {name: self._useful(world, world.loads[name], keys) for name, keys in world.keys.items()}
        self.users: dict[Key, list[Load]] = {}
        for name, load in world.loads.items():
            for key in self.keys[name] if load.replicas else ():
                self.users.setdefault(key, []).append(load)

    def _useful(self, world: Index, load: Load, keys: tuple[Key, ...]) -> tuple[Key, ...]:
        """Of models that hold one replica each, those that another of the same source beats are left aside, but not where it is now."""
        kept: list[Key] = []
        for key in sorted(
            keys, key=lambda key: (key[0], world.models[key].price, sum(world.models[key].size), key[1])
        ):
            alone = key in self.alone and not load.current.get(key)
            beaten = alone and any(
                other in self.alone and other[0] == key[0] and _beats(world, other, key) for other in kept
            )
            kept += () if beaten else (key,)
        return tuple(sorted(kept))


def _no_two_fit(size: tuple[int, ...], loads: list[Load]) -> bool:
    return any(2 * min(load.needs[r] for load in loads) > whole for r, whole in enumerate(size))


def _beats(world: Index, other: Key, key: Key) -> bool:
    source, better, worse = world.sources[key[0]], world.models[other], world.models[key]
    limited = [r for r in range(len(worse.size)) if world.resource_limit(source, r) < UNLIMITED]
    return better.price <= worse.price and all(better.size[r] <= worse.size[r] for r in limited)


def x(load: Load, key: Key) -> Column:
    return ("x", load.name, *key)


def _load(matrix: Matrix, world: Index, load: Load, columns: tuple[tuple[Key, ...], _Slack | None]) -> None:
    keys, slack = columns
    for key in keys:
        matrix.column(x(load, key), load.replicas)
    outside = {slack.outside: 1} if slack else {}
    matrix.rows.append((load.replicas, {x(load, key): 1 for key in keys} | outside, load.replicas))
    if not load.replicas:
        return
    for group in load.groups:
        matrix.at_least(
            {x(load, key): 1 for key in keys if key[0] in group} | ({slack.wholly: 1} if slack else {}), 1
        )
    regions: dict[str, dict[Column, int]] = {}
    for key in keys:
        regions.setdefault(world.sources[key[0]].region, {})[x(load, key)] = 1
    for cap in load.caps:
        if cap.replicas < load.replicas:
            matrix.at_most({x(load, key): 1 for key in keys if key[0] in cap.sources}, cap.replicas)
    if load.min_regions > 1:
        _regions(matrix, load, regions, slack)


def _regions(matrix: Matrix, load: Load, regions: dict[str, dict[Column, int]], slack: _Slack | None) -> None:
    """Two regions: nowhere all of them. More: a mark for each region that has one."""
    wanted = load.min_regions
    for terms in regions.values():
        matrix.at_most(
            terms | ({slack.outside: 1, slack.wholly: 1 - wanted} if slack else {}),
            load.replicas - wanted + 1,
        )
    if wanted > 2 or wanted > len(regions):
        for region, terms in regions.items():
            matrix.column(("y", load.name, region), 1)
            matrix.at_least({**terms, ("y", load.name, region): -1}, 0)
        marks: dict[Column, int] = {("y", load.name, region): 1 for region in regions}
        matrix.at_least(marks | ({slack.wholly: wanted} if slack else {}), wanted)


def _moves(matrix: Matrix, world: Index, load: Load, keys: tuple[Key, ...]) -> None:
    price = world.program.move_price(load)
    staying = {
        key: count for key, count in sorted(load.current.items()) if count and key in world.keys[load.name]
    }
    if not price and world.program.most_moves is None:
        return
    for key, count in staying.items():
        matrix.column(("m", load.name, *key), count, price)
        kept = {x(load, key): 1} if key in keys else {}
        matrix.at_least({**kept, ("m", load.name, *key): 1}, count)
    matrix.offset -= price * max(0, sum(staying.values()) - load.replicas)


def _most_moves(matrix: Matrix, world: Index) -> None:
    """Replicas that shrinking drops, or that stay outside, are no moves."""
    most = world.program.most_moves
    if most is None:
        return
    staying: dict[str, int] = {}
    for column, count in matrix.most.items():
        if column[0] == "m":
            staying[column[1]] = staying.get(column[1], 0) + count
    most += sum(max(0, count - world.loads[name].replicas) for name, count in staying.items())
    outside: dict[Column, int] = {("u", name): -1 for name in staying if ("u", name) in matrix.most}
    matrix.at_most({column: 1 for column in matrix.most if column[0] == "m"} | outside, most)


def _machines(matrix: Matrix, world: Index, key: Key, users: tuple[list[Load], bool]) -> None:
    loads, alone = users
    model = world.models[key]
    if alone:
        for load in loads:
            matrix.cost[x(load, key)] += model.price
        return
    number: Column = ("n", *key)
    matrix.column(
        number,
        min(_most_machines(world, key, loads), world.machine_limit(world.sources[key[0]])),
        model.price,
    )
    for resource, whole in enumerate(model.size):
        asking = {x(load, key): load.needs[resource] for load in loads if load.needs[resource]}
        if not asking:
            continue
        matrix.at_most({**asking, number: -whole}, 0)
        for k in ROUNDINGS:
            rounded = {column: _rounded(need, whole, k) for column, need in asking.items()}
            if any(value * whole > k * (k + 1) * asking[column] for column, value in rounded.items()):
                matrix.at_most({**rounded, number: -k * (k + 1)}, 0)
    for load in loads:
        if not any(load.needs):
            matrix.at_most({x(load, key): 1, number: -load.replicas}, 0)


def _most_machines(world: Index, key: Key, loads: list[Load]) -> int:
    """More than these nobody needs, or may have."""
    model = world.models[key]
    least = max((each.machines for each in world.sources[key[0]].least if key[1] in each.models), default=0)
    needed = max(least, sum(load.replicas for load in loads))
    return needed if model.most is None else min(needed, model.most)


def _rounded(need: int, whole: int, k: int) -> int:
    """The share of a machine, rounded by the k-th dual feasible function, in units of 1 / k(k + 1)."""
    steps, rest = divmod(need * (k + 1), whole)
    return (k if rest == 0 else k + 1) * steps


def _supply(matrix: Matrix, world: Index, shape: _Shape) -> None:
    paid: dict[str, dict[Column, int]] = {}
    for name, source in world.sources.items():
        counted = {model.name: _machine_terms(shape, (name, model.name)) for model in source.models}
        users = {load.name: load for key in counted for load in shape.users.get((name, key), ())}
        needed = sum(load.replicas for load in users.values()) + sum(least.machines for least in source.least)
        if world.machine_limit(source) < needed:
            matrix.at_most(
                {column: 1 for columns in counted.values() for column in columns}, world.machine_limit(source)
            )
        for resource in range(len(world.program.resources)):
            if (limit := world.resource_limit(source, resource)) < UNLIMITED:
                matrix.at_most(
                    {
                        column: model.size[resource]
                        for model in source.models
                        for column in counted[model.name]
                    },
                    limit,
                )
        for least in source.least:
            _least(matrix, shape, (name, least))
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
        if world.ledger_limit(ledger) < UNLIMITED:
            matrix.at_most(terms, world.ledger_limit(ledger))


def _least(matrix: Matrix, shape: _Shape, rule: tuple[str, Least]) -> None:
    """A mark where any replica is, and enough machines where the mark is."""
    source, least = rule
    keys = [key for model in least.models if (key := (source, model)) in shape.counted]
    if not keys:
        return
    mark: Column = ("b", *keys[0])
    matrix.column(mark, 1)
    replicas: dict[str, dict[Column, int]] = {}
    for key in keys:
        for load in shape.users.get(key, ()):
            replicas.setdefault(load.name, {mark: -load.replicas})[x(load, key)] = 1
    for terms in replicas.values():
        matrix.at_most(terms, 0)
    matrix.at_least({**{("n", *key): 1 for key in keys}, mark: -least.machines}, 0)


def _near(matrix: Matrix, load: Load, shape: _Shape) -> None:
    """As many as like where one of the other is near, none elsewhere."""
    for near in load.near:
        there: dict[str, dict[Column, int]] = {}
        for key in shape.keys[load.name]:
            if key[0] in near.within:
                there.setdefault(key[0], {})[x(load, key)] = 1
        for source, terms in there.items():
            beside = near.within[source]
            others = [("x", near.load, *key) for key in shape.keys.get(near.load, ()) if key[0] in beside]
            matrix.at_most({**terms, **dict.fromkeys(others, -load.replicas)}, 0)


def _machine_terms(shape: _Shape, key: Key) -> list[Column]:
    """The columns whose sum is the number of machines of this model."""
    if key in shape.alone:
        return [x(load, key) for load in shape.users.get(key, ())]
    return [("n", *key)] if key in shape.users or key in shape.counted else []
