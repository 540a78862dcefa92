"""Writes as raw requests: each rejection is a proper Status, and nothing is written."""

import contextlib
import time

import pytest
from build.wire import (
    APPLY,
    CLASSES,
    CONFIGMAPS,
    JSON,
    JSON_PATCH,
    MERGE,
    PROTOBUF,
    SERVICES,
    STRATEGIC,
    Wire,
    configmap,
    node_class,
    refused,
    service,
)

pytestmark = [pytest.mark.xdist_group("protocol"), pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def robot(server):
    """One of Lattice's own, which may write status."""
    return Wire(server.mint("robot", "lattice:system"))


@pytest.fixture(scope="module")
def known(wire):
    """An object that refusals are about."""
    wire.post(CLASSES, node_class("known"))
    wire.post(CONFIGMAPS, configmap("known", {"a": "1"}))


@contextlib.contextmanager
def nothing_written(wire):
    before = wire.revision
    yield
    assert wire.revision == before, "something was written"


def metadata_of(answer):
    return answer.value["metadata"]


BAD_BODIES = [
    pytest.param(b"", 400, "BadRequest", id="no body"),
    pytest.param(b"{", 400, "BadRequest", id="half of a body"),
    pytest.param(b"[]", 400, "BadRequest", id="a list"),
    pytest.param(b"null", 400, "BadRequest", id="null"),
    pytest.param(b"\xff\xfe", 400, "BadRequest", id="no text"),
    pytest.param(b"{}", 400, "BadRequest", id="no kind"),
    pytest.param(
        {"kind": "LatticeNodeClass", "metadata": {"name": "x"}}, 400, "BadRequest", id="no apiVersion"
    ),
    pytest.param({**node_class("x"), "kind": "LatticePool"}, 422, "Invalid", id="another kind"),
    pytest.param({**node_class("x"), "apiVersion": "lattice.dev/v9"}, 422, "Invalid", id="another version"),
    pytest.param({**node_class("x"), "metadata": []}, 422, "Invalid", id="metadata that is no object"),
    pytest.param({**node_class("x"), "metadata": {}}, 422, "Invalid", id="no name"),
    pytest.param(node_class("UPPER"), 422, "Invalid", id="a name that no DNS would take"),
    pytest.param(
        node_class("x", namespace="default"), 400, "BadRequest", id="a namespace where there is none"
    ),
    pytest.param(
        node_class("x", resourceVersion="7"), 400, "BadRequest", id="a revision before there is one"
    ),
    pytest.param(node_class("x", cores=-1), 422, "Invalid", id="fewer than no cores"),
    pytest.param(node_class("x", cores={"many": 1}), 422, "Invalid", id="cores that are no number"),
    pytest.param({**node_class("x"), "spec": None}, 422, "Invalid", id="no spec"),
]


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(("body", "code", "reason"), BAD_BODIES)
def test_invalid_create_is_refused_with_status(wire, body, code, reason):
    with nothing_written(wire):
        details = refused(wire.post(CLASSES, body), code, reason)
    assert details["kind"] in ("LatticeNodeClass", "latticenodeclasses")
    assert code != 422 or details["causes"]


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 400, "99999999999999999999"]
)
@pytest.mark.parametrize("how", ["create", "merge patch", "json patch", "apply"])
@pytest.mark.usefixtures("known")
def test_infinite_and_huge_numbers_are_refused(wire, how, number):
    spec = f'{{"resources": {{"cores": {number}}}}}'
    whole = f'{{"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeNodeClass", "metadata": {{"name": "known"}}, "spec": {spec}}}'.encode()
    one = f"{CLASSES}/known"
    with nothing_written(wire):
        answer = {
            "create": lambda: wire.post(CLASSES, whole.replace(b"known", b"fresh")),
            "merge patch": lambda: wire.patch(one, f'{{"spec": {spec}}}'.encode()),
            "json patch": lambda: wire.patch(
                one, f'[{{"op": "add", "path": "/spec", "value": {spec}}}]'.encode(), JSON_PATCH
            ),
            "apply": lambda: wire.apply(one, whole),
        }[how]()
    refused(answer, answer.status, "BadRequest" if answer.status == 400 else "Invalid")
    assert answer.status in (400, 422)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'], ids=["lists", "objects"])
