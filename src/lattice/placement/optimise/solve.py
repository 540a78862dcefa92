"""Solve a placement problem: the cheapest found solution with a lower bound of the cost.

A greedy solution always comes first; the solver (HiGHS) starts from the best greedy solution, improves it and
proves a bound. Equal problems get equal solutions, whatever the order of their loads and sources, unless the
time limit stops the solver.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from lattice.placement.optimise.bin_packing import (
    ModelKey,
    ProblemIndex,
    ReplicaCounts,
    count_load_moves,
    hourly_cost,
    index_problem,
    load_violations,
    machines_needed,
    moves_and_penalty,
    proximity_violations,
    supply_violations,
    violations,
    with_minimums,
)
from lattice.placement.optimise.greedy_solution import PlacementHint, greedy_solution, stay_hint
from lattice.placement.optimise.highs import SolverResult, SolverUnavailable, solve_integer, solve_relaxed
from lattice.placement.optimise.lp_matrix import Column, Matrix, build_matrix
from lattice.placement.optimise.merge_loads import merge_loads, split_counts
from lattice.placement.optimise.problem import (
    MachineCount,
    PlacementProblem,
    ReplicaAllocation,
    Solution,
    SolverStatus,
)

# Monotonic seconds.
Clock = Callable[[], float]
# The share of the remaining time that the solver may use; applying the solution needs the remainder.
SOLVER_SHARE = 0.6


# A value this close below an integer counts as the integer.
INTEGER_TOLERANCE = 1e-6


def frozen_clock() -> float:
    """A clock that stands still, for callers without a clock: only the time limit of the solver holds."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline that is checked between steps; a step that has begun is finished."""

    expires_at: float
    clock: Clock

    @staticmethod
    def within(seconds: float, clock: Clock) -> "Deadline":
        return Deadline(clock() + seconds, clock)

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.expires_at - self.clock())

    @property
    def is_over(self) -> bool:
        return self.remaining_s <= 0

    def fraction(self, share: float) -> "Deadline":
        """Return the deadline of a share of the remaining time."""
        now = self.clock()
        return Deadline(now + share * max(0.0, self.expires_at - now), self.clock)


@dataclass(frozen=True, slots=True)
class _CandidateSolution:
    """A solution in progress."""

    counts: ReplicaCounts
    # Machines that hold replicas, without machines that exist only because a source has a minimum.
    machines: Mapping[ModelKey, int]
    unplaced: int
    total: int


def solve(
    problem: PlacementProblem,
    hint: PlacementHint | None = None,
    *,
    time_limit: float | Deadline = 10.0,
    gap: float = 1e-4,
) -> Solution:
    """Solve the problem within the time limit.

    `hint` suggests replicas by load and (source, model). `gap` is the accepted distance to the bound, as a
    share of the total. Replicas that fit nowhere are left unplaced; as many as possible are placed.
    """
    deadline = time_limit if isinstance(time_limit, Deadline) else Deadline.within(time_limit, frozen_clock)
    full_index = index_problem(problem)
    merged = merge_loads(full_index)
    index = index_problem(merged.problem)
    best = min(_initial_solutions(index, hint, deadline), key=_rank)
    bound, is_finished, note = 0, False, ""
    try:
        if best.unplaced:
            seconds = deadline.remaining_s
            result = solve_integer(build_matrix(index, allow_unplaced=True), seconds)
            best = min([best, *_solutions_from_hint(index, _hint_from_result(result))], key=_rank)
        index = _restrict_to_placed(index, best.counts)
        best, bound, is_finished = _improve(index, replace(best, unplaced=0), deadline, gap)
    except SolverUnavailable as error:
        index, note = _restrict_to_placed(index, best.counts), str(error)
    counts = split_counts(merged, best.counts)
    final = _undo_moves(_restrict_to_placed(full_index, counts), replace(best, counts=counts))
    # The simple bound may exceed a bound of a solver that was stopped early.
    bound = max(bound, _simple_bound(index))
    status: SolverStatus = "packed" if is_finished else "time limit"
    if note:
        status = "greedy"
    elif final.total - bound <= gap * final.total:
        status = "optimal"
    return replace(_solution(full_index, final), bound=bound, status=status, note=note)


