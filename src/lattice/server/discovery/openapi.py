"""OpenAPI v3, one document per API version, and OpenAPI v2, one document for all versions.

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
    META_PACKAGE,
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

# A resource and the structural schema of its kind.
KindSchema = tuple[Resource, Schema]
Document = dict[str, Any]

TITLE = "Lattice"
V2_PREFIX, V3_PREFIX = "#/definitions/", "#/components/schemas/"
GVK = "x-kubernetes-group-version-kind"
PRESERVE_UNKNOWN_KEY, INT_OR_STRING_KEY = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"

# Keywords of a schema that OpenAPI v2 and gnostic's protobuf have a field for.
_V2_KEYS: Final = {
    "format", "title", "description", "default", "multipleOf", "maximum", "exclusiveMaximum", "minimum",
    "exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems",
    "maxProperties", "minProperties", "required", "enum", "type", "readOnly",
}  # fmt: skip


def v3_documents(kinds: Iterable[KindSchema], version: str) -> dict[str, bytes]:
    """Return the OpenAPI v3 document of every group and version as JSON, by path
    (`apis/lattice.dev/v1alpha1`)."""
    all_kinds = _with_virtual(kinds)
    definitions = {name: _v3_schema(schema) for name, schema in _definitions(all_kinds).items()} | {
        INT_OR_STRING: _V3_INT_OR_STRING
    }
    documents: dict[str, bytes] = {}
    for path in dict.fromkeys(group_path(resource) for resource, _ in all_kinds):
        kinds_of_version = [kind for kind in all_kinds if group_path(kind[0]) == path]
        document = _v3_document(kinds_of_version, definitions, version)
        documents[path] = msgspec.json.encode(document, order="sorted")
    return documents


def v3_index(documents: Mapping[str, bytes]) -> Document:
    """Answer GET /openapi/v3: the URL of every document, with a hash for the cache of the client."""
    return {
        "paths": {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={etag(document)}"}
            for path, document in documents.items()
        }
    }


def etag(document: bytes) -> str:
    return hashlib.sha256(document).hexdigest().upper()


def v2_document(kinds: Iterable[KindSchema], version: str) -> Document:
    """Answer GET /openapi/v2."""
    all_kinds = _with_virtual(kinds)
    paths: dict[str, Document] = {}
    for operation in _operations(all_kinds):
        item = paths.setdefault(
            operation.path, {"parameters": [_v2_parameter(name) for name in _path_parameters(operation.path)]}
        )
        item[operation.method] = _v2_operation(operation)
    return {
        "swagger": "2.0",
        "info": {"title": TITLE, "version": version},
        "paths": paths,
        "definitions": {name: _v2_schema(schema) for name, schema in _definitions(all_kinds).items()},
    }


def _with_virtual(kinds: Iterable[KindSchema]) -> list[KindSchema]:
    stored = list(kinds)
    stored_ids = {resource.id for resource, _ in stored}
    return stored + [
        (resource, VIRTUAL_SCHEMAS[resource.id])
        for resource in VIRTUAL_RESOURCES
        if resource.id not in stored_ids
    ]


def _operations(kinds: Sequence[KindSchema]) -> Iterator[Operation]:
    for resource, _ in kinds:
        yield from operations(resource)


def _definitions(kinds: Sequence[KindSchema]) -> dict[str, Schema]:
    versions = sorted({(resource.group, resource.version) for resource, _ in kinds})
    shared = {f"{META_PACKAGE}.DeleteOptions": "DeleteOptions", f"{META_PACKAGE}.Status": "Status"}
    definitions = dict(SCHEMAS)
    # Status and DeleteOptions belong to every API version.
    for name, kind in shared.items():
        definitions[name] = definitions[name] | {
            GVK: [{"group": group, "version": version, "kind": kind} for group, version in versions]
        }
    definitions[SCALE] = definitions[SCALE] | _gvk_list("autoscaling", "v1", "Scale")
    for resource, schema in kinds:
        definitions[definition_name(resource)] = _object_definition(resource, schema)
        if "list" in resource.verbs:
            items = {
                "type": "array",
                "items": {"$ref": definition_name(resource)},
                "description": f"The {resource.kind} objects.",
            }
            metadata = {
                "$ref": LIST_META,
                "description": "Revision of the list, and the token for the next page.",
            }
            definitions[f"{definition_name(resource)}List"] = {
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
    return definitions


def _object_definition(resource: Resource, schema: Schema) -> Schema:
    properties = dict(schema.get("properties", {}))
    metadata = properties.get("metadata", {}).get(
        "description", "Name, labels and fields that the server sets."
    )
    type_fields = {
        "apiVersion": API_VERSION_SCHEMA,
        "kind": KIND_SCHEMA,
        "metadata": {"$ref": OBJECT_META, "description": metadata},
    }
    required = [name for name in schema.get("required", ()) if name not in type_fields]
    keywords = {key: value for key, value in schema.items() if key not in ("properties", "required")}
    keywords.setdefault("description", f"{resource.kind} of {resource.api_version}.")
    object_keywords = {
        "type": "object",
        "properties": properties | type_fields,
        **_gvk_list(resource.group, resource.version, resource.kind),
    }
    return keywords | object_keywords | ({"required": required} if required else {})


def _gvk(group: str, version: str, kind: str) -> dict[str, str]:
    return {"group": group, "version": version, "kind": kind}


def _gvk_list(group: str, version: str, kind: str) -> Schema:
    return {GVK: [_gvk(group, version, kind)]}


def _path_parameters(path: str) -> list[str]:
    return [name for name in ("name", "namespace") if f"{{{name}}}" in path]


_V3_INT_OR_STRING: Final[Schema] = {
    "description": "A whole number or a string.",
    "format": "int-or-string",
    "oneOf": [{"type": "integer"}, {"type": "string"}],
}


def _v3_schema(schema: Schema) -> Schema:
    # Under the Kubernetes name of the type, `kubectl explain` shows <IntOrString> rather than <Object>.
    if schema.get(INT_OR_STRING_KEY):
        schema = {
            key: value for key, value in schema.items() if key not in (INT_OR_STRING_KEY, "anyOf", "type")
        } | {"$ref": INT_OR_STRING}
    if "$ref" in schema:
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        target = {"$ref": V3_PREFIX + schema["$ref"]}
        # OpenAPI v3 ignores the siblings of a $ref; `allOf` keeps the description.
        return {"allOf": [target], **siblings} if siblings else target
    converted = {
        key: value
        for key, value in schema.items()
        if key not in ("properties", "items", "additionalProperties")
    }
    if "properties" in schema:
        converted["properties"] = {
            name: _v3_schema(subschema) for name, subschema in schema["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            converted[key] = _v3_schema(schema[key])
    # `additionalProperties: true` breaks `kubectl explain --recursive` in 1.27 to 1.30; an open object means
    # the same.
    if schema.get("additionalProperties") is True:
        converted[PRESERVE_UNKNOWN_KEY] = True
    return converted


def _v2_schema(schema: Schema) -> Schema:
    if "$ref" in schema:
        return {
            key: V2_PREFIX + value if key == "$ref" else value
            for key, value in schema.items()
            if key in ("$ref", "description")
        }
    converted = {
        key: value for key, value in schema.items() if key in _V2_KEYS or key.startswith("x-kubernetes-")
    }
    converted.pop("x-kubernetes-validations", None)
    if converted.pop(INT_OR_STRING_KEY, False):
        return converted | {"type": "string", "format": "int-or-string"}
    # If an object lists properties, old versions of kubectl reject every other field. An open object
    # therefore lists none.
    if schema.get(PRESERVE_UNKNOWN_KEY):
        converted.pop("required", None)
        return converted
    if "properties" in schema:
        converted["properties"] = {
            name: _v2_schema(subschema) for name, subschema in schema["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            converted[key] = _v2_schema(schema[key])
    return converted


def _v3_document(kinds: Sequence[KindSchema], definitions: Mapping[str, Schema], version: str) -> Document:
    paths: dict[str, Document] = {}
    for operation in _operations(kinds):
        item = paths.setdefault(
            operation.path, {"parameters": [_v3_parameter(name) for name in _path_parameters(operation.path)]}
        )
        item[operation.method] = _v3_operation(operation)
    # The document holds only the definitions that its kinds and operations reach.
    roots: set[str] = set()
    for resource, _ in kinds:
        roots |= {definition_name(resource), f"{definition_name(resource)}List"}
    for operation in _operations(kinds):
        roots |= {operation.body, *(response for _, response in operation.responses)}
    reachable: dict[str, Schema] = {}
    pending = list(roots & definitions.keys())
    while pending:
        name = pending.pop()
        if name not in reachable:
            reachable[name] = definitions[name]
            pending.extend(_references(definitions[name]))
    return {
        "openapi": "3.0.0",
        "info": {"title": TITLE, "version": version},
        "paths": paths,
        "components": {"schemas": reachable},
    }


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        target = node.get("$ref")
        if isinstance(target, str):
            yield target.removeprefix(V3_PREFIX)
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _v3_parameter(name: str) -> Document:
    schema = {"type": PARAMETERS[name]["type"], "uniqueItems": True}
    parameter: Document = {"name": name, "description": PARAMETERS[name]["description"], "schema": schema}
    return parameter | (
        {"in": "path", "required": True} if name in ("name", "namespace") else {"in": "query"}
    )


def _v3_operation(operation: Operation) -> Document:
    document: Document = {
        "operationId": operation.id,
        "description": operation.description,
        "tags": [_tag(operation)],
        "parameters": [_v3_parameter(name) for name in operation.parameters],
        "responses": {
            str(code): {
                "description": "OK",
                "content": {
                    media_type: {"schema": {"$ref": V3_PREFIX + name}}
                    for media_type in _response_media_types(operation)
                },
            }
            for code, name in operation.responses
        }
        | _UNAUTHORIZED_RESPONSE,
        "x-kubernetes-action": operation.action,
        GVK: _gvk(*operation.gvk),
    }
    if operation.body:
        schema = {"$ref": V3_PREFIX + operation.body}
        document["requestBody"] = {
            "content": {media_type: {"schema": schema} for media_type in operation.consumes}
        }
        if operation.method in ("post", "put", "patch"):
            document["requestBody"]["required"] = True
    return document


_UNAUTHORIZED_RESPONSE: Final[Document] = {"401": {"description": "Unauthorized"}}


def _response_media_types(operation: Operation) -> tuple[str, ...]:
    # A list also answers a watch.
    return (*RESPONSE_MEDIA_TYPES, WATCH_MEDIA_TYPE) if operation.action == "list" else RESPONSE_MEDIA_TYPES


def _v2_parameter(name: str) -> Document:
    location: Document = (
        {"in": "path", "required": True} if name in ("name", "namespace") else {"in": "query"}
    )
    return {"name": name, "uniqueItems": True, **PARAMETERS[name], **location}


def _v2_operation(operation: Operation) -> Document:
    parameters = [_v2_parameter(name) for name in operation.parameters]
    if operation.body:
        body = {"name": "body", "in": "body", "schema": {"$ref": V2_PREFIX + operation.body}}
        parameters.insert(0, body | ({"required": True} if operation.method != "delete" else {}))
    responses = {
        str(code): {"description": "OK", "schema": {"$ref": V2_PREFIX + name}}
        for code, name in operation.responses
    }
    return {
        "operationId": operation.id,
        "description": operation.description,
        "tags": [_tag(operation)],
        "consumes": list(operation.consumes) if operation.body else ["*/*"],
        "produces": list(_response_media_types(operation)),
        "schemes": ["https"],
        "parameters": parameters,
        "responses": responses | _UNAUTHORIZED_RESPONSE,
        "x-kubernetes-action": operation.action,
        GVK: _gvk(*operation.gvk),
    }


def _tag(operation: Operation) -> str:
    group, version, _ = operation.gvk
    return f"{group.replace('.', '')}_{version}" if group else f"core_{version}"
