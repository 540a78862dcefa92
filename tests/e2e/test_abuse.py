"""Abusive requests of a node, a viewer and an administrator are rejected: nothing is written, and one log
line gives the reason."""

import json
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from build.servers import Server, running_server
from build.wire import (
    APPLY,
    CLASSES,
    CONFIGMAPS,
    MERGE,
    SERVICES,
    Answer,
    Wire,
    configmap,
    node_class,
    refused,
    service,
)

from lattice.agent.identity import Identity
from lattice.agent.join import join
from lattice.kinds import KINDS
from lattice.server.fleet_queries.query_schema import APPLY_QUERY as APPLY_PLAN
from lattice.server.fleet_queries.query_schema import QUERY_TYPES
from lattice.wire import control_pb2 as pb
from lattice.wire import control_pb2_grpc as rpc

pytestmark = [pytest.mark.xdist_group("abuse"), pytest.mark.timeout(90)]

API = "/apis/lattice.dev/v1alpha1"
KIND, CORE = {"apiVersion": "lattice.dev/v1alpha1"}, {"apiVersion": "v1"}
POOLS, CLOUDS, WORKLOADS = (
    f"{API}/latticepools",
    f"{API}/cloudinfrastructures",
    f"{API}/namespaces/default/latticeworkloads",
)
SECRET = "k3Zq-this-opens-the-cloud"
SECRETS = "/api/v1/namespaces/lattice-system/secrets"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("abuse")) as running:
        login = {
            **CORE,
            "kind": "Secret",
            "metadata": {"name": "aws-login"},
            "stringData": {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": SECRET},
        }
        assert Wire(running.kubeconfig).post(SECRETS, login).status == 201
        yield running


@pytest.fixture(scope="module")
def viewer(server: Server) -> Wire:
    return Wire(server.mint("vic", "lattice:viewers"))


class Node(Wire):
    """The same server, with the certificate of a machine that joined."""

    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server.kubeconfig)
        token = server.lattice("tokens", "create").stdout.split()
        self.identity = Identity.load(folder)
        join(self.identity, server.url, next(word for word in token if word.count(".") >= 2), "n1")
        self._tls = ssl.create_default_context(cadata=self.server.authority)
        with tempfile.NamedTemporaryFile("wb") as pair:
            pair.write(self.identity.certificate + b"\n" + self.identity.key)
            pair.flush()
            self._tls.load_cert_chain(pair.name)


