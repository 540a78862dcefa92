"""The OpenAPI v2 document in the protobuf format of gnostic, the only format that kubectl up to 1.27 and Argo
CD accept.

Field numbers are those of google/gnostic's openapiv2/OpenAPIv2.proto.
"""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

MEDIA_TYPE: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

Json = Mapping[str, Any]
Writer = Callable[[int, Any], bytes]


def encode_v2(document: Json) -> bytes:
    """Encode the document as openapi.v2.Document; raise ValueError for a key that the message has no field
    for."""
    return _message("Document", document)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Wire type 2: a field with a length prefix.
def _block(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _text(number: int, value: str) -> bytes:
    return _block(number, value.encode()) if value else b""


def _texts(number: int, values: list[str]) -> bytes:
    return b"".join(_block(number, value.encode()) for value in values)


def _bool(number: int, value: bool) -> bytes:
    return _varint(number << 3) + b"\x01" if value else b""


def _int(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value & (1 << 64) - 1) if value else b""


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<d", value) if value else b""


def _any(number: int, value: Any) -> bytes:
    """Encode Any.yaml as JSON: every JSON text is YAML, and clients parse the field as YAML."""
    return _block(number, _text(2, json.dumps(value, ensure_ascii=False, sort_keys=True) + "\n"))


def _anys(number: int, values: list[Any]) -> bytes:
    return b"".join(_any(number, value) for value in values)


def _message_field(name: str) -> Writer:
    return lambda number, value: _block(number, _message(name, value))


def _repeated_message(name: str) -> Writer:
    return lambda number, values: b"".join(_block(number, _message(name, value)) for value in values)


def _named_values(number: int, encode_value: Callable[[Any], bytes], values: Json) -> bytes:
    """Encode a map as an ordered list of named values, as gnostic does."""
    return b"".join(
        _block(number, _text(1, name) + _block(2, encode_value(value))) for name, value in values.items()
    )


def _schemas(number: int, values: Json) -> bytes:
    return _block(number, _named_values(1, lambda value: _message("Schema", value), values))


def _type(number: int, value: str | list[str]) -> bytes:
    return _block(number, _texts(1, [value] if isinstance(value, str) else value))


def _wrapped_schema(number: int, value: Json) -> bytes:
    return _block(number, _block(1, _message("Schema", value)))


def _additional(number: int, value: Json | bool) -> bytes:
    if isinstance(value, bool):
        return _block(number, _varint(2 << 3) + bytes([value]))
    return _block(number, _block(1, _message("Schema", value)))


def _paths(number: int, values: Json) -> bytes:
    return _block(number, _named_values(2, lambda value: _message("PathItem", value), values))


def _parameters(number: int, values: list[Json]) -> bytes:
    encoded = bytearray()
    for value in values:
        if value["in"] == "body":
            parameter = _block(1, _message("BodyParameter", value))
        else:
            field, name = {"query": (3, "QueryParameter"), "path": (4, "PathParameter")}[value["in"]]
            parameter = _block(2, _block(field, _message(name, value)))
        encoded += _block(number, _block(1, parameter))
    return bytes(encoded)


def _responses(number: int, values: Json) -> bytes:
    return _block(number, _named_values(1, lambda value: _block(1, _message("Response", value)), values))


def _numbered(first: int, *fields: tuple[str, Writer]) -> dict[str, tuple[int, Writer]]:
    """Number consecutive fields of a message, beginning with `first`."""
    return {name: (first + index, write) for index, (name, write) in enumerate(fields)}


# Limits of a value: every message that has limits numbers these fields in this order, from `maximum` on.
_LIMITS = (
    ("maximum", _double), ("exclusiveMaximum", _bool), ("minimum", _double), ("exclusiveMinimum", _bool),
    ("maxLength", _int), ("minLength", _int), ("pattern", _text), ("maxItems", _int), ("minItems", _int),
    ("uniqueItems", _bool),
)  # fmt: skip
_PARAMETER_FIELDS = (("required", _bool), ("in", _text), ("description", _text), ("name", _text))
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")

# The table entry for every key that begins with this prefix.
_EXTENSIONS = "x-"
_MESSAGES: Final[dict[str, dict[str, tuple[int, Writer]]]] = {
    "Document": {
        "swagger": (1, _text),
        "info": (2, _message_field("Info")),
        "host": (3, _text),
        "basePath": (4, _text),
        "schemes": (5, _texts),
        "consumes": (6, _texts),
        "produces": (7, _texts),
        "paths": (8, _paths),
        "definitions": (9, _schemas),
        _EXTENSIONS: (16, _any),
    },
    "Info": {"title": (1, _text), "version": (2, _text), "description": (3, _text), _EXTENSIONS: (7, _any)},
    "PathItem": {
        **{method: (number, _message_field("Operation")) for number, method in enumerate(_METHODS, 2)},
        "parameters": (9, _parameters),
        _EXTENSIONS: (10, _any),
    },
    "Operation": {
        "tags": (1, _texts),
        "summary": (2, _text),
        "description": (3, _text),
        "operationId": (5, _text),
        "produces": (6, _texts),
        "consumes": (7, _texts),
        "parameters": (8, _parameters),
        "responses": (9, _responses),
        "schemes": (10, _texts),
        "deprecated": (11, _bool),
        _EXTENSIONS: (13, _any),
    },
    "BodyParameter": {
        **_numbered(
            1,
            ("description", _text),
            ("name", _text),
            ("in", _text),
            ("required", _bool),
            ("schema", _message_field("Schema")),
        ),
        _EXTENSIONS: (6, _any),
    },
    "QueryParameter": {
        **_numbered(1, *_PARAMETER_FIELDS, ("allowEmptyValue", _bool), ("type", _text), ("format", _text)),
        **_numbered(10, ("default", _any), *_LIMITS, ("enum", _anys), ("multipleOf", _double)),
        _EXTENSIONS: (23, _any),
    },
    "PathParameter": {
        **_numbered(1, *_PARAMETER_FIELDS, ("type", _text), ("format", _text)),
        **_numbered(9, ("default", _any), *_LIMITS, ("enum", _anys), ("multipleOf", _double)),
        _EXTENSIONS: (22, _any),
    },
    "Response": {"description": (1, _text), "schema": (2, _wrapped_schema), _EXTENSIONS: (5, _any)},
    "Schema": {
        **_numbered(
            1, ("$ref", _text), ("format", _text), ("title", _text), ("description", _text), ("default", _any)
        ),
        **_numbered(6, ("multipleOf", _double), *_LIMITS, ("maxProperties", _int), ("minProperties", _int)),
        **_numbered(
            19, ("required", _texts), ("enum", _anys), ("additionalProperties", _additional), ("type", _type)
        ),
        **_numbered(
            23, ("items", _wrapped_schema), ("allOf", _repeated_message("Schema")), ("properties", _schemas)
        ),
        "readOnly": (27, _bool),
        _EXTENSIONS: (31, _any),
    },
}


def _message(name: str, value: Json) -> bytes:
    fields = _MESSAGES[name]
    encoded = bytearray()
    for key, item in value.items():
        if key in fields:
            number, write = fields[key]
            encoded += write(number, item)
        elif key.startswith(_EXTENSIONS):
            encoded += _block(fields[_EXTENSIONS][0], _text(1, key) + _any(2, item))
        else:
            raise ValueError(f"OpenAPI v2 has no field {key!r} in a {name}")
    return bytes(encoded)
