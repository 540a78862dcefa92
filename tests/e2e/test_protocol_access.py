"""Authorization, protobuf bodies, cascading deletion, health and metrics, as raw requests."""

import ssl
import time

import pytest
from build.wire import CLASSES, CONFIGMAPS, PROTOBUF, SERVICES, Wire, configmap, node_class, refused, service

pytestmark = [pytest.mark.xdist_group("protocol-access"), pytest.mark.timeout(60)]

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.fixture(scope="module")
def stranger(server):
    return Wire(server.mint("stranger", "some:others"))


@pytest.fixture(scope="module")
def viewer(server):
    return Wire(server.mint("viewer", "lattice:viewers", token=True))


class Nobody(Wire):
    """The same server, without credentials."""

    def __init__(self, kubeconfig):
        super().__init__(kubeconfig)
        self._tls = ssl.create_default_context(cadata=self.server.authority)


@pytest.fixture(scope="module")
def nobody(server):
    return Nobody(server.kubeconfig)


ROADS = [
    ("GET", CLASSES),
    ("POST", CLASSES),
    ("GET", "/apis"),
    ("GET", "/metrics"),
    ("GET", "/nothing"),
    ("POST", REVIEWS),
    ("DELETE", CLASSES),
]


@pytest.mark.parametrize(("method", "path"), ROADS)
def test_request_without_credentials_is_unauthorized(nobody, wire, method, path):
    before = wire.revision
    refused(nobody.ask(method, path, node_class("x") if method == "POST" else None), 401, "Unauthorized")
    assert wire.revision == before


@pytest.mark.parametrize("token", ["lat-000000000000.nothing", "x", "lat-", "lat-../../x.y"])
def test_unknown_tokens_are_unauthorized(nobody, token):
    refused(nobody.ask("GET", CLASSES, authorization=f"Bearer {token}"), 401, "Unauthorized")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_unknown_groups_are_forbidden(stranger, wire, method):
    before = wire.revision
    details = refused(
        stranger.ask(method, CLASSES, node_class("x") if method == "POST" else None),
        403,
        "Forbidden",
        'User "stranger" cannot',
    )
    assert (details["group"], details["kind"]) == ("lattice.dev", "latticenodeclasses")
    assert wire.revision == before


def test_viewer_reads_all_but_secrets(viewer, wire):
    before = wire.revision
    assert viewer.get(CLASSES).status == 200
    refused(viewer.get("/api/v1/secrets"), 403, "Forbidden")
    refused(viewer.get("/api/v1/namespaces/lattice-system/secrets", watch=1), 403, "Forbidden")
    refused(viewer.post(CLASSES, node_class("x")), 403, "Forbidden")
    refused(viewer.apply(f"{CLASSES}/x", node_class("x")), 403, "Forbidden")
    refused(viewer.delete(CLASSES), 403, "Forbidden")
    assert wire.revision == before


def test_admin_cannot_write_status_or_managed_kinds(wire):
    wire.post(CLASSES, node_class("mine"))
    before = wire.revision
    refused(
        wire.patch(f"{CLASSES}/mine/status", {"status": {"phase": "Ready"}}),
        403,
        "Forbidden",
        "only Lattice may write status",
    )
    refused(
        wire.post("/apis/lattice.dev/v1alpha1/latticeclusters", {}),
        403,
        "Forbidden",
        "only Lattice may write latticeclusters",
    )
    assert wire.revision == before


@pytest.mark.parametrize(
    "header", ["impersonate_user", "impersonate_group", "impersonate_uid", "impersonate_extra_reason"]
)
def test_impersonation_is_refused(wire, header):
    wire.post(CONFIGMAPS, configmap("kept"))
    before = wire.revision
    for method, path, body in (
        ("DELETE", f"{CONFIGMAPS}/kept", None),
        ("POST", CLASSES, node_class("x")),
        ("GET", CLASSES, None),
    ):
        refused(wire.ask(method, path, body, **{header: "bob"}), 403, "Forbidden", "impersonation")
    assert wire.revision == before


