"""Validate JSON values against structural schemas: prune, set defaults and validate in one walk, and report
every problem."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from lattice.errors import Cause
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.schema import Schema

INT64 = range(-(1 << 63), 1 << 63)
MAX_SHOWN_CHARS = 80  # of an invalid value in a message

# (value, path, findings) -> the value to store
Validator = Callable[[Any, str, "Findings"], Any]


@dataclass(slots=True)
class Findings:
    """The findings of a validation: unknown fields, which are pruned from the result, and invalid values."""

    defaulting: bool = True
    unknown_fields: list[str] = field(default_factory=list)
    # By path of an unknown field: `; did you mean compliance?`, where a declared field is near.
    hints: dict[str, str] = field(default_factory=dict)
    causes: list[Cause] = field(default_factory=list)

    def add_cause(self, path: str, message: str, reason: str = "FieldValueInvalid") -> None:
        self.causes.append(Cause(path, message, reason))

    def add_invalid_value(self, path: str, value: Any, rule: str) -> Any:
        """Report an invalid value, and return the value."""
        text = truncated_json(value)
        # Many rules end with the value.
        self.add_cause(path, f"Invalid value: {text}: {rule.removesuffix(f', got {text}')}")
        return value


def truncated_json(value: Any) -> str:
    """A value as JSON, truncated for a message."""
    text = encode(value).decode()
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def join_path(path: str, name: str) -> str:
    """The path of a field, such as spec.containers.main; keys with dots or slashes are in brackets."""
    if "." in name or "/" in name:
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name


def compile_schema(schema: Schema) -> Validator:
    """Compile a schema into a validator, once per kind."""
    if schema.get("x-kubernetes-int-or-string"):
        return _int_or_string
    match schema.get("type"):
        case "object":
            return _record(schema) if "properties" in schema else _map(schema)
        case "array":
            return _array(schema)
        case "string":
            return _string(schema)
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return _boolean
    return _anything


def _anything(value: Any, path: str, out: Findings) -> Any:
    return value


def _boolean(value: Any, path: str, out: Findings) -> Any:
    return value if isinstance(value, bool) else out.add_invalid_value(path, value, "must be true or false")


def _int_or_string(value: Any, path: str, out: Findings) -> Any:
    if isinstance(value, str | int | Decimal) and not isinstance(value, bool):
        return value
    return out.add_invalid_value(path, value, "must be a number or a string")


def _string(schema: Schema) -> Validator:
    rules: list[tuple[Callable[[str], bool], str]] = []
    if (min_length := schema.get("minLength")) is not None:
        rules.append((lambda text: len(text) >= min_length, f"must have {min_length} characters or more"))
    if (max_length := schema.get("maxLength")) is not None:
        rules.append((lambda text: len(text) <= max_length, f"must have {max_length} characters or fewer"))
    if (pattern := schema.get("pattern")) is not None:
        match = re.compile(pattern).search
        rules.append((lambda text: match(text) is not None, f"must match {pattern}"))
    allowed = frozenset(schema.get("enum", ()))
    choices = ", ".join(f'"{choice}"' for choice in schema.get("enum", ()))

    def walk(value: Any, path: str, out: Findings) -> Any:
        if not isinstance(value, str):
            return out.add_invalid_value(path, value, "must be a string")
        if allowed and value not in allowed:
            out.add_cause(
                path,
                f"Unsupported value: {truncated_json(value)}: supported values: {choices}",
                "FieldValueNotSupported",
            )
        for holds, rule in rules:
            if not holds(value):
                out.add_invalid_value(path, value, rule)
        return value

    return walk


def _number(schema: Schema) -> Validator:
    is_integer = schema["type"] == "integer"
    minimum, maximum = schema.get("minimum"), schema.get("maximum")
    rules: list[tuple[Callable[[int | Decimal], bool], str]] = []
    if minimum is not None and schema.get("exclusiveMinimum"):
        rules.append((lambda number: number > minimum, f"must be more than {minimum}"))
    elif minimum is not None:
        rules.append((lambda number: number >= minimum, f"must be {minimum} or more"))
    if maximum is not None and schema.get("exclusiveMaximum"):
        rules.append((lambda number: number < maximum, f"must be less than {maximum}"))
    elif maximum is not None:
        rules.append((lambda number: number <= maximum, f"must be {maximum} or less"))

    def walk(value: Any, path: str, out: Findings) -> Any:
        # In Python a bool is an int; in JSON the types differ.
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            return out.add_invalid_value(
                path, value, "must be an integer" if is_integer else "must be a number"
            )
        if isinstance(value, Decimal) and is_integer:
            # 2.0 is an integer in JSON, 2.5 is not.
            if value != value.to_integral_value():
                return out.add_invalid_value(path, value, "must be an integer")
            value = int(value)
        if isinstance(value, int) and value not in INT64:
            return out.add_invalid_value(path, value, "must fit in 64 bits")
        for holds, rule in rules:
            if not holds(value):
                out.add_invalid_value(path, value, rule)
        return value

    return walk


def _array(schema: Schema) -> Validator:
    item = compile_schema(schema["items"])
    min_items, max_items = schema.get("minItems", 0), schema.get("maxItems")
    unique = _uniqueness(schema)
    # The example is for users that write a list of strings, such as a command, as one string.
    rule = (
        'must be a list, such as ["a", "b"]' if schema["items"].get("type") == "string" else "must be a list"
    )

    def walk(value: Any, path: str, out: Findings) -> Any:
        if not isinstance(value, list):
            return out.add_invalid_value(path, value, _list_rule(value, rule))
        if len(value) < min_items:
            out.add_invalid_value(path, value, f"must have {min_items} items or more")
        if max_items is not None and len(value) > max_items:
            out.add_cause(
                path, f"Too many: {len(value)}: must have at most {max_items} items", "FieldValueTooMany"
            )
        validated = [item(element, f"{path}[{index}]", out) for index, element in enumerate(value)]
        if unique is not None and len(validated) > 1:
            unique(validated, path, out)
        return validated

    return walk


def _list_rule(value: Any, rule: str) -> str:
    """The rule of a list of strings, with the user's own words as a list if the user wrote one string."""
    if not isinstance(value, str) or not value.strip() or not rule.endswith("]"):
        return rule
    try:
        words = shlex.split(value)
    # An open quote.
    except ValueError:
        words = value.split()
    return f"must be a list, such as {truncated_json(words)}"


