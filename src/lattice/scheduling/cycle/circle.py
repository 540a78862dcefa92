"""A gang whose members need one another near: who is the first, when each waits for the next?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.cycle.gang import NoSeat, Seat, Together, take
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.plugins.filters.inter_workload_affinity import WorkloadAffinity

STARTS = 16  # places tried for the first of them


@dataclass(frozen=True, slots=True)
class Finding:
    """How a seat is found, and which rows are the best for one, best first."""

    seat: Callable[[WorkloadAsk], Seat | NoSeat]
    rows: Callable[[WorkloadAsk, int], Sequence[int]]


def leans(ask: WorkloadAsk, members: Sequence[WorkloadAsk], table: NodeTable) -> WorkloadAsk | None:
    """The same ask without the neighbours that others of its gang will be; None: it needs none of these."""
    if not ask.demands.near:
        return None
    others = {each.demands.labels: each for each in members if each.name != ask.name}.values()
    near = tuple(
        term for term in ask.demands.near if not any(term.selector.matches(other.labels) for other in others)
    )
    if len(near) == len(ask.demands.near):
        return None
    freer = table.asked(ask.name, replace(ask.demands, near=near), ask.priority)
    return replace(freer, group=ask.group, min_member=ask.min_member)


def seat_in_circle(
    members: Sequence[WorkloadAsk], least: int, table: NodeTable, finding: Finding
) -> Together | None:
    """One of them goes first and counts on the others, who follow as they can; in the end all must be near whom they need. None: no way."""
    for first in {each.shape: each for each in reversed(members)}.values():  # equals would fare no better
        freer = leans(first, members, table)
        for row in finding.rows(freer, STARTS) if freer else ():
            together = _follow(Seat(first, row), members, table, finding)
            if len(together.seats) >= max(1, least):
                return together
    return None


def _follow(first: Seat, members: Sequence[WorkloadAsk], table: NodeTable, finding: Finding) -> Together:
    """Rounds, because one may need another that is seated later. The table is as before when this returns."""
    seats, waiting = [first], [each for each in members if each.name != first.ask.name]
    refused: dict[str, NoSeat] = {}
    with table.what_if():
        if no_seat := take(first, table):
            return Together((), 0, (no_seat,))
        seated = 1
        while seated:
            seated = 0
            for ask in tuple(waiting):
                answer = finding.seat(ask)
                if isinstance(answer, Seat):
                    answer = take(answer, table) or answer
                if isinstance(answer, NoSeat):
                    refused[ask.name] = answer
                    continue
                seats.append(answer)
                waiting.remove(ask)
                refused.pop(ask.name, None)
                seated += 1
        kept = tuple(seats) if all(_is_near(seat, table) for seat in seats) else ()
    return Together(kept, len(seats), tuple(refused.values()))


def _is_near(seat: Seat, table: NodeTable) -> bool:
    return not any(mask[seat.row] for mask in WorkloadAffinity().filter(seat.ask, table).values())
