"""Do enough members of a group fit at once? All or nothing."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from lattice.errors import Conflict
from lattice.scheduling.plugins.cluster_events import ALL_EVENTS
from lattice.scheduling.plugins.filters.inter_workload_affinity import WorkloadAffinity
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable, Placement

MAX_START_NODES = 16  # places tried for the first of them


@dataclass(frozen=True, slots=True)
class Assignment:
    """A place for a workload, and who must leave it first."""

    ask: WorkloadAsk
    row: int
    score: float | None = None  # 0..100; None: others have to make way first
    victims: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class NoFeasibleNode:
    """Why there is none, and which changes could help."""

    ask: WorkloadAsk
    reason: str
    wakes_on: frozenset[Hashable] = frozenset()
    reason_kinds: tuple[str, ...] = ()  # of its reasons, without counts and amounts


@dataclass(frozen=True, slots=True)
class GangAssignment:
    """`seats` are for at least as many as needed, or there are none; `fitting` would have fitted either way."""

    assignments: tuple[Assignment, ...]
    fitting_count: int
    rejections: tuple[
        NoFeasibleNode, ...
    ]  # the members without a seat that have a reason of their own, first come first


def assign_gang(
    members: Sequence[WorkloadAsk],
    least: int,
    table: NodeTable,
    find: Callable[[WorkloadAsk], Assignment | NoFeasibleNode],
) -> GangAssignment:
    """Try them one after the other, each as if those before were there; the table is as before when this returns."""
    seats: list[Assignment] = []
    refused: list[NoFeasibleNode] = []
    with table.what_if():
        for ask in members:
            last = refused[-1] if refused else None
            answer = replace(last, ask=ask) if last and _is_equivalent(last.ask, ask) else find(ask)
            if isinstance(answer, NoFeasibleNode):
                refused.append(answer)
            elif no_room := assume_assignment(answer, table):
                refused.append(no_room)
            else:
                seats.append(answer)
    enough = len(seats) >= max(1, least)
    return GangAssignment(tuple(seats) if enough else (), len(seats), tuple(refused))


def _is_equivalent(one: WorkloadAsk, other: WorkloadAsk) -> bool:
    """Who may be made to leave for it depends on its priority, too."""
    return (one.shape, one.priority) == (other.shape, other.priority)


def assume_assignment(seat: Assignment, table: NodeTable) -> NoFeasibleNode | None:
    """None: it is taken. Else whoever found the seat let through what does not fit by number, and everything is as it was."""
    forget_victims(seat, table)
    try:
        table.assume(seat.ask, seat.row)
    except Conflict as problem:
        for victim in seat.victims:
            table.restore(victim)
        return NoFeasibleNode(seat.ask, problem.message, ALL_EVENTS, (problem.message,))
    return None


def forget_victims(seat: Assignment, table: NodeTable) -> None:
    for victim in seat.victims:
        table.forget(victim.ask.name)


@dataclass(frozen=True, slots=True)
class AssignmentFinder:
    """How a seat is found, and which rows are the best for one, best first."""

    find: Callable[[WorkloadAsk], Assignment | NoFeasibleNode]
    best_rows: Callable[[WorkloadAsk, int], Sequence[int]]


def without_gang_affinity(
    ask: WorkloadAsk, members: Sequence[WorkloadAsk], table: NodeTable
) -> WorkloadAsk | None:
    """The same ask without the neighbours that others of its gang will be; None: it needs none of these."""
    if not ask.demands.near:
        return None
    others = {each.demands.labels: each for each in members if each.name != ask.name}.values()
    near = tuple(
        term for term in ask.demands.near if not any(term.selector.matches(other.labels) for other in others)
    )
    if len(near) == len(ask.demands.near):
        return None
    freer = table.make_ask(ask.name, replace(ask.demands, near=near), ask.priority)
    return replace(freer, group=ask.group, min_member=ask.min_member)


def assign_cyclic_gang(
    members: Sequence[WorkloadAsk], least: int, table: NodeTable, finding: AssignmentFinder
) -> GangAssignment | None:
    """One of them goes first and counts on the others, who follow as they can; in the end all must be near whom they need. None: no way."""
    for first in {each.shape: each for each in reversed(members)}.values():  # equals would fare no better
        freer = without_gang_affinity(first, members, table)
        for row in finding.best_rows(freer, MAX_START_NODES) if freer else ():
            together = _assign_after_first(Assignment(first, row), members, table, finding)
            if len(together.assignments) >= max(1, least):
                return together
    return None


def _assign_after_first(
    first: Assignment, members: Sequence[WorkloadAsk], table: NodeTable, finding: AssignmentFinder
) -> GangAssignment:
    """Rounds, because one may need another that is seated later. The table is as before when this returns."""
    seats, waiting = [first], [each for each in members if each.name != first.ask.name]
    refused: dict[str, NoFeasibleNode] = {}
    with table.what_if():
        if no_seat := assume_assignment(first, table):
            return GangAssignment((), 0, (no_seat,))
        seated = 1
        while seated:
            seated = 0
            for ask in tuple(waiting):
                answer = finding.find(ask)
                if isinstance(answer, Assignment):
                    answer = assume_assignment(answer, table) or answer
                if isinstance(answer, NoFeasibleNode):
                    refused[ask.name] = answer
                    continue
                seats.append(answer)
                waiting.remove(ask)
                refused.pop(ask.name, None)
                seated += 1
        kept = tuple(seats) if all(_meets_affinity(seat, table) for seat in seats) else ()
    return GangAssignment(kept, len(seats), tuple(refused.values()))


def _meets_affinity(seat: Assignment, table: NodeTable) -> bool:
    return not any(mask[seat.row] for mask in WorkloadAffinity().filter(seat.ask, table).values())
