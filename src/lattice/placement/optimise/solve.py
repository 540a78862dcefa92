"""What is the cheapest way to place all loads, and how far from the cheapest can the answer be at most?

A greedy answer comes first and always; the solver (HiGHS) starts from the best one, improves it and proves a bound. Equal programs get
equal answers, in whatever order they list things, as long as the solver is not stopped by its time limit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from lattice.placement.optimise.deadline import Deadline, stopped
from lattice.placement.optimise.greedy_start import Wish, guess, wish_to_stay
from lattice.placement.optimise.highs import NoSolver, Solved, relaxed, whole
from lattice.placement.optimise.bin_packing import (
    Counts,
    Index,
    Key,
    broken,
    broken_rules,
    broken_supply,
    cost_of,
    index,
    moves_of,
    moving_of,
    packed,
    too_far,
    with_least,
)
from lattice.placement.optimise.lp_matrix import Column, Matrix, build
from lattice.placement.optimise.problem import Fill, Outcome, Program, Share, Status
from lattice.placement.optimise.grouping import merge, split

NEARLY = 1e-6  # below a whole number: counts as that number


@dataclass(frozen=True, slots=True)
class _Answer:
    counts: Counts
    machines: Mapping[Key, int]  # that replicas are on
    missing: int
    total: int


def solve(
    program: Program, start: Wish | None = None, *, time_limit: float | Deadline = 10.0, gap: float = 1e-4
) -> Outcome:
    """`start`: where replicas might go, by load and (source, model); a hint. `gap`: what is good enough, as a share of the total."""
    deadline = time_limit if isinstance(time_limit, Deadline) else Deadline.within(time_limit, stopped)
    everything = index(program)
    merged = merge(everything)
    world = index(merged.program)
    best = min(_first_answers(world, start, deadline), key=_rank)
    bound, finished, note = 0, False, ""
    try:
        if best.missing:
            best = _leave_out_fewest(world, best, deadline.left)
        world = _asking_for(world, best.counts)
        best, bound, finished = _improve(world, replace(best, missing=0), deadline, gap)
    except NoSolver as why:
        world, note = _asking_for(world, best.counts), str(why)
    counts = split(merged, best.counts)
    final = _undo_moves(_asking_for(everything, counts), replace(best, counts=counts))
    bound = max(bound, _simple_bound(world))
    status: Status = "packed" if finished else "time limit"
    if note:
        status = "greedy"
    elif final.total - bound <= gap * final.total:
        status = "optimal"
    return replace(_outcome(everything, final), bound=bound, status=status, note=note)


def relax(program: Program, seconds: float = 10.0) -> int | None:
    """What no answer can cost less than, with fractions of machines and replicas allowed; None if no answer keeps every rule."""
    world = index(merge(index(program)).program)
    try:
        bound = relaxed(build(world), seconds).bound
    except NoSolver:
        return _simple_bound(world)
    return None if bound is None else max(bound, _simple_bound(world))


def _first_answers(world: Index, start: Wish | None, deadline: Deadline) -> Iterator[_Answer]:
    """At worst, nothing is placed; staying is looked at in any case."""
    yield _Answer(
        {name: {} for name in world.loads}, {}, sum(load.replicas for load in world.loads.values()), 0
    )
    yield from _answer(world, wish_to_stay(world))
    for wish in (start or {}, {}):
        if not deadline.is_over:
            yield from _answer(world, wish)


def _answer(world: Index, wish: Wish) -> Iterator[_Answer]:
    """What comes of a wish, if it keeps every rule."""
    counts, opened = guess(world, wish)
    machines = {key: min(count, opened[key]) for key, count in packed(world, counts).items()}
    paid = with_least(world, machines)
    if not broken(world, counts, paid):
        missing = sum(load.replicas for load in world.loads.values()) - sum(
            sum(placed.values()) for placed in counts.values()
        )
        yield _Answer(counts, machines, missing, cost_of(world, paid) + moving_of(world, counts)[1])


def _rank(answer: _Answer) -> tuple[object, ...]:
    return (
        answer.missing,
        answer.total,
        sorted((name, sorted(placed.items())) for name, placed in answer.counts.items()),
    )


def _leave_out_fewest(world: Index, best: _Answer, seconds: float) -> _Answer:
    solved = whole(build(world, leave_out=True), seconds)
    return min([best, *_answer(world, _wish(solved))], key=_rank)


def _asking_for(world: Index, counts: Counts) -> Index:
    """The same question, about the replicas that are placed."""
    loads = tuple(replace(load, replicas=sum(counts[name].values())) for name, load in world.loads.items())
    return index(replace(world.program, loads=loads))


def _improve(world: Index, best: _Answer, deadline: Deadline, gap: float) -> tuple[_Answer, int, bool]:
    if deadline.is_over:
        return best, 0, False
    matrix = build(world)
    solved = relaxed(matrix, deadline.left)
    bound = solved.bound or 0
    best = min([best, *_complete(world, solved)], key=_rank)
    if best.total - bound <= gap * best.total:
        return best, bound, True
    solved = whole(matrix, deadline.left, gap, _columns(world, matrix, best))
    return min([best, *_complete(world, solved)], key=_rank), max(bound, solved.bound or 0), solved.finished


def _complete(world: Index, solved: Solved) -> list[_Answer]:
    return [answer for answer in _answer(world, _wish(solved)) if not answer.missing] if solved.values else []


def _wish(solved: Solved) -> dict[str, dict[Key, int]]:
    """The whole replicas of the solver's answer."""
    wish: dict[str, dict[Key, int]] = {}
    for column, value in solved.values.items():
        if column[0] == "x" and (count := int(value + NEARLY)):
            wish.setdefault(column[1], {})[(column[2], column[3])] = count
    return wish


