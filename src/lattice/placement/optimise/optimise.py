"""The whole fleet at once: which services should move where, what that saves, and how far from the best it can be at most."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.optimise.apply_solution import apply_solution, count_moves, count_unpriced, targets
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

MOVE_COST_MICROS = 50_000  # micro-dollars for one replica that moves: some minutes of running twice
PAYBACK_HOURS = 720
OPTIMAL, PACKED, TIMED_OUT = "optimal", "packed", "time limit"


@dataclass(frozen=True, slots=True)
class OptimiserOptions:
    """`payback_hours`: what a move saves within them must be more than it costs."""

    max_moves: int | None = None
    payback_hours: int = PAYBACK_HOURS
    move_cost: int = MOVE_COST_MICROS
    time_limit_s: float = 10.0  # seconds for all of it
    gap: float = 0.0005  # what is near enough to the best, as a share of the cost

    @property
    def move_price(self) -> int:
        """Micro-dollars an hour that a move has to save, rounded up."""
        return -(-self.move_cost // self.payback_hours)

    @property
    def move_limit(self) -> int:
        return NO_LIMIT if self.max_moves is None else self.max_moves


@dataclass(frozen=True)
class FleetPlan:
    """Micro-dollars per hour. No arrangement without more machines of unknown price comes to less than `least`, its moves weighed in."""

    plan: Plan
    moves: int
    move_penalty: int  # what the moves weigh
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
        """What no arrangement that takes as many moves costs less than."""
        return max(0, self.lower_bound - self.move_penalty)

    @property
    def gap(self) -> float:
        """The part of the cost that might still be saved, 0 to 1."""
        return (self.rate_after - self.bound) / self.rate_after if self.rate_after > self.bound else 0.0


def optimise(
    settled: FleetState,
    effort: OptimiserOptions = OptimiserOptions(),  # noqa: B008
    clock: Clock = frozen_clock,
) -> FleetPlan:
    """Again from where it got to while that saves more: a better start may show the solver a way that it did not see."""
    deadline = Deadline.within(effort.time_limit_s, clock)
    first = found = _improve_once(settled, settled, effort, deadline)
    while (
        found.moves
        and found.plan.state_after is not None
        and not _is_within_gap(found.total, first.lower_bound, effort)
    ):
        if deadline.is_over:
            break
        more = _improve_once(settled, found.plan.state_after, effort, deadline)
        if more.total >= found.total:
            break
        found = replace(more, lower_bound=first.lower_bound)
    return _with_status(
        found,
        TIMED_OUT
        if deadline.is_over and not _is_within_gap(found.total, first.lower_bound, effort)
        else first.status,
        effort,
    )


def _is_within_gap(total: int, least: int, effort: OptimiserOptions) -> bool:
    return total - least <= effort.gap * total


def _with_status(found: FleetPlan, solved: str, effort: OptimiserOptions) -> FleetPlan:
    """The best of the numbers is not the best of the fleet if carrying it out came dearer."""
    if solved not in (OPTIMAL, PACKED):
        return replace(found, status=solved)
    return replace(
        found, status=OPTIMAL if _is_within_gap(found.total, found.lower_bound, effort) else PACKED
    )


def _improve_once(
    settled: FleetState, start: FleetState, effort: OptimiserOptions, deadline: Deadline
) -> FleetPlan:
    """Solved as numbers, then carried out on a copy of the fleet by the same functions that place; only what really saves is kept."""
    question = build_fleet_problem(start, effort.move_cost)
    left = None if effort.max_moves is None else effort.max_moves - count_moves(settled, start)
    program = replace(question.problem, payback_hours=effort.payback_hours, max_moves=left)
    outcome = solve(program, time_limit=deadline.fraction(SOLVER_SHARE), gap=effort.gap)
    bound = (cost_lower_bound(program, deadline.remaining_s) or 0) if outcome.unplaced else outcome.bound
    before = sum(settled.offer_rates.values())
    best, moves, cost = start, count_moves(settled, start), sum(start.offer_rates.values())
    for after in _candidate_states(settled, start, outcome, (effort, deadline)):
        found, price = count_moves(settled, after), sum(after.offer_rates.values())
        is_allowed = found <= effort.move_limit and count_unpriced(after) <= count_unpriced(start)
        if is_allowed and price + found * effort.move_price < cost + moves * effort.move_price:
            best, moves, cost = after, found, price
    weight = moves * effort.move_price
    return FleetPlan(
        compare(settled, best),
        moves,
        weight,
        before,
        cost,
        bound + question.fixed_rate,
        outcome.status,
        outcome.note,
    )


def _candidate_states(
    settled: FleetState, start: FleetState, outcome: Solution, work: tuple[OptimiserOptions, Deadline]
) -> Iterator[FleetState]:
    """As the numbers say, and without changes of class, which may come dearer than the numbers think; each with fewer machines, too."""
    effort, deadline = work
    for by_class in (True, False):
        if deadline.is_over:
            return
        after = apply_solution(start, targets(outcome.allocations, by_class=by_class), deadline)
        yield after
        if not deadline.is_over:
            yield consolidate(
                after,
                MoveBudget(effort.move_price, effort.move_limit - count_moves(settled, after)),
                deadline,
            )