def test_deep_nesting_is_refused_at_once(wire, opening):
    body = opening * 100_000
    took = []
    with nothing_written(wire):
        for _ in range(3):
            began = time.perf_counter()
            refused(wire.post(CONFIGMAPS, body), 400, "BadRequest")
            took.append(time.perf_counter() - began)
    assert min(took) < 0.1


def test_a_body_over_three_mebibytes_is_too_large(wire):
    with nothing_written(wire):
        refused(wire.post(CONFIGMAPS, configmap("big", {"a": "x" * (3 << 20)})), 413, "RequestEntityTooLarge")
        in_chunks = iter([b" " * 65536] * 49)
        refused(wire.post(CONFIGMAPS, in_chunks), 413, "RequestEntityTooLarge")


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(("validation", "code"), [("Strict", 400), ("Warn", 201), ("Ignore", 201)])
def test_duplicate_and_unknown_fields_follow_field_validation(wire, validation, code):
    name = f"twice-{validation.lower()}"
    text = f'{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"a":"1","a":"2"}},"dota":{{}}}}'
    answer = wire.post(f"{CONFIGMAPS}?fieldValidation={validation}", text.encode())
    warnings = answer.headers.get_all("Warning") or []
    assert answer.status == code
    if validation == "Strict":
        refused(answer, 400, "BadRequest", 'unknown field "dota"', 'duplicate field "data.a"')
        return
    assert (answer.value["data"], "dota" in answer.value) == ({"a": "2"}, False)
    assert len(warnings) == (2 if validation == "Warn" else 0)


@pytest.mark.parametrize(
    ("method", "path", "field", "kind"),
    [
        ("POST", f"{CONFIGMAPS}?dryRun=Some", "dryRun", "CreateOptions"),
        ("POST", f"{CONFIGMAPS}?fieldValidation=Loose", "fieldValidation", "CreateOptions"),
        ("PUT", f"{CONFIGMAPS}/known?dryRun=Some", "dryRun", "UpdateOptions"),
        ("PATCH", f"{CONFIGMAPS}/known?dryRun=Some", "dryRun", "PatchOptions"),
        ("DELETE", f"{CONFIGMAPS}/known?propagationPolicy=Sideways", "propagationPolicy", "DeleteOptions"),
    ],
)
@pytest.mark.usefixtures("known")
def test_unknown_write_options_are_invalid(wire, method, path, field, kind):
    body = None if method == "DELETE" else configmap("known")
    with nothing_written(wire):
        details = refused(
            wire.ask(method, path, body, content_type=MERGE if method == "PATCH" else JSON),
            422,
            "Invalid",
            kind,
        )
    assert (details["kind"], details["group"]) == (kind, "meta.k8s.io")
    assert [cause["field"] for cause in details["causes"]] == [field]


@pytest.mark.usefixtures("known")
def test_apply_requires_a_field_manager(wire):
    with nothing_written(wire):
        details = refused(
            wire.patch(f"{CONFIGMAPS}/known", configmap("known"), APPLY),
            422,
            "Invalid",
            "PatchOptions.meta.k8s.io",
        )
    assert details["causes"][0]["field"] == "fieldManager"


@pytest.mark.usefixtures("known")
def test_create_of_existing_object_is_validated_first(wire):
    with nothing_written(wire):
        details = refused(
            wire.post(CLASSES, node_class("known")), 409, "AlreadyExists", '"known" already exists'
        )
        assert details == {"name": "known", "group": "lattice.dev", "kind": "latticenodeclasses"}
        details = refused(
            wire.post(CLASSES, node_class("known", cores=-1)), 422, "Invalid", '"known" is invalid'
        )
        assert (details["name"], details["kind"], details["causes"][0]["field"]) == (
            "known",
            "LatticeNodeClass",
            "spec.resources.cores",
        )


def test_a_missing_namespace_is_named(wire):
    with nothing_written(wire):
        refused(
            wire.post("/api/v1/namespaces/nowhere/configmaps", configmap("x")),
            404,
            "NotFound",
            'namespaces "nowhere" not found',
        )
        refused(
            wire.post(SERVICES.replace("default", "nowhere"), service("x")),
            404,
            "NotFound",
            'namespaces "nowhere" not found',
        )
        refused(
            wire.apply("/api/v1/namespaces/nowhere/configmaps/x", configmap("x")),
            404,
            "NotFound",
            'namespaces "nowhere" not found',
        )


