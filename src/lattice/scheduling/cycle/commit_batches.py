"""Which bindings go into one commit, and which commits may be under way at once? Each node in one commit at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from lattice.scheduling.cycle.cycle import Placed

PER_BINDING = 2  # operations: the workload and its event; a node is one more, however many are bound to it
SINGLES = 32  # bindings to one node that go together at most


@dataclass(frozen=True, slots=True)
class Limits:
    operations: int = 100
    size: int = 900_000  # bytes: below the store's own limit, since nodes and events come on top


@dataclass(frozen=True, slots=True)
class Unit:
    """These stand or fall together if they are a gang, else with their node."""

    placed: tuple[Placed, ...]
    size: int
    nodes: frozenset[str] = field(default=frozenset())

    @property
    def operations(self) -> int:
        return PER_BINDING * len(self.placed) + len(self.nodes)

    def fits(self, limits: Limits) -> bool:
        return self.operations <= limits.operations and self.size <= limits.size


def a_unit(placed: Sequence[Placed], size: int) -> Unit:
    return Unit(tuple(placed), size, frozenset(each.node for each in placed))


def singles(placed: Iterable[Placed], size_of: dict[str, int], limits: Limits) -> Iterator[Unit]:
    """Those of no gang, by node, cut where they would be too many or too large for one commit."""
    for _, here in groupby(sorted(placed, key=lambda each: each.node), key=lambda each: each.node):
        part: list[Placed] = []
        size = 0
        for each in here:
            more = size_of[each.ask.name]
            if part and (len(part) == SINGLES or size + more > limits.size):
                yield a_unit(part, size)
                part, size = [], 0
            part.append(each)
            size += more
        yield a_unit(part, size)


def waves(units: Iterable[Unit], limits: Limits) -> list[list[list[Unit]]]:
    """Commits of each wave, none of which names a node twice over: a wave may be written all at once, one wave after the other."""
    made: list[list[list[Unit]]] = []
    free: list[tuple[int, int]] = []  # of the last commit of each wave, operations and bytes left
    turn: dict[str, int] = {}  # the wave in which a node may be written next
    for unit in units:
        wave = max([turn.get(node, 0) for node in unit.nodes], default=0)
        for node in unit.nodes:
            turn[node] = wave + 1
        if wave == len(made):
            made.append([])
            free.append((0, 0))
        operations, size = free[wave]
        if unit.operations > operations or unit.size > size:
            made[wave].append([])
            operations, size = limits.operations, limits.size
        made[wave][-1].append(unit)
        free[wave] = (operations - unit.operations, size - unit.size)
    return made
