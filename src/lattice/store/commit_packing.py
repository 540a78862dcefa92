"""Pack groups of operations into commits that stay within the operation and byte limits of the store."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from lattice.store.protocol import MAX_COMMIT_BYTES, MAX_COMMIT_OPERATIONS, Key, Put, Write

G = TypeVar("G")


class CommitCost(NamedTuple):
    """The operations and bytes that a group of operations adds to a commit."""

    # The number of writes, and of checks that belong to this group alone; checks that several groups may
    # share are listed in `checks`.
    operations: int
    size_bytes: int
    # Keys that the group checks. If several groups of one commit check the same key, the commit has one
    # check.
    checks: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """The limits of one commit; the defaults are the limits of the store."""

    max_operations: int = MAX_COMMIT_OPERATIONS
    max_bytes: int = MAX_COMMIT_BYTES

    def allow(self, operations: int, size_bytes: int) -> bool:
        return operations <= self.max_operations and size_bytes <= self.max_bytes


STORE_LIMITS = CommitLimits()


@dataclass(slots=True)
class CommitSpace:
    """The operations and bytes used so far in a commit that is being filled."""

    limits: CommitLimits = STORE_LIMITS
    operations: int = 0
    size_bytes: int = 0
    checks: set[Key] = field(default_factory=set)

    def take(self, cost: CommitCost) -> bool:
        """Reserve space for a group and return True; return False without a change if the group does not fit.

        An empty commit accepts any group, because groups are never split; the store rejects the commit if the
        group alone exceeds the limits.
        """
        new_checks = [key for key in cost.checks if key not in self.checks]
        operations = self.operations + cost.operations + len(new_checks)
        size_bytes = self.size_bytes + cost.size_bytes + sum(len(str(key)) for key in new_checks)
        if self.operations and not self.limits.allow(operations, size_bytes):
            return False
        self.operations, self.size_bytes = operations, size_bytes
        self.checks.update(new_checks)
        return True


def cost_of_writes(writes: Sequence[Write], checks: tuple[Key, ...] = ()) -> CommitCost:
    """The cost of a group of writes, as the store counts the bytes of a commit."""
    size_bytes = 0
    for write in writes:
        size_bytes += len(str(write.key)) + (len(write.value) if isinstance(write, Put) else 0)
    return CommitCost(len(writes), size_bytes, checks)


def pack_commits(
    groups: Iterable[G], cost_of: Callable[[G], CommitCost], limits: CommitLimits = STORE_LIMITS
) -> Iterator[list[G]]:
    """Join groups, in order, into the fewest commits within the limits; no group is split.

    A group that exceeds a limit by itself is a commit of its own.
    """
    commit: list[G] = []
    space = CommitSpace(limits)
    for group in groups:
        cost = cost_of(group)
        if not space.take(cost):
            yield commit
            commit, space = [], CommitSpace(limits)
            space.take(cost)
        commit.append(group)
    if commit:
        yield commit


def pack_writes(
    groups: Iterable[Sequence[Write]], limits: CommitLimits = STORE_LIMITS
) -> Iterator[list[Write]]:
    """Join groups of writes, in order, into the writes of the fewest commits; no group is split."""
    for commit in pack_commits(groups, cost_of_writes, limits):
        writes: list[Write] = []
        for group in commit:
            writes += group
        yield writes
