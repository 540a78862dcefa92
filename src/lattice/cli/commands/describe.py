"""`lattice describe`: one object with its spec, status, conditions and events."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from lattice.cli.client.kind_names import Target, kind_names, resource_path
from lattice.cli.client.options import Command, Connection, complete_kind, with_connection
from lattice.cli.commands import events
from lattice.cli.output import messages as say
from lattice.cli.output import render
from lattice.clock import SystemClock
from lattice.errors import LatticeError, NotFound

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# Width of the label column.
_LABEL_CHARS = 14
_STANDARD_FIELDS = ("apiVersion", "kind", "metadata", "status")


@click.command(cls=Command)
@click.argument(
    "words", nargs=-1, required=True, metavar="KIND [NAME...] | KIND/NAME...", shell_complete=complete_kind
)
@click.option("-l", "--selector", default="", metavar="LABELS", help="Select objects of the kind by labels.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Objects of all namespaces.")
@click.option("--show-events/--no-show-events", default=True, help="Show the events of each object.")
@with_connection
def describe(
    connection: Connection, words: tuple[str, ...], selector: str, all_namespaces: bool, show_events: bool
) -> int:
    """Show objects in detail, with conditions and events.

    \b
    Examples:
      lattice describe pool us-east
      lattice describe service/api -n shop
      lattice describe nodes -l zone=a
    """
    objects, code = [], 0
    for target in kind_names().parse_targets(words):
        is_in_namespace = target.resource.namespaced and not all_namespaces
        namespace = connection.namespace if is_in_namespace else None
        path = resource_path(target.resource, namespace, target.name)
        try:
            if target.name:
                objects.append((target, connection.client.get(path)))
                continue
            for page in connection.client.list_pages(path, {"labelSelector": selector, "limit": "500"}):
                objects += [(target, value) for value in page.get("items") or []]
        except NotFound as e:
            say.error(e)
            code = e.exit_code
    now = SystemClock().now()
    for i, (target, value) in enumerate(objects):
        named_target = Target(target.resource, value["metadata"]["name"])
        lines = list(
            describe_lines(
                {"kind": target.resource.kind, "apiVersion": target.resource.api_version, **value}, now
            )
        )
        lines += _events(connection, named_target, value, now) if show_events else []
        click.echo("\n".join((["", ""] if i else []) + lines))
    if not objects and not code:
        say.note("No resources found")
    return code


def describe_lines(value: dict[str, Any], now: datetime) -> Iterator[str]:
    """Lines of an object: metadata, other fields, status and conditions."""
    metadata, status = value["metadata"], value.get("status") or {}
    yield _field("Name", metadata["name"])
    yield from [_field("Namespace", metadata["namespace"])] if metadata.get("namespace") else []
    yield from _map("Labels", metadata.get("labels"), "=")
    # kubectl's copy of the applied manifest is left out: for a secret the copy holds the values.
    annotations = metadata.get("annotations") or {}
    yield from _map("Annotations", {k: v for k, v in annotations.items() if k != LAST_APPLIED}, ": ")
    yield _field("API Version", value.get("apiVersion"))
    yield _field("Kind", value.get("kind"))
    yield _field("Created", _time_with_age(metadata.get("creationTimestamp"), now))
    if metadata.get("deletionTimestamp"):
        yield _field("Deleting", _time_with_age(metadata["deletionTimestamp"], now))
        yield _field("Finalizers", ", ".join(metadata.get("finalizers") or []) or "<none>")
    for owner in metadata.get("ownerReferences") or []:
        yield _field("Owner", f"{owner.get('kind')}/{owner.get('name')}")
    for name, inner in value.items():
        if name in _STANDARD_FIELDS:
            continue
        if value.get("kind") == "Secret" and isinstance(inner, dict):
            # Sizes instead of values: 4 characters of base64 hold 3 bytes.
            inner = {k: f"{len(str(v).rstrip('=')) * 3 // 4} bytes" for k, v in inner.items()}
        yield from _section(name, inner)
    yield from _section("status", {k: v for k, v in status.items() if k != "conditions"}) if status else ()
    rows = [["Type", "Status", "Age", "Reason", "Message"]]
    for condition in status.get("conditions") or []:
        age = render.age_since(condition.get("lastTransitionTime"), now)
        cells = (condition.get("type"), condition.get("status"), age)
        texts = (condition.get("reason", ""), condition.get("message", ""))
        rows.append([render.cell(value) for value in (*cells, *texts)])
    if len(rows) > 1:
        yield "Conditions:"
        yield from (f"  {line}" for line in render.table(rows))


def _field(name: str, value: Any) -> str:
    return f"{name + ':':<{_LABEL_CHARS}}{render.cell(value)}"


def _map(name: str, values: dict[str, Any] | None, separator: str) -> Iterator[str]:
    pairs = [f"{k}{separator}{render.cell(v)}" for k, v in sorted((values or {}).items())] or ["<none>"]
    for i, pair in enumerate(pairs):
        yield f"{(name + ':') if i == 0 else '':<{_LABEL_CHARS}}{render.cell(pair)}"


def _time_with_age(stamp: str | None, now: datetime) -> str:
    return f"{stamp} ({render.age_since(stamp, now)} ago)" if stamp else "<unknown>"


def _section(name: str, value: Any) -> Iterator[str]:
    title = name[:1].upper() + name[1:]
    yield f"{title}:" if isinstance(value, dict | list) and value else _field(title, _inline_value(value))
    yield from _tree(value, 2)


def _tree(value: Any, indent: int) -> Iterator[str]:
    """Collections as an indented tree; scalars on one line each."""
    space = " " * indent
    if isinstance(value, dict):
        for key, inner in value.items():
            is_flat = isinstance(inner, list) and all(not isinstance(v, dict | list) for v in inner)
            head = f"{space}{render.cell(key)}:"
            if isinstance(inner, dict | list) and inner and not is_flat:
                yield head
                yield from _tree(inner, indent + 2)
                continue
            text = _inline_value(inner)
            if "\n" in text:
                yield head
                yield from (f"{space}  {part}" for part in text.split("\n"))
            else:
                yield f"{head}  {text}"
    elif isinstance(value, list):
        for inner in value:
            nested = (
                list(_tree(inner, indent + 2))
                if isinstance(inner, dict | list)
                else [f"{space}  {render.cell(inner)}"]
            )
            yield from (
                [f"{space}- {nested[0].lstrip()}", *nested[1:]]
                if nested
                else [f"{space}- {_inline_value(inner)}"]
            )


def _inline_value(value: Any) -> str:
    if value in ({}, [], None):
        return "<none>"
    if isinstance(value, list):
        return ", ".join(render.cell(v) for v in value)
    return render.printable_text(value.rstrip("\n")) if isinstance(value, str) else render.cell(value)


def _events(connection: Connection, about: Target, value: dict[str, Any], now: datetime) -> list[str]:
    metadata = value["metadata"]
    path = resource_path(events.EVENT_RESOURCE, metadata.get("namespace"))
    try:
        pages = connection.client.list_pages(
            # The uid leaves out events of a deleted object with the same name.
            path,
            {"fieldSelector": events.event_selector(about, metadata.get("uid", "")), "limit": "500"},
        )
    except LatticeError as e:
        return [_field("Events", f"not shown: {e.message}")]
    items: list[dict[str, Any]] = []
    for page in pages:
        items += page.get("items") or []
    items.sort(key=events.event_sort_key)
    if not items:
        return [_field("Events", "<none>")]
    rows = [["Type", "Reason", "Age", "Message"]]
    for event in items:
        message = str(event.get("message", "")).strip()
        age = events.last_seen_text(event, now)
        cells = (event.get("type", ""), event.get("reason", ""), age, message)
        rows.append([render.cell(value) for value in cells])
    return ["Events:", *(f"  {line}" for line in render.table(rows))]