def _columns(world: Index, matrix: Matrix, answer: _Answer) -> dict[Column, int] | None:
    """The answer in the solver's terms; None if it uses a model that the matrix leaves aside."""
    machines = with_least(world, answer.machines)
    values: dict[Column, int] = {
        ("n", *key): count for key, count in machines.items() if ("n", *key) in matrix.most
    }
    for source, least in ((each, least) for each in world.sources.values() for least in each.least):
        keys = [(source.name, model) for model in least.models]
        values |= {
            ("b", *key): int(any(machines.get(each) for each in keys))
            for key in keys
            if ("b", *key) in matrix.most
        }
    for name, placed in answer.counts.items():
        for key, count in placed.items():
            values[("x", name, *key)] = count
            if ("y", name, region := world.sources[key[0]].region) in matrix.most:
                values[("y", name, region)] = 1
        for key, count in world.loads[name].current.items():
            if ("m", name, *key) in matrix.most:
                values[("m", name, *key)] = max(0, count - placed.get(key, 0))
    return values if all(column in matrix.most for column in values) else None


def _undo_moves(world: Index, answer: _Answer) -> _Answer:
    """Takes back each load's moves that do not pay for themselves, which a solver that was stopped early may leave."""
    stay, moving = wish_to_stay(world), moving_of(world, answer.counts)[1]
    for name, load in world.loads.items():
        placed, back = answer.counts[name], stay.get(name, {})
        moves = moves_of(load, world.keys[name], placed)
        counts = answer.counts | {name: back}
        if (
            not moves
            or sum(back.values()) != load.replicas
            or any(broken_rules(world, load, back))
            or any(too_far(world, counts))
        ):
            continue
        less = world.program.move_price(load) * (moves - moves_of(load, world.keys[name], back))
        touched = {*placed, *back}
        machines = {key: count for key, count in answer.machines.items() if key not in touched} | packed(
            world, counts, touched
        )
        paid = with_least(world, machines)
        total = cost_of(world, paid) + moving - less
        if total <= answer.total and not any(broken_supply(world, paid)):
            answer, moving = replace(answer, counts=counts, machines=machines, total=total), moving - less
    return answer


def _simple_bound(world: Index) -> int:
    """Each replica alone pays for its part of the cheapest machine, in whichever resource that comes to most."""
    sums = [Fraction(0) for _ in world.program.resources]
    for name, load in world.loads.items():
        for resource, need in enumerate(load.needs if load.replicas else ()):
            models = [world.models[key] for key in world.keys[name]]
            parts = [
                Fraction(model.price * need, model.size[resource]) if need else Fraction(0)
                for model in models
            ]
            sums[resource] += load.replicas * min(parts, default=Fraction(0))
    return max((-(-total.numerator // total.denominator) for total in sums), default=0)


def _outcome(world: Index, answer: _Answer) -> Outcome:
    shares = (
        Share(name, *key, count)
        for name, placed in answer.counts.items()
        for key, count in placed.items()
        if count
    )
    left = {name: load.replicas - sum(answer.counts[name].values()) for name, load in world.loads.items()}
    machines = with_least(world, answer.machines)
    moves, moving = moving_of(world, answer.counts)
    return Outcome(
        shares=tuple(sorted(shares)),
        machines=tuple(sorted(Fill(*key, count) for key, count in machines.items() if count)),
        cost=cost_of(world, machines),
        moves=moves,
        moving=moving,
        bound=0,
        status="greedy",
        left_out={name: count for name, count in left.items() if count},
    )