def test_a_missing_object_is_named(wire):
    with nothing_written(wire):
        for method, body in (
            ("GET", None),
            ("PUT", node_class("none", resourceVersion="1")),
            ("PATCH", {}),
            ("DELETE", None),
        ):
            answer = wire.ask(
                method, f"{CLASSES}/none", body, content_type=MERGE if method == "PATCH" else JSON
            )
            details = refused(answer, 404, "NotFound", 'latticenodeclasses.lattice.dev "none" not found')
            assert details == {"name": "none", "group": "lattice.dev", "kind": "latticenodeclasses"}


@pytest.mark.usefixtures("known")
def test_a_stale_revision_is_a_conflict(wire):
    old = metadata_of(wire.get(f"{CONFIGMAPS}/known"))["resourceVersion"]
    wire.patch(f"{CONFIGMAPS}/known", {"data": {"stale": old}})
    with nothing_written(wire):
        for answer in (
            wire.ask("PUT", f"{CONFIGMAPS}/known", configmap("known", resourceVersion=old)),
            wire.patch(f"{CONFIGMAPS}/known", {"metadata": {"resourceVersion": old}, "data": {"b": "1"}}),
            wire.apply(f"{CONFIGMAPS}/known", configmap("known", {"b": "1"}, resourceVersion=old)),
            wire.delete(f"{CONFIGMAPS}/known", {"preconditions": {"resourceVersion": old}}),
            wire.delete(f"{CONFIGMAPS}/known", {"preconditions": {"uid": "another"}}),
        ):
            assert refused(answer, 409, "Conflict")["name"] == "known"
        refused(
            wire.patch(f"{CONFIGMAPS}/known", [{"op": "test", "path": "/data/a", "value": "no"}], JSON_PATCH),
            422,
            "Invalid",
        )
        refused(wire.patch(f"{CONFIGMAPS}/known", [{"op": "dance"}], JSON_PATCH), 400, "BadRequest")


def test_update_requires_revision_and_keeps_identity(wire):
    made = wire.post(CLASSES, node_class("same")).value
    with nothing_written(wire):
        refused(
            wire.ask("PUT", f"{CLASSES}/same", node_class("same")), 422, "Invalid", "metadata.resourceVersion"
        )
        other = {**made, "metadata": {**made["metadata"], "uid": "another"}}
        assert wire.ask("PUT", f"{CLASSES}/same", other).status in (409, 422)
        refused(
            wire.ask("PUT", f"{CLASSES}/same", {**made, "metadata": {**made["metadata"], "name": "other"}}),
            400,
            "BadRequest",
        )
    assert wire.ask("PUT", f"{CLASSES}/same", {**made, "spec": {"resources": {"cores": 2}}}).value[
        "spec"
    ] == {"resources": {"cores": 2}}


def test_no_op_writes_keep_the_revision(wire, robot):
    made = wire.post(CLASSES, node_class("noop", labels={"a": "b"})).value
    one = f"{CLASSES}/noop"
    wire.apply(one, node_class("noop", labels={"c": "d"}))
    robot.patch(f"{one}/status", {"status": {"phase": "Ready"}})
    current = wire.get(one).value
    with nothing_written(wire):
        assert wire.ask("PUT", one, current).value == current
        assert wire.patch(one, {"spec": made["spec"]}).value == current
        assert (
            wire.patch(
                one, [{"op": "replace", "path": "/spec/resources/cores", "value": 1}], JSON_PATCH
            ).value
            == current
        )
        assert wire.apply(one, node_class("noop", labels={"c": "d"})).value == current
        assert robot.patch(f"{one}/status", {"status": {"phase": "Ready"}}).value == current