@pytest.fixture(scope="module")
def node(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(server, tmp_path_factory.mktemp("node"))


class Log:
    """What the server's log has said since the last look; each line is one JSON object, whatever was sent."""

    def __init__(self, server: Server) -> None:
        self._path, self._read = server.data_dir / "server.log", 0
        self.refusals()

    def refusals(self) -> list[dict[str, Any]]:
        text = self._path.read_text()
        lines, self._read = text[self._read :].splitlines(), len(text)
        found = [json.loads(line) for line in lines]
        return [each for each in found if each["event"] == "request rejected"]


def test_node_certificate_is_forbidden_every_verb_on_every_kind(
    server: Server, wire: Wire, node: Node
) -> None:
    before, log = wire.revision, Log(server)
    for kind in KINDS:
        resource = kind.resource
        home = f"/apis/{resource.api_version}" if resource.group else "/api/v1"
        inside = f"{home}/namespaces/lattice-system" if resource.namespaced else home
        path = f"{inside}/{resource.plural}"
        asked = [
            ("GET", path),
            ("GET", f"{path}?watch=1"),
            ("GET", f"{path}/n1"),
            ("POST", path),
            ("PUT", f"{path}/n1"),
        ]
        asked += [
            ("PATCH", f"{path}/n1"),
            ("DELETE", f"{path}/n1"),
            ("DELETE", path),
            ("PATCH", f"{path}/n1/status"),
        ]
        for method, where in asked:
            answer = node.ask(method, where, {} if method in ("POST", "PUT", "PATCH") else None)
            assert answer.status in (403, 404), (
                method,
                where,
                answer.raw,
            )  # 404: no such subresource, for any user
            assert where.endswith("/status") or answer.status == 403, (method, where)
            assert SECRET.encode() not in answer.raw
    told = log.refusals()
    assert {each["user"] for each in told} == {"node:n1"}
    assert all("in none of the groups" in each["why"] and each["status"] == 403 for each in told)
    assert wire.revision == before


def test_node_certificate_is_forbidden_queries_and_metrics(wire: Wire, node: Node) -> None:
    before = wire.revision
    for method, path in [
        ("GET", "/metrics"),
        ("GET", f"{API}/top?of=nodes"),
        ("GET", f"{WORKLOADS}/web/log"),
        ("POST", f"{WORKLOADS}/web/retry"),
        ("GET", "/lattice/v1/workloads"),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews"),
        *(("POST", f"{API}/fleet/{question}") for question in (*QUERY_TYPES, APPLY_PLAN)),
    ]:
        refused(
            node.ask(
                method, path, {"spec": {}} if method == "POST" else None, content_type="application/json"
            ),
            403,
            "Forbidden",
        )
    assert wire.revision == before


def test_node_certificate_is_denied_every_control_service_rpc(server: Server, wire: Wire, node: Node) -> None:
    before, log = wire.revision, Log(server)
    identity = node.identity
    credentials = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
    with grpc.secure_channel(identity.join_record.agents[0], credentials) as channel:
        stub = rpc.ControlStub(channel)
        for call, request in [
            (
                stub.ApplyWorkload,
                pb.ApplyWorkloadRequest(manifest=json.dumps({"metadata": {"name": "x"}, "spec": {}})),
            ),
            (stub.DeleteWorkload, pb.DeleteWorkloadRequest(name="x")),
            (stub.RetryWorkload, pb.WorkloadName(name="x")),
            (stub.GetWorkload, pb.WorkloadName(name="x")),
            (stub.GetNode, pb.NodeName(name="n1")),
            (stub.ListWorkloads, pb.ListRequest()),
            (stub.ListNodes, pb.ListRequest()),
            (stub.GetClusterSummary, pb.ClusterSummaryRequest()),
        ]:
            with pytest.raises(grpc.RpcError) as error:
                call(request)
            assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED, request
        with pytest.raises(grpc.RpcError) as error:
            list(stub.WatchEvents(pb.WatchEventsRequest()))
        assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert wire.revision == before
    assert {each["user"] for each in log.refusals()} == {"node:n1"}


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_server_refuses_old_tls_versions(server: Server, wire: Wire) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old = Wire(server.kubeconfig)
    old._tls = context
    with pytest.raises(
        ssl.SSLError, match="(?i)protocol.version|EOF"
    ):  # it is the other side that does not want it
        old.get(CLASSES)
    assert wire.get(CLASSES).status == 200


def a_pool(**provider: Any) -> dict[str, Any]:
    return {
        **KIND,
        "kind": "LatticePool",
        "metadata": {"name": "mine"},
        "spec": {"provider": {"type": "aws", "region": "r", **provider}},
    }


def a_cloud(**reference: str) -> dict[str, Any]:
    spec = {"provider": "aws", "regions": {"us-east-1": {}}, "credentialsRef": reference}
    return {**KIND, "kind": "CloudInfrastructure", "metadata": {"name": "mine"}, "spec": spec}


LOGIN = {"credentials": {"secretRef": "aws-login"}}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        pytest.param("POST", POOLS, a_pool(**LOGIN), id="a pool with that login"),
        pytest.param("POST", CLOUDS, a_cloud(name="aws-login"), id="a cloud with that login"),
        pytest.param("PATCH", f"{POOLS}/mine?fieldManager=x", a_pool(**LOGIN), id="applied"),
        pytest.param("GET", f"{SECRETS}/aws-login", None, id="the secret itself"),
        pytest.param("GET", SECRETS, None, id="all secrets"),
        pytest.param("GET", f"{SECRETS}?watch=1", None, id="a watch of them"),
        pytest.param(
            "GET", "/api/v1/secrets?fieldSelector=metadata.name%3Daws-login", None, id="by a selector"
        ),
        pytest.param("GET", "/api/v1/secrets?limit=1", None, id="a page of them"),
    ],
)
def test_viewer_can_neither_reference_nor_read_a_login_secret(
    server: Server, wire: Wire, viewer: Wire, method: str, path: str, body: Any
) -> None:
    before, log = wire.revision, Log(server)
    answer = viewer.ask(method, path, body, content_type=APPLY if method == "PATCH" else "application/json")
    refused(answer, 403, "Forbidden", 'User "vic" cannot')
    assert SECRET.encode() not in answer.raw
    assert wire.revision == before
    [told] = log.refusals()
    assert (told["user"], told["status"], told["reason"]) == ("vic", 403, "Forbidden")
    assert "lattice:viewers" in told["why"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        pytest.param(
            CLOUDS,
            a_cloud(name="token", namespace="team-a"),
            "spec.credentialsRef.namespace",
            id="a secret of a team",
        ),
        pytest.param(
            CLOUDS, a_cloud(name="x", namespace=""), "spec.credentialsRef.namespace", id="no namespace"
        ),
        pytest.param(CLOUDS, a_cloud(name="../default/x"), "spec.credentialsRef.name", id="a path"),
        pytest.param(
            POOLS,
            a_pool(credentials={"secretRef": "a/b"}),
            "spec.provider.credentials.secretRef",
            id="a path in a pool",
        ),
    ],
)
def test_credential_references_to_other_namespaces_are_invalid(
    server: Server, wire: Wire, path: str, body: Any, field: str
) -> None:
    before, log = wire.revision, Log(server)
    details = refused(wire.post(path, body), 422, "Invalid")
    assert [cause["field"] for cause in details["causes"]] == [field]
    assert wire.revision == before
    [told] = log.refusals()
    assert (told["status"], told["fields"]) == (422, [field])


