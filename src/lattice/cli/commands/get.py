"""`lattice get`: objects as server-side tables, JSON, YAML, names, or through a jsonpath template."""

from dataclasses import dataclass
from typing import Any

import click

from lattice.cli.client.http import JSON_MEDIA_TYPE, TABLE_MEDIA_TYPE
from lattice.cli.client.kind_names import Target, full_name, kind_names, resource_path
from lattice.cli.client.options import Command, Connection, complete_kind, with_connection
from lattice.cli.client.server_table import ColumnOptions, ServerTable, sort_key
from lattice.cli.client.watch import RetryWatcher, revision_of
from lattice.cli.output import messages as say
from lattice.cli.output import output_format as output
from lattice.cli.output import render
from lattice.errors import Gone, LatticeError, NotFound, UsageError
from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.jsonpath import Path, compile_path


@dataclass(frozen=True)
class GetOptions:
    words: tuple[str, ...]
    form: output.OutputFormat
    all_namespaces: bool = False
    selector: str = ""
    field_selector: str = ""
    watch: bool = False
    watch_only: bool = False
    sort_by: str = ""
    show_labels: bool = False
    no_headers: bool = False
    ignore_not_found: bool = False
    show_managed_fields: bool = False
    chunk_size: int = 500


class PathType(click.ParamType):  # type: ignore[type-arg]
    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            compile_path(value)
        except LatticeError as e:
            self.fail(str(e), param, ctx)
        return str(value)


