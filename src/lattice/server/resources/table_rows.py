"""Tables of objects in the format that `kubectl get` prints."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any

from lattice.kinds.meta.base import Column, Resource
from lattice.kinds.meta.jsonpath import compile_path
from lattice.kinds.meta.stored_encoding import Object
from lattice.kinds.meta.timestamps import parse_timestamp

NAME_COLUMN = Column(
    "Name", ".metadata.name", description="Name of the object, unique for its kind in its namespace."
)
AGE_COLUMN = Column("Age", ".metadata.creationTimestamp", "date", description="Age of the object.")
COLUMN_FORMATS = {"Name": "name"}


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How to print a table: the resource, the time from which ages are computed, and what every row includes of
    its object."""

    resource: Resource
    now: datetime
    # Metadata, Object or None, as in the query parameter.
    include_object: str = "Metadata"
    version: str = "v1"


def table(
    options: TableOptions,
    objects: Iterable[Object],
    metadata: dict[str, Any],
    *,
    include_headers: bool = True,
) -> dict[str, Any]:
    """Return the Table of the objects; `include_headers` adds the column definitions."""
    definitions = [
        {
            "name": column.name,
            "type": "string" if column.type == "date" else column.type,
            "format": COLUMN_FORMATS.get(column.name, ""),
            "description": column.description or column.name,
            "priority": column.priority,
        }
        for column, _ in columns_of(options.resource)
    ]
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{options.version}",
        "metadata": metadata,
        "columnDefinitions": definitions if include_headers else None,
        "rows": rows(options, objects),
    }


def rows(options: TableOptions, objects: Iterable[Object]) -> list[dict[str, Any]]:
    """Return the rows of a Table, with the object of every row as the options request."""
    columns = columns_of(options.resource)
    table_rows: list[dict[str, Any]] = []
    for obj in objects:
        included: Any = None
        if options.include_object == "Object":
            included = obj
        elif options.include_object != "None":
            api_version = f"meta.k8s.io/{options.version}"
            included = {
                "kind": "PartialObjectMetadata",
                "apiVersion": api_version,
                "metadata": obj["metadata"],
            }
        table_rows.append({"cells": [cell(obj, options.now) for _, cell in columns], "object": included})
    return table_rows


Cell = Callable[[Object, datetime], Any]


@cache
def columns_of(resource: Resource) -> tuple[tuple[Column, Cell], ...]:
    """Return the columns of a resource with the function that computes a cell."""
    # Events have a column with the time of the last occurrence, which replaces the age.
    is_event = resource.kind == "Event"
    listed = resource.columns if is_event else (NAME_COLUMN, *resource.columns, AGE_COLUMN)
    return tuple((column, _cell(resource, column)) for column in listed)


def _cell(resource: Resource, column: Column) -> Cell:
    if not column.path:
        return COMPUTED_COLUMNS[resource.id, column.name]
    find = compile_path(column.path).find
    if column.type == "date":
        return lambda obj, now: age(values[0], now) if (values := find(obj)) else None
    if column.type in {"integer", "number", "boolean"}:
        return lambda obj, now: values[0] if (values := find(obj)) else column.default
    if column.unless:
        is_omitted = compile_path(column.unless).find
        end = column.max_chars

        def cut_text(obj: Any, now: Any) -> str:
            text = "" if True in is_omitted(obj) else ",".join(map(_text, find(obj)))
            return f"{text[: end - 1]}…" if 0 < end < len(text) else text

        return cut_text
    return lambda obj, now: ",".join(_text(value) for value in find(obj))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def age(timestamp: Any, now: datetime) -> str:
    """Return the time since a timestamp in at most two units, as kubectl formats ages; `<unknown>` if
    unreadable."""
    try:
        started_at = parse_timestamp(timestamp)
    except (TypeError, ValueError):
        return "<unknown>"
    return format_duration(int((now - started_at).total_seconds()))


def format_duration(seconds: int) -> str:
    """Format seconds as kubectl does: the larger the duration, the coarser the units."""
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
    timestamp = (
        series.get("lastObservedTime")
        or obj.get("lastTimestamp")
        or obj.get("deprecatedLastTimestamp")
        or obj.get("eventTime")
        or obj.get("firstTimestamp")
        or obj.get("deprecatedFirstTimestamp")
    )
    return age(timestamp or obj["metadata"].get("creationTimestamp"), now)


def _involved_object(obj: Object, now: datetime) -> str:
    reference = obj.get("involvedObject") or obj.get("regarding") or {}
    return f"{reference.get('kind', '').lower()}/{reference.get('name', '')}"


COMPUTED_COLUMNS: dict[tuple[str, str], Cell] = {
    ("secrets", "Data"): _count("data"),
    ("configmaps", "Data"): _count("data", "binaryData"),
    ("events", "Last Seen"): _last_seen,
    ("events", "Object"): _involved_object,
    ("events.events.k8s.io", "Last Seen"): _last_seen,
    ("events.events.k8s.io", "Object"): _involved_object,
}
