"""Commits stay within the limits of the store, lose nothing, keep the order, and are as few as possible."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import TooLarge
from lattice.store.commit_packing import (
    CommitCost,
    CommitLimits,
    cost_of_writes,
    pack_commits,
    pack_writes,
)
from lattice.store.protocol import (
    MAX_COMMIT_BYTES,
    MAX_COMMIT_OPERATIONS,
    Check,
    Delete,
    Key,
    Put,
    Write,
    validate_commit,
)

LIMITS = CommitLimits(max_operations=6, max_bytes=100)
NAMESPACES = [Key("namespaces", "", name) for name in "abc"]
COSTS = st.builds(
    CommitCost,
    st.integers(1, 8),
    st.integers(0, 120),
    st.lists(st.sampled_from(NAMESPACES), max_size=2, unique=True).map(tuple),
)


def fits(commit: list[CommitCost]) -> bool:
    checks: set[Key] = set()
    for cost in commit:
        checks.update(cost.checks)
    operations = sum(cost.operations for cost in commit) + len(checks)
    size_bytes = sum(cost.size_bytes for cost in commit) + sum(len(str(key)) for key in checks)
    return operations <= LIMITS.max_operations and size_bytes <= LIMITS.max_bytes


def fewest_commits(groups: list[CommitCost]) -> int:
    """The smallest number of commits of all ways to cut the list, by dynamic programming."""
    fewest = [0]
    for end in range(1, len(groups) + 1):
        starts = [start for start in range(end) if end - start == 1 or fits(groups[start:end])]
        fewest.append(1 + min(fewest[start] for start in starts))
    return fewest[-1]


@given(groups=st.lists(COSTS, max_size=25))
def test_commits_are_few_ordered_and_within_limits(groups: list[CommitCost]) -> None:
    commits = list(pack_commits(groups, lambda cost: cost, LIMITS))
    joined: list[CommitCost] = []
    for commit in commits:
        # Only a single group may exceed a limit: no group is split.
        assert len(commit) == 1 or fits(commit)
        joined += commit
    assert joined == groups
    assert all(commits)
    assert len(commits) == fewest_commits(groups)


def delete(number: int) -> Delete:
    return Delete(Key("events", "a", str(number)))


def large_put(number: int) -> Put:
    return Put(Key("secrets", "a", str(number)), bytes(MAX_COMMIT_BYTES // 2))


@pytest.mark.parametrize(
    ("groups", "sizes"),
    [
        pytest.param([], [], id="no groups make no commit"),
        pytest.param(
            [[delete(number)] for number in range(MAX_COMMIT_OPERATIONS + 1)],
            [MAX_COMMIT_OPERATIONS, 1],
            id="one operation too many takes another commit",
        ),
        pytest.param([[large_put(number)] for number in range(3)], [1, 1, 1], id="large values fill commits"),
        pytest.param(
            [[delete(0)], [large_put(1), large_put(2)], [delete(3)]],
            [1, 2, 1],
            id="a group over a limit is a commit of its own",
        ),
        pytest.param(
            [[delete(number), large_put(number)] for number in range(2)],
            [2, 2],
            id="no group is split",
        ),
    ],
)
def test_writes_are_joined_group_by_group(groups: list[list[Write]], sizes: list[int]) -> None:
    assert [len(commit) for commit in pack_writes(groups)] == sizes


def test_store_accepts_full_commits_with_shared_checks() -> None:
    namespace = Key("namespaces", "", "a")
    puts = [Put(Key("configmaps", "a", f"{number:03}"), bytes(200)) for number in range(150)]
    commits = list(pack_commits(puts, lambda put: cost_of_writes([put], (namespace,))))
    assert [len(commit) for commit in commits] == [MAX_COMMIT_OPERATIONS - 1, 51]
    for commit in commits:
        validate_commit(commit, [Check(namespace, 1)])


@pytest.mark.parametrize("excess_bytes", [0, 1])
def test_cost_counts_bytes_as_the_store_does(excess_bytes: int) -> None:
    last = delete(0)
    key = Key("configmaps", "a", "x")
    value_bytes = MAX_COMMIT_BYTES - len(str(key)) - len(str(last.key)) + excess_bytes
    writes: list[Write] = [Put(key, bytes(value_bytes)), last]
    commits = list(pack_writes([[write] for write in writes]))
    assert len(commits) == 1 + excess_bytes
    with pytest.raises(TooLarge) if excess_bytes else nullcontext():
        validate_commit(writes, ())