class GetCommand(Command):
    """Click command whose help ends with the kinds; loading the kinds takes time and only the help needs
    them."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Kinds"):
            formatter.write_text(", ".join(kind_names().short_names()))


@click.command(cls=GetCommand)
@click.argument(
    "words", nargs=-1, required=True, metavar="KIND [NAME...] | KIND/NAME...", shell_complete=complete_kind
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Objects of all namespaces.")
@click.option(
    "-l", "--selector", default="", metavar="LABELS", help="Select by labels: a=b,c!=d,e in (f,g),!h."
)
@click.option("--field-selector", default="", metavar="FIELDS", help="Select by fields: metadata.name=api.")
@output.output_option(
    "wide", "json", "yaml", "name", "jsonpath", help_text="wide, json, yaml, name or jsonpath=TEMPLATE."
)
@click.option("-w", "--watch", is_flag=True, help="Print the objects, then every change.")
@click.option("--watch-only", is_flag=True, help="Print changes only.")
@click.option(
    "--sort-by", default="", type=PathType(), metavar="PATH", help="Sort by a field, such as .metadata.name."
)
@click.option("--show-labels", is_flag=True, help="Add a column with the labels.")
@click.option("--no-headers", is_flag=True, help="Do not print column headers.")
@click.option("--ignore-not-found", is_flag=True, help="Do not fail on objects that do not exist.")
@click.option("--show-managed-fields", is_flag=True, help="Show managedFields in json and yaml.")
@click.option(
    "--chunk-size",
    default=500,
    show_default=True,
    type=click.IntRange(min=0),
    help="Objects per request; 0 requests all at once.",
)
@with_connection
def get(connection: Connection, **options: Any) -> int:
    """List objects, or show named objects.

    \b
    Examples:
      lattice get pools                          all pools
      lattice get services -n shop -o wide       services of a namespace, more columns
      lattice get service/api pool/us-east       two objects
      lattice get nodes -l zone=a -w             nodes of a zone, and their changes
      lattice get pool us-east -o jsonpath='{.spec.budget}'
    """
    choices = GetOptions(**options)
    targets = kind_names().parse_targets(choices.words)
    if choices.watch or choices.watch_only:
        # A watch does not return: Ctrl-C or an error ends the command.
        ObjectWatcher(connection, choices).run(targets)
    return ObjectLister(connection, choices).run(targets)


@dataclass
class ObjectLister:
    """Prints the current objects of the targets."""

    connection: Connection
    options: GetOptions
    exit_code: int = 0

    def run(self, targets: list[Target]) -> int:
        if any(t.name for t in targets) and (
            self.options.selector or self.options.field_selector or self.options.all_namespaces
        ):
            raise UsageError(
                "a name cannot be combined with a selector or all namespaces",
                fix="give either the name or the selector",
            )
        if self.options.form.is_table:
            self._tables(targets)
        else:
            self._objects(targets)
        return self.exit_code

    def _tables(self, targets: list[Target]) -> None:
        several = len({t.resource for t in targets}) > 1
        printed = False
        for resource in dict.fromkeys(t.resource for t in targets):
            grid = ServerTable(resource, column_options(self.options, several))
            rows: list[dict[str, Any]] = []
            for target in targets:
                if target.resource == resource:
                    for page in self._pages(target, TABLE_MEDIA_TYPE):
                        grid.update_columns(page)
                        rows += page.get("rows") or []
            if not rows:
                continue
            if self.options.sort_by:
                path: Path = compile_path(self.options.sort_by)
                rows.sort(key=lambda row: sort_key(path, row.get("object")))
            click.echo("\n".join(([""] if printed else []) + grid.lines(rows)))
            printed = True
        if not printed and not self.exit_code and not self.options.ignore_not_found:
            is_namespaced = all(target.resource.namespaced for target in targets)
            if self.options.all_namespaces or not is_namespaced:
                say.note("No resources found")
            else:
                say.note(f"No resources found in {self.connection.namespace} namespace.")

    def _objects(self, targets: list[Target]) -> None:
        items = []
        for target in targets:
            for page in self._pages(target, JSON_MEDIA_TYPE):
                items += [(target.resource, item) for item in _typed_items(page, target)]
        if self.options.sort_by:
            path = compile_path(self.options.sort_by)
            items.sort(key=lambda pair: sort_key(path, pair[1]))
        single = len(targets) == 1 and bool(targets[0].name)
        # The object is missing: `_pages` has printed the error, or --ignore-not-found hides the error.
        if single and not items:
            return
        if self.options.form.name == "name":
            output.print_raw("".join(f"{full_name(r)}/{item['metadata']['name']}\n" for r, item in items))
            return
        shown = [
            item if self.options.show_managed_fields else render.without_managed_fields(item)
            for _, item in items
        ]
        output.print_raw(output.serialize(output.one_or_list(shown, single), self.options.form))

    def _pages(self, target: Target, accept: str) -> list[Any]:
        client, path = self.connection.client, request_path(target, self.connection, self.options)
        try:
            if target.name:
                return [client.get(path, list_query(self.options, target, limit=False), accept)]
            return client.list_pages(path, list_query(self.options, target), accept)
        except NotFound as e:
            if not (self.options.ignore_not_found and target.name):
                say.error(e)
                self.exit_code = e.exit_code
            return []


@dataclass
class ObjectWatcher:
    """Prints the current objects of one target, then every change."""

    connection: Connection
    options: GetOptions

    def run(self, targets: list[Target]) -> None:
        if len(targets) != 1:
            raise UsageError(
                f"only one kind or one object can be watched, got {len(targets)}",
                fix="run one `get -w` for each",
            )
        target = targets[0]
        is_table = self.options.form.is_table
        self.server_table = ServerTable(target.resource, column_options(self.options, show_kind=False))
        self.shown_revisions: dict[str, str] = {}
        is_silent = self.options.watch_only
        while True:
            revision = self._list(target, is_silent)
            # After Gone the list is printed, because changes may have been missed.
            is_silent = False
            query = list_query(self.options, target, by_name=True)
            follower = RetryWatcher(
                self.connection.client,
                self._path(target),
                query,
                TABLE_MEDIA_TYPE if is_table else JSON_MEDIA_TYPE,
            )
            try:
                for _, value in follower.changes(revision):
                    self._print_value(value)
            # The server compacted the revision: list again and print only objects with a new revision.
            except Gone:
                continue

    def _path(self, target: Target) -> str:
        # The API watches collections: a field selector limits the watch to one name.
        return request_path(Target(target.resource), self.connection, self.options)

    def _list(self, target: Target, silent: bool) -> str:
        accept = TABLE_MEDIA_TYPE if self.options.form.is_table else JSON_MEDIA_TYPE
        pages = self.connection.client.list_pages(
            self._path(target), list_query(self.options, target, by_name=True), accept
        )
        if target.name and not silent and not any(page.get("rows") or page.get("items") for page in pages):
            raise NotFound(
                f"{full_name(target.resource)} {target.name!r} does not exist",
                fix=f"`lattice get {target.resource.plural}` lists them",
            )
        for page in pages:
            if silent:
                self.server_table.update_columns(page)
                continue
            for value in (
                [page] if self.options.form.is_table else _typed_items(page, Target(target.resource))
            ):
                self._print_value(value)
        # The watch starts at the revision of the list: no change is lost between them.
        return str(pages[0]["metadata"].get("resourceVersion", ""))

    def _print_value(self, value: Any) -> None:
        form = self.options.form
        if not form.is_table:
            if not self._is_new(value):
                return
            if form.name == "name":
                output.print_raw(f"{full_name(self.server_table.resource)}/{value['metadata']['name']}\n")
                return
            shown = value if self.options.show_managed_fields else render.without_managed_fields(value)
            separator = "---\n" if form.name == "yaml" else ""
            output.print_raw(separator + output.serialize(shown, form))
            return
        self.server_table.update_columns(value)
        rows = [row for row in value.get("rows") or [] if self._is_new(row.get("object") or {})]
        if rows:
            click.echo("\n".join(self.server_table.lines(rows)))

    def _is_new(self, value: dict[str, Any]) -> bool:
        """Whether this revision of the object was not printed yet."""
        metadata, revision = value.get("metadata") or {}, revision_of(value)
        key = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
        if revision and self.shown_revisions.get(key) == revision:
            return False
        self.shown_revisions[key] = revision
        return True


def column_options(choices: GetOptions, show_kind: bool) -> ColumnOptions:
    return ColumnOptions(
        choices.form.name == "wide",
        choices.all_namespaces,
        choices.show_labels,
        not choices.no_headers,
        show_kind,
    )


def request_path(target: Target, connection: Connection, choices: GetOptions) -> str:
    namespaced = target.resource.namespaced and not choices.all_namespaces
    return resource_path(target.resource, connection.namespace if namespaced else None, target.name)


def list_query(
    choices: GetOptions, target: Target, *, limit: bool = True, by_name: bool = False
) -> dict[str, str]:
    named = f"metadata.name={target.name}" if by_name and target.name else ""
    return {
        "labelSelector": choices.selector,
        "fieldSelector": ",".join(part for part in (choices.field_selector, named) if part),
        "limit": str(choices.chunk_size) if limit and choices.chunk_size else "",
        # Only sorting by a field of the object needs the whole object in every row of a table.
        "includeObject": "Object" if choices.sort_by and choices.form.is_table else "",
    }


def _typed_items(page: dict[str, Any], target: Target) -> list[Any]:
    """Objects of a list with apiVersion and kind, which the API gives only on the list itself."""
    if target.name:
        return [page]
    resource: Resource = target.resource
    return [
        {"apiVersion": resource.api_version, "kind": resource.kind, **item}
        for item in page.get("items") or []
    ]
