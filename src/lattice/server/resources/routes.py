"""Paths of the REST API: the kind, object and verb that a request addresses, and the short paths below
/lattice/v1."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
# Field manager of objects that clients PUT to a short path.
SHORT_API_FIELD_MANAGER = "lattice-v1"
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
# Fields that the server returns and ignores in a body sent back.
SERVER_OWNED_METADATA = ("managedFields",)


def resolve_target(catalog: Catalog, path: str) -> Target:
    """Resolve /apis/GROUP/VERSION/[namespaces/NS/]PLURAL[/NAME[/SUBRESOURCE]], or the same below /api/v1.

    Raise NotFound if no kind is served at the path.
    """
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        group, version, segments = "", parts[1], parts[2:]
    else:
        group, version, segments = parts[1], parts[2], parts[3:]
    namespace = ""
    # /namespaces/NS/status and /namespaces/NS/finalize are subresources of the namespace itself.
    if len(segments) >= 3 and segments[0] == "namespaces" and segments[2] not in {"status", "finalize"}:
        namespace, segments = segments[1], segments[2:]
    served = catalog.find(group, version, segments[0]) if segments else None
    if served is None or len(segments) > 3 or (namespace and not served.resource.namespaced):
        raise unknown_path_error(path)
    target = Target(served, namespace, *segments[1:])
    if target.name and served.resource.namespaced and not namespace:
        raise unknown_path_error(path)
    if target.subresource and not has_subresource(served.resource, target.subresource):
        raise unknown_path_error(path)
    return target


def unknown_path_error(path: str) -> NotFound:
    return NotFound(
        "the server could not find the requested resource",
        where=path,
        fix="`kubectl api-resources` lists the resources",
    )


def request_attributes(method: str, target: Target, *, watching: bool) -> RequestAttributes:
    """Return the attributes of a request that authorization checks."""
    verb = VERB_BY_METHOD.get(method, method.lower())
    if not target.name:
        verb = {"get": "watch" if watching else "list", "delete": "deletecollection"}.get(verb, verb)
    resource = target.served.resource
    return RequestAttributes(
        verb, resource.group, resource.plural, target.subresource, target.namespace, target.name
    )


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request with its full path. `resource` is the kind of a body that may omit apiVersion and kind."""

    method: str
    path: str
    query: Mapping[str, str]
    content_type: str = JSON
    resource: Resource | None = None

    @property
    def path_parts(self) -> list[str]:
        return self.path.strip("/").split("/")


def expand_short_path(request: RoutedRequest) -> RoutedRequest:
    """Translate a short path into the full path; other paths are returned unchanged.

    PUT on a short path declares the whole workload: a forced server-side apply that creates a missing
    workload.
    """
    if not request.path.startswith(f"{SHORT_API_PREFIX}/"):
        return request
    plural, *segments = request.path_parts[2:] or [""]
    methods = SHORT_API_METHODS.get((plural, *("ID" for _ in segments[:1]), *segments[1:]))
    if methods is None:
        raise unknown_path_error(request.path)
    if request.method not in methods:
        raise MethodNotAllowed(
            f"method {request.method} is not allowed here",
            where=request.path,
            fix=f"use {' or '.join(methods)}",
        )
    resource = SHORT_API_RESOURCES[plural]
    namespace = request.query.get("namespace", "")
    if namespace and (problem := dns_label_problem(namespace)):
        raise Malformed(problem, where="?namespace=", fix="use the path of one namespace")
    if resource.namespaced and not namespace and (segments or request.method == "POST"):
        namespace = "default"
    namespace_segments = ["namespaces", namespace] if resource.namespaced and namespace else []
    path = "/" + "/".join(["apis", GROUP, VERSION, *namespace_segments, resource.plural, *segments])
    query = {name: value for name, value in request.query.items() if name != "namespace"}
    if request.method == "PUT" and len(segments) == 1:
        return RoutedRequest(
            "PATCH",
            path,
            {"force": "true", "fieldManager": SHORT_API_FIELD_MANAGER, **query},
            APPLY_PATCH_TYPE,
            resource,
        )
    return RoutedRequest(
        request.method, path, query, request.content_type, resource if not segments else None
    )


def expand_watch_path(request: RoutedRequest) -> RoutedRequest:
    """Translate a path of the older form of watches, /api/v1/watch/..., into the watch of a list; other paths
    are returned unchanged."""
    parts = request.path_parts
    position = 2 if parts[0] == "api" else 3
    if (
        request.method != "GET"
        or parts[0] not in {"api", "apis"}
        or len(parts) <= position + 1
        or parts[position] != "watch"
    ):
        return request
    segments = parts[position + 1 :]
    query = {**request.query, "watch": "1"}
    # The watch of one object: the list that selects the name.
    scope = 2 if segments[0] == "namespaces" and len(segments) > 2 else 0
    if len(segments) == scope + 2:
        selector = f"metadata.name={segments.pop()}"
        query["fieldSelector"] = ",".join(filter(None, [request.query.get("fieldSelector", ""), selector]))
    return replace(request, path="/" + "/".join([*parts[:position], *segments]), query=query)


def fill_body_kind(request: RoutedRequest, body: bytes) -> bytes:
    """Add the apiVersion and kind of the path to a body. An unreadable body is returned unchanged; the verb
    rejects the body."""
    if request.resource is None or not body:
        return body
    try:
        parsed = parse_json(body)
    except LatticeError:
        return body
    value = parsed.value
    # A rewritten body would hide duplicate fields, which the verb reports.
    if not isinstance(value, dict) or parsed.duplicates:
        return body
    metadata = value.get("metadata")
    if isinstance(metadata, dict):
        value["metadata"] = {
            name: field for name, field in metadata.items() if name not in SERVER_OWNED_METADATA
        }
    return encode({"apiVersion": request.resource.api_version, "kind": request.resource.kind, **value})
