"""Differences to an API server of Kubernetes that only show over HTTP: headers, bodies, paths, WebSockets."""

import asyncio
import base64
import gzip
import json
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import pytest
from build.servers import Server
from build.wire import CONFIGMAPS, SERVICES, Answer, Wire, configmap, refused, service

pytestmark = [pytest.mark.xdist_group("kubernetes-conformance"), pytest.mark.timeout(60)]
WRITERS = 24
REVIEWS = "/apis/authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def token(server: Server) -> str:
    """The bearer token of an administrator."""
    return Wire(server.mint("ann", "lattice:admins", token=True)).server.token


def test_patches_at_the_same_time_all_succeed(wire: Wire) -> None:
    assert wire.post(SERVICES, service("busy")).status == 201
    path = f"{SERVICES}/busy"

    def write(i: int) -> int:
        labels = {"labels": {f"writer-{i}": "x"}}
        whole = service("busy") | {"metadata": {"name": "busy", **labels}}
        del whole["spec"]
        return [
            lambda: wire.patch(path, {"metadata": labels}),
            lambda: wire.patch(path, [{"op": "add", "path": "/metadata/annotations", "value": {"a": str(i)}}], "application/json-patch+json"),
            lambda: wire.apply(path, whole, manager=f"manager-{i}"),
            lambda: wire.patch(f"{path}/scale", {"spec": {"replicas": i % 9}}),
        ][i % 4]().status  # fmt: skip

    with ThreadPoolExecutor(WRITERS) as pool:
        assert list(pool.map(write, range(WRITERS))) == [200] * WRITERS


def test_every_answer_has_an_audit_id_and_is_not_cached(wire: Wire) -> None:
    answers = [
        wire.get("/api/v1/namespaces/default"),
        wire.get("/api/v1/namespaces/nope"),
        wire.get("/apis"),
        wire.get("/livez"),
    ]
    assert [answer.headers["Cache-Control"] for answer in answers] == ["no-cache, private"] * 4
    assert len({answer.headers["Audit-Id"] for answer in answers}) == 4
    assert wire.ask("GET", "/version", audit_id="of-the-client").headers["Audit-Id"] == "of-the-client"
    assert wire.ask("GET", "/version", audit_id="x" * 65).headers["Audit-Id"] != "x" * 65


@pytest.mark.parametrize(
    "path", ["/api", "/apis", "/apis/lattice.dev/v1alpha1", "/openapi/v2", "/openapi/v3", "/version"]
)
def test_discovery_answers_not_modified_for_a_cached_document(wire: Wire, path: str) -> None:
    first = wire.get(path)
    again = wire.ask("GET", path, accept="application/json", if_none_match=first.headers["Etag"])
    assert (first.status, again.status, again.raw) == (200, 304, b"")
    assert wire.ask("GET", path, if_none_match='"another"').status == 200


