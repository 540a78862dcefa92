"""What the API looks like to tools: OpenAPI v3, one document per version, and OpenAPI v2, one for all.

kubectl reads v3 since 1.27 and v2 before, for explain, validation and to learn whether a dry run is possible.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from lattice.kinds.meta.base import Resource
from lattice.server.discovery.discovery import VIRTUAL_RESOURCES
from lattice.server.discovery.meta_schemas import (
    API_VERSION_SCHEMA,
    INT_OR_STRING,
    KIND_SCHEMA,
    LIST_META,
    META,
    OBJECT_META,
    SCALE,
    SCHEMAS,
    Schema,
)
from lattice.server.discovery.operations import (
    PARAMETERS,
    RESPONSE_MEDIA_TYPES,
    WATCH_MEDIA_TYPE,
    Operation,
    definition_name,
    group_path,
    operations,
)
from lattice.server.discovery.virtual_schemas import VIRTUAL_SCHEMAS

KindSchema = tuple[Resource, Schema]  # a resource and the structural schema of its kind
Document = dict[str, Any]

TITLE = "Lattice"
V2_PREFIX, V3_PREFIX = "#/definitions/", "#/components/schemas/"
GVK = "x-kubernetes-group-version-kind"
PRESERVE_UNKNOWN_KEY, INT_OR_STRING_KEY = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"

# What a schema may say in OpenAPI v2, where gnostic has a field for it.
_V2_KEYS: Final = {
    "format", "title", "description", "default", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength",
    "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxProperties", "minProperties", "required", "enum", "type", "readOnly",
}  # fmt: skip


def v3_documents(kinds: Iterable[KindSchema], version: str) -> dict[str, bytes]:
    """Per group and version (`apis/lattice.dev/v1alpha1`) its OpenAPI v3 document, as JSON."""
    everything = _with_virtual(kinds)
    definitions = {name: _v3_schema(schema) for name, schema in _definitions(everything).items()} | {
        INT_OR_STRING: _V3_INT_OR_STRING
    }
    paths = dict.fromkeys(group_path(resource) for resource, _ in everything)
    return {
        path: _encode(_v3_document(_of_version(everything, path), definitions, version)) for path in paths
    }


def v3_index(documents: Mapping[str, bytes]) -> Document:
    """GET /openapi/v3: where each document is; the hash lets clients keep what has not changed."""
    return {
        "paths": {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={etag(document)}"}
            for path, document in documents.items()
        }
    }


def etag(document: bytes) -> str:
    return hashlib.sha256(document).hexdigest().upper()


def v2_document(kinds: Iterable[KindSchema], version: str) -> Document:
    """GET /openapi/v2."""
    everything = _with_virtual(kinds)
    paths: dict[str, Document] = {}
    for operation in _operations(everything):
        item = paths.setdefault(
            operation.path, {"parameters": [_v2_parameter(name) for name in _path_parameters(operation.path)]}
        )
        item[operation.method] = _v2_operation(operation)
    return {
        "swagger": "2.0",
        "info": {"title": TITLE, "version": version},
        "paths": paths,
        "definitions": {name: _v2_schema(schema) for name, schema in _definitions(everything).items()},
    }


def _encode(document: Document) -> bytes:
    return msgspec.json.encode(document, order="sorted")


def _with_virtual(kinds: Iterable[KindSchema]) -> list[KindSchema]:
    stored = list(kinds)
    taken = {resource.id for resource, _ in stored}
    return stored + [
        (resource, VIRTUAL_SCHEMAS[resource.id]) for resource in VIRTUAL_RESOURCES if resource.id not in taken
    ]


def _of_version(kinds: Sequence[KindSchema], path: str) -> list[KindSchema]:
    return [found for found in kinds if group_path(found[0]) == path]


def _operations(kinds: Sequence[KindSchema]) -> Iterator[Operation]:
    return (operation for resource, _ in kinds for operation in operations(resource))


def _definitions(kinds: Sequence[KindSchema]) -> dict[str, Schema]:
    versions = sorted({(resource.group, resource.version) for resource, _ in kinds})
    shared = {f"{META}.DeleteOptions": "DeleteOptions", f"{META}.Status": "Status"}
    found = dict(SCHEMAS)
    for name, kind in shared.items():
        found[name] = found[name] | {
            GVK: [{"group": group, "version": version, "kind": kind} for group, version in versions]
        }
    found[SCALE] = found[SCALE] | _gvk_list("autoscaling", "v1", "Scale")
    for resource, schema in kinds:
        found[definition_name(resource)] = _object(resource, schema)
        if "list" in resource.verbs:
            found[f"{definition_name(resource)}List"] = _list(resource)
    return found


def _object(resource: Resource, schema: Schema) -> Schema:
    properties = dict(schema.get("properties", {}))
    metadata = properties.get("metadata", {}).get("description", "Name, labels and the server's own notes.")
    own = {
        "apiVersion": API_VERSION_SCHEMA,
        "kind": KIND_SCHEMA,
        "metadata": {"$ref": OBJECT_META, "description": metadata},
    }
    required = [name for name in schema.get("required", ()) if name not in own]
    rest = {key: value for key, value in schema.items() if key not in ("properties", "required")}
    rest.setdefault("description", f"{resource.kind} of {resource.api_version}.")
    known = {
        "type": "object",
        "properties": properties | own,
        **_gvk_list(resource.group, resource.version, resource.kind),
    }
    return rest | known | ({"required": required} if required else {})


def _list(resource: Resource) -> Schema:
    items = {
        "type": "array",
        "items": {"$ref": definition_name(resource)},
        "description": f"The {resource.kind} objects.",
    }
    metadata = {"$ref": LIST_META, "description": "The revision of the list, and how to go on reading it."}
    return {
        "type": "object",
        "description": f"A list of {resource.kind} objects.",
        "properties": {
            "apiVersion": API_VERSION_SCHEMA,
            "kind": KIND_SCHEMA,
            "metadata": metadata,
            "items": items,
        },
        "required": ["items"],
        **_gvk_list(resource.group, resource.version, f"{resource.kind}List"),
    }


def _gvk(group: str, version: str, kind: str) -> dict[str, str]:
    return {"group": group, "version": version, "kind": kind}


def _gvk_list(group: str, version: str, kind: str) -> Schema:
    return {GVK: [_gvk(group, version, kind)]}


def _path_parameters(path: str) -> list[str]:
    return [name for name in ("name", "namespace") if f"{{{name}}}" in path]


_V3_INT_OR_STRING: Final[Schema] = {
    "description": "A whole number or text.",
    "format": "int-or-string",
    "oneOf": [{"type": "integer"}, {"type": "string"}],
}


def _v3_schema(schema: Schema) -> Schema:
    if schema.get(
        INT_OR_STRING_KEY
    ):  # by its Kubernetes name, `kubectl explain` shows <IntOrString> rather than <Object>
        schema = {
            key: value for key, value in schema.items() if key not in (INT_OR_STRING_KEY, "anyOf", "type")
        } | {"$ref": INT_OR_STRING}
    if "$ref" in schema:
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        target = {"$ref": V3_PREFIX + schema["$ref"]}
        return {"allOf": [target], **beside} if beside else target
    found = {
        key: value
        for key, value in schema.items()
        if key not in ("properties", "items", "additionalProperties")
    }
    if "properties" in schema:
        found["properties"] = {name: _v3_schema(below) for name, below in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found[key] = _v3_schema(schema[key])
    # `additionalProperties: true` breaks `kubectl explain --recursive` in 1.27 to 1.30; an open object says the same.
    if schema.get("additionalProperties") is True:
        found[PRESERVE_UNKNOWN_KEY] = True
    return found


def _v2_schema(schema: Schema) -> Schema:
    if "$ref" in schema:
        return {
            key: V2_PREFIX + value if key == "$ref" else value
            for key, value in schema.items()
            if key in ("$ref", "description")
        }
    found = {
        key: value for key, value in schema.items() if key in _V2_KEYS or key.startswith("x-kubernetes-")
    }
    found.pop("x-kubernetes-validations", None)
    if found.pop(INT_OR_STRING_KEY, False):
        return found | {"type": "string", "format": "int-or-string"}
    if schema.get(PRESERVE_UNKNOWN_KEY):  # old kubectl refuses fields it finds no property for
        found.pop("required", None)
        return found
    if "properties" in schema:
        found["properties"] = {name: _v2_schema(below) for name, below in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found[key] = _v2_schema(schema[key])
    return found


def _v3_document(kinds: Sequence[KindSchema], definitions: Mapping[str, Schema], version: str) -> Document:
    paths: dict[str, Document] = {}
    for operation in _operations(kinds):
        item = paths.setdefault(
            operation.path, {"parameters": [_v3_parameter(name) for name in _path_parameters(operation.path)]}
        )
        item[operation.method] = _v3_operation(operation)
    named = {
        name
        for resource, _ in kinds
        for name in (definition_name(resource), f"{definition_name(resource)}List")
    }
    named |= {
        name
        for operation in _operations(kinds)
        for name in (operation.body, *(answer for _, answer in operation.responses))
    }
    return {
        "openapi": "3.0.0",
        "info": {"title": TITLE, "version": version},
        "paths": paths,
        "components": {"schemas": _reachable(named & definitions.keys(), definitions)},
    }


def _reachable(names: Iterable[str], definitions: Mapping[str, Schema]) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = definitions[name]
            todo.extend(_references(definitions[name]))
    return found


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        target = node.get("$ref")
        if isinstance(target, str):
            yield target.removeprefix(V3_PREFIX)
        for below in node.values():
            yield from _references(below)
    elif isinstance(node, list):
        for below in node:
            yield from _references(below)


def _v3_parameter(name: str) -> Document:
    schema = {"type": PARAMETERS[name]["type"], "uniqueItems": True}
    found: Document = {"name": name, "description": PARAMETERS[name]["description"], "schema": schema}
    return found | ({"in": "path", "required": True} if name in ("name", "namespace") else {"in": "query"})


def _v3_operation(operation: Operation) -> Document:
    found: Document = {
        "operationId": operation.id,
        "description": operation.description,
        "tags": [_tag(operation)],
        "parameters": [_v3_parameter(name) for name in operation.parameters],
        "responses": {str(code): _v3_answer(operation, name) for code, name in operation.responses}
        | _UNAUTHORIZED_RESPONSE,
        "x-kubernetes-action": operation.action,
        GVK: _gvk(*operation.gvk),
    }
    if operation.body:
        schema = {"$ref": V3_PREFIX + operation.body}
        found["requestBody"] = {"content": {kind: {"schema": schema} for kind in operation.consumes}}
        if operation.method in ("post", "put", "patch"):
            found["requestBody"]["required"] = True
    return found


_UNAUTHORIZED_RESPONSE: Final[Document] = {"401": {"description": "Unauthorized"}}


def _v3_answer(operation: Operation, name: str) -> Document:
    kinds = (*RESPONSE_MEDIA_TYPES, WATCH_MEDIA_TYPE) if operation.action == "list" else RESPONSE_MEDIA_TYPES
    return {"description": "OK", "content": {kind: {"schema": {"$ref": V3_PREFIX + name}} for kind in kinds}}


def _v2_parameter(name: str) -> Document:
    place: Document = {"in": "path", "required": True} if name in ("name", "namespace") else {"in": "query"}
    return {"name": name, "uniqueItems": True, **PARAMETERS[name], **place}


def _v2_operation(operation: Operation) -> Document:
    parameters = [_v2_parameter(name) for name in operation.parameters]
    if operation.body:
        body = {"name": "body", "in": "body", "schema": {"$ref": V2_PREFIX + operation.body}}
        parameters.insert(0, body | ({"required": True} if operation.method != "delete" else {}))
    answers = {
        str(code): {"description": "OK", "schema": {"$ref": V2_PREFIX + name}}
        for code, name in operation.responses
    }
    return {
        "operationId": operation.id,
        "description": operation.description,
        "tags": [_tag(operation)],
        "consumes": list(operation.consumes) if operation.body else ["*/*"],
        "produces": [*RESPONSE_MEDIA_TYPES, WATCH_MEDIA_TYPE]
        if operation.action == "list"
        else list(RESPONSE_MEDIA_TYPES),
        "schemes": ["https"],
        "parameters": parameters,
        "responses": answers | _UNAUTHORIZED_RESPONSE,
        "x-kubernetes-action": operation.action,
        GVK: _gvk(*operation.gvk),
    }


def _tag(operation: Operation) -> str:
    group, version, _ = operation.gvk
    return f"{group.replace('.', '')}_{version}" if group else f"core_{version}"
