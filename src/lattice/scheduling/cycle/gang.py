"""Do enough members of a group fit at once? All or nothing."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from lattice.errors import Conflict
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.plugins.cluster_events import ANYTHING
from lattice.scheduling.table.node_table import NodeTable, Placement


@dataclass(frozen=True, slots=True)
class Seat:
    """A place for a workload, and who must leave it first."""

    ask: WorkloadAsk
    row: int
    score: float | None = None  # 0..100; None: others have to make way first
    victims: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class NoSeat:
    """Why there is none, and which changes could help."""

    ask: WorkloadAsk
    why: str
    wakes_on: frozenset[Hashable] = frozenset()
    kinds: tuple[str, ...] = ()  # of its reasons, without counts and amounts


@dataclass(frozen=True, slots=True)
class Together:
    """`seats` are for at least as many as needed, or there are none; `fitting` would have fitted either way."""

    seats: tuple[Seat, ...]
    fitting: int
    refused: tuple[
        NoSeat, ...
    ]  # the members without a seat that have a reason of their own, first come first


def seat_together(
    members: Sequence[WorkloadAsk], least: int, table: NodeTable, find: Callable[[WorkloadAsk], Seat | NoSeat]
) -> Together:
    """Try them one after the other, each as if those before were there; the table is as before when this returns."""
    seats: list[Seat] = []
    refused: list[NoSeat] = []
    with table.what_if():
        for ask in members:
            last = refused[-1] if refused else None
            answer = replace(last, ask=ask) if last and _is_like(last.ask, ask) else find(ask)
            if isinstance(answer, NoSeat):
                refused.append(answer)
            elif no_room := take(answer, table):
                refused.append(no_room)
            else:
                seats.append(answer)
    enough = len(seats) >= max(1, least)
    return Together(tuple(seats) if enough else (), len(seats), tuple(refused))


def _is_like(one: WorkloadAsk, other: WorkloadAsk) -> bool:
    """Who may be made to leave for it depends on its priority, too."""
    return (one.shape, one.priority) == (other.shape, other.priority)


def take(seat: Seat, table: NodeTable) -> NoSeat | None:
    """None: it is taken. Else whoever found the seat let through what does not fit by number, and everything is as it was."""
    make_way(seat, table)
    try:
        table.assume(seat.ask, seat.row)
    except Conflict as problem:
        for victim in seat.victims:
            table.restore(victim)
        return NoSeat(seat.ask, problem.what, ANYTHING, (problem.what,))
    return None


def make_way(seat: Seat, table: NodeTable) -> None:
    for victim in seat.victims:
        table.forget(victim.ask.name)
