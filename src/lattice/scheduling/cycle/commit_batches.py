"""Commit batches: group bindings into commits, and commits into waves in which every node is written once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from lattice.scheduling.cycle.cycle import ScheduledWorkload

OPERATIONS_PER_BINDING = (
    2  # the workload and its event; a node is one more, whatever the number of its bindings
)
MAX_BINDINGS_PER_UNIT = 32


@dataclass(frozen=True, slots=True)
class CommitLimits:
    max_operations: int = 100
    max_bytes: int = 900_000  # below the limit of the store: nodes and events come on top


@dataclass(frozen=True, slots=True)
class BindUnit:
    """Bindings that are written together: the members of a gang, or the bindings to one node."""

    scheduled: tuple[ScheduledWorkload, ...]
    size_bytes: int
    nodes: frozenset[str] = field(default=frozenset())

    @property
    def operations(self) -> int:
        return OPERATIONS_PER_BINDING * len(self.scheduled) + len(self.nodes)

    def fits(self, limits: CommitLimits) -> bool:
        return self.operations <= limits.max_operations and self.size_bytes <= limits.max_bytes


def make_unit(workloads: Sequence[ScheduledWorkload], size: int) -> BindUnit:
    return BindUnit(tuple(workloads), size, frozenset(scheduled.node for scheduled in workloads))


def node_units(
    placed: Iterable[ScheduledWorkload], size_of: dict[str, int], limits: CommitLimits
) -> Iterator[BindUnit]:
    """Units of the workloads without gang, by node, split at the limits of one commit."""
    by_node = sorted(placed, key=lambda scheduled: scheduled.node)
    for _, on_node in groupby(by_node, key=lambda scheduled: scheduled.node):
        part: list[ScheduledWorkload] = []
        size = 0
        for scheduled in on_node:
            added = size_of[scheduled.ask.name]
            if part and (len(part) == MAX_BINDINGS_PER_UNIT or size + added > limits.max_bytes):
                yield make_unit(part, size)
                part, size = [], 0
            part.append(scheduled)
            size += added
        yield make_unit(part, size)


def pack_commit_batches(units: Iterable[BindUnit], limits: CommitLimits) -> list[list[list[BindUnit]]]:
    """Waves of commits. No two commits of a wave write the same node, so the commits of a wave may run
    concurrently; waves run in order."""
    waves: list[list[list[BindUnit]]] = []
    free: list[tuple[int, int]] = []  # by wave: operations and bytes left in its last commit
    next_wave: dict[str, int] = {}  # by node: the first wave that may write the node
    for unit in units:
        wave = max([next_wave.get(node, 0) for node in unit.nodes], default=0)
        for node in unit.nodes:
            next_wave[node] = wave + 1
        if wave == len(waves):
            waves.append([])
            free.append((0, 0))
        operations, size = free[wave]
        if unit.operations > operations or unit.size_bytes > size:
            waves[wave].append([])
            operations, size = limits.max_operations, limits.max_bytes
        waves[wave][-1].append(unit)
        free[wave] = (operations - unit.operations, size - unit.size_bytes)
    return waves
