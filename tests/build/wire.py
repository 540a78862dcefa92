"""A server spoken to in raw HTTPS: what goes over the wire and what comes back, with nothing in between."""

import contextlib
import http.client
import json
import ssl
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lattice.cli.client.config import read_kubeconfig

JSON = "application/json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
CLASSES = "/apis/lattice.dev/v1alpha1/latticenodeclasses"
SERVICES = "/apis/lattice.dev/v1alpha1/namespaces/default/latticeservices"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.raw)

    @property
    def revision(self) -> int:
        return int(self.value["metadata"]["resourceVersion"])

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.value["items"]]


class Wire:
    """One identity. Every request has its own connection, so that no refusal can spoil the next answer."""

    def __init__(self, kubeconfig: Path) -> None:
        self.server = read_kubeconfig(kubeconfig)
        self._tls = ssl.create_default_context(cadata=self.server.authority)
        if self.server.certificate:
            with tempfile.NamedTemporaryFile("w") as pair:
                pair.write(f"{self.server.certificate}\n{self.server.key}\n")
                pair.flush()
                self._tls.load_cert_chain(pair.name)

    def ask(self, method: str, path: str, body: Any = None, /, **headers: str) -> Answer:
        """Header names in snake_case; bytes go as they are, in chunks if there are several; anything else as JSON."""
        with self.connected() as connection:
            response = self._send(connection, method, path, body, headers)
            return Answer(response.status, response.headers, response.read())

    def get(self, path: str, accept: str = JSON, **query: object) -> Answer:
        return self.ask("GET", with_query(path, query), accept=accept)

    def post(self, path: str, body: Any, content_type: str = JSON) -> Answer:
        return self.ask("POST", path, body, content_type=content_type)

    def patch(self, path: str, body: Any, content_type: str = MERGE) -> Answer:
        return self.ask("PATCH", path, body, content_type=content_type)

    def apply(self, path: str, body: Any, manager: str = "wire", **query: object) -> Answer:
        return self.patch(with_query(path, {"fieldManager": manager, **query}), body, APPLY)

    def delete(self, path: str, options: Any = None) -> Answer:
        return self.ask("DELETE", path, options, content_type=JSON)

    @property
    def revision(self) -> int:
        """Of the store: every list shows it, also that of a kind without objects."""
        return self.get("/api/v1/services").revision

    @contextlib.contextmanager
    def watching(self, path: str, accept: str = JSON, **query: object) -> Iterator[Iterator[Any]]:
        """The events of a watch, as they come; ten seconds without one is an error."""
        with self.connected() as connection:
            response = self._send(
                connection, "GET", with_query(path, {"watch": "1", **query}), None, {"accept": accept}
            )
            assert response.status == 200, response.read()
            yield (json.loads(line) for line in iter(response.readline, b""))

    @contextlib.contextmanager
    def connected(self) -> Iterator[http.client.HTTPSConnection]:
        address = urllib.parse.urlsplit(self.server.url)
        connection = http.client.HTTPSConnection(
            address.hostname or "", address.port, context=self._tls, timeout=10
        )
        try:
            yield connection
        finally:
            connection.close()

    def _send(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        body: Any,
        headers: Mapping[str, str],
    ) -> Any:
        sent = {name.replace("_", "-").title(): value for name, value in headers.items()}
        if self.server.token:
            sent.setdefault("Authorization", f"Bearer {self.server.token}")
        as_is = body is None or isinstance(body, bytes | Iterator)
        connection.request(method, path, body if as_is else json.dumps(body), sent)
        return connection.getresponse()


def with_query(path: str, query: Mapping[str, object]) -> str:
    return f"{path}?{urllib.parse.urlencode(query)}" if query else path


def refused(answer: Answer, code: int, reason: str, *words: str) -> dict[str, Any]:
    """A proper Status, whose details are handed back."""
    status = answer.value
    shape = {name: status.get(name) for name in ("kind", "apiVersion", "status", "code", "reason")}
    assert shape == {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
    }, status
    assert answer.status == code
    assert isinstance(status["metadata"], dict)
    for word in words:
        assert word in status["message"]
    details: dict[str, Any] = status["details"]
    return details


def configmap(name: str, data: Mapping[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **metadata},
        "data": dict(data or {}),
    }


def node_class(name: str, cores: Any = 1, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeNodeClass",
        "metadata": {"name": name, **metadata},
        "spec": {"resources": {"cores": cores}},
    }


def service(name: str, replicas: int = 1, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeService",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": {"main": {"image": "nginx:1"}}, "replicas": {"min": replicas, "max": 9}},
    }