def cost_lower_bound(problem: PlacementProblem, seconds: float = 10.0) -> int | None:
    """Return a lower bound of the cost, with fractions of machines and replicas allowed; None if no solution
    keeps every rule."""
    index = index_problem(merge_loads(index_problem(problem)).problem)
    try:
        bound = solve_relaxed(build_matrix(index), seconds).bound
    except SolverUnavailable:
        return _simple_bound(index)
    return None if bound is None else max(bound, _simple_bound(index))


def _initial_solutions(
    index: ProblemIndex, hint: PlacementHint | None, deadline: Deadline
) -> Iterator[_CandidateSolution]:
    """Yield the empty solution, the solution without moves, and solutions from the hint and from no hint."""
    yield _CandidateSolution(
        {name: {} for name in index.loads}, {}, sum(load.replicas for load in index.loads.values()), 0
    )
    yield from _solutions_from_hint(index, stay_hint(index))
    for candidate_hint in (hint or {}, {}):
        if not deadline.is_over:
            yield from _solutions_from_hint(index, candidate_hint)


def _solutions_from_hint(index: ProblemIndex, hint: PlacementHint) -> Iterator[_CandidateSolution]:
    """Yield the greedy solution for the hint, if the solution keeps every rule."""
    counts, opened = greedy_solution(index, hint)
    machines = {key: min(count, opened[key]) for key, count in machines_needed(index, counts).items()}
    paid = with_minimums(index, machines)
    if not violations(index, counts, paid):
        desired = sum(load.replicas for load in index.loads.values())
        missing = desired - sum(sum(placed.values()) for placed in counts.values())
        yield _CandidateSolution(
            counts, machines, missing, hourly_cost(index, paid) + moves_and_penalty(index, counts)[1]
        )


def _rank(solution: _CandidateSolution) -> tuple[object, ...]:
    """The order of solutions: fewest unplaced replicas, then lowest total, then by name, so that equal
    problems get equal solutions."""
    return (
        solution.unplaced,
        solution.total,
        sorted((name, sorted(placed.items())) for name, placed in solution.counts.items()),
    )


def _restrict_to_placed(index: ProblemIndex, counts: ReplicaCounts) -> ProblemIndex:
    """Return the same problem with only the placed replicas."""
    loads = tuple(replace(load, replicas=sum(counts[name].values())) for name, load in index.loads.items())
    return index_problem(replace(index.problem, loads=loads))


def _improve(
    index: ProblemIndex, best: _CandidateSolution, deadline: Deadline, gap: float
) -> tuple[_CandidateSolution, int, bool]:
    """Improve the solution with the solver; return the best solution, a lower bound, and whether the solver
    finished."""
    if deadline.is_over:
        return best, 0, False
    matrix = build_matrix(index)
    result = solve_relaxed(matrix, deadline.remaining_s)
    bound = result.bound or 0
    best = min([best, *_complete_solutions(index, result)], key=_rank)
    if best.total - bound <= gap * best.total:
        return best, bound, True
    result = solve_integer(matrix, deadline.remaining_s, gap, _columns(index, matrix, best))
    return (
        min([best, *_complete_solutions(index, result)], key=_rank),
        max(bound, result.bound or 0),
        result.is_finished,
    )


def _complete_solutions(index: ProblemIndex, result: SolverResult) -> list[_CandidateSolution]:
    """Solutions from the result of the solver that place every replica."""
    if not result.values:
        return []
    solutions = _solutions_from_hint(index, _hint_from_result(result))
    return [solution for solution in solutions if not solution.unplaced]


def _hint_from_result(result: SolverResult) -> dict[str, dict[ModelKey, int]]:
    """The replica counts of the solver, rounded down to whole replicas."""
    hint: dict[str, dict[ModelKey, int]] = {}
    for column, value in result.values.items():
        if column[0] == "x" and (count := int(value + INTEGER_TOLERANCE)):
            hint.setdefault(column[1], {})[(column[2], column[3])] = count
    return hint