def _map_rule(value: Any) -> str:
    """The rule of a map, with an example if the user wrote a list of named items, as Kubernetes does."""
    rule = "must be a map, written as `name: value` lines"
    first = value[0] if isinstance(value, list) and value else None
    if not isinstance(first, dict):
        return rule
    name = first.get("name")
    inner = {key: item for key, item in first.items() if key != "name"}
    example = truncated_json({name if isinstance(name, str) else "main": inner})
    return f"{rule}, not a list: such as {example}"


def _object_rule(value: Any, fields: Mapping[str, Schema]) -> str:
    """The rule of an object, with the user's value in the first field of its type if there is one."""
    types = {bool: "boolean", int: "integer", str: "string"}
    of_type = [name for name, field in fields.items() if field.get("type") == types.get(type(value), "none")]
    if of_type:
        return f"must be an object, such as {truncated_json({of_type[0]: value})}"
    return (
        f"must be an object with fields such as {', '.join(list(fields)[:3])}"
        if fields
        else "must be an object"
    )


def _uniqueness(schema: Schema) -> Callable[[list[Any], str, Findings], None] | None:
    """The check that a set has no repeated value and a list-map no repeated key; None for other lists."""
    if schema.get("x-kubernetes-list-type") not in {"set", "map"}:
        return None
    keys = schema.get("x-kubernetes-list-map-keys", ())

    def check(items: list[Any], path: str, out: Findings) -> None:
        tokens: set[str] = set()
        for i, item in enumerate(items):
            identity = {key: item.get(key) for key in keys} if keys and isinstance(item, dict) else item
            token = truncated_json(identity)
            if token in tokens:
                out.add_cause(f"{path}[{i}]", f"Duplicate value: {token}", "FieldValueDuplicate")
            tokens.add(token)

    return check


def _map(schema: Schema) -> Validator:
    """The validator of an object without declared fields, whose values may have a schema."""
    values = schema.get("additionalProperties")
    item = compile_schema(dict(values)) if isinstance(values, Mapping) else None

    def walk(value: Any, path: str, out: Findings) -> Any:
        if not isinstance(value, dict):
            return out.add_invalid_value(path, value, _map_rule(value))
        if item is None:
            return value
        return {name: item(item_value, join_path(path, name), out) for name, item_value in value.items()}

    return walk


def _record(schema: Schema) -> Validator:
    fields = {name: compile_schema(child) for name, child in schema["properties"].items()}
    defaults = {name: child["default"] for name, child in schema["properties"].items() if "default" in child}
    required = tuple(schema.get("required", ()))
    keeps_unknown_fields = bool(schema.get("x-kubernetes-preserve-unknown-fields"))

    def walk(value: Any, path: str, out: Findings) -> Any:
        if not isinstance(value, dict):
            return out.add_invalid_value(path, value, _object_rule(value, schema["properties"]))
        result: dict[str, Any] = {}
        for name, child in value.items():
            validate = fields.get(name)
            if validate is None:
                if keeps_unknown_fields:
                    result[name] = child
                else:
                    unknown_path = join_path(path, name)
                    out.unknown_fields.append(unknown_path)
                    if hint := did_you_mean(name, fields):
                        out.hints[unknown_path] = hint
            # An explicit null is the same as an absent field.
            elif child is not None:
                result[name] = validate(child, f"{path}.{name}" if path else name, out)
        for name, default in defaults.items():
            if out.defaulting and name not in result:
                # The copy keeps callers from changing the shared default.
                result[name] = deepcopy(default)
        # Checked after the defaults, so that a default meets the requirement.
        for name in required:
            if name not in result:
                out.add_cause(join_path(path, name), "Required value", "FieldValueRequired")
        return result

    return walk


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The hint `; did you mean BinPacking?` for the nearest name, ignoring case; "" without a near name."""
    by_lower = {name.lower(): name for name in names}
    matches = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.7)
    return f"; did you mean {by_lower[matches[0]]}?" if matches else ""
