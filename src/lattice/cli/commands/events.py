"""`lattice events`: events of one object or of a namespace, oldest first."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import click

from lattice.cli.client.http import JSON_MEDIA_TYPE
from lattice.cli.client.kind_names import Target, kind_names, resource_path
from lattice.cli.client.options import Command, Connection, with_connection
from lattice.cli.client.watch import RetryWatcher
from lattice.cli.output import messages as say
from lattice.cli.output import output_format as output
from lattice.cli.output import render
from lattice.clock import SystemClock
from lattice.errors import Gone, UsageError
from lattice.kinds.meta.base import Resource

EVENT_RESOURCE = Resource(kind="Event", plural="events", group="", version="v1", namespaced=True)
_HEADERS = ("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")

# Cells of usual width: a watch reserves this width for later events.
_SAMPLE_CELLS = ("5m (x3 over 2h)", "Warning", "x" * 20, "x" * 30, "")


@dataclass(frozen=True)
class EventsOptions:
    form: output.OutputFormat
    about: str = ""
    all_namespaces: bool = False
    watch: bool = False
    types: tuple[str, ...] = ()
    no_headers: bool = False


@click.command(cls=Command)
@click.option("-A", "--all-namespaces", is_flag=True, help="Events of all namespaces.")
@click.option("--for", "about", default="", metavar="KIND/NAME", help="Only events of this object.")
@click.option("-w", "--watch", is_flag=True, help="Print the events, then every new event.")
@click.option("--types", default="", metavar="TYPES", help="Only these types: Normal, Warning.")
@click.option("--no-headers", is_flag=True, help="Do not print column headers.")
@output.output_option("json", "yaml", help_text="json or yaml.")
@with_connection
def events(connection: Connection, types: str, **options: Any) -> None:
    """List events, oldest first.

    \b
    Examples:
      lattice events                       of this namespace
      lattice events --for service/api     of one service
      lattice events -A -w --types Warning warnings of all namespaces, also new ones
    """
    chosen_types = tuple(t.strip().capitalize() for t in types.split(",") if t.strip())
    if unknown := [t for t in chosen_types if t not in ("Normal", "Warning")]:
        raise UsageError(
            f"there is no event type {unknown[0]!r}", where="--types", fix="use Normal, Warning or both"
        )
    Events(connection, EventsOptions(types=chosen_types, **options)).run()


@dataclass
class Events:
    """Lists events, then watches if asked; prints every revision of an event once."""

    connection: Connection
    options: EventsOptions
    # Column widths, set when the first rows are printed.
    widths: list[int] = field(default_factory=list)
    # Whether the events may be of several namespaces.
    shows_namespace: bool = False

    def run(self) -> None:
        target, about = None, self.options.about
        if about:
            targets = kind_names().parse_targets([about]) if "/" in about else []
            if len(targets) != 1:
                raise UsageError(
                    f"{about!r} is not kind/name", where="--for", fix="write KIND/NAME, such as service/api"
                )
            target = targets[0]
        # Events of a cluster-scoped object may be in any namespace.
        everywhere = self.options.all_namespaces or (
            target is not None and not target.resource.namespaced and not self.connection.explicit_namespace
        )
        self.shows_namespace = everywhere
        path = resource_path(EVENT_RESOURCE, None if everywhere else self.connection.namespace)
        query = {"fieldSelector": event_selector(target), "limit": "500"}
        shown: set[str] = set()
        while True:
            pages = self.connection.client.list_pages(path, query)
            items: list[dict[str, Any]] = []
            for page in pages:
                items += [event for event in page.get("items") or [] if self._matches_types(event)]
            items.sort(key=event_sort_key)
            self._print([e for e in items if _identity(e) not in shown])
            # After Gone the loop lists the events again: events that were printed are skipped.
            shown.update(map(_identity, items))
            if not self.options.watch:
                return
            try:
                for kind, event in RetryWatcher(self.connection.client, path, query, JSON_MEDIA_TYPE).changes(
                    pages[0]["metadata"]["resourceVersion"]
                ):
                    if kind != "DELETED" and self._matches_types(event) and _identity(event) not in shown:
                        shown.add(_identity(event))
                        self._print([event])
            except Gone:
                continue

    def _matches_types(self, event: dict[str, Any]) -> bool:
        return not self.options.types or event.get("type") in self.options.types

    def _print(self, items: list[dict[str, Any]]) -> None:
        form, is_watch = self.options.form, self.options.watch
        if not form.is_table:
            clean = [{"apiVersion": "v1", "kind": "Event", **render.without_managed_fields(e)} for e in items]
            if not is_watch:
                output.print_raw(output.serialize(render.as_list(clean), form))
                return
            # One document per event: the list of a watch has no end.
            separator = "---\n" if form.name == "yaml" else ""
            output.print_raw("".join(separator + output.serialize(event, form) for event in clean))
            return
        if not items and not is_watch:
            everywhere = self.options.all_namespaces or self.options.about
            suffix = "" if everywhere else f" in {self.connection.namespace} namespace."
            say.note(f"No events found{suffix}")
            return
        rows = event_rows(items, SystemClock().now(), self.shows_namespace)
        is_first = not self.widths
        if is_first:
            samples = []
            # A watch reserves the usual width of later events.
            if is_watch:
                samples.append([""] * (len(rows[0]) - len(_SAMPLE_CELLS)) + list(_SAMPLE_CELLS))
            self.widths = render.widths([*rows, *samples])
        shown = rows if is_first and not self.options.no_headers else rows[1:]
        click.echo("".join(f"{render.line(row, self.widths)}\n" for row in shown), nl=False)


def event_selector(target: Target | None, uid: str = "") -> str:
    """Field selector for the events about one object."""
    if target is None:
        return ""
    parts = {"kind": target.resource.kind, "name": target.name, "uid": uid}
    return ",".join(f"involvedObject.{k}={v}" for k, v in parts.items() if v)


def event_rows(items: list[dict[str, Any]], now: datetime, namespaces: bool = False) -> list[list[str]]:
    """Rows of cells, headers first."""
    rows = [(["NAMESPACE"] if namespaces else []) + list(_HEADERS)]
    for event in items:
        about = event.get("involvedObject") or {}
        subject = f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"
        row = [render.cell(event["metadata"].get("namespace", ""))] if namespaces else []
        row.append(last_seen_text(event, now))
        message = str(event.get("message", "")).strip()
        row += [
            render.cell(value) for value in (event.get("type", ""), event.get("reason", ""), subject, message)
        ]
        rows.append(row)
    return rows


def last_seen_text(event: dict[str, Any], now: datetime) -> str:
    """Age of an event as `5m`, or `5m (x3 over 2h)` for an event that occurred several times."""
    last, count = render.age_since(last_seen(event), now), event.get("count") or 1
    first = event.get("firstTimestamp")
    return f"{last} (x{count} over {render.age_since(first, now)})" if count > 1 and first else last


def last_seen(event: dict[str, Any]) -> str:
    """Timestamp of the latest occurrence of an event."""
    series = event.get("series") or {}
    timestamp = (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
    )
    return str(timestamp or "")


def event_sort_key(event: dict[str, Any]) -> tuple[str, int]:
    """Sort key: timestamps have a resolution of one second; within a second the revision decides."""
    number = str(event["metadata"].get("resourceVersion") or "")
    return last_seen(event), int(number) if number.isdigit() else 0


def _identity(event: dict[str, Any]) -> str:
    return f"{event['metadata'].get('uid')}@{event['metadata'].get('resourceVersion')}"
