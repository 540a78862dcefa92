"""Bind units: group bindings that are written together, and pack the units into waves. A wave is a set of
commits that may run concurrently, because no two of them write the same node."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from lattice.scheduling.cycle.cycle import ScheduledWorkload
from lattice.store.commit_packing import CommitCost, CommitLimits, CommitSpace, pack_commits
from lattice.store.protocol import MAX_COMMIT_OPERATIONS

# Writes per binding: the workload and its event. A node adds one write, whatever the number of its bindings.
OPERATIONS_PER_BINDING = 2
MAX_BINDINGS_PER_UNIT = 32
# Limit of the bytes of the workloads. The limit of the store is higher, but counts the nodes and events too.
MAX_WORKLOAD_BYTES_PER_COMMIT = 900_000
LIMITS = CommitLimits(MAX_COMMIT_OPERATIONS, MAX_WORKLOAD_BYTES_PER_COMMIT)
NODE_UNIT_LIMITS = CommitLimits(MAX_BINDINGS_PER_UNIT, MAX_WORKLOAD_BYTES_PER_COMMIT)


@dataclass(frozen=True, slots=True)
class BindUnit:
    """Bindings that are written together: the members of a gang, or the bindings to one node."""

    scheduled: tuple[ScheduledWorkload, ...]
    size_bytes: int
    nodes: frozenset[str] = field(default=frozenset())

    @property
    def operations(self) -> int:
        return OPERATIONS_PER_BINDING * len(self.scheduled) + len(self.nodes)


def make_unit(workloads: Sequence[ScheduledWorkload], size: int) -> BindUnit:
    return BindUnit(tuple(workloads), size, frozenset(scheduled.node for scheduled in workloads))


def node_units(placed: Iterable[ScheduledWorkload], size_of: Mapping[str, int]) -> Iterator[BindUnit]:
    """Yield the units of workloads that belong to no gang: one unit per node, or several if a limit of a unit
    is reached."""
    by_node = sorted(placed, key=lambda scheduled: scheduled.node)
    for _, on_node in groupby(by_node, key=lambda scheduled: scheduled.node):
        for part in pack_commits(
            on_node, lambda scheduled: CommitCost(1, size_of[scheduled.ask.name]), NODE_UNIT_LIMITS
        ):
            yield make_unit(part, sum(size_of[scheduled.ask.name] for scheduled in part))


def pack_waves(units: Iterable[BindUnit]) -> list[list[list[BindUnit]]]:
    """Pack the units into waves of commits. No two commits of a wave write the same node, so they may run
    concurrently; the waves run in order."""
    waves: list[list[list[BindUnit]]] = []
    # By wave: the capacity left in its last commit.
    spaces: list[CommitSpace] = []
    # By node: the first wave that may write the node.
    next_wave: dict[str, int] = {}
    for unit in units:
        wave = max([next_wave.get(node, 0) for node in unit.nodes], default=0)
        for node in unit.nodes:
            next_wave[node] = wave + 1
        if wave == len(waves):
            waves.append([[]])
            spaces.append(CommitSpace(LIMITS))
        cost = CommitCost(unit.operations, unit.size_bytes)
        if not spaces[wave].take(cost):
            waves[wave].append([])
            spaces[wave] = CommitSpace(LIMITS)
            spaces[wave].take(cost)
        waves[wave][-1].append(unit)
    return waves