def test_generation_counts_spec_changes_only(wire, robot):
    one = f"{CLASSES}/grown"
    assert (
        metadata_of(wire.post(CLASSES, {**node_class("grown", generation=7), "status": {"phase": "Mine"}}))[
            "generation"
        ]
        == 1
    )
    assert wire.get(one).value.get("status", {}).get("phase") != "Mine", "status is not the user's to write"
    assert metadata_of(wire.patch(one, {"metadata": {"labels": {"a": "b"}}}))["generation"] == 1
    assert metadata_of(wire.patch(one, {"spec": {"resources": {"cores": 2}}}))["generation"] == 2
    told = robot.patch(
        f"{one}/status", {"spec": {"resources": {"cores": 9}}, "status": {"phase": "Ready"}}
    ).value
    assert (told["metadata"]["generation"], told["spec"]["resources"]["cores"], told["status"]["phase"]) == (
        2,
        2,
        "Ready",
    )
    through = wire.patch(one, {"spec": {"resources": {"cores": 3}}, "status": {"phase": "Lost"}}).value
    assert (through["metadata"]["generation"], through["status"]["phase"]) == (3, "Ready")
    wire.patch(one, {"metadata": {"finalizers": ["example.com/hold"]}})
    assert metadata_of(wire.delete(one))["generation"] == 4
    refused(
        wire.patch(one, {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}),
        422,
        "Invalid",
        "no new finalizers",
    )
    wire.patch(one, {"metadata": {"finalizers": []}})
    assert wire.get(one).status == 404


@pytest.mark.usefixtures("known")
def test_dry_run_answers_and_writes_nothing(wire):
    with nothing_written(wire):
        assert wire.post(f"{CLASSES}?dryRun=All", node_class("dry")).status == 201
        assert (
            wire.patch(f"{CLASSES}/known?dryRun=All", {"spec": {"resources": {"cores": 7}}}).value["spec"][
                "resources"
            ]["cores"]
            == 7
        )
        assert wire.apply(f"{CLASSES}/dry", node_class("dry"), dryRun="All").status == 201
        current = wire.get(f"{CLASSES}/known").value
        assert wire.ask("PUT", f"{CLASSES}/known?dryRun=All", {**current, "spec": {}}).value["spec"] == {}
        assert wire.delete(f"{CLASSES}/known?dryRun=All").status == 200
        assert wire.delete(f"{CLASSES}/known", {"dryRun": ["All"]}).status == 200
        assert wire.delete(f"{CLASSES}?dryRun=All").status == 200
        refused(wire.post(f"{CLASSES}?dryRun=All", node_class("known")), 409, "AlreadyExists")
        refused(
            wire.post("/api/v1/namespaces/nowhere/configmaps?dryRun=All", configmap("x")), 404, "NotFound"
        )
        refused(wire.post(f"{CLASSES}?dryRun=All", node_class("dry", cores=-1)), 422, "Invalid")


def test_a_collection_is_deleted_by_selector(wire):
    room = "/api/v1/namespaces/swept/configmaps"
    wire.post("/api/v1/namespaces", {"metadata": {"name": "swept"}})
    for number in range(6):
        wire.post(room, configmap(f"c{number}", labels={"odd": str(number % 2)}))
    assert wire.delete(f"{room}?labelSelector=odd%3D1").names == ["c1", "c3", "c5"]
    assert wire.get(room).names == ["c0", "c2", "c4"]
    wire.delete(f"{room}?fieldSelector=metadata.name%3Dc2")
    assert wire.get(room).names == ["c0", "c4"]
    assert wire.delete(room).status == 200
    assert wire.get(room).names == []


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        pytest.param("POST", CLASSES, PROTOBUF, id="protobuf of ours"),
        pytest.param("PATCH", f"{CLASSES}/known", STRATEGIC, id="strategic merge of ours"),
        pytest.param("PATCH", f"{CLASSES}/known", JSON, id="a patch of no kind"),
        pytest.param("POST", CLASSES, "application/cbor", id="CBOR"),
        pytest.param("POST", CONFIGMAPS, "application/xml", id="XML"),
    ],
)
def test_unsupported_content_types_are_refused(wire, method, path, content):
    with nothing_written(wire):
        refused(
            wire.ask(method, path, node_class("known"), content_type=content), 415, "UnsupportedMediaType"
        )


