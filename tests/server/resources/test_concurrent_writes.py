"""Writes without resourceVersion to one object at the same time: every one succeeds, as in Kubernetes."""

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from build.api_world import (
    ADMIN,
    APPLY,
    CATALOG,
    JSON_PATCH,
    MERGE,
    ApiWorld,
    api_world,
    service_manifest,
    target,
)

from lattice.clock import SystemClock
from lattice.errors import Conflict
from lattice.server.requests.call import Call
from lattice.server.resources import subresources, verbs
from lattice.server.resources.api import Api
from lattice.server.resources.write_retries import WRITE_DEADLINE_S
from lattice.store.protocol import Put, RevisionConflict, Store

WRITERS = 24
WHERE = "services/default/api"


class SlowStore:
    """A store whose commits overlap: every commit takes a moment, as with a database."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self._store, self._rng = store, rng

    async def commit(self, *arguments: Any, **options: Any) -> int:
        await asyncio.sleep(self._rng.uniform(0, 0.002))
        return await self._store.commit(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def another_server(api: Api) -> Api:
    """A second server on the same store: it shares no memory with the first."""
    store: Any = SlowStore(api.store, random.Random(7))
    return Api(store, CATALOG, SystemClock(), api.new_uid, api.new_suffix, random.Random(8).random)


def merge(world: ApiWorld, i: int) -> Awaitable[Any]:
    body = {"metadata": {"labels": {f"writer-{i}": "x"}}}
    return world.do(verbs.patch, WHERE, body, content=MERGE)


def json_patch(world: ApiWorld, i: int) -> Awaitable[Any]:
    operation = {"op": "add", "path": f"/metadata/labels/writer-{i}", "value": "x"}
    return world.do(verbs.patch, WHERE, [operation], content=JSON_PATCH)


def apply(world: ApiWorld, i: int) -> Awaitable[Any]:
    manifest = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeService",
        "metadata": {"name": "api", "labels": {f"writer-{i}": "x"}},
    }
    return world.do(verbs.apply, WHERE, manifest, content=APPLY, fieldManager=f"manager-{i}")


@pytest.mark.parametrize("servers", [1, 2], ids=["one server", "two servers on one store"])
@pytest.mark.parametrize("patch", [merge, json_patch, apply], ids=["merge", "json", "apply"])
async def test_patches_without_resource_version_all_succeed(
    patch: Callable[[ApiWorld, int], Awaitable[Any]], servers: int
) -> None:
    world = await api_world()
    manifest = service_manifest()
    manifest["metadata"]["labels"] = {"app": "api"}
    await world.do(verbs.create, "services/default", manifest)
    worlds = []
    for api in [another_server(world.api) for _ in range(servers)]:
        other = ApiWorld()
        other.api = api
        worlds.append(other)
    await asyncio.gather(
        *(patch(w, i) for i, w in zip(range(WRITERS), itertools.cycle(worlds), strict=False))
    )
    labels = (await world.do(verbs.get, WHERE))["metadata"]["labels"]
    assert labels == {"app": "api"} | {f"writer-{i}": "x" for i in range(WRITERS)}


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
async def test_scale_requests_without_resource_version_all_succeed(method: str) -> None:
    world = await api_world()
    await world.do(verbs.create, "services/default", service_manifest())
    world.api = another_server(world.api)

    async def scale(replicas: int) -> Any:
        content = MERGE if method == "PATCH" else "application/json"
        body = json.dumps({"spec": {"replicas": replicas}}).encode()
        call = Call(method, target(f"{WHERE}/scale"), ADMIN, {}, body, content)
        return await subresources.put_scale(world.api, call)

    replies = await asyncio.gather(*(scale(i) for i in range(WRITERS)))
    assert [reply.status for reply in replies] == [200] * WRITERS


async def test_patch_of_a_revision_applies_to_that_revision_only() -> None:
    world = await api_world()
    made = await world.do(verbs.create, "services/default", service_manifest())
    await merge(world, 1)
    body = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "labels": {"a": "b"}}}
    with pytest.raises(Conflict, match="the object has been modified"):
        await world.do(verbs.patch, WHERE, body, content=MERGE)


async def test_a_write_that_never_wins_ends_at_the_deadline() -> None:
    world = await api_world()
    await world.do(verbs.create, "services/default", service_manifest())
    attempts = []

    async def lose(writes: Any, **_: Any) -> int:
        attempts.append(writes)
        put = writes[0]
        assert isinstance(put, Put)
        raise RevisionConflict(put.key, put.expect, 99)

    world.api.store.commit = lose  # type: ignore[method-assign]
    writing = asyncio.ensure_future(merge(world, 1))
    for _ in range(int(2 * WRITE_DEADLINE_S)):
        await asyncio.sleep(0)
        await world.api.clock.advance(1.0)  # type: ignore[attr-defined]
    with pytest.raises(Conflict, match="the object has been modified"):
        await writing
    assert len(attempts) > 10
    assert world.api.write_locks._locks == {}


async def test_write_of_a_cancelled_request_frees_its_turn() -> None:
    world = await api_world()
    await world.do(verbs.create, "services/default", service_manifest())
    world.api = another_server(world.api)
    requests = [asyncio.ensure_future(merge(world, i)) for i in range(3)]
    await asyncio.sleep(0)
    requests[0].cancel()
    requests[1].cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    assert requests[2].result()["metadata"]["labels"] == {"writer-2": "x"}
    assert world.api.write_locks._locks == {}
