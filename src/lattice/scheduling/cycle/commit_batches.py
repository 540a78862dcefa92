"""Which bindings go into one commit, and which commits may be under way at once? Each node in one commit at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from lattice.scheduling.cycle.cycle import ScheduledWorkload

OPERATIONS_PER_BINDING = (
    2  # operations: the workload and its event; a node is one more, however many are bound to it
)
MAX_BINDINGS_PER_UNIT = 32  # bindings to one node that go together at most


@dataclass(frozen=True, slots=True)
class CommitLimits:
    max_operations: int = 100
    max_bytes: int = 900_000  # bytes: below the store's own limit, since nodes and events come on top


@dataclass(frozen=True, slots=True)
class BindUnit:
    """These stand or fall together if they are a gang, else with their node."""

    scheduled: tuple[ScheduledWorkload, ...]
    size_bytes: int
    nodes: frozenset[str] = field(default=frozenset())

    @property
    def operations(self) -> int:
        return OPERATIONS_PER_BINDING * len(self.scheduled) + len(self.nodes)

    def fits(self, limits: CommitLimits) -> bool:
        return self.operations <= limits.max_operations and self.size_bytes <= limits.max_bytes


def make_unit(placed: Sequence[ScheduledWorkload], size: int) -> BindUnit:
    return BindUnit(tuple(placed), size, frozenset(each.node for each in placed))


def node_units(
    placed: Iterable[ScheduledWorkload], size_of: dict[str, int], limits: CommitLimits
) -> Iterator[BindUnit]:
    """Those of no gang, by node, cut where they would be too many or too large for one commit."""
    for _, here in groupby(sorted(placed, key=lambda each: each.node), key=lambda each: each.node):
        part: list[ScheduledWorkload] = []
        size = 0
        for each in here:
            more = size_of[each.ask.name]
            if part and (len(part) == MAX_BINDINGS_PER_UNIT or size + more > limits.max_bytes):
                yield make_unit(part, size)
                part, size = [], 0
            part.append(each)
            size += more
        yield make_unit(part, size)


def pack_commit_batches(units: Iterable[BindUnit], limits: CommitLimits) -> list[list[list[BindUnit]]]:
    """Commits of each wave, none of which names a node twice over: a wave may be written all at once, one wave after the other."""
    made: list[list[list[BindUnit]]] = []
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
        if unit.operations > operations or unit.size_bytes > size:
            made[wave].append([])
            operations, size = limits.max_operations, limits.max_bytes
        made[wave][-1].append(unit)
        free[wave] = (operations - unit.operations, size - unit.size_bytes)
    return made
