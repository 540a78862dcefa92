"""What is the cheapest way to place all loads, and how far from the cheapest can the answer be at most?

A greedy answer comes first and always; the solver (HiGHS) starts from the best one, improves it and proves a bound. Equal programs get
equal answers, in whatever order they list things, as long as the solver is not stopped by its time limit.
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

Clock = Callable[[], float]  # seconds that only grow
SOLVER_SHARE = 0.6  # of what is left: the rest is for carrying out what it found


INTEGER_TOLERANCE = 1e-6  # below a whole number: counts as that number


def frozen_clock() -> float:
    """The clock of who has none: only the solver's own limit holds then."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """Asked between steps: what has begun is finished."""

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
        """So much of what is left."""
        now = self.clock()
        return Deadline(now + share * max(0.0, self.expires_at - now), self.clock)


@dataclass(frozen=True, slots=True)
class _CandidateSolution:
    counts: ReplicaCounts
    machines: Mapping[ModelKey, int]  # that replicas are on
    unplaced: int
    total: int


def solve(
    program: PlacementProblem,
    hint: PlacementHint | None = None,
    *,
    time_limit: float | Deadline = 10.0,
    gap: float = 1e-4,
) -> Solution:
    """`start`: where replicas might go, by load and (source, model); a hint. `gap`: what is good enough, as a share of the total."""
    deadline = time_limit if isinstance(time_limit, Deadline) else Deadline.within(time_limit, frozen_clock)
    everything = index_problem(program)
    merged = merge_loads(everything)
    world = index_problem(merged.problem)
    best = min(_initial_solutions(world, hint, deadline), key=_rank)
    bound, finished, note = 0, False, ""
    try:
        if best.unplaced:
            best = _place_most(world, best, deadline.remaining_s)
        world = _restrict_to_placed(world, best.counts)
        best, bound, finished = _improve(world, replace(best, unplaced=0), deadline, gap)
    except SolverUnavailable as why:
        world, note = _restrict_to_placed(world, best.counts), str(why)
    counts = split_counts(merged, best.counts)
    final = _undo_moves(_restrict_to_placed(everything, counts), replace(best, counts=counts))
    bound = max(bound, _simple_bound(world))
    status: SolverStatus = "packed" if finished else "time limit"
    if note:
        status = "greedy"
    elif final.total - bound <= gap * final.total:
        status = "optimal"
    return replace(_solution(everything, final), bound=bound, status=status, note=note)


def cost_lower_bound(program: PlacementProblem, seconds: float = 10.0) -> int | None:
    """What no answer can cost less than, with fractions of machines and replicas allowed; None if no answer keeps every rule."""
    world = index_problem(merge_loads(index_problem(program)).problem)
    try:
        bound = solve_relaxed(build_matrix(world), seconds).bound
    except SolverUnavailable:
        return _simple_bound(world)
    return None if bound is None else max(bound, _simple_bound(world))


def _initial_solutions(
    world: ProblemIndex, start: PlacementHint | None, deadline: Deadline
) -> Iterator[_CandidateSolution]:
    """At worst, nothing is placed; staying is looked at in any case."""
    yield _CandidateSolution(
        {name: {} for name in world.loads}, {}, sum(load.replicas for load in world.loads.values()), 0
    )
    yield from _solutions_from_hint(world, stay_hint(world))
    for wish in (start or {}, {}):
        if not deadline.is_over:
            yield from _solutions_from_hint(world, wish)


def _solutions_from_hint(world: ProblemIndex, wish: PlacementHint) -> Iterator[_CandidateSolution]:
    """What comes of a wish, if it keeps every rule."""
    counts, opened = greedy_solution(world, wish)
    machines = {key: min(count, opened[key]) for key, count in machines_needed(world, counts).items()}
    paid = with_minimums(world, machines)
    if not violations(world, counts, paid):
        missing = sum(load.replicas for load in world.loads.values()) - sum(
            sum(placed.values()) for placed in counts.values()
        )
        yield _CandidateSolution(
            counts, machines, missing, hourly_cost(world, paid) + moves_and_penalty(world, counts)[1]
        )


def _rank(answer: _CandidateSolution) -> tuple[object, ...]:
    return (
        answer.unplaced,
        answer.total,
        sorted((name, sorted(placed.items())) for name, placed in answer.counts.items()),
    )


def _place_most(world: ProblemIndex, best: _CandidateSolution, seconds: float) -> _CandidateSolution:
    solved = solve_integer(build_matrix(world, allow_unplaced=True), seconds)
    return min([best, *_solutions_from_hint(world, _hint_from_result(solved))], key=_rank)


def _restrict_to_placed(world: ProblemIndex, counts: ReplicaCounts) -> ProblemIndex:
    """The same question, about the replicas that are placed."""
    loads = tuple(replace(load, replicas=sum(counts[name].values())) for name, load in world.loads.items())
    return index_problem(replace(world.problem, loads=loads))


