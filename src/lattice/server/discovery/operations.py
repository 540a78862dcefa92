"""The operations of a resource: paths, methods, parameters and bodies, independent of the OpenAPI version."""

from collections.abc import Iterator
from typing import Final

import msgspec

from lattice.kinds.meta.base import Resource
from lattice.server.discovery.meta_schemas import DELETE_OPTIONS, PATCH, SCALE, STATUS, Schema

OBJECT_MEDIA_TYPES = ("application/json", "application/yaml")
PATCH_MEDIA_TYPES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
)
STRATEGIC_MERGE_MEDIA_TYPE = "application/strategic-merge-patch+json"
RESPONSE_MEDIA_TYPES = ("application/json", "application/yaml")
WATCH_MEDIA_TYPE = "application/json;stream=watch"

# Package names of the groups that Kubernetes defines; the names are compiled into kubectl.
_PACKAGES = {
    "": "io.k8s.api.core",
    "apiextensions.k8s.io": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
}

PARAMETERS: Final[dict[str, Schema]] = {
    "name": {"type": "string", "description": "Name of the object."},
    "namespace": {"type": "string", "description": "Namespace of the object."},
    "pretty": {"type": "string", "description": "`true`: indent the answer for people."},
    "dryRun": {
        "type": "string",
        "description": "`All`: run every check and answer as usual, but store nothing.",
    },
    "fieldManager": {
        "type": "string",
        "description": "Field manager for managedFields; required by server-side apply. "
        "At most 128 characters.",
    },
    "fieldValidation": {
        "type": "string",
        "description": "Handling of unknown and duplicate fields: `Strict` rejects the request, `Warn` warns, `Ignore` drops the fields.",
    },
    "force": {
        "type": "boolean",
        "description": "Server-side apply: take over fields of other field managers.",
    },
    "labelSelector": {
        "type": "string",
        "description": "Only objects with these labels, such as `app=web,tier in (a,b)`.",
    },
    "fieldSelector": {
        "type": "string",
        "description": "Only objects with these fields, such as `metadata.name=web`.",
    },
    "limit": {
        "type": "integer",
        "description": "Maximum number of objects in one answer; `continue` returns the next page.",
    },
    "continue": {"type": "string", "description": "The `metadata.continue` of the previous page."},
    "watch": {"type": "boolean", "description": "Stream changes instead of listing."},
    "allowWatchBookmarks": {
        "type": "boolean",
        "description": "Also send bookmarks with the current revision while nothing changes.",
    },
    "sendInitialEvents": {
        "type": "boolean",
        "description": "Begin a watch with all existing objects, followed by a bookmark.",
    },
    "resourceVersion": {"type": "string", "description": "Revision to list at or to watch from."},
    "resourceVersionMatch": {
        "type": "string",
        "description": "Meaning of `resourceVersion` for a list: `Exact` or `NotOlderThan`.",
    },
    "timeoutSeconds": {"type": "integer", "description": "Seconds after which the stream ends."},
    "gracePeriodSeconds": {
        "type": "integer",
        "description": "Grace period in seconds; 0 deletes immediately.",
    },
    "orphanDependents": {
        "type": "boolean",
        "description": "Deprecated form of propagationPolicy: true means `Orphan`.",
    },
    "propagationPolicy": {
        "type": "string",
        "description": "Handling of owned objects: `Background`, `Foreground` or `Orphan`.",
    },
    "ignoreStoreReadErrorWithClusterBreakingPotential": {
        "type": "boolean",
        "description": "Accepted, but has no effect.",
    },
}
_LIST = (
    "allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion",
    "resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch",
)  # fmt: skip
_WRITE = ("dryRun", "fieldManager", "fieldValidation")
_DELETE = (
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
)


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method on one path. `body` and `responses` name definitions; `gvk` is group, version and kind."""

    path: str
    method: str
    action: str
    id: str
    description: str
    gvk: tuple[str, str, str]
    parameters: tuple[str, ...] = ()
    body: str = ""
    consumes: tuple[str, ...] = OBJECT_MEDIA_TYPES
    responses: tuple[tuple[int, str], ...]


class _Verb(msgspec.Struct, frozen=True):
    """The template of an operation: `prefix` begins the operation id, `codes` are the HTTP status codes of
    success."""

    method: str
    action: str
    prefix: str
    description: str
    parameters: tuple[str, ...] = ()
    # "" sends no body, "own" sends the object itself, any other value names a definition.
    body: str = ""
    codes: tuple[int, ...] = (200,)


_COLLECTION = {
    "list": _Verb("get", "list", "list", "List or watch {things}.", _LIST),
    "create": _Verb("post", "post", "create", "Create a {thing}.", _WRITE, "own", (200, 201, 202)),
    "deletecollection": _Verb(
        "delete",
        "deletecollection",
        "deleteCollection",
        "Delete the {things} that match.",
        (*_LIST, *_DELETE),
        DELETE_OPTIONS,
    ),
}
_ITEM = {
    "get": _Verb("get", "get", "read", "Read a {thing}."),
    "update": _Verb("put", "put", "replace", "Replace a {thing}.", _WRITE, "own", (200, 201)),
    "patch": _Verb(
        "patch", "patch", "patch", "Change a {thing}, or apply it.", (*_WRITE, "force"), PATCH, (200, 201)
    ),
    "delete": _Verb("delete", "delete", "delete", "Delete a {thing}.", _DELETE, DELETE_OPTIONS, (200, 202)),
}
_SUBRESOURCE_VERBS = {verb: _ITEM[verb] for verb in ("get", "update", "patch")}


def definition_name(resource: Resource) -> str:
    """Return the name of the definition of a kind, such as `dev.lattice.v1alpha1.LatticePool`.

    A kind of a Kubernetes group keeps the definition name of Kubernetes.
    """
    package = _PACKAGES.get(resource.group)
    if package is None and resource.group.endswith(".k8s.io"):
        package = f"io.k8s.api.{resource.group.removesuffix('.k8s.io')}"
    return f"{package or '.'.join(reversed(resource.group.split('.')))}.{resource.version}.{resource.kind}"


def group_path(resource: Resource) -> str:
    """Return the root path of an API version, such as `apis/lattice.dev/v1alpha1`: the key of the OpenAPI v3
    index."""
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"


def operations(resource: Resource) -> Iterator[Operation]:
    """Yield the operations on a resource and on the subresources of the resource."""
    root = f"/{group_path(resource)}"
    scope_root = f"{root}/namespaces/{{namespace}}" if resource.namespaced else root
    yield from _operations_for(resource, f"{scope_root}/{resource.plural}", _COLLECTION)
    if resource.namespaced and "list" in resource.verbs:
        yield _operation(resource, f"{root}/{resource.plural}", "list", _COLLECTION["list"])
    item = f"{scope_root}/{resource.plural}/{{name}}"
    yield from _operations_for(resource, item, _ITEM)
    if resource.has_status:
        yield from _operations_for(resource, f"{item}/status", _SUBRESOURCE_VERBS)
    if resource.scale_path:
        yield from _operations_for(resource, f"{item}/scale", _SUBRESOURCE_VERBS)


def _operations_for(resource: Resource, path: str, verbs: dict[str, _Verb]) -> Iterator[Operation]:
    return (_operation(resource, path, name, verb) for name, verb in verbs.items() if name in resource.verbs)


def _operation(resource: Resource, path: str, name: str, verb: _Verb) -> Operation:
    subresource = path.rpartition("/")[2] if path.endswith(("/status", "/scale")) else ""
    if subresource == "scale":
        definition = SCALE
        gvk = ("autoscaling", "v1", "Scale")
    else:
        definition = definition_name(resource)
        gvk = (resource.group, resource.version, resource.kind)
    response = {"list": f"{definition}List", "delete": STATUS, "deletecollection": STATUS}.get(
        name, definition
    )
    consumes: tuple[str, ...] = PATCH_MEDIA_TYPES if name == "patch" else OBJECT_MEDIA_TYPES
    is_kubernetes_kind = not resource.group or resource.group.endswith(".k8s.io")
    if name == "patch" and is_kubernetes_kind:
        # kubectl sends a strategic merge patch wherever the media type is listed; only kinds of Kubernetes
        # accept strategic merge.
        consumes = (*consumes, STRATEGIC_MERGE_MEDIA_TYPE)
    noun = f"{resource.kind}'s {subresource}" if subresource else resource.kind
    group = "".join(part.capitalize() for part in resource.group.split(".")) or "Core"
    scope = "Namespaced" if "{namespace}" in path else ""
    suffix = "ForAllNamespaces" if resource.namespaced and not scope else ""
    kind = f"{resource.version.capitalize()}{scope}{resource.kind}{subresource.capitalize()}"
    return Operation(
        path=path,
        method=verb.method,
        action=verb.action,
        id=f"{verb.prefix}{group}{kind}{suffix}",
        description=verb.description.format(thing=noun, things=f"{resource.kind} objects"),
        gvk=gvk,
        parameters=("pretty", *verb.parameters),
        body=definition if verb.body == "own" else verb.body,
        consumes=consumes,
        responses=tuple((code, response) for code in verb.codes),
    )
