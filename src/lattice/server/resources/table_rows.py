"""Objects as the rows that `kubectl get` prints."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any

from lattice.kinds.meta.base import Column, Resource
from lattice.kinds.meta.jsonpath import compile_path
from lattice.kinds.meta.stored_encoding import Object

NAME_COLUMN = Column("Name", ".metadata.name", description="Its name, unique for its kind in its namespace.")
AGE_COLUMN = Column("Age", ".metadata.creationTimestamp", "date", description="How long it has existed.")
FORMATS = {"Name": "name"}


@dataclass(frozen=True, slots=True)
class TableOptions:
    resource: Resource
    now: datetime
    include_object: str = "Metadata"  # of each object: Metadata, Object or None
    version: str = "v1"


def table(
    how: TableOptions, objects: Iterable[Object], metadata: dict[str, Any], *, include_headers: bool = True
) -> dict[str, Any]:
    columns = columns_of(how.resource)
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{how.version}",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column, _ in columns] if include_headers else None,
        "rows": rows(how, objects),
    }


def rows(how: TableOptions, objects: Iterable[Object]) -> list[dict[str, Any]]:
    columns = columns_of(how.resource)
    return [
        {"cells": [cell(obj, how.now) for _, cell in columns], "object": _included(obj, how)}
        for obj in objects
    ]


def _included(obj: Object, how: TableOptions) -> Any:
    match how.include_object:
        case "Object":
            return obj
        case "None":
            return None
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{how.version}",
        "metadata": obj["metadata"],
    }


def _definition(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": "string" if column.type == "date" else column.type,
        "format": FORMATS.get(column.name, ""),
        "description": column.description or column.name,
        "priority": column.priority,
    }


Cell = Callable[[Object, datetime], Any]


@cache
def columns_of(resource: Resource) -> tuple[tuple[Column, Cell], ...]:
    own = resource.columns
    # Events say when they were last seen, which is what an age would be for.
    listed = own if resource.id == "events" else (NAME_COLUMN, *own, AGE_COLUMN)
    return tuple((column, _cell(resource, column)) for column in listed)


def _cell(resource: Resource, column: Column) -> Cell:
    if not column.path:
        return COMPUTED_COLUMNS[resource.id, column.name]
    find = compile_path(column.path).find
    if column.type == "date":
        return lambda obj, now: age(found[0], now) if (found := find(obj)) else None
    if column.type in {"integer", "number", "boolean"}:
        return lambda obj, now: _first(find(obj))
    return lambda obj, now: ",".join(_text(value) for value in find(obj))


def _first(found: list[Any]) -> Any:
    return found[0] if found else None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def age(stamp: Any, now: datetime) -> str:
    """How long ago, in at most two units, as kubectl says it."""
    try:
        since = datetime.fromisoformat(stamp).astimezone(UTC)
    except (TypeError, ValueError):
        return "<unknown>"
    return format_duration(int((now - since).total_seconds()))


def format_duration(seconds: int) -> str:
    if seconds < 0:
        return "0s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y{days % 365}d"


def _count(*names: str) -> Cell:
    return lambda obj, now: sum(len(obj.get(name) or {}) for name in names)


def _last_seen(obj: Object, now: datetime) -> str:
    series = obj.get("series") or {}
    seen = (
        series.get("lastObservedTime")
        or obj.get("lastTimestamp")
        or obj.get("eventTime")
        or obj.get("firstTimestamp")
    )
    return age(seen or obj["metadata"].get("creationTimestamp"), now)


def _involved(obj: Object, now: datetime) -> str:
    about = obj.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


COMPUTED_COLUMNS: dict[tuple[str, str], Cell] = {
    ("secrets", "Data"): _count("data"),
    ("configmaps", "Data"): _count("data", "binaryData"),
    ("events", "Last Seen"): _last_seen,
    ("events", "Object"): _involved,
}
