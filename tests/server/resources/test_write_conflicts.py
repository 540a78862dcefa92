"""Conflicting writes between the read and the commit of a verb."""

from typing import Any

import pytest
from build.api_world import MERGE, ApiWorld, api_world, pool_manifest

from lattice.errors import Conflict, NotFound
from lattice.server.resources import verbs

ROLE = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "notes", "namespace": "default"},
    "data": {"a": "1"},
}


def raced(world: ApiWorld, rival: Any) -> None:
    """Let the rival, another server on the same store, write before the next commit."""
    commit = world.api.store.commit

    async def after_another(*words: Any, **rest: Any) -> int:
        world.api.store.commit = commit  # type: ignore[method-assign]
        await rival(world.other_server())
        revision: int = await commit(*words, **rest)
        return revision

    world.api.store.commit = after_another  # type: ignore[assignment, method-assign]


async def test_update_conflict_uses_kubernetes_message() -> None:
    world = await api_world()
    made = await world.do(verbs.create, "pools", pool_manifest())
    made["spec"]["capacity"] = {"maxNodes": 9}
    raced(
        world,
        lambda other: other.do(
            verbs.patch, "pools/us-east", {"spec": {"capacity": {"maxNodes": 3}}}, content=MERGE
        ),
    )
    with pytest.raises(
        Conflict, match=r'on latticepools.lattice.dev "us-east": the object has been modified'
    ):
        await world.do(verbs.update, "pools/us-east", made)
    assert (await world.do(verbs.get, "pools/us-east"))["spec"]["capacity"] == {"maxNodes": 3}


async def test_update_of_deleted_object_is_not_found() -> None:
    world = await api_world()
    made = await world.do(verbs.create, "pools", pool_manifest())
    made["spec"]["capacity"] = {"maxNodes": 9}
    raced(world, lambda other: other.do(verbs.delete, "pools/us-east"))
    with pytest.raises(NotFound):
        await world.do(verbs.update, "pools/us-east", made)


async def test_update_without_revision_overwrites() -> None:
    world = await api_world()
    await world.do(verbs.create, "configmaps/default", ROLE)
    raced(
        world,
        lambda other: other.do(
            verbs.patch, "configmaps/default/notes", {"data": {"a": "2", "b": "3"}}, content=MERGE
        ),
    )
    await world.do(verbs.update, "configmaps/default/notes", ROLE | {"data": {"a": "4"}})
    assert (await world.do(verbs.get, "configmaps/default/notes"))["data"] == {"a": "4"}
