"""The placement problem as a matrix for a linear solver; the optimum of the matrix never exceeds the optimum
of the real packing.

Columns count replicas per load and model, and machines per model. If no two replicas fit on one machine of a
model, the column of replicas also counts the machines. Otherwise the machines of a model must hold the sum of
the needs of their replicas, in every resource. Further rows require the same of needs that are rounded up by
dual feasible functions (Fekete and Schepers 2001), which no packing can violate. These rows show, for
example, that three replicas of slightly more than half a machine need three machines.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from lattice.placement.optimise.bin_packing import ModelKey, ProblemIndex
from lattice.placement.optimise.problem import SOLVER_NO_LIMIT, Load, MachineMinimum

# Parameters k of the dual feasible functions.
ROUNDINGS = (1, 2, 3, 4)
# The largest coefficient of a row; beyond it the tolerances of the solver lose their meaning.
MAX_COEFFICIENT = 1e6

# ("x", load, source, model) replicas; ("n", source, model) machines; ("y", load, region) 1 if the region has
# a replica; ("m", load, source, model) replicas that leave; ("b", source, model) 1 if a minimum applies;
# ("z", load, rule) replicas in the emptiest domain;
# ("u", load) unplaced replicas; ("w", load) 1 if all replicas of the load are unplaced.
Column = tuple[str, ...]
# Lower limit, coefficients, upper limit.
ConstraintRow = tuple[float, dict[Column, int], float]


@dataclass
class Matrix:
    """Columns with upper bound and cost, and rows with their limits."""

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


def build_matrix(index: ProblemIndex, allow_unplaced: bool = False) -> Matrix:
    """Build the matrix whose optimum is the cheapest solution; with `allow_unplaced`, the optimum is the
    solution with the fewest unplaced replicas, at any cost."""
    use = _ModelUse(index)
    matrix = Matrix()
    for name, load in index.loads.items():
        slack = None
        if allow_unplaced and load.replicas:
            slack = _Slack(("u", load.name), ("w", load.name))
            matrix.add_column(slack.unplaced, load.replicas)
            matrix.add_column(slack.all_unplaced, 1)
            matrix.add_at_least({slack.unplaced: 1, slack.all_unplaced: -load.replicas}, 0)
        _add_load(matrix, index, load, (use.keys[name], slack))
        _add_moves(matrix, index, load, use.keys[name])
    for key in sorted({*use.users, *use.in_minimums}):
        _add_machines(matrix, index, key, (use.users.get(key, []), key in use.single_replica))
    _add_supply_limits(matrix, index, use)
    # A source may have replicas of a load only if a reachable source has a replica of the target load.
    for name in index.proximity_bound:
        load = index.loads[name]
        for rule in load.proximity_rules:
            terms_by_source: dict[str, dict[Column, int]] = {}
            for key in use.keys[name]:
                if key[0] in rule.reachable_sources:
                    terms_by_source.setdefault(key[0], {})[replica_column(load, key)] = 1
            for source, terms in terms_by_source.items():
                reachable = rule.reachable_sources[source]
                targets = [
                    ("x", rule.target_load, *key)
                    for key in use.keys.get(rule.target_load, ())
                    if key[0] in reachable
                ]
                matrix.add_at_most({**terms, **dict.fromkeys(targets, -load.replicas)}, 0)
    limit = index.problem.max_moves
    if limit is not None:
        # Dropped and unplaced replicas are no moves.
        staying: dict[str, int] = {}
        for column, count in matrix.upper_bounds.items():
            if column[0] == "m":
                staying[column[1]] = staying.get(column[1], 0) + count
        limit += sum(max(0, count - index.loads[name].replicas) for name, count in staying.items())
        unplaced: dict[Column, int] = {
            ("u", name): -1 for name in staying if ("u", name) in matrix.upper_bounds
        }
        moves = {column: 1 for column in matrix.upper_bounds if column[0] == "m"}
        matrix.add_at_most(moves | unplaced, limit)
    if allow_unplaced:
        # Only unplaced replicas cost anything.
        matrix.cost = {column: 1 if column[0] == "u" else 0 for column in matrix.cost}
        matrix.offset = 0
    return matrix


@dataclass(frozen=True)
class _Slack:
    """Columns that let replicas stay unplaced; the rules of a load are void if all its replicas are
    unplaced."""

    unplaced: Column
    all_unplaced: Column


class _ModelUse:
    """Models that hold a single replica, and the models that each load has to consider."""

    def __init__(self, index: ProblemIndex) -> None:
        candidates: dict[ModelKey, list[Load]] = {}
        for name, load in index.loads.items():
            for key in index.keys[name] if load.replicas else ():
                candidates.setdefault(key, []).append(load)
        # Models of a minimum that at least one load can use.
        self.in_minimums: set[ModelKey] = set()
        for name, source in index.sources.items():
            for minimum in source.minimums:
                keys = [(name, model) for model in minimum.models]
                if any(key in candidates for key in keys):
                    self.in_minimums.update(keys)
        # Models on which no two replicas fit, by a resource of which every replica needs more than half.
        self.single_replica: set[ModelKey] = set()
        for key, loads in candidates.items():
            if key in self.in_minimums or index.models[key].max_machines is not None:
                continue
            for resource, capacity in enumerate(index.models[key].size):
                if 2 * min(load.needs[resource] for load in loads) > capacity:
                    self.single_replica.add(key)
                    break
        self.keys = {
            name: self._undominated(index, index.loads[name], keys) for name, keys in index.keys.items()
        }
        self.users: dict[ModelKey, list[Load]] = {}
        for name, load in index.loads.items():
            for key in self.keys[name] if load.replicas else ():
                self.users.setdefault(key, []).append(load)

    def _undominated(
        self, index: ProblemIndex, load: Load, keys: tuple[ModelKey, ...]
    ) -> tuple[ModelKey, ...]:
        """The models of the load without models that another model of the same source dominates.

        Only models that hold a single replica are omitted, and never a model on which the load has replicas
        now.
        """
        undominated: list[ModelKey] = []
        for key in sorted(
            keys, key=lambda key: (key[0], index.models[key].price, sum(index.models[key].size), key[1])
        ):
            is_optional = key in self.single_replica and not load.current_counts.get(key)
            is_dominated = is_optional and any(
                candidate in self.single_replica
                and candidate[0] == key[0]
                and _dominates(index, candidate, key)
                for candidate in undominated
            )
            if not is_dominated:
                undominated.append(key)
        return tuple(sorted(undominated))

    def machine_terms(self, key: ModelKey) -> list[Column]:
        """The columns whose sum is the number of machines of the model."""
        if key in self.single_replica:
            return [replica_column(load, key) for load in self.users.get(key, ())]
        return [("n", *key)] if key in self.users or key in self.in_minimums else []


def _dominates(index: ProblemIndex, candidate: ModelKey, key: ModelKey) -> bool:
    """Whether the candidate is at most as expensive as the model, and no larger in any limited resource."""
    source, better, worse = index.sources[key[0]], index.models[candidate], index.models[key]
    limited = [
        resource
        for resource in range(len(worse.size))
        if index.resource_limit(source, resource) < SOLVER_NO_LIMIT
    ]
    return better.price <= worse.price and all(
        better.size[resource] <= worse.size[resource] for resource in limited
    )


def replica_column(load: Load, key: ModelKey) -> Column:
    return ("x", load.name, *key)


def _add_load(
    matrix: Matrix, index: ProblemIndex, load: Load, columns: tuple[tuple[ModelKey, ...], _Slack | None]
) -> None:
    """Add the columns of the load's replicas, and the rows of its rules."""
    keys, slack = columns
    for key in keys:
        matrix.add_column(replica_column(load, key), load.replicas)
    unplaced = {slack.unplaced: 1} if slack else {}
    matrix.rows.append(
        (load.replicas, {replica_column(load, key): 1 for key in keys} | unplaced, load.replicas)
    )
    if not load.replicas:
        return
    all_unplaced = {slack.all_unplaced: 1} if slack else {}
    for group in load.required_source_groups:
        in_group = {replica_column(load, key): 1 for key in keys if key[0] in group}
        matrix.add_at_least(in_group | all_unplaced, 1)
    regions: dict[str, dict[Column, int]] = {}
    for key in keys:
        regions.setdefault(index.sources[key[0]].region, {})[replica_column(load, key)] = 1
    for cap in load.caps:
        if cap.max_replicas < load.replicas:
            in_cap = {replica_column(load, key): 1 for key in keys if key[0] in cap.sources}
            matrix.add_at_most(in_cap, cap.max_replicas)
    for number, rule in enumerate(load.spreads):
        # Every domain has at least the replicas of the emptiest domain, and at most as many more as the skew.
        emptiest: Column = ("z", load.name, str(number))
        matrix.add_column(emptiest, load.replicas)
        for domain in rule.domains:
            in_domain = {replica_column(load, key): 1 for key in keys if key[0] in domain}
            matrix.add_at_least({**in_domain, emptiest: -1}, 0)
            matrix.add_at_most({**in_domain, emptiest: -1}, rule.max_skew)
    if load.min_regions > 1:
        # No region may hold all replicas; beyond two regions a mark counts the regions in use.
        min_regions = load.min_regions
        for terms in regions.values():
            matrix.add_at_most(
                terms | ({slack.unplaced: 1, slack.all_unplaced: 1 - min_regions} if slack else {}),
                load.replicas - min_regions + 1,
            )
        # With two regions the rows above suffice.
        if min_regions > 2 or min_regions > len(regions):
            for region, terms in regions.items():
                matrix.add_column(("y", load.name, region), 1)
                matrix.add_at_least({**terms, ("y", load.name, region): -1}, 0)
            marks: dict[Column, int] = {("y", load.name, region): 1 for region in regions}
            matrix.add_at_least(marks | ({slack.all_unplaced: min_regions} if slack else {}), min_regions)


