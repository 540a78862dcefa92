"""Lists and watches as raw requests: the guarantees that Kubernetes clients rely on."""

import asyncio
from itertools import islice
from pathlib import Path

import pytest
from build.servers import running_server, start
from build.wire import CLASSES, CONFIGMAPS, Wire, configmap, node_class, refused

from lattice.clock import SystemClock
from lattice.store.sqlite.store import SqliteStore

pytestmark = [pytest.mark.xdist_group("protocol-reads"), pytest.mark.timeout(60)]

TABLE = "application/json;as=Table;v={};g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;v={};g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v={};g=meta.k8s.io"


@pytest.fixture
def room(wire, request):
    """A namespace of the test's own; the address of its config maps."""
    name = request.node.name.partition("[")[0].removeprefix("test_").replace("_", "-")[:60].strip("-")
    made = wire.post(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    assert made.status in (201, 409), made.value
    return f"/api/v1/namespaces/{name}/configmaps"


def event_summary(event):
    """Type, name and revision of an event."""
    metadata = event["object"]["metadata"]
    return event["type"], metadata.get("name"), int(metadata["resourceVersion"])


def test_initial_events_end_with_an_annotated_bookmark(wire, room):
    made = [wire.post(room, configmap(name)).revision for name in ("a", "b")]
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": 10,
    }
    with wire.watching(room, **query) as events:
        first = list(islice(events, 3))
        assert [event_summary(event) for event in first[:2]] == [
            ("ADDED", "a", made[0]),
            ("ADDED", "b", made[1]),
        ]
        kind, _, revision = event_summary(first[2])
        assert (kind, first[2]["object"]["kind"]) == ("BOOKMARK", "ConfigMap")
        assert revision >= made[1]
        assert first[2]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        third = wire.post(room, configmap("c")).revision
        assert event_summary(next(events)) == ("ADDED", "c", third)