def test_large_answers_are_compressed_for_accepting_clients(wire: Wire) -> None:
    for i in range(3):
        body = configmap(f"large-{i}", {"text": "x" * 100_000})
        assert wire.post(CONFIGMAPS, body).status == 201
    plain = wire.get(CONFIGMAPS)
    packed = wire.ask("GET", CONFIGMAPS, accept_encoding="gzip, deflate")
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert len(packed.raw) < len(plain.raw) / 10
    assert json.loads(gzip.decompress(packed.raw))["items"] == plain.value["items"]
    assert "Content-Encoding" not in wire.ask("GET", CONFIGMAPS, accept_encoding="gzip;q=0").headers
    small = wire.ask("GET", "/api/v1/namespaces/default", accept_encoding="gzip")
    assert "Content-Encoding" not in small.headers
    # A list of many objects is a stream, which is compressed piece by piece.
    for i in range(60):
        wire.post("/api/v1/namespaces/default/secrets", {"metadata": {"name": f"many-{i:03}"}})
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    rows = wire.ask("GET", "/api/v1/secrets", accept_encoding="gzip", accept=table)
    assert rows.headers["Content-Encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(rows.raw))["rows"]) >= 60


def test_bodies_up_to_three_mebibytes_are_read(wire: Wire) -> None:
    mebibyte = "x" * (1 << 20)
    assert wire.post(CONFIGMAPS, configmap("one", {"text": mebibyte})).status == 201
    details = refused(wire.post(CONFIGMAPS, configmap("two", {"a": mebibyte, "b": "x"})), 422, "Invalid")
    assert "may not be more than 1048576 bytes" in details["causes"][0]["message"]
    # Annotations and values together: the store holds more than one mebibyte.
    big = configmap("three", {"text": mebibyte[: 1 << 19]}, annotations={"a": "y" * 200_000})
    assert wire.post(CONFIGMAPS, big).status == 201
    refused(
        wire.post(CONFIGMAPS, configmap("four", {"text": 3 * mebibyte})),
        413,
        "RequestEntityTooLarge",
        "3145728",
    )
    wire.delete(f"{CONFIGMAPS}/one")


@pytest.mark.parametrize(
    "media",
    [
        "text/plain",
        "text/plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CONFIGMAPS),
        ("PUT", f"{CONFIGMAPS}/x"),
        ("POST", "/apis/lattice.dev/v1alpha1/fleet/plan"),
        ("POST", "/lattice/v1/workloads"),
        ("POST", f"{REVIEWS}/selfsubjectaccessreviews"),
    ],
)
def test_writes_that_a_foreign_page_could_send_are_refused(
    wire: Wire, media: str, method: str, path: str
) -> None:
    answer = wire.ask(method, path, json.dumps(configmap("x")).encode(), content_type=media)
    refused(answer, 415, "UnsupportedMediaType", media.partition(";")[0])


@pytest.mark.parametrize(
    "path",
    ["/", "/livez/ping", "/readyz/ping", "/healthz/ping", "/readyz/etcd", "/livez/log", "/readyz?verbose"],
)
def test_paths_of_probes_and_the_root_answer(wire: Wire, path: str) -> None:
    answer = wire.get(path)
    assert answer.status == 200
    if path == "/":
        assert {"/api/v1", "/apis/lattice.dev/v1alpha1", "/readyz"} <= set(answer.value["paths"])
    elif "verbose" in path:
        assert answer.raw.decode().splitlines()[-1] == "readyz check passed"
    else:
        assert answer.raw == b"ok"
    assert wire.get("/livez/nope").status == 404


@pytest.mark.parametrize(
    "path", ["/api/v1/namespaces/default", "/api/v1/namespaces", "/api/v1/secrets", "/version", "/openapi/v2"]
)
def test_head_has_the_headers_of_get_and_no_body(wire: Wire, path: str) -> None:
    answer = wire.ask("HEAD", path)
    assert (answer.status, answer.raw) == (200, b"")
    assert answer.headers["Content-Type"] == wire.ask("GET", path).headers["Content-Type"]
    assert wire.ask("HEAD", "/api/v1/namespaces/nope").status == 404


def test_get_of_one_object_ignores_watch(wire: Wire) -> None:
    answer = wire.get("/api/v1/namespaces/default", watch=1)
    assert answer.value["kind"] == "Namespace"


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/watch/namespaces",
        "/api/v1/watch/namespaces/default",
        "/api/v1/watch/namespaces/default/configmaps",
    ],
)
def test_older_paths_of_watches(wire: Wire, path: str) -> None:
    wire.post(CONFIGMAPS, configmap("watched"))
    with wire.watching(path, timeoutSeconds=1) as events:
        first = next(events)
    assert first["type"] == "ADDED"
    if path.endswith("/default"):
        assert first["object"]["metadata"]["name"] == "default"


def test_finalize_replaces_the_finalizers_of_a_namespace(wire: Wire) -> None:
    wire.post("/api/v1/namespaces", {"metadata": {"name": "final"}})
    body = {"metadata": {"name": "final"}, "spec": {"finalizers": ["kubernetes", "example.org/x"]}}
    answer = wire.ask("PUT", "/api/v1/namespaces/final/finalize", body, content_type="application/json")
    assert answer.value["spec"]["finalizers"] == ["kubernetes", "example.org/x"]


