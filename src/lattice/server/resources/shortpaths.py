"""The short addresses below /lattice/v1: plain REST for workloads and nodes, by the same verbs as the rest of the API.

A workload is named by itself; `?namespace=` says where it is, and `default` is meant without it. A list without it is of all namespaces.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lattice.errors import LatticeError, Malformed, NotAllowed
from lattice.kinds.meta.base import GROUP, VERSION, Resource
from lattice.kinds.meta.json_body import encode, parse_json
from lattice.kinds.node import LatticeNode
from lattice.kinds.meta.selector import dns_label_problem
from lattice.kinds.workload import LatticeWorkload
from lattice.server.requests.call import JSON
from lattice.server.resources.routes import unknown_path
from lattice.server.resources.verbs import APPLY

HOME = "/lattice/v1"
MANAGER = "lattice-v1"  # the field manager of what is put
KINDS: dict[str, Resource] = {"workloads": LatticeWorkload.resource, "nodes": LatticeNode.resource}
ALLOWED = {
    ("workloads",): ("GET", "POST"),
    ("workloads", "ID"): ("GET", "PUT", "DELETE"),
    ("workloads", "ID", "retry"): ("POST",),
    ("workloads", "ID", "log"): ("GET",),
    ("nodes",): ("GET",),
    ("nodes", "ID"): ("GET",),
}
NOT_SAID = ("managedFields",)  # what a reader gets and need not say again


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as the rest of the server understands it. `resource`: of a body that may leave its kind out."""

    method: str
    path: str
    query: Mapping[str, str]
    content_type: str = JSON
    resource: Resource | None = None

    @property
    def parts(self) -> list[str]:
        return self.path.strip("/").split("/")


def in_full(asked: Asked) -> Asked:
    """PUT declares the whole workload, whether it is there or not: an apply that takes every field over."""
    if not asked.path.startswith(f"{HOME}/"):
        return asked
    word, *rest = asked.parts[2:] or [""]
    methods = ALLOWED.get((word, *("ID" for _ in rest[:1]), *rest[1:]))
    if methods is None:
        raise unknown_path(asked.path)
    if asked.method not in methods:
        raise NotAllowed(
            f"{asked.method} is not understood here", where=asked.path, fix=f"use {' or '.join(methods)}"
        )
    resource = KINDS[word]
    namespace = asked.query.get("namespace", "")
    if namespace and (wrong := dns_label_problem(namespace)):
        raise Malformed(wrong, where="?namespace=", fix="name one namespace")
    if resource.namespaced and not namespace and (rest or asked.method == "POST"):
        namespace = "default"
    inside = ["namespaces", namespace] if resource.namespaced and namespace else []
    path = "/" + "/".join(["apis", GROUP, VERSION, *inside, resource.plural, *rest])
    query = {name: value for name, value in asked.query.items() if name != "namespace"}
    if asked.method == "PUT" and len(rest) == 1:
        return Asked("PATCH", path, {"force": "true", "fieldManager": MANAGER, **query}, APPLY, resource)
    return Asked(asked.method, path, query, asked.content_type, resource if not rest else None)


def completed(asked: Asked, body: bytes) -> bytes:
    """With the kind that the address says. What cannot be read is refused later, by whoever reads it."""
    if asked.resource is None or not body:
        return body
    try:
        parsed = parse_json(body)
    except LatticeError:
        return body
    value = parsed.value
    if not isinstance(value, dict) or parsed.duplicates:
        return body
    metadata = value.get("metadata")
    if isinstance(metadata, dict):
        value["metadata"] = {name: each for name, each in metadata.items() if name not in NOT_SAID}
    return encode({"apiVersion": asked.resource.api_version, "kind": asked.resource.kind, **value})