@pytest.mark.usefixtures("known")
def test_strategic_merge_works_only_for_core_kinds(wire):
    assert wire.patch(f"{CONFIGMAPS}/known", {"data": {"s": "1"}}, STRATEGIC).value["data"]["s"] == "1"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{CLASSES}/known"),
        ("PUT", CLASSES),
        ("PATCH", CLASSES),
        ("POST", "/apis/lattice.dev/v1alpha1/latticeservices"),
        ("POST", "/api/v1/namespaces/default/services"),
        ("DELETE", f"{CLASSES}/known/status"),
        ("OPTIONS", CLASSES),
    ],
)
@pytest.mark.usefixtures("known")
def test_unsupported_methods_are_not_allowed(wire, robot, method, path):
    with nothing_written(wire):
        refused(robot.ask(method, path, node_class("known"), content_type=JSON), 405, "MethodNotAllowed")


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/apis/nothing.dev/v1/things",
        "/apis/lattice.dev/v9/latticepools",
        "/apis/lattice.dev/v1alpha1/nothings",
        "/apis/lattice.dev/v1alpha1/latticeservices/x",
        f"{CLASSES}/x/y",
        f"{CLASSES}/x/status/y",
        "/api/v1/namespaces/default/configmaps/x/status",
    ],
)
def test_unknown_path_is_not_found(wire, path):
    for method in ("GET", "POST", "DELETE"):
        refused(wire.ask(method, path), 404, "NotFound", "could not find the requested resource")


REVIEW = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", f"{CONFIGMAPS}/known", 5),
        ("DELETE", f"{CONFIGMAPS}/known", {"dryRun": "All"}),
        ("DELETE", f"{CONFIGMAPS}/known", {"dryRun": 5}),
        ("DELETE", f"{CONFIGMAPS}/known", {"preconditions": 5}),
        ("DELETE", f"{CONFIGMAPS}/known", {"propagationPolicy": ["Orphan"]}),
        ("POST", REVIEW, 5),
        ("POST", REVIEW, {"spec": 5}),
        ("POST", REVIEW, {"spec": {"groups": 5}}),
        ("POST", REVIEW, {"spec": {"resourceAttributes": 5}}),
        ("POST", REVIEW, {"spec": {"nonResourceAttributes": 5}}),
        ("PUT", f"{SERVICES}/scaled/scale", 5),
        ("PUT", f"{SERVICES}/scaled/scale", {}),
        ("PUT", f"{SERVICES}/scaled/scale", {"spec": 5}),
        ("PUT", f"{SERVICES}/scaled/scale", {"metadata": 5, "spec": {"replicas": 1}}),
        ("PUT", f"{SERVICES}/scaled/scale", {"spec": {"replicas": "many"}}),
        ("PUT", f"{SERVICES}/scaled/scale", {"spec": {"replicas": -1}}),
        ("PUT", f"{SERVICES}/scaled/scale", {"spec": {"replicas": True}}),
    ],
    ids=str,
)
def test_malformed_bodies_are_client_errors(wire, method, path, body):
    wire.post(SERVICES, service("scaled", 3))
    answer = wire.ask(method, path, body, content_type=JSON)
    refused(answer, answer.status, "BadRequest" if answer.status == 400 else "Invalid")
    assert wire.get(f"{CONFIGMAPS}/known").status == 200
    assert wire.get(f"{SERVICES}/scaled/scale").value["spec"] == {"replicas": 3}


def test_scale_changes_only_the_replica_count(wire):
    wire.post(SERVICES, service("moved", 3))
    scale = wire.get(f"{SERVICES}/moved/scale").value
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 3})
    assert wire.ask("PUT", f"{SERVICES}/moved/scale", {**scale, "spec": {"replicas": 5}}).value["spec"] == {
        "replicas": 5
    }
    assert wire.patch(f"{SERVICES}/moved/scale", {"spec": {"replicas": 0}}).value["spec"] == {"replicas": 0}
    assert wire.get(f"{SERVICES}/moved").value["spec"]["replicas"] == {"min": 0, "max": 9}
    refused(wire.ask("PUT", f"{SERVICES}/moved/scale", scale), 409, "Conflict")


def test_generate_name_leaves_room_for_the_suffix(wire):
    name = wire.post(CONFIGMAPS, {"metadata": {"generateName": "x" * 250}}).value["metadata"]["name"]
    assert (len(name), name[:58]) == (63, "x" * 58)
    refused(wire.post(CONFIGMAPS, {"metadata": {"generateName": "UPPER-"}}), 422, "Invalid")


@pytest.mark.parametrize(
    "body", [configmap("bare"), {"metadata": {"name": "bare"}}], ids=["named", "unnamed"]
)
def test_core_kinds_may_omit_api_version_and_kind(wire, body):
    """kopf posts its events without apiVersion and kind; the address says both."""
    made = wire.post(f"{CONFIGMAPS}?dryRun=All", body)
    assert (made.status, made.value["kind"], made.value["apiVersion"]) == (201, "ConfigMap", "v1")
