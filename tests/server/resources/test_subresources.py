"""POST …/retry sets an annotation on the stored workload and changes nothing else."""

import msgspec
import pytest
from build.agent_world import a_workload
from build.apis import ADMIN, SERVER, VIEWER, about, an_api, asked, value
from build.virtual import VirtualClock

from lattice.controllers.runtime.object_writes import put_new, with_spec
from lattice.errors import Conflict, Denied, MethodNotAllowed, NotFound
from lattice.kinds.workload import RETRY_REQUESTED_ANNOTATION, LatticeWorkload
from lattice.server.resources.api import Api
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Key, RevisionConflict

KEY = Key("latticeworkloads.lattice.dev", "default", "web")


async def api_with_workload() -> Api:
    """An API whose store holds the workload web, owned by a service and with a finalizer."""
    clock = VirtualClock()
    store = MemoryStore(clock)
    api = await an_api(store, clock)
    workload = a_workload(service="shop")
    metadata = msgspec.structs.replace(workload.metadata, finalizers=("lattice.dev/workload",))
    await store.commit(
        [put_new(msgspec.structs.replace(workload, metadata=metadata), uid="u", now="2026-01-01T00:00:00Z")]
    )
    return api


async def stored(api: Api) -> LatticeWorkload:
    entry = await api.store.get(KEY)
    assert entry is not None
    return msgspec.json.decode(entry.value, type=LatticeWorkload)


async def test_admin_may_retry_owned_workload() -> None:
    api = await api_with_workload()
    before = await stored(api)
    reply = await asked(api, "POST", about("web", "retry"), ADMIN)
    now = await stored(api)
    assert now.metadata.annotations == {RETRY_REQUESTED_ANNOTATION: api.now()}
    assert (now.spec, now.status, now.metadata.generation) == (
        before.spec,
        before.status,
        before.metadata.generation,
    )
    assert value(reply)["metadata"]["annotations"] == now.metadata.annotations
    assert value(reply)["metadata"]["resourceVersion"] == str(await api.store.revision())


async def test_stopped_workload_is_not_retried() -> None:
    api = await api_with_workload()
    entry = await api.store.get(KEY)
    assert entry is not None
    await api.store.commit(
        [with_spec(entry, msgspec.structs.replace((await stored(api)).spec, desired_state="Stopped"))]
    )
    with pytest.raises(Conflict, match="has desiredState Stopped") as refused:
        await asked(api, "POST", about("web", "retry"), ADMIN)
    assert "set spec.desiredState to Running first" in str(refused.value)
    assert (await stored(api)).metadata.annotations == {}


async def test_retry_dry_run_writes_nothing() -> None:
    api = await api_with_workload()
    revision = await api.store.revision()
    reply = await asked(api, "POST", about("web", "retry"), ADMIN, dryRun="All")
    assert RETRY_REQUESTED_ANNOTATION in value(reply)["metadata"]["annotations"]
    assert await api.store.revision() == revision


@pytest.mark.parametrize(
    ("method", "name", "user", "error"),
    [
        pytest.param("POST", "web", VIEWER, Denied, id="a viewer"),
        pytest.param("POST", "nope", ADMIN, NotFound, id="no such workload"),
        pytest.param("GET", "web", ADMIN, MethodNotAllowed, id="a GET"),
        pytest.param("PUT", "web", SERVER, MethodNotAllowed, id="a PUT"),
    ],
)
async def test_retry_is_refused_without_write(
    method: str, name: str, user: object, error: type[Exception]
) -> None:
    api = await api_with_workload()
    revision = await api.store.revision()
    with pytest.raises(error):
        await asked(api, method, about(name, "retry"), user)  # type: ignore[arg-type]
    assert await api.store.revision() == revision


async def test_deleted_workload_is_not_retried() -> None:
    api = await api_with_workload()
    await asked(api, "DELETE", about("web"), SERVER)
    with pytest.raises(Conflict, match="is being deleted"):
        await asked(api, "POST", about("web", "retry"))


async def test_retry_is_repeated_on_conflict() -> None:
    api = await api_with_workload()
    commit, refusals = api.store.commit, iter([1])

    async def first_refused(*words: object, **rest: object) -> int:
        if next(refusals, 0):
            raise RevisionConflict(KEY, 1, 2)
        return await commit(*words, **rest)  # type: ignore[arg-type]

    api.store.commit = first_refused  # type: ignore[method-assign,assignment]
    await asked(api, "POST", about("web", "retry"))
    assert RETRY_REQUESTED_ANNOTATION in (await stored(api)).metadata.annotations