@pytest.mark.parametrize("form", [TABLE, PARTIAL], ids=["as tables", "as metadata"])
def test_initial_events_bookmark_has_the_requested_format(wire, form):
    query = {"sendInitialEvents": "1", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "1"}
    with wire.watching(
        "/api/v1/namespaces", form.format("v1"), fieldSelector="metadata.name=default", **query
    ) as events:
        added, bookmark = islice(events, 2)
    assert (added["type"], bookmark["type"]) == ("ADDED", "BOOKMARK")
    assert added["object"]["kind"] == bookmark["object"]["kind"]
    row = bookmark["object"]["rows"][0]["object"] if form == TABLE else bookmark["object"]
    assert row["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_initial_events_from_a_future_revision_time_out(wire):
    ahead = wire.revision + 1000
    query = {
        "watch": 1,
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "resourceVersion": ahead,
    }
    refused(wire.get(CONFIGMAPS, **query), 504, "Timeout", "Too large resource version")


@pytest.mark.parametrize("word", ["True", "1", "true", "yes"])
def test_boolean_parameters_are_parsed_as_in_go(wire, word):
    """kubernetes-asyncio writes watch=True: a list in answer to that is an exception in its user's face."""
    with wire.watching("/api/v1/namespaces", watch=word, timeoutSeconds=5) as events:
        assert event_summary(next(events))[:2] == ("ADDED", "default")


@pytest.mark.parametrize("word", ["false", "0"])
def test_false_watch_parameter_is_a_list(wire, word):
    assert wire.get("/api/v1/namespaces", watch=word).value["kind"] == "NamespaceList"


def test_watch_ends_after_its_timeout(wire):
    with wire.watching(CONFIGMAPS, resourceVersion=wire.revision, timeoutSeconds=1) as events:
        assert list(events) == []


def test_watch_resumes_after_the_given_revision(wire, room):
    before = wire.revision
    made = wire.post(room, configmap("a")).revision
    changed = wire.patch(f"{room}/a", {"data": {"k": "v"}}).revision
    with wire.watching(room, resourceVersion=before) as events:
        assert [event_summary(event) for event in islice(events, 2)] == [
            ("ADDED", "a", made),
            ("MODIFIED", "a", changed),
        ]
    with wire.watching(room, resourceVersion=made) as events:
        assert event_summary(next(events)) == ("MODIFIED", "a", changed)


def test_deleted_event_has_the_revision_of_the_deletion(wire, room):
    made = wire.post(room, configmap("gone", {"k": "v"})).revision
    assert wire.delete(f"{room}/gone").status == 200
    after = wire.revision
    with wire.watching(room, resourceVersion=made) as events:
        event = next(events)
    assert event_summary(event) == ("DELETED", "gone", after)
    assert after > made
    assert event["object"]["data"] == {"k": "v"}


def test_removing_the_last_finalizer_deletes_at_a_new_revision(wire, room):
    wire.post(room, configmap("held", finalizers=["example.com/hold"]))
    marked = wire.delete(f"{room}/held")
    assert marked.value["metadata"]["deletionTimestamp"]
    assert wire.patch(f"{room}/held", {"metadata": {"finalizers": None}}).status == 200
    after = wire.revision
    with wire.watching(room, resourceVersion=marked.revision) as events:
        assert event_summary(next(events)) == ("DELETED", "held", after)
    assert wire.get(f"{room}/held").status == 404


def test_watch_maps_selector_changes_to_added_and_deleted(wire, room):
    made = wire.post(room, configmap("a", labels={"app": "x"})).revision
    left = wire.patch(f"{room}/a", {"metadata": {"labels": {"app": "y"}}}).revision
    wire.patch(f"{room}/a", {"data": {"unseen": "1"}})
    back = wire.patch(f"{room}/a", {"metadata": {"labels": {"app": "x"}}}).revision
    stayed = wire.patch(f"{room}/a", {"data": {"seen": "1"}}).revision
    with wire.watching(room, labelSelector="app=x", resourceVersion=made - 1) as events:
        seen = list(islice(events, 4))
    assert [event_summary(event) for event in seen] == [
        ("ADDED", "a", made),
        ("DELETED", "a", left),
        ("ADDED", "a", back),
        ("MODIFIED", "a", stayed),
    ]
    assert seen[1]["object"]["metadata"]["labels"] == {"app": "x"}, (
        "the object as it was when it still matched"
    )


def test_watch_from_a_future_revision_is_gone(wire):
    """A server restored from an older backup: clients list again, and miss nothing."""
    refused(wire.get(CONFIGMAPS, watch=1, resourceVersion=wire.revision + 1000), 410, "Expired")


def test_list_at_a_future_revision_times_out(wire):
    answer = wire.get(CONFIGMAPS, resourceVersion=wire.revision + 1000)
    details = refused(answer, 504, "Timeout", "Too large resource version")
    assert [cause["reason"] for cause in details["causes"]] == ["ResourceVersionTooLarge"]
    assert details["retryAfterSeconds"] == 1


@pytest.mark.parametrize(
    ("query", "field"),
    [
        pytest.param(
            {"resourceVersionMatch": "Exact"}, "resourceVersionMatch", id="a match needs a revision"
        ),
        pytest.param(
            {"resourceVersionMatch": "Newest", "resourceVersion": "1"},
            "resourceVersionMatch",
            id="an unknown match",
        ),
        pytest.param(
            {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
            "resourceVersionMatch",
            id="exactly nothing",
        ),
        pytest.param(
            {"resourceVersionMatch": "NotOlderThan", "resourceVersion": "1", "watch": "1"},
            "resourceVersionMatch",
            id="in a watch",
        ),
        pytest.param({"sendInitialEvents": "true"}, "sendInitialEvents", id="initial events of a list"),
        pytest.param(
            {"sendInitialEvents": "true", "watch": "1"},
            "resourceVersionMatch",
            id="initial events without a match",
        ),
    ],
)
def test_contradictory_read_options_are_invalid(wire, query, field):
    details = refused(wire.get(CONFIGMAPS, **query), 422, "Invalid", "ListOptions.meta.k8s.io")
    assert details["kind"] == "ListOptions"
    assert [cause["field"] for cause in details["causes"]] == [field]


@pytest.mark.parametrize(
    "query",
    [
        {"resourceVersion": "abc"},
        {"resourceVersion": "-1"},
        {"limit": "many"},
        {"continue": "garbage"},
        {"continue": "e30="},
        {"labelSelector": "a=("},
        {"fieldSelector": "spec.x=1"},
        {"fieldSelector": "metadata.name"},
    ],
    ids=str,
)
def test_unreadable_read_options_are_a_bad_request(wire, query):
    refused(wire.get(CONFIGMAPS, **query), 400, "BadRequest")


def test_list_at_an_exact_past_revision(wire, room):
    then = wire.post(room, configmap("a")).revision
    wire.post(room, configmap("b"))
    past = wire.get(room, resourceVersion=then, resourceVersionMatch="Exact")
    assert (past.names, past.revision) == (["a"], then)
    assert wire.get(room, resourceVersion=then, resourceVersionMatch="NotOlderThan").names == ["a", "b"]


def test_pages_are_a_snapshot_during_writes(wire, room):
    for number in range(5):
        wire.post(room, configmap(f"c{number}", {"v": "old"}))
    page = wire.get(room, limit=2)
    seen, revision = page.names, page.revision
    while token := page.value["metadata"].get("continue"):
        wire.post(room, configmap(f"c{len(seen)}-new"))
        wire.patch(f"{room}/c4", {"data": {"v": f"new{len(seen)}"}})
        wire.delete(f"{room}/c3")
        page = wire.get(room, limit=2, **{"continue": token})
        assert page.revision == revision
        seen += page.names
    assert seen == ["c0", "c1", "c2", "c3", "c4"]
    assert page.value["items"][-1]["data"] == {"v": "old"}
    assert wire.get(room, resourceVersion=revision, resourceVersionMatch="Exact").names == seen


def test_pages_with_a_selector_are_full(wire, room):
    for number in range(6):
        wire.post(room, configmap(f"c{number}", labels={"odd": str(number % 2)}))
    first = wire.get(room, limit=2, labelSelector="odd=1")
    assert first.names == ["c1", "c3"]
    assert "remainingItemCount" not in first.value["metadata"]
    rest = wire.get(room, limit=2, labelSelector="odd=1", **{"continue": first.value["metadata"]["continue"]})
    assert (rest.names, rest.value["metadata"].get("continue")) == (["c5"], None)


def test_continue_token_of_another_list_is_refused(wire, room):
    for name in ("a", "b"):
        wire.post(room, configmap(name))
    token = wire.get(room, limit=1).value["metadata"]["continue"]
    refused(wire.get("/api/v1/namespaces", limit=1, **{"continue": token}), 400, "BadRequest")


def test_compacted_revisions_are_expired(tmp_path):
    """The store is compacted while the server is down; its clients come back with what they had."""
    first = start(tmp_path)
    wire = Wire(first.kubeconfig)
    old = wire.post(CONFIGMAPS, configmap("a")).revision
    wire.post(CONFIGMAPS, configmap("b"))
    token = wire.get(CONFIGMAPS, limit=1).value["metadata"]["continue"]
    wire.patch(f"{CONFIGMAPS}/b", {"data": {"k": "v"}})
    newest = wire.post(CONFIGMAPS, configmap("c")).revision
    first.stop()
    asyncio.run(_compact(tmp_path / "state.db", newest))
    with running_server(tmp_path, "--port", first.url.rpartition(":")[2]) as second:
        assert second.url == first.url
        refused(
            wire.get(CONFIGMAPS, limit=1, **{"continue": token}),
            410,
            "Expired",
            "continue parameter is too old",
        )
        refused(wire.get(CONFIGMAPS, resourceVersion=old, resourceVersionMatch="Exact"), 410, "Expired")
        refused(wire.get(CONFIGMAPS, watch=1, resourceVersion=old), 410, "Expired")
        assert wire.get(CONFIGMAPS, resourceVersion=old).names == ["a", "b", "c"]
        assert wire.revision >= newest, "the counter outlives the process"
        with wire.watching(CONFIGMAPS, resourceVersion=newest) as events:
            later = wire.post(CONFIGMAPS, configmap("d")).revision
            assert event_summary(next(events)) == ("ADDED", "d", later)


async def _compact(path: Path, revision: int) -> None:
    store = await SqliteStore.open(path, SystemClock())
    try:
        await store.compact(revision)
    finally:
        await store.close()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_table_has_columns_and_rows_with_metadata(wire, version):
    wire.post(CLASSES, node_class("small", 0.5, labels={"app": "x"}))
    listed = wire.get(CLASSES, TABLE.format(version)).value
    assert (listed["kind"], listed["apiVersion"]) == ("Table", f"meta.k8s.io/{version}")
    assert int(listed["metadata"]["resourceVersion"]) > 0
    heads = [column["name"] for column in listed["columnDefinitions"]]
    assert (heads[0], heads[-1]) == ("Name", "Age")
    row = listed["rows"][0]
    assert (row["cells"][0], row["cells"][heads.index("Cores")]) == ("small", "0.5")
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["apiVersion"] == f"meta.k8s.io/{version}"
    assert row["object"]["metadata"]["labels"] == {"app": "x"}
    single = wire.get(f"{CLASSES}/small", TABLE.format(version)).value
    assert [each["cells"][0] for each in single["rows"]] == ["small"]


@pytest.mark.parametrize(
    ("include", "kind"),
    [("Object", "LatticeNodeClass"), ("None", None), ("Metadata", "PartialObjectMetadata")],
)
def test_table_includes_the_requested_object_part(wire, include, kind):
    wire.post(CLASSES, node_class("small", 0.5))
    row = wire.get(CLASSES, TABLE.format("v1"), includeObject=include).value["rows"][0]
    assert (row.get("object") or {}).get("kind") == kind


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_partial_object_metadata(wire, version):
    wire.post(CLASSES, node_class("small", 0.5))
    listed = wire.get(CLASSES, PARTIAL_LIST.format(version)).value
    assert (listed["kind"], listed["apiVersion"]) == ("PartialObjectMetadataList", f"meta.k8s.io/{version}")
    assert int(listed["metadata"]["resourceVersion"]) > 0
    single = wire.get(f"{CLASSES}/small", PARTIAL.format(version)).value
    assert (single["kind"], single["apiVersion"]) == ("PartialObjectMetadata", f"meta.k8s.io/{version}")
    assert (single["metadata"]["name"], "spec" in single) == ("small", False)
    assert listed["items"] == [single]


def test_unsupported_accept_is_not_acceptable(wire):
    refused(wire.get(CLASSES, "application/cbor"), 406, "NotAcceptable")
