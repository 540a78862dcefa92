"""Fields of a kind with their types and limits, for the tables of the reference."""

from collections.abc import Iterator
from typing import NamedTuple

from lattice.kinds.meta.schema import Schema

LIMITS = {
    "minimum": "from {}",
    "maximum": "to {}",
    "minLength": "{} characters or more",
    "maxLength": "{} characters or fewer",
    "minItems": "{} items or more",
    "maxItems": "{} items or fewer",
    "pattern": "matching `{}`",
    "default": "default {}",
}
LISTS = {"set": "set", "map": "keyed list"}


class Field(NamedTuple):
    path: str
    type: str
    required: bool
    description: str


def fields(schema: Schema, path: str = "") -> Iterator[Field]:
    """Every field of the schema, parents before children."""
    required = schema.get("required", ())
    for name, inner in schema.get("properties", {}).items():
        field_path = f"{path}.{name}" if path else name
        yield Field(field_path, type_of(inner), name in required, inner.get("description", ""))
        yield from _inside(inner, field_path)


def _inside(schema: Schema, path: str) -> Iterator[Field]:
    """Fields inside a list, behind `[]`, or inside a map, behind `{name}`."""
    values = schema.get("additionalProperties")
    if "items" in schema:
        yield from _inside(schema["items"], f"{path}[]")
    elif isinstance(values, dict):
        yield from _inside(values, f"{path}.{{name}}")
    else:
        yield from fields(schema, path)


def type_of(schema: Schema) -> str:
    limits = [
        "not empty" if (name, schema[name]) == ("minLength", 1) else LIMITS[name].format(schema[name])
        for name in LIMITS
        if name in schema
    ]
    return ", ".join([_plain_type(schema), *limits])


def _plain_type(schema: Schema) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(f"`{choice}`" for choice in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "number or string"
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        return f"map of {type_of(values)}"
    match schema.get("type"):
        case "array":
            return (
                f"{LISTS.get(schema.get('x-kubernetes-list-type', ''), 'list')} of {type_of(schema['items'])}"
            )
        case "object" if schema.get("x-kubernetes-preserve-unknown-fields"):
            return "object of any shape"
        case str(name):
            return name
    return "anything"
