"""Optimise the placement of the whole fleet: the moves, the saving, and a proven gap to the cheapest
fleet."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.optimise.apply_solution import (
    apply_solution,
    count_moves,
    count_unpriced,
    replica_targets,
)
from lattice.placement.optimise.consolidate import MoveBudget, consolidate
from lattice.placement.optimise.fleet_problem import build_fleet_problem
from lattice.placement.optimise.problem import Solution
from lattice.placement.optimise.solve import (
    SOLVER_SHARE,
    Clock,
    Deadline,
    cost_lower_bound,
    frozen_clock,
    solve,
)
from lattice.placement.plan.plan import FleetState, Plan, compare

# The cost of moving one replica, in micro-dollars: the replica runs twice for some minutes.
MOVE_COST_MICROS = 50_000
PAYBACK_HOURS = 720
OPTIMAL, PACKED, TIMED_OUT = "optimal", "packed", "time limit"


@dataclass(frozen=True, slots=True)
class OptimiserOptions:
    """Limits and prices of an optimisation; within `payback_hours` a move must save more than it costs."""

    max_moves: int | None = None
    payback_hours: int = PAYBACK_HOURS
    # Micro-dollars.
    move_cost: int = MOVE_COST_MICROS
    time_limit_s: float = 10.0
    # The accepted distance to the lower bound, as a share of the cost.
    gap: float = 0.0005

    @property
    def move_price(self) -> int:
        """Micro-dollars per hour that a move has to save, rounded up."""
        return -(-self.move_cost // self.payback_hours)

    @property
    def move_limit(self) -> int:
        return NO_LIMIT if self.max_moves is None else self.max_moves


@dataclass(frozen=True)
class FleetPlan:
    """The optimised fleet with its costs, in micro-dollars per hour.

    `lower_bound` is a lower bound of the cost, with the price of the moves, of every fleet that has no
    additional machines of unknown price.
    """

    plan: Plan
    moves: int
    # The price of the moves, spread over the payback time.
    move_penalty: int
    rate_before: int
    rate_after: int
    lower_bound: int
    status: str
    note: str = ""

    @property
    def saving(self) -> int:
        return self.rate_before - self.rate_after

    @property
    def total(self) -> int:
        return self.rate_after + self.move_penalty

    @property
    def bound(self) -> int:
        """The lower bound of the cost of every fleet that takes the same number of moves."""
        return max(0, self.lower_bound - self.move_penalty)

    @property
    def gap(self) -> float:
        """The share of the cost that might still be saved, 0 to 1."""
        return (self.rate_after - self.bound) / self.rate_after if self.rate_after > self.bound else 0.0


def optimise(
    state: FleetState,
    options: OptimiserOptions = OptimiserOptions(),  # noqa: B008
    clock: Clock = frozen_clock,
) -> FleetPlan:
    """Improve the fleet step by step while a step saves money: the solver may find further savings from a
    better start."""
    deadline = Deadline.within(options.time_limit_s, clock)
    first = best = _improve_once(state, state, options, deadline)
    # Only the bound of the first step holds for the whole optimisation: later steps start from another fleet.
    while (
        best.moves
        and best.plan.state_after is not None
        and not _is_within_gap(best.total, first.lower_bound, options)
    ):
        if deadline.is_over:
            break
        improved = _improve_once(state, best.plan.state_after, options, deadline)
        if improved.total >= best.total:
            break
        best = replace(improved, lower_bound=first.lower_bound)
    is_within_gap = _is_within_gap(best.total, first.lower_bound, options)
    status = first.status
    if deadline.is_over and not is_within_gap:
        status = TIMED_OUT
    elif status in (OPTIMAL, PACKED):
        # The solver's solution may be optimal while the fleet after applying it is not within the gap of the
        # bound: the status of the plan is then "packed".
        status = OPTIMAL if _is_within_gap(best.total, best.lower_bound, options) else PACKED
    return replace(best, status=status)


def _is_within_gap(total: int, lower_bound: int, options: OptimiserOptions) -> bool:
    return total - lower_bound <= options.gap * total


def _improve_once(
    state: FleetState, start: FleetState, options: OptimiserOptions, deadline: Deadline
) -> FleetPlan:
    """Solve the problem once, apply the solution to a trial fleet by the rules of placement, and keep the
    cheapest allowed candidate."""
    fleet_problem = build_fleet_problem(start, options.move_cost)
    remaining_moves = None if options.max_moves is None else options.max_moves - count_moves(state, start)
    problem = replace(fleet_problem.problem, payback_hours=options.payback_hours, max_moves=remaining_moves)
    solution = solve(problem, time_limit=deadline.fraction(SOLVER_SHARE), gap=options.gap)
    bound = (cost_lower_bound(problem, deadline.remaining_s) or 0) if solution.unplaced else solution.bound
    rate_before = sum(state.offer_rates.values())
    best, moves, cost = start, count_moves(state, start), sum(start.offer_rates.values())
    for candidate in _candidate_states(state, start, solution, (options, deadline)):
        candidate_moves, candidate_cost = count_moves(state, candidate), sum(candidate.offer_rates.values())
        # Machines without a price would make a candidate look cheaper than it is.
        is_allowed = candidate_moves <= options.move_limit and count_unpriced(candidate) <= count_unpriced(
            start
        )
        if (
            is_allowed
            and candidate_cost + candidate_moves * options.move_price < cost + moves * options.move_price
        ):
            best, moves, cost = candidate, candidate_moves, candidate_cost
    penalty = moves * options.move_price
    return FleetPlan(
        compare(state, best),
        moves,
        penalty,
        rate_before,
        cost,
        bound + fleet_problem.fixed_rate,
        solution.status,
        solution.note,
    )


def _candidate_states(
    state: FleetState, start: FleetState, solution: Solution, limits: tuple[OptimiserOptions, Deadline]
) -> Iterator[FleetState]:
    """Yield the solution applied with and without changes of node class, and both also consolidated.

    A change of class may cost more than the solver expects, because the solver does not see every rule of
    placement.
    """
    options, deadline = limits
    for by_class in (True, False):
        if deadline.is_over:
            return
        candidate = apply_solution(start, replica_targets(solution.allocations, by_class=by_class), deadline)
        yield candidate
        if not deadline.is_over:
            yield consolidate(
                candidate,
                MoveBudget(options.move_price, options.move_limit - count_moves(state, candidate)),
                deadline,
            )