def _improve(
    world: ProblemIndex, best: _CandidateSolution, deadline: Deadline, gap: float
) -> tuple[_CandidateSolution, int, bool]:
    if deadline.is_over:
        return best, 0, False
    matrix = build_matrix(world)
    solved = solve_relaxed(matrix, deadline.remaining_s)
    bound = solved.bound or 0
    best = min([best, *_complete_solutions(world, solved)], key=_rank)
    if best.total - bound <= gap * best.total:
        return best, bound, True
    solved = solve_integer(matrix, deadline.remaining_s, gap, _columns(world, matrix, best))
    return (
        min([best, *_complete_solutions(world, solved)], key=_rank),
        max(bound, solved.bound or 0),
        solved.finished,
    )


def _complete_solutions(world: ProblemIndex, solved: SolverResult) -> list[_CandidateSolution]:
    return (
        [answer for answer in _solutions_from_hint(world, _hint_from_result(solved)) if not answer.unplaced]
        if solved.values
        else []
    )


def _hint_from_result(solved: SolverResult) -> dict[str, dict[ModelKey, int]]:
    """The whole replicas of the solver's answer."""
    wish: dict[str, dict[ModelKey, int]] = {}
    for column, value in solved.values.items():
        if column[0] == "x" and (count := int(value + INTEGER_TOLERANCE)):
            wish.setdefault(column[1], {})[(column[2], column[3])] = count
    return wish


def _columns(world: ProblemIndex, matrix: Matrix, answer: _CandidateSolution) -> dict[Column, int] | None:
    """The answer in the solver's terms; None if it uses a model that the matrix leaves aside."""
    machines = with_minimums(world, answer.machines)
    values: dict[Column, int] = {
        ("n", *key): count for key, count in machines.items() if ("n", *key) in matrix.upper_bounds
    }
    for source, least in ((each, least) for each in world.sources.values() for least in each.minimums):
        keys = [(source.name, model) for model in least.models]
        values |= {
            ("b", *key): int(any(machines.get(each) for each in keys))
            for key in keys
            if ("b", *key) in matrix.upper_bounds
        }
    for name, placed in answer.counts.items():
        for key, count in placed.items():
            values[("x", name, *key)] = count
            if ("y", name, region := world.sources[key[0]].region) in matrix.upper_bounds:
                values[("y", name, region)] = 1
        for key, count in world.loads[name].current_counts.items():
            if ("m", name, *key) in matrix.upper_bounds:
                values[("m", name, *key)] = max(0, count - placed.get(key, 0))
    return values if all(column in matrix.upper_bounds for column in values) else None


def _undo_moves(world: ProblemIndex, answer: _CandidateSolution) -> _CandidateSolution:
    """Takes back each load's moves that do not pay for themselves, which a solver that was stopped early may leave."""
    stay, moving = stay_hint(world), moves_and_penalty(world, answer.counts)[1]
    for name, load in world.loads.items():
        placed, back = answer.counts[name], stay.get(name, {})
        moves = count_load_moves(load, world.keys[name], placed)
        counts = answer.counts | {name: back}
        if (
            not moves
            or sum(back.values()) != load.replicas
            or any(load_violations(world, load, back))
            or any(proximity_violations(world, counts))
        ):
            continue
        less = world.problem.move_price(load) * (moves - count_load_moves(load, world.keys[name], back))
        touched = {*placed, *back}
        machines = {
            key: count for key, count in answer.machines.items() if key not in touched
        } | machines_needed(world, counts, touched)
        paid = with_minimums(world, machines)
        total = hourly_cost(world, paid) + moving - less
        if total <= answer.total and not any(supply_violations(world, paid)):
            answer, moving = replace(answer, counts=counts, machines=machines, total=total), moving - less
    return answer


def _simple_bound(world: ProblemIndex) -> int:
    """Each replica alone pays for its part of the cheapest machine, in whichever resource that comes to most."""
    sums = [Fraction(0) for _ in world.problem.resources]
    for name, load in world.loads.items():
        for resource, need in enumerate(load.needs if load.replicas else ()):
            models = [world.models[key] for key in world.keys[name]]
            parts = [
                Fraction(model.price * need, model.size[resource]) if need else Fraction(0)
                for model in models
            ]
            sums[resource] += load.replicas * min(parts, default=Fraction(0))
    return max((-(-total.numerator // total.denominator) for total in sums), default=0)


def _solution(world: ProblemIndex, answer: _CandidateSolution) -> Solution:
    shares = (
        ReplicaAllocation(name, *key, count)
        for name, placed in answer.counts.items()
        for key, count in placed.items()
        if count
    )
    left = {name: load.replicas - sum(answer.counts[name].values()) for name, load in world.loads.items()}
    machines = with_minimums(world, answer.machines)
    moves, moving = moves_and_penalty(world, answer.counts)
    return Solution(
        allocations=tuple(sorted(shares)),
        machines=tuple(sorted(MachineCount(*key, count) for key, count in machines.items() if count)),
        cost=hourly_cost(world, machines),
        moves=moves,
        move_penalty=moving,
        bound=0,
        status="greedy",
        unplaced={name: count for name, count in left.items() if count},
    )