def _add_moves(matrix: Matrix, index: ProblemIndex, load: Load, keys: tuple[ModelKey, ...]) -> None:
    """Add a column for the replicas that leave each model, priced per move."""
    price = index.problem.move_price(load)
    current, usable = sorted(load.current_counts.items()), index.keys[load.name]
    staying = {key: count for key, count in current if count and key in usable}
    if not price and index.problem.max_moves is None:
        return
    for key, count in staying.items():
        matrix.add_column(("m", load.name, *key), count, price)
        stayed = {replica_column(load, key): 1} if key in keys else {}
        matrix.add_at_least({**stayed, ("m", load.name, *key): 1}, count)
    # Replicas that a smaller load drops are no moves: the offset takes their price off.
    matrix.offset -= price * max(0, sum(staying.values()) - load.replicas)


def _add_machines(matrix: Matrix, index: ProblemIndex, key: ModelKey, users: tuple[list[Load], bool]) -> None:
    """Add the machines of a model: a column with its price, and rows that make the machines hold their
    replicas."""
    loads, is_single_replica = users
    model = index.models[key]
    if is_single_replica:
        for load in loads:
            matrix.cost[replica_column(load, key)] += model.price
        return
    machines: Column = ("n", *key)
    source = index.sources[key[0]]
    minimums = [rule.min_machines for rule in source.minimums if key[1] in rule.models]
    # One machine per replica is always enough, unless a minimum requires more machines.
    useful = max(max(minimums, default=0), sum(load.replicas for load in loads))
    if model.max_machines is not None:
        useful = min(useful, model.max_machines)
    matrix.add_column(machines, min(useful, index.machine_limit(source)), model.price)
    for resource, capacity in enumerate(model.size):
        needs = {replica_column(load, key): load.needs[resource] for load in loads if load.needs[resource]}
        if not needs:
            continue
        matrix.add_at_most({**needs, machines: -capacity}, 0)
        for k in ROUNDINGS:
            rounded = {}
            for column, need in needs.items():
                # The share of a machine, rounded by the k-th dual feasible function, in units of 1 / k(k + 1).
                steps, remainder = divmod(need * (k + 1), capacity)
                rounded[column] = (k if remainder == 0 else k + 1) * steps
            # A rounded row that is nowhere stronger than the plain row is omitted.
            if any(value * capacity > k * (k + 1) * needs[column] for column, value in rounded.items()):
                matrix.add_at_most({**rounded, machines: -k * (k + 1)}, 0)
    for load in loads:
        if not any(load.needs):
            matrix.add_at_most({replica_column(load, key): 1, machines: -load.replicas}, 0)