def _columns(index: ProblemIndex, matrix: Matrix, solution: _CandidateSolution) -> dict[Column, int] | None:
    """The solution as column values of the matrix; None if the solution uses a model that the matrix
    omits."""
    machines = with_minimums(index, solution.machines)
    values: dict[Column, int] = {}
    for key, count in machines.items():
        if ("n", *key) in matrix.upper_bounds:
            values["n", *key] = count
    for source in index.sources.values():
        for minimum in source.minimums:
            keys = [(source.name, model) for model in minimum.models]
            is_used = int(any(machines.get(key) for key in keys))
            for key in keys:
                if ("b", *key) in matrix.upper_bounds:
                    values["b", *key] = is_used
    for name, placed in solution.counts.items():
        for number, rule in enumerate(index.loads[name].spreads):
            if ("z", name, str(number)) in matrix.upper_bounds:
                values["z", name, str(number)] = min(
                    sum(count for (source, _), count in placed.items() if source in domain)
                    for domain in rule.domains
                )
        for key, count in placed.items():
            values[("x", name, *key)] = count
            if ("y", name, region := index.sources[key[0]].region) in matrix.upper_bounds:
                values[("y", name, region)] = 1
        for key, count in index.loads[name].current_counts.items():
            if ("m", name, *key) in matrix.upper_bounds:
                values[("m", name, *key)] = max(0, count - placed.get(key, 0))
    return values if all(column in matrix.upper_bounds for column in values) else None


def _undo_moves(index: ProblemIndex, solution: _CandidateSolution) -> _CandidateSolution:
    """Undo the moves of a load that do not pay for themselves; a solver that was stopped early may leave such
    moves."""
    stay, penalty = stay_hint(index), moves_and_penalty(index, solution.counts)[1]
    for name, load in index.loads.items():
        placed, stayed = solution.counts[name], stay.get(name, {})
        moves = count_load_moves(load, index.keys[name], placed)
        counts = solution.counts | {name: stayed}
        if (
            not moves
            or sum(stayed.values()) != load.replicas
            or any(load_violations(index, load, stayed))
            or any(proximity_violations(index, counts))
        ):
            continue
        saved_penalty = index.problem.move_price(load) * (
            moves - count_load_moves(load, index.keys[name], stayed)
        )
        touched = {*placed, *stayed}
        machines = {key: count for key, count in solution.machines.items() if key not in touched}
        machines |= machines_needed(index, counts, touched)
        paid = with_minimums(index, machines)
        total = hourly_cost(index, paid) + penalty - saved_penalty
        if total <= solution.total and not any(supply_violations(index, paid)):
            solution, penalty = (
                replace(solution, counts=counts, machines=machines, total=total),
                penalty - saved_penalty,
            )
    return solution


def _simple_bound(index: ProblemIndex) -> int:
    """A lower bound without the solver: per resource, charge every replica its share of the cheapest machine
    and add up the charges; the largest sum is the bound."""
    sums = [Fraction(0) for _ in index.problem.resources]
    for name, load in index.loads.items():
        for resource, need in enumerate(load.needs if load.replicas else ()):
            models = [index.models[key] for key in index.keys[name]]
            shares = [Fraction(0)]
            if need:
                shares = [Fraction(model.price * need, model.size[resource]) for model in models]
            sums[resource] += load.replicas * min(shares, default=Fraction(0))
    return max((-(-total.numerator // total.denominator) for total in sums), default=0)


def _solution(index: ProblemIndex, solution: _CandidateSolution) -> Solution:
    allocations: list[ReplicaAllocation] = []
    for name, placed in solution.counts.items():
        for key, count in placed.items():
            if count:
                allocations.append(ReplicaAllocation(name, *key, count))
    unplaced = {
        name: load.replicas - sum(solution.counts[name].values()) for name, load in index.loads.items()
    }
    machines = with_minimums(index, solution.machines)
    moves, penalty = moves_and_penalty(index, solution.counts)
    return Solution(
        allocations=tuple(sorted(allocations)),
        machines=tuple(sorted(MachineCount(*key, count) for key, count in machines.items() if count)),
        cost=hourly_cost(index, machines),
        moves=moves,
        move_penalty=penalty,
        bound=0,
        status="greedy",
        unplaced={name: count for name, count in unplaced.items() if count},
    )
