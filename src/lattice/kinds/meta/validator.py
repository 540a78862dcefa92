"""Does this JSON fit the schema? Prunes, defaults and validates in one walk, and reports everything that is wrong."""

import re
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
MAX_SHOWN_CHARS = 80  # characters of an offending value that a message repeats

Validator = Callable[[Any, str, "Findings"], Any]  # value, its path, where to report -> the value to keep


@dataclass(slots=True)
class Findings:
    """What a walk met: fields the schema does not know (dropped from the result) and values it refuses."""

    defaulting: bool = True
    unknown_fields: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)

    def add_cause(self, path: str, message: str, reason: str = "FieldValueInvalid") -> None:
        self.causes.append(Cause(path, message, reason))

    def add_invalid_value(self, path: str, value: Any, rule: str) -> Any:
        self.add_cause(path, f"Invalid value: {truncated_json(value)}: {rule}")
        return value


def truncated_json(value: Any) -> str:
    """A value as JSON, short enough for a message."""
    text = encode(value).decode()
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def join_path(path: str, name: str) -> str:
    """spec.containers.main; keys with dots or slashes stand in brackets."""
    if "." in name or "/" in name:
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name


def compile_schema(schema: Schema) -> Validator:
    """The walk for a schema; compile once per kind."""
    if schema.get("x-kubernetes-int-or-string"):
        return _int_or_string(schema)
    match schema.get("type"):
        case "object":
            return _object(schema)
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


def _int_or_string(schema: Schema) -> Validator:
    def walk(value: Any, path: str, out: Findings) -> Any:
        if isinstance(value, str | int | Decimal) and not isinstance(value, bool):
            return value
        return out.add_invalid_value(path, value, "must be a number or a string")

    return walk


def _string(schema: Schema) -> Validator:
    rules: list[tuple[Callable[[str], bool], str]] = []
    if (least := schema.get("minLength")) is not None:
        rules.append((lambda text: len(text) >= least, f"must have {least} characters or more"))
    if (most := schema.get("maxLength")) is not None:
        rules.append((lambda text: len(text) <= most, f"must have {most} characters or fewer"))
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
    whole = schema["type"] == "integer"
    rules = list(_limits(schema))

    def walk(value: Any, path: str, out: Findings) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            return out.add_invalid_value(path, value, "must be an integer" if whole else "must be a number")
        if isinstance(value, Decimal) and whole:
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


def _limits(schema: Schema) -> Any:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and schema.get("exclusiveMinimum"):
        yield (lambda n: n > least), f"must be more than {least}"
    elif least is not None:
        yield (lambda n: n >= least), f"must be {least} or more"
    if most is not None and schema.get("exclusiveMaximum"):
        yield (lambda n: n < most), f"must be less than {most}"
    elif most is not None:
        yield (lambda n: n <= most), f"must be {most} or less"


def _array(schema: Schema) -> Validator:
    item = compile_schema(schema["items"])
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    unique = _uniqueness(schema)

    def walk(value: Any, path: str, out: Findings) -> Any:
        if not isinstance(value, list):
            return out.add_invalid_value(path, value, "must be a list")
        if len(value) < least:
            out.add_invalid_value(path, value, f"must have {least} items or more")
        if most is not None and len(value) > most:
            out.add_cause(
                path, f"Too many: {len(value)}: must have at most {most} items", "FieldValueTooMany"
            )
        kept = [item(each, f"{path}[{i}]", out) for i, each in enumerate(value)]
        if unique is not None and len(kept) > 1:
            unique(kept, path, out)
        return kept

    return walk


def _uniqueness(schema: Schema) -> Callable[[list[Any], str, Findings], None] | None:
    """Sets hold each value once, list-maps each key once."""
    if schema.get("x-kubernetes-list-type") not in {"set", "map"}:
        return None
    keys = schema.get("x-kubernetes-list-map-keys", ())

    def check(items: list[Any], path: str, out: Findings) -> None:
        seen: set[str] = set()
        for i, item in enumerate(items):
            identity = {key: item.get(key) for key in keys} if keys and isinstance(item, dict) else item
            token = truncated_json(identity)
            if token in seen:
                out.add_cause(f"{path}[{i}]", f"Duplicate value: {token}", "FieldValueDuplicate")
            seen.add(token)

    return check


def _object(schema: Schema) -> Validator:
    if "properties" in schema:
        return _record(schema)
    if isinstance(values := schema.get("additionalProperties"), Mapping):
        return _map(compile_schema(dict(values)))

    def walk(value: Any, path: str, out: Findings) -> Any:
        return value if isinstance(value, dict) else out.add_invalid_value(path, value, "must be an object")

    return walk


def _map(item: Validator) -> Validator:
    def walk(value: Any, path: str, out: Findings) -> Any:
        if not isinstance(value, dict):
            return out.add_invalid_value(path, value, "must be an object")
        return {name: item(each, join_path(path, name), out) for name, each in value.items()}

    return walk


def _record(schema: Schema) -> Validator:
    fields = {name: compile_schema(each) for name, each in schema["properties"].items()}
    defaults = {name: each["default"] for name, each in schema["properties"].items() if "default" in each}
    required = tuple(schema.get("required", ()))
    open_ended = bool(schema.get("x-kubernetes-preserve-unknown-fields"))

    def walk(value: Any, path: str, out: Findings) -> Any:
        if not isinstance(value, dict):
            return out.add_invalid_value(path, value, "must be an object")
        kept: dict[str, Any] = {}
        for name, each in value.items():
            known = fields.get(name)
            if known is None:
                if open_ended:
                    kept[name] = each
                else:
                    out.unknown_fields.append(join_path(path, name))
            elif each is not None:  # an explicit null is the same as saying nothing
                kept[name] = known(each, f"{path}.{name}" if path else name, out)
        for name, default in defaults.items():
            if out.defaulting and name not in kept:
                kept[name] = deepcopy(default)
        for name in required:
            if name not in kept:
                out.add_cause(join_path(path, name), "Required value", "FieldValueRequired")
        return kept

    return walk


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean BinPacking?`, whatever the case; nothing if nothing is near."""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.7)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