def test_health_is_public_and_metrics_require_a_user(nobody, wire, viewer):
    for path in ("/healthz", "/livez", "/readyz"):
        assert (nobody.ask("GET", path).status, nobody.ask("GET", path).raw) == (200, b"ok")
    told = nobody.ask("GET", "/health").value
    assert told.keys() == {"status", "isLeader", "instanceId", "lastReconciliation", "pending"}
    assert (told["status"], isinstance(told["isLeader"], bool), isinstance(told["instanceId"], str)) == (
        "ok",
        True,
        True,
    )
    refused(nobody.ask("GET", "/metrics"), 401, "Unauthorized")
    text = viewer.ask("GET", "/metrics").raw.decode()
    assert "lattice_" in text
    assert wire.ask("GET", "/metrics").headers["Content-Type"].startswith("text/plain")


def field(number, value):
    """One field of a protobuf message: text, bytes or a whole number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number):
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def enveloped(api_version, kind, message):
    """As Kubernetes' Go clients send it: a magic word, the type, the message."""
    return b"k8s\0" + field(1, field(1, api_version) + field(2, kind)) + field(2, message)


def named(name):
    return field(1, field(1, name) + field(11, field(1, "app") + field(2, "x")))


PROTOBUFS = [
    pytest.param("/api/v1/namespaces", "v1", "Namespace", named("proto"), {}, id="Namespace"),
    pytest.param(
        CONFIGMAPS,
        "v1",
        "ConfigMap",
        named("proto") + field(2, field(1, "k") + field(2, "v")),
        {"data": {"k": "v"}},
        id="ConfigMap",
    ),
    pytest.param(
        "/api/v1/namespaces/default/secrets",
        "v1",
        "Secret",
        named("proto") + field(2, field(1, "k") + field(2, b"\x00\xff")) + field(3, "Opaque"),
        {"data": {"k": "AP8="}, "type": "Opaque"},
        id="Secret",
    ),
    pytest.param(
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        "coordination.k8s.io/v1",
        "Lease",
        named("proto")
        + field(2, field(1, "me") + field(2, 15) + field(4, field(1, 1_700_000_000) + field(2, 5000))),
        {
            "spec": {
                "holderIdentity": "me",
                "leaseDurationSeconds": 15,
                "renewTime": "2023-11-14T22:13:20.000005Z",
            }
        },
        id="Lease",
    ),
    pytest.param(
        "/apis/events.k8s.io/v1/namespaces/default/events",
        "events.k8s.io/v1",
        "Event",
        named("proto")
        + field(2, field(1, 1_700_000_000) + field(2, 5000))
        + field(4, "example.org/op")
        + field(5, "op-0")
        + field(6, "Reconcile")
        + field(7, "Done")
        + field(8, field(1, "LatticePool") + field(3, "p"))
        + field(10, "all is well")
        + field(11, "Normal"),
        {
            "eventTime": "2023-11-14T22:13:20.000005Z",
            "reportingController": "example.org/op",
            "regarding": {"kind": "LatticePool", "name": "p"},
            "note": "all is well",
        },
        id="Event of events.k8s.io",
    ),
]


@pytest.mark.parametrize(("path", "api_version", "kind", "message", "shown"), PROTOBUFS)
def test_go_clients_send_core_kinds_as_protobuf(wire, path, api_version, kind, message, shown):
    made = wire.post(path, enveloped(api_version, kind, message), PROTOBUF)
    assert made.status == 201, made.value
    value = made.value
    assert (value["kind"], value["metadata"]["name"], value["metadata"]["labels"]["app"]) == (
        kind,
        "proto",
        "x",
    )
    assert {name: value[name] for name in shown} == shown
    before = wire.revision
    refused(wire.post(path, enveloped(api_version, kind, message), PROTOBUF), 409, "AlreadyExists")
    refused(wire.post(path, enveloped(api_version, kind, message)[:-3], PROTOBUF), 400, "BadRequest")
    refused(wire.post(path, b"k8s\0\xff\xff\xff", PROTOBUF), 400, "BadRequest")
    refused(wire.post(path, enveloped("v1", "Pod", message), PROTOBUF), 400, "BadRequest")
    assert wire.revision == before


