"""Events of events.k8s.io/v1 and of the core group are two forms of the same stored events."""

import json
from typing import Any

import pytest
from build.api_world import ADMIN, MERGE, SYSTEM, ApiWorld, api_world, target
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Denied, Exists, Invalid
from lattice.kinds.core import Event
from lattice.kinds.event_v1 import EventV1
from lattice.kinds.meta.json_body import decode_stored
from lattice.kinds.meta.stored_encoding import pack
from lattice.server.event_versions.conversion import V1_NAMES, core_value, v1_value
from lattice.server.requests.call import Call
from lattice.server.resources import lists, verbs, watch

V1, CORE = "events.events.k8s.io/shop", "events/shop"
STRATEGIC = "application/strategic-merge-patch+json"


def a_v1_event(name: str = "e1", **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name},
        "eventTime": "2026-01-01T00:00:00.000001Z",
        "reportingController": "example.org/operator",
        "reportingInstance": "operator-0",
        "action": "Reconcile",
        "reason": "Reconciled",
        "type": "Normal",
        "note": "all is well",
        "regarding": {"kind": "LatticeService", "namespace": "shop", "name": "api"},
        **fields,
    }


async def a_world() -> ApiWorld:
    world = await api_world()
    await world.do(verbs.create, "namespaces", {"metadata": {"name": "shop"}})
    return world


async def test_v1_event_is_a_core_event_too() -> None:
    world = await a_world()
    made = await world.do(verbs.create, V1, a_v1_event())
    assert (made["apiVersion"], made["note"]) == ("events.k8s.io/v1", "all is well")
    core = await world.do(verbs.get, f"{CORE}/e1")
    assert (core["apiVersion"], core["message"]) == ("v1", "all is well")
    assert core["involvedObject"] == {"kind": "LatticeService", "namespace": "shop", "name": "api"}
    assert (core["reportingComponent"], core["metadata"]["uid"]) == (
        "example.org/operator",
        made["metadata"]["uid"],
    )
    assert await world.do(verbs.get, f"{V1}/e1") == made
    with pytest.raises(Exists, match='events.events.k8s.io "e1" already exists'):
        await world.do(verbs.create, V1, a_v1_event())


async def test_series_of_a_recorder_is_patched_in_both_forms() -> None:
    # client-go/tools/events counts repetitions with a strategic merge patch.
    world = await a_world()
    await world.do(verbs.create, V1, a_v1_event())
    series = {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}
    patched = await world.do(verbs.patch, f"{V1}/e1", {"series": series}, content=STRATEGIC)
    assert patched["series"] == series
    assert (await world.do(verbs.get, f"{CORE}/e1"))["series"] == series
    await world.do(verbs.patch, f"{CORE}/e1", {"message": "changed"}, content=MERGE)
    assert (await world.do(verbs.get, f"{V1}/e1"))["note"] == "changed"


async def test_lists_and_watches_show_the_requested_form() -> None:
    world = await a_world()
    await world.do(verbs.create, V1, a_v1_event())
    core_event = {
        "metadata": {"name": "e2"},
        "involvedObject": {"kind": "LatticeService", "namespace": "shop", "name": "web"},
        "reason": "Started",
        "message": "started",
        "count": 3,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": "kopf"},
    }
    await world.do(verbs.create, CORE, core_event)
    listed = await world.do(lists.list_objects, V1)
    assert listed["apiVersion"] == "events.k8s.io/v1"
    assert [item["note"] for item in listed["items"]] == ["all is well", "started"]
    assert listed["items"][1]["deprecatedCount"] == 3
    assert listed["items"][1]["deprecatedSource"] == {"component": "kopf"}
    selected = await world.do(lists.list_objects, V1, fieldSelector="regarding.name=web")
    assert [item["metadata"]["name"] for item in selected["items"]] == ["e2"]
    query = {"watch": "1", "resourceVersion": "1"}
    reply = await watch.watch_objects(world.api, Call("GET", target(V1), ADMIN, query))
    assert not isinstance(reply.body, bytes)
    lines = (await anext(reply.body)).splitlines()
    assert [json.loads(line)["object"].get("note") for line in lines] == ["all is well", "started"]
    await world.do(verbs.delete, f"{V1}/e1")
    assert [item["metadata"]["name"] for item in (await world.do(lists.list_objects, CORE))["items"]] == [
        "e2"
    ]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        pytest.param({"eventTime": None}, "eventTime", id="no time"),
        pytest.param({"reportingController": ""}, "reportingController", id="no controller"),
        pytest.param({"reportingInstance": ""}, "reportingInstance", id="no instance"),
        pytest.param({"action": ""}, "action", id="no action"),
        pytest.param({"type": "Odd"}, "type", id="another type"),
        pytest.param({"note": "x" * 1025}, "note", id="a note of more than 1 KiB"),
        pytest.param({"deprecatedCount": 2}, "deprecatedCount", id="a field of the core form"),
        pytest.param({"regarding": {"namespace": "other", "name": "x"}}, "regarding.namespace", id="an object elsewhere"),
    ],
)  # fmt: skip
async def test_new_v1_event_is_checked_as_in_kubernetes(fields: dict[str, Any], field: str) -> None:
    world = await a_world()
    with pytest.raises(Invalid) as raised:
        await world.do(verbs.create, V1, a_v1_event(**fields))
    assert [cause.field for cause in raised.value.causes] == [field]


async def test_core_event_about_another_namespace_is_refused() -> None:
    world = await a_world()
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "other", "name": "x"}}
    with pytest.raises(Invalid, match="is invalid") as raised:
        await world.do(verbs.create, CORE, event)
    assert raised.value.causes[0].field == "involvedObject.namespace"
    # An event about a cluster-scoped object is in the default namespace.
    event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "LatticePool", "name": "x"}}
    await world.do(verbs.create, "events/default", event)


async def test_events_of_lattice_cannot_be_changed_in_either_form() -> None:
    world = await a_world()
    await world.do(verbs.create, V1, a_v1_event(reportingController="lattice.dev/nodes"), user=SYSTEM)
    for where in (f"{V1}/e1", f"{CORE}/e1"):
        with pytest.raises(Denied, match="events of Lattice cannot be changed"):
            await world.do(verbs.patch, where, {"reason": "Forged"}, content=MERGE)


@given(
    fields=st.dictionaries(
        st.sampled_from(sorted({*V1_NAMES, "reason", "series", "related", "type"})), st.text() | st.integers()
    )
)
def test_conversion_loses_nothing(fields: dict[str, Any]) -> None:
    core = pack(Event.resource, {"metadata": {"name": "e"}, "involvedObject": {}, **fields})
    there = v1_value(core)
    assert decode_stored(there)["apiVersion"] == EventV1.resource.api_version
    assert decode_stored(core_value(there)) == decode_stored(core)