EVIL = {
    "up": "../../etc/passwd",
    "dots": "..",
    "inner dots": "a..b",
    "slash": "a/b",
    "NUL": "a\0b",
    "newline": 'a\n{"event": "forged"}',
    "command": "$(reboot)",
    "backtick": "`reboot`",
    "flag": "--privileged",
    "space": "a b",
    "bidi": "a\u202eb",
    "upper": "ADMIN",
}


def a_workload(name: str = "w", container: str = "main", **rest: Any) -> dict[str, Any]:
    spec = {"containers": {container: {"command": ["true"], **rest}}}
    return {**KIND, "kind": "LatticeWorkload", "metadata": {"name": name}, "spec": spec}


NAME = "metadata.name"
PLACES = {  # what is sent where, and the field that must be named
    "a node class": lambda text: (CLASSES, node_class(text), NAME),
    "a service": lambda text: (SERVICES, service(text), NAME),
    "a workload": lambda text: (WORKLOADS, a_workload(text), NAME),
    "a namespace": lambda text: (
        "/api/v1/namespaces",
        {**CORE, "kind": "Namespace", "metadata": {"name": text}},
        NAME,
    ),
    "a prefix": lambda text: (
        CONFIGMAPS,
        {**CORE, "kind": "ConfigMap", "metadata": {"generateName": text}},
        "metadata.generateName",
    ),
    "a label": lambda text: (CONFIGMAPS, configmap("x", labels={text: "v"}), "metadata.labels"),
    "a label's value": lambda text: (CONFIGMAPS, configmap("x", labels={"k": text}), "metadata.labels.k"),
    "an annotation": lambda text: (
        CONFIGMAPS,
        configmap("x", annotations={text: "v"}),
        "metadata.annotations",
    ),
    "a finalizer": lambda text: (CONFIGMAPS, configmap("x", finalizers=[text]), "metadata.finalizers[0]"),
    "a container": lambda text: (WORKLOADS, a_workload(container=text), "spec.containers"),
    "an image": lambda text: (WORKLOADS, a_workload(image=text), "spec.containers.main.image"),
    "a port": lambda text: (
        WORKLOADS,
        a_workload(ports=[{"name": text}]),
        "spec.containers.main.ports[0].name",
    ),
}
MEANT = {  # these are valid at this place
    ("a label", "upper"), ("a label's value", "upper"), ("an annotation", "upper"), ("a finalizer", "upper"),
    ("a label's value", "inner dots"), ("a label", "inner dots"), ("an annotation", "inner dots"), ("a finalizer", "inner dots"),
    ("an image", "slash"), ("a label", "slash"), ("an annotation", "slash"), ("a finalizer", "slash"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_malicious_names_are_rejected_by_validation(server: Server, wire: Wire, place: str) -> None:
    for kind, text in EVIL.items():
        if (place, kind) in MEANT:
            continue
        before, log = wire.revision, Log(server)
        path, body, field = PLACES[place](text)
        causes = refused(wire.post(path, body), 422, "Invalid")["causes"]
        assert all(cause["field"].startswith(field) for cause in causes), (kind, causes)
        assert wire.revision == before, kind
        [told] = log.refusals()
        assert (told["user"], told["status"], len(told["fields"])) == ("lattice-admin", 422, len(causes))


@pytest.mark.parametrize("part", ["command", "args"])
def test_nul_in_command_is_invalid_and_shell_syntax_is_literal(wire: Wire, part: str) -> None:
    before = wire.revision
    details = refused(wire.post(WORKLOADS, a_workload(**{part: ["sh", "a\0b"]})), 422, "Invalid")
    assert [cause["field"] for cause in details["causes"]] == [f"spec.containers.main.{part}[1]"]
    refused(wire.post(WORKLOADS, a_workload(env={"A": "\0"})), 422, "Invalid", "NUL")
    assert wire.revision == before
    words = ["echo", "$(reboot)", "; rm -rf /", "a\nb"]
    kept = wire.post(f"{WORKLOADS}?dryRun=All", a_workload(**{part: words}))
    assert kept.value["spec"]["containers"]["main"][part] == words


ROADS = [
    "..%2fsecrets%2faws-login",
    "..%2f..%2flattice-system%2fsecrets%2faws-login",
    "%2e%2e",
    "a%00b",
    "a%0ab",
    "%2f",
    "a%2f..%2fb",
]


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH", "PUT"])
def test_encoded_path_segments_reach_no_other_object(
    wire: Wire, viewer: Wire, method: str, road: str
) -> None:
    before = wire.revision
    for who in (viewer, wire):
        path = f"{CONFIGMAPS}/{road}"
        answer = who.ask(
            method, path, configmap("x") if method in ("PATCH", "PUT") else None, content_type=_type(method)
        )
        assert answer.status in (400, 403, 404, 405, 409, 422), answer.raw
        assert SECRET.encode() not in answer.raw
    assert wire.revision == before


def _type(method: str) -> str:
    return MERGE if method == "PATCH" else "application/json"


@pytest.mark.parametrize(
    "namespace", ["default/latticeservices", "..", "a%00b", "default%2flatticeservices", "DEFAULT"]
)
def test_short_path_rejects_malformed_namespace(wire: Wire, namespace: str) -> None:
    before = wire.revision
    answers: list[Answer] = [
        wire.get(f"/lattice/v1/workloads?namespace={namespace}"),
        wire.ask("PUT", f"/lattice/v1/workloads/status?namespace={namespace}", a_workload("status")),
    ]
    for answer in answers:
        refused(answer, 400, "BadRequest", "?namespace=")
    assert wire.revision == before