@pytest.mark.parametrize(("verb", "allowed"), [("create", True), ("impersonate", False)])
def test_access_reviews_accept_protobuf(wire, viewer, verb, allowed):
    asked = field(2, field(1, field(2, verb) + field(3, "lattice.dev") + field(5, "latticepools")))
    body = enveloped("authorization.k8s.io/v1", "SelfSubjectAccessReview", asked)
    answer = wire.post(REVIEWS, body, PROTOBUF)
    assert (answer.status, answer.value["kind"], answer.value["status"]["allowed"]) == (
        201,
        "SelfSubjectAccessReview",
        allowed,
    )
    assert viewer.post(REVIEWS, body, PROTOBUF).value["status"]["allowed"] is False


def test_delete_options_accept_protobuf(wire):
    wire.post(CONFIGMAPS, configmap("dated"))
    options = enveloped("v1", "DeleteOptions", field(2, field(1, "another")))
    refused(wire.ask("DELETE", f"{CONFIGMAPS}/dated", options, content_type=PROTOBUF), 409, "Conflict")
    assert wire.get(f"{CONFIGMAPS}/dated").status == 200


def owned(wire, name, policy=""):
    """An owner with something that belongs to it, and the owner deleted."""
    owner = wire.post(CONFIGMAPS, configmap(name)).value
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": name,
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }
    assert wire.post(CONFIGMAPS, configmap(f"{name}-part", ownerReferences=[reference])).status == 201
    return wire.delete(f"{CONFIGMAPS}/{name}", {"propagationPolicy": policy} if policy else None)


def gone(wire, path, seconds=15):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if wire.get(path).status == 404:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("policy", ["", "Background", "Foreground"])
def test_dependents_are_deleted_with_their_owner(wire, policy):
    name = f"owner-{policy.lower() or 'plain'}"
    answer = owned(wire, name, policy)
    if policy == "Foreground":
        assert "foregroundDeletion" in answer.value["metadata"]["finalizers"]
    else:
        assert answer.value["status"] == "Success"
    assert gone(wire, f"{CONFIGMAPS}/{name}-part")
    assert gone(wire, f"{CONFIGMAPS}/{name}")


def test_orphans_stay_without_owner_reference(wire):
    owned(wire, "parent", "Orphan")
    assert gone(wire, f"{CONFIGMAPS}/parent")
    left = wire.get(f"{CONFIGMAPS}/parent-part")
    assert (left.status, left.value["metadata"].get("ownerReferences")) == (200, None)


def test_namespace_deletion_deletes_its_content(wire):
    wire.post("/api/v1/namespaces", {"metadata": {"name": "leaving"}})
    inside = CONFIGMAPS.replace("default", "leaving")
    wire.post(inside, configmap("a", finalizers=["example.com/hold"]))
    wire.post(SERVICES.replace("default", "leaving"), service("b"))
    marked = wire.delete("/api/v1/namespaces/leaving").value
    assert marked["status"]["phase"] == "Terminating"
    refused(wire.post(inside, configmap("late")), 403, "Forbidden", "being terminated")
    assert gone(wire, SERVICES.replace("default", "leaving") + "/b")
    assert wire.get("/api/v1/namespaces/leaving").status == 200, "what is held inside holds it"
    wire.patch(f"{inside}/a", {"metadata": {"finalizers": None}})
    assert gone(wire, "/api/v1/namespaces/leaving")


@pytest.mark.parametrize("name", ["default", "lattice-system"])
def test_system_namespaces_cannot_be_deleted(wire, name):
    before = wire.revision
    refused(wire.delete(f"/api/v1/namespaces/{name}"), 403, "Forbidden")
    assert wire.revision == before
    assert wire.get(f"/api/v1/namespaces/{name}").status == 200
