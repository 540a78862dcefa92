"""Structural schemas of kinds, derived from their classes: the source of validation, OpenAPI, `explain`, CRDs
and docs."""

from functools import cache
from inspect import cleandoc
from typing import Any

from msgspec import NODEFAULT, inspect

from lattice.kinds.meta.base import Kind

Schema = dict[str, Any]

API_VERSION_DESCRIPTION = "API group and version of the object."
KIND_DESCRIPTION = "Kind of the object."


@cache
def structural_schema(kind: type[Kind]) -> Schema:
    """The openAPIV3Schema of a kind, as in a CustomResourceDefinition. The schema is cached: callers must not
    change the schema."""
    schema = struct_schema(inspect.type_info(kind))
    schema["properties"] = {
        **schema["properties"],
        "apiVersion": {"type": "string", "description": API_VERSION_DESCRIPTION},
        "kind": {"type": "string", "description": KIND_DESCRIPTION},
        "metadata": {"type": "object"},
    }
    # The API server itself requires apiVersion, kind and metadata.
    required = [name for name in schema.pop("required", ()) if name not in {"apiVersion", "kind", "metadata"}]
    return schema | ({"required": required} if required else {})


def struct_schema(info: inspect.Type) -> Schema:
    """The schema of a Struct type, with the class docstring as description."""
    assert isinstance(info, inspect.StructType), info  # noqa: S101 - a kind is a Struct by definition
    schema: Schema = {"type": "object"}
    if info.cls.__doc__:
        schema["description"] = " ".join(cleandoc(info.cls.__doc__).split())
    schema["properties"] = {field.encode_name: _schema(field.type) for field in info.fields}
    required = [
        field.encode_name
        for field in info.fields
        if field.default is NODEFAULT and field.default_factory is NODEFAULT
    ]
    return schema | ({"required": required} if required else {})


def _schema(info: inspect.Type) -> Schema:
    match info:
        case inspect.Metadata():
            schema = _schema(info.type) | (info.extra_json_schema or {})
            if schema.get("x-kubernetes-preserve-unknown-fields"):
                # A value of any type: int-or-string would exclude fractions.
                schema.pop("x-kubernetes-int-or-string", None)
            return schema
        case inspect.StructType():
            return struct_schema(info)
        case inspect.StrType():
            return _bounds(
                {"type": "string"}, minLength=info.min_length, maxLength=info.max_length, pattern=info.pattern
            )
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            schema = _bounds({"type": "integer", "format": "int64"}, minimum=info.ge, maximum=info.le)
            if info.gt is not None:
                schema |= {"minimum": info.gt, "exclusiveMinimum": True}
            if info.lt is not None:
                schema |= {"maximum": info.lt, "exclusiveMaximum": True}
            return schema
        case inspect.DecimalType():
            return {"type": "number"}
        case inspect.LiteralType():
            return {"type": "string", "enum": sorted(info.values)}
        case inspect.ListType() | inspect.VarTupleType():
            schema = {"type": "array", "items": _schema(info.item_type)}
            return _bounds(schema, minItems=info.min_length, maxItems=info.max_length)
        case inspect.DictType():
            if isinstance(info.value_type, inspect.AnyType):
                return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            return {"type": "object", "additionalProperties": _schema(info.value_type)}
        case inspect.AnyType():
            return {"x-kubernetes-preserve-unknown-fields": True}
        case inspect.UnionType():
            types = [member for member in info.types if not isinstance(member, inspect.NoneType)]
            if len(types) == 1:
                return _schema(types[0])
            # A quantity: a number or its string form.
            if {type(member) for member in types} <= {
                inspect.IntType,
                inspect.StrType,
                inspect.FloatType,
                inspect.DecimalType,
            }:
                return {"x-kubernetes-int-or-string": True}
            raise TypeError(f"a kind cannot hold {info}: unions have no structural schema")
    raise TypeError(f"a kind cannot hold {info}: it has no structural schema")


def _bounds(schema: Schema, **limits: object) -> Schema:
    return schema | {name: limit for name, limit in limits.items() if limit is not None}
