"""Specification 004 on servers: invalid objects are rejected, accepted objects are stored, and workloads run
on nodes only."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from build.apis import ADMIN, CATALOG, about, an_api, value
from build.virtual import VirtualClock

from lattice.controllers.runtime.event_recorder import EventRecorder
from lattice.errors import Denied, Invalid
from lattice.kinds.workload import LatticeWorkload
from lattice.server.requests.call import Call, Reply, Target
from lattice.server.resources.api import Api
from lattice.server.resources.dispatch import handle_call
from lattice.server.resources.routes import request_attributes
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Key

WEB = {"name": "web", "namespace": "default"}


async def empty_api() -> Api:
    clock = VirtualClock()
    return await an_api(MemoryStore(clock), clock)


async def post(api: Api, **spec: Any) -> Reply:
    body = {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeWorkload", "metadata": {"name": "job"}}
    whole = msgspec.json.encode(body | {"spec": {"containers": {"main": {"command": ["true"]}}, **spec}})
    call = Call("POST", about(""), ADMIN, body=whole)
    return await handle_call(api, call, request_attributes("POST", call.target, watching=False))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({"desiredState": "Paused"}, "spec.desiredState", id="an unknown desired state"),
        pytest.param({"containers": {"main": {}}}, "spec.containers.main", id="nothing to run"),
        pytest.param({"requests": {"cpu": "-1"}}, "spec.requests", id="a negative request"),
        pytest.param({"revision": "latest"}, "spec.revision", id="an invalid revision"),
    ],
)
async def test_invalid_workload_is_rejected_without_write(spec: dict[str, Any], field: str) -> None:
    api = await empty_api()
    before = await api.store.revision()
    with pytest.raises(Invalid) as told:
        await post(api, **spec)
    assert [cause.field for cause in told.value.causes if cause.field.startswith(field)]
    assert await api.store.revision() == before


async def test_workload_is_stored_before_it_is_accepted() -> None:
    api = await empty_api()
    told = value(await post(api))
    entry = await api.store.get(Key(LatticeWorkload.resource.id, "default", "job"))
    assert entry is not None
    assert told["metadata"]["resourceVersion"] == str(entry.revision)


async def test_events_are_immutable() -> None:
    api = await empty_api()
    resource = LatticeWorkload.resource
    workload = msgspec.convert(
        {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": WEB,
            "spec": {"containers": {}},
        },
        LatticeWorkload,
    )
    put = EventRecorder("workloads", api.clock, api.new_uid).event(
        workload, "WorkloadFailed", "it failed 5 times", warning=True
    )
    await api.store.commit([put])
    before = await api.store.revision()
    events = Target(CATALOG.by_id("events"), put.key.namespace, put.key.name)
    call = Call(
        "PATCH",
        events,
        ADMIN,
        body=b'{"reason": "AllIsWell"}',
        content_type="application/merge-patch+json",
    )
    with pytest.raises(Denied, match="events of Lattice cannot be changed"):
        await handle_call(api, call, request_attributes("PATCH", events, watching=False))
    assert await api.store.revision() == before


def test_server_imports_no_agent_runtime() -> None:
    look = "import sys, lattice.app.serve; print(*[name for name in sys.modules if name.startswith('lattice.agent')])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