def test_local_access_review_asks_about_its_own_namespace(wire: Wire) -> None:
    spec: dict[str, Any] = {
        "user": "vic",
        "groups": ["lattice:viewers"],
        "resourceAttributes": {"namespace": "default", "verb": "get", "resource": "configmaps"},
    }
    path = f"{REVIEWS}/namespaces/default/localsubjectaccessreviews"
    answer = wire.post(path, {"spec": spec})
    assert (answer.status, answer.value["status"]["allowed"]) == (201, True)
    spec["resourceAttributes"]["namespace"] = "other"
    refused(wire.post(path, {"spec": spec}), 400, "BadRequest", "must be the namespace of the path")
    assert wire.post(f"{REVIEWS}/localsubjectaccessreviews", {"spec": spec}).status == 404


def websocket_events(
    wire: Wire, path: str, count: int, **options: Any
) -> tuple[list[dict[str, Any]], str | None]:
    """The first messages of a watch over WebSocket, and the subprotocol that the server chose."""

    async def read() -> tuple[list[dict[str, Any]], str | None]:
        tls = ssl.create_default_context(cadata=wire.server.authority)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
            session.ws_connect(wire.server.url + path, **options) as socket,
        ):
            return [json.loads(await socket.receive_str(timeout=10)) for _ in range(count)], socket.protocol

    return asyncio.run(read())


def bearer_protocol(token: str) -> str:
    return "base64url.bearer.authorization.k8s.io." + base64.urlsafe_b64encode(
        token.encode()
    ).decode().rstrip("=")


def test_watch_over_websocket(wire: Wire, token: str) -> None:
    path = "/api/v1/namespaces?watch=1&fieldSelector=metadata.name=default"
    headers = {"Authorization": f"Bearer {token}"}
    events, protocol = websocket_events(wire, path, 1, headers=headers)
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [
        ("ADDED", "default")
    ]
    assert protocol is None
    # A browser: the token is a subprotocol, another one must be chosen, and the page is of another site.
    offered = ["base64.binary.k8s.io", bearer_protocol(token)]
    events, protocol = websocket_events(wire, path, 1, protocols=offered, origin="https://headlamp.example")
    assert (events[0]["type"], protocol) == ("ADDED", "base64.binary.k8s.io")


def test_websocket_follows_changes(wire: Wire, token: str) -> None:
    path = f"{CONFIGMAPS}?watch=1&resourceVersion={wire.revision}"
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(websocket_events, wire, path, 2, headers={"Authorization": f"Bearer {token}"})
        wire.post(CONFIGMAPS, configmap("followed"))
        wire.patch(f"{CONFIGMAPS}/followed", {"data": {"a": "b"}})
        events, _ = reading.result(15)
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED"]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        pytest.param({}, 401, id="no credentials"),
        pytest.param({"protocols": [bearer_protocol("lat-no.no")]}, 401, id="a token that does not exist"),
    ],
)
def test_websocket_without_valid_credentials_is_refused(wire: Wire, options: Any, status: int) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as raised:
        websocket_events(wire, "/api/v1/namespaces?watch=1", 1, **options)
    assert raised.value.status == status


def handshake(wire: Wire, origin: str) -> Answer:
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec_websocket_version": "13",
        "sec_websocket_key": base64.b64encode(b"0123456789abcdef").decode(),
    }
    return wire.ask("GET", "/api/v1/namespaces/nope/configmaps/x?watch=1", origin=origin, **headers)


def test_websocket_of_a_foreign_page_with_a_cert_is_refused(wire: Wire) -> None:
    refused(handshake(wire, "https://evil.example"), 403, "Forbidden", "may not open a WebSocket")
    own = wire.server.url
    assert handshake(wire, own).status == 404


def test_connections_close_when_a_websocket_client_leaves(wire: Wire, token: str) -> None:
    def watches() -> Iterator[float]:
        for line in wire.get("/metrics", accept="text/plain").raw.decode().splitlines():
            if line.startswith("lattice_watches"):
                yield float(line.rpartition(" ")[2])

    before = sum(watches())
    websocket_events(wire, "/api/v1/namespaces?watch=1", 1, headers={"Authorization": f"Bearer {token}"})
    for _ in range(50):
        if sum(watches()) == before:
            return
    raise AssertionError("the server still counts the watch")
