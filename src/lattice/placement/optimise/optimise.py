"""The whole fleet at once: which services should move where, what that saves, and how far from the best it can be at most."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lattice.placement.optimise.apply_solution import carried_out, moved, targets, unpriced
from lattice.placement.optimise.consolidate import Allowance, compacted
from lattice.placement.optimise.deadline import SOLVER_SHARE, Clock, Deadline, stopped
from lattice.placement.optimise.fleet_problem import question_of
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.plan.plan import Plan, Settled, compare
from lattice.placement.optimise.problem import Outcome
from lattice.placement.optimise.solve import relax, solve

MOVE_COST = 50_000  # micro-dollars for one replica that moves: some minutes of running twice
PAYBACK_HOURS = 720
OPTIMAL, PACKED, LATE = "optimal", "packed", "time limit"


@dataclass(frozen=True, slots=True)
class Effort:
    """`payback_hours`: what a move saves within them must be more than it costs."""

    max_moves: int | None = None
    payback_hours: int = PAYBACK_HOURS
    move_cost: int = MOVE_COST
    time_limit: float = 10.0  # seconds for all of it
    gap: float = 0.0005  # what is near enough to the best, as a share of the cost

    @property
    def move_price(self) -> int:
        """Micro-dollars an hour that a move has to save, rounded up."""
        return -(-self.move_cost // self.payback_hours)

    @property
    def most_moves(self) -> int:
        return NO_LIMIT if self.max_moves is None else self.max_moves


@dataclass(frozen=True)
class FleetPlan:
    """Micro-dollars per hour. No arrangement without more machines of unknown price comes to less than `least`, its moves weighed in."""

    plan: Plan
    moves: int
    moving: int  # what the moves weigh
    before: int
    after: int
    least: int
    status: str
    note: str = ""

    @property
    def saving(self) -> int:
        return self.before - self.after

    @property
    def total(self) -> int:
        return self.after + self.moving

    @property
    def bound(self) -> int:
        """What no arrangement that takes as many moves costs less than."""
        return max(0, self.least - self.moving)

    @property
    def gap(self) -> float:
        """The part of the cost that might still be saved, 0 to 1."""
        return (self.after - self.bound) / self.after if self.after > self.bound else 0.0


def optimise(settled: Settled, effort: Effort = Effort(), clock: Clock = stopped) -> FleetPlan:  # noqa: B008
    """Again from where it got to while that saves more: a better start may show the solver a way that it did not see."""
    deadline = Deadline.within(effort.time_limit, clock)
    first = found = _improved(settled, settled, effort, deadline)
    while found.moves and found.plan.after is not None and not _is_enough(found.total, first.least, effort):
        if deadline.is_over:
            break
        more = _improved(settled, found.plan.after, effort, deadline)
        if more.total >= found.total:
            break
        found = replace(more, least=first.least)
    return _with_status(
        found,
        LATE if deadline.is_over and not _is_enough(found.total, first.least, effort) else first.status,
        effort,
    )


def _is_enough(total: int, least: int, effort: Effort) -> bool:
    return total - least <= effort.gap * total


def _with_status(found: FleetPlan, solved: str, effort: Effort) -> FleetPlan:
    """The best of the numbers is not the best of the fleet if carrying it out came dearer."""
    if solved not in (OPTIMAL, PACKED):
        return replace(found, status=solved)
    return replace(found, status=OPTIMAL if _is_enough(found.total, found.least, effort) else PACKED)


def _improved(settled: Settled, start: Settled, effort: Effort, deadline: Deadline) -> FleetPlan:
    """Solved as numbers, then carried out on a copy of the fleet by the same functions that place; only what really saves is kept."""
    question = question_of(start, effort.move_cost)
    left = None if effort.max_moves is None else effort.max_moves - moved(settled, start)
    program = replace(question.program, payback_hours=effort.payback_hours, most_moves=left)
    outcome = solve(program, time_limit=deadline.part(SOLVER_SHARE), gap=effort.gap)
    bound = (relax(program, deadline.left) or 0) if outcome.left_out else outcome.bound
    before = sum(settled.rates.values())
    best, moves, cost = start, moved(settled, start), sum(start.rates.values())
    for after in _candidates(settled, start, outcome, (effort, deadline)):
        found, price = moved(settled, after), sum(after.rates.values())
        is_allowed = found <= effort.most_moves and unpriced(after) <= unpriced(start)
        if is_allowed and price + found * effort.move_price < cost + moves * effort.move_price:
            best, moves, cost = after, found, price
    weight = moves * effort.move_price
    return FleetPlan(
        compare(settled, best),
        moves,
        weight,
        before,
        cost,
        bound + question.staying,
        outcome.status,
        outcome.note,
    )


def _candidates(
    settled: Settled, start: Settled, outcome: Outcome, work: tuple[Effort, Deadline]
) -> Iterator[Settled]:
    """As the numbers say, and without changes of class, which may come dearer than the numbers think; each with fewer machines, too."""
    effort, deadline = work
    for by_class in (True, False):
        if deadline.is_over:
            return
        after = carried_out(start, targets(outcome.shares, by_class=by_class), deadline)
        yield after
        if not deadline.is_over:
            yield compacted(
                after, Allowance(effort.move_price, effort.most_moves - moved(settled, after)), deadline
            )