def _add_supply_limits(matrix: Matrix, index: ProblemIndex, use: _ModelUse) -> None:
    """Add the limits of sources and ledgers, and the minimums of sources."""
    paid: dict[str, dict[Column, int]] = {}
    for name, source in index.sources.items():
        columns = {model.name: use.machine_terms((name, model.name)) for model in source.models}
        users: dict[str, Load] = {}
        for model_name in columns:
            users.update({load.name: load for load in use.users.get((name, model_name), ())})
        needed = sum(load.replicas for load in users.values())
        needed += sum(minimum.min_machines for minimum in source.minimums)
        if index.machine_limit(source) < needed:
            terms: dict[Column, int] = {}
            for model_columns in columns.values():
                terms.update(dict.fromkeys(model_columns, 1))
            matrix.add_at_most(terms, index.machine_limit(source))
        for resource in range(len(index.problem.resources)):
            limit = index.resource_limit(source, resource)
            if limit < SOLVER_NO_LIMIT:
                terms = {}
                for model in source.models:
                    terms.update(dict.fromkeys(columns[model.name], model.size[resource]))
                matrix.add_at_most(terms, limit)
        for minimum in source.minimums:
            _add_minimum(matrix, use, (name, minimum))
        for ledger in source.ledgers:
            terms = paid.setdefault(ledger, {})
            for model in source.models:
                if model.price:
                    terms.update(dict.fromkeys(columns[model.name], model.price))
    for ledger, terms in sorted(paid.items()):
        if index.ledger_limit(ledger) < SOLVER_NO_LIMIT:
            matrix.add_at_most(terms, index.ledger_limit(ledger))


def _add_minimum(matrix: Matrix, use: _ModelUse, rule: tuple[str, MachineMinimum]) -> None:
    """Add a mark that is 1 where any replica runs on the models, and the minimum of machines where the mark
    is 1."""
    source, minimum = rule
    keys = [(source, model) for model in minimum.models if (source, model) in use.in_minimums]
    if not keys:
        return
    mark: Column = ("b", *keys[0])
    matrix.add_column(mark, 1)
    replicas: dict[str, dict[Column, int]] = {}
    for key in keys:
        for load in use.users.get(key, ()):
            replicas.setdefault(load.name, {mark: -load.replicas})[replica_column(load, key)] = 1
    for terms in replicas.values():
        matrix.add_at_most(terms, 0)
    matrix.add_at_least({**{("n", *key): 1 for key in keys}, mark: -minimum.min_machines}, 0)
