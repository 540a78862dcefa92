"""Concurrent commits of one batch: the call returns after the last commit, and an error of one is raised."""

from typing import Any

import pytest
from build.control_plane import ControlPlane
from build.objects import make_object
from build.virtual import settle

from lattice.controllers.runtime.context import MAX_CONCURRENT_COMMITS
from lattice.controllers.runtime.object_writes import put_new
from lattice.errors import Conflict, Fenced
from lattice.kinds.core import Namespace
from lattice.store.protocol import MAX_COMMIT_OPERATIONS, Put


def namespace_puts(count: int) -> list[list[Put]]:
    return [
        [put_new(make_object(Namespace, f"n{number}"), uid=f"u{number}", now="2026-01-01T00:00:00Z")]
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("writes", "commits"),
    [
        pytest.param(0, 0, id="no writes make no commit"),
        pytest.param(MAX_COMMIT_OPERATIONS, 1, id="as many as go into one"),
        pytest.param(10 * MAX_COMMIT_OPERATIONS + 1, 11, id="one more takes another commit"),
    ],
)
async def test_commit_all_bounds_concurrent_commits(writes: int, commits: int) -> None:
    plane = ControlPlane()
    context = await plane.new_term()
    commit, begun, most, under_way = context.store.commit, 0, 0, 0

    async def slow(*words: Any, **more: Any) -> int:
        nonlocal begun, most, under_way
        begun, under_way = begun + 1, under_way + 1
        most = max(most, under_way)
        await settle()
        under_way -= 1
        return await commit(*words, **more)

    context.store.commit = slow  # type: ignore[method-assign]
    newest = await context.commit_groups_concurrently(namespace_puts(writes))
    assert (begun, most) == (commits, min(commits, MAX_CONCURRENT_COMMITS))
    assert len(await plane.all(Namespace)) == writes
    assert newest == (await plane.store.revision() if writes else 0)


@pytest.mark.parametrize("fatal", [1, 3, 11])
@pytest.mark.parametrize(
    "error",
    [Conflict("another writer was first"), Fenced("the term is over")],
    ids=["a rival", "another leader"],
)
async def test_commit_all_raises_after_other_commits_end(fatal: int, error: Exception) -> None:
    plane = ControlPlane()
    context = await plane.new_term()
    commit, begun, under_way = context.store.commit, 0, 0

    async def failing(*words: Any, **more: Any) -> int:
        nonlocal begun, under_way
        begun, under_way = begun + 1, under_way + 1
        number = begun
        await settle()
        under_way -= 1
        if number == fatal:
            raise error
        return await commit(*words, **more)

    context.store.commit = failing  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        await context.commit_groups_concurrently(namespace_puts(11 * MAX_COMMIT_OPERATIONS))
    assert under_way == 0
    assert begun < fatal + MAX_CONCURRENT_COMMITS + 1
