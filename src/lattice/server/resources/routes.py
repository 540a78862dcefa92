"""Which kind, object and verb does a path mean?"""

from collections.abc import Mapping
from dataclasses import dataclass

from lattice.errors import LatticeError, Malformed, MethodNotAllowed, NotFound
from lattice.kinds.meta.base import GROUP, VERSION, Resource
from lattice.kinds.meta.json_body import encode, parse_json
from lattice.kinds.meta.selector import dns_label_problem
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.server.access.authorization import VERB_BY_METHOD, RequestAttributes
from lattice.server.requests.call import JSON, Target
from lattice.server.requests.catalog import Catalog, has_subresource
from lattice.server.resources.verbs import APPLY_PATCH_TYPE

SHORT_API_PREFIX = "/lattice/v1"
SHORT_API_FIELD_MANAGER = "lattice-v1"  # the field manager of what is put
SHORT_API_RESOURCES: dict[str, Resource] = {
    "workloads": LatticeWorkload.resource,
    "nodes": LatticeNode.resource,
}
SHORT_API_METHODS = {
    ("workloads",): ("GET", "POST"),
    ("workloads", "ID"): ("GET", "PUT", "DELETE"),
    ("workloads", "ID", "retry"): ("POST",),
    ("workloads", "ID", "log"): ("GET",),
    ("nodes",): ("GET",),
    ("nodes", "ID"): ("GET",),
}
SERVER_OWNED_METADATA = ("managedFields",)  # what a reader gets and need not say again


def resolve_target(catalog: Catalog, path: str) -> Target:
    """/apis/GROUP/VERSION/[namespaces/NS/]PLURAL[/NAME[/SUBRESOURCE]], or the same below /api/v1."""
    parts = path.strip("/").split("/")
    group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    served = catalog.find(group, version, rest[0]) if rest else None
    if served is None or len(rest) > 3 or (namespace and not served.resource.namespaced):
        raise unknown_path_error(path)
    target = Target(served, namespace, *rest[1:])
    if target.name and served.resource.namespaced and not namespace:
        raise unknown_path_error(path)
    if target.subresource and not has_subresource(served.resource, target.subresource):
        raise unknown_path_error(path)
    return target


def unknown_path_error(path: str) -> NotFound:
    return NotFound(
        "the server could not find the requested resource",
        where=path,
        fix="`kubectl api-resources` lists what there is",
    )


def request_attributes(method: str, target: Target, *, watching: bool) -> RequestAttributes:
    """What a request wants, as authorization knows it."""
    verb = VERB_BY_METHOD.get(method, method.lower())
    if not target.name:
        verb = {"get": "watch" if watching else "list", "delete": "deletecollection"}.get(verb, verb)
    resource = target.served.resource
    return RequestAttributes(
        verb, resource.group, resource.plural, target.subresource, target.namespace, target.name
    )


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request, as the rest of the server understands it. `resource`: of a body that may leave its kind out."""

    method: str
    path: str
    query: Mapping[str, str]
    content_type: str = JSON
    resource: Resource | None = None

    @property
    def path_parts(self) -> list[str]:
        return self.path.strip("/").split("/")


def expand_short_path(asked: RoutedRequest) -> RoutedRequest:
    """PUT declares the whole workload, whether it is there or not: an apply that takes every field over."""
    if not asked.path.startswith(f"{SHORT_API_PREFIX}/"):
        return asked
    word, *rest = asked.path_parts[2:] or [""]
    methods = SHORT_API_METHODS.get((word, *("ID" for _ in rest[:1]), *rest[1:]))
    if methods is None:
        raise unknown_path_error(asked.path)
    if asked.method not in methods:
        raise MethodNotAllowed(
            f"{asked.method} is not understood here", where=asked.path, fix=f"use {' or '.join(methods)}"
        )
    resource = SHORT_API_RESOURCES[word]
    namespace = asked.query.get("namespace", "")
    if namespace and (wrong := dns_label_problem(namespace)):
        raise Malformed(wrong, where="?namespace=", fix="name one namespace")
    if resource.namespaced and not namespace and (rest or asked.method == "POST"):
        namespace = "default"
    inside = ["namespaces", namespace] if resource.namespaced and namespace else []
    path = "/" + "/".join(["apis", GROUP, VERSION, *inside, resource.plural, *rest])
    query = {name: value for name, value in asked.query.items() if name != "namespace"}
    if asked.method == "PUT" and len(rest) == 1:
        return RoutedRequest(
            "PATCH",
            path,
            {"force": "true", "fieldManager": SHORT_API_FIELD_MANAGER, **query},
            APPLY_PATCH_TYPE,
            resource,
        )
    return RoutedRequest(asked.method, path, query, asked.content_type, resource if not rest else None)


def fill_body_kind(asked: RoutedRequest, body: bytes) -> bytes:
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
        value["metadata"] = {
            name: each for name, each in metadata.items() if name not in SERVER_OWNED_METADATA
        }
    return encode({"apiVersion": asked.resource.api_version, "kind": asked.resource.kind, **value})
