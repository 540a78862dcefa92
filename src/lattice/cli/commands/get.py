"""`lattice get`: objects as tables drawn by the server, or as JSON, YAML, names or a template."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from lattice.cli.output import formats as output, render, messages as say
from lattice.cli.client.http import JSON, TABLE
from lattice.cli.client.watch import Follower, revision_of
from lattice.cli.client.server_table import Grid, Look, sort_key
from lattice.cli.client.kind_names import Target, address, full_name, names
from lattice.cli.client.options import Command, Connection, complete_kind, connected
from lattice.usage import Misused
from lattice.errors import Gone, LatticeError, NotFound
from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.jsonpath import Path, compile_path


@dataclass(frozen=True)
class Options:
    words: tuple[str, ...]
    form: output.Form
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
    """Its help ends with the kinds, which take a moment to load and are needed there only."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Kinds"):
            formatter.write_text(", ".join(names().plain()))


@click.command(cls=GetCommand)
@click.argument(
    "words", nargs=-1, required=True, metavar="KIND [NAME...] | KIND/NAME...", shell_complete=complete_kind
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Objects of all namespaces.")
@click.option(
    "-l", "--selector", default="", metavar="LABELS", help="Only with these labels: a=b,c!=d,e in (f,g),!h."
)
@click.option(
    "--field-selector", default="", metavar="FIELDS", help="Only with these fields: metadata.name=api."
)
@click.option(
    "-o", "--output", "form", type=output.FormType("wide", "json", "yaml", "name", "jsonpath"), default=output.Form(), metavar="FORM",
    help="wide, json, yaml, name or jsonpath=TEMPLATE.",
)  # fmt: skip
@click.option("-w", "--watch", is_flag=True, help="Then show every change as it happens.")
@click.option("--watch-only", is_flag=True, help="Show changes only.")
@click.option(
    "--sort-by", default="", type=PathType(), metavar="PATH", help="Order by a field, such as .metadata.name."
)
@click.option("--show-labels", is_flag=True, help="Add a column with the labels.")
@click.option("--no-headers", is_flag=True, help="Leave the heads out.")
@click.option("--ignore-not-found", is_flag=True, help="Objects that do not exist are no error.")
@click.option("--show-managed-fields", is_flag=True, help="Keep managedFields in json and yaml.")
@click.option(
    "--chunk-size",
    default=500,
    show_default=True,
    type=click.IntRange(min=0),
    help="Objects to ask for at once; 0 for all.",
)
@connected
def get(connection: Connection, **options: Any) -> int:
    """List objects, or show some of them.

    \b
    Examples:
      lattice get pools                          all pools
      lattice get services -n shop -o wide       services of a namespace, more columns
      lattice get service/api pool/us-east       two objects
      lattice get nodes -l zone=a -w             nodes of a zone, and their changes
      lattice get pool us-east -o jsonpath='{.spec.budget}'
    """
    asked = Options(**options)
    targets = names().targets(asked.words)
    if asked.watch or asked.watch_only:
        Watching(connection, asked).run(targets)
    return Listing(connection, asked).run(targets)


@dataclass
class Listing:
    """What is there now."""

    connection: Connection
    asked: Options
    code: int = 0

    def run(self, targets: list[Target]) -> int:
        if any(t.name for t in targets) and (
            self.asked.selector or self.asked.field_selector or self.asked.all_namespaces
        ):
            raise Misused(
                "a name cannot go with a selector or all namespaces",
                fix="give either the name or the selector",
            )
        if self.asked.form.is_table:
            self._tables(targets)
        else:
            self._objects(targets)
        return self.code

    def _tables(self, targets: list[Target]) -> None:
        several = len({t.resource for t in targets}) > 1
        printed = False
        for resource in dict.fromkeys(t.resource for t in targets):
            grid = Grid(resource, look(self.asked, several))
            rows = [row for t in targets if t.resource == resource for row in self._rows(t, grid)]
            if not rows:
                continue
            click.echo("\n".join(([""] if printed else []) + grid.lines(self._sorted(rows))))
            printed = True
        if not printed and not self.code and not self.asked.ignore_not_found:
            say.note(_nothing(targets, self.connection, self.asked.all_namespaces))

    def _rows(self, target: Target, grid: Grid) -> Iterator[dict[str, Any]]:
        for page in self._pages(target, TABLE):
            grid.learn(page)
            yield from page.get("rows") or []

    def _sorted(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not self.asked.sort_by:
            return rows
        path: Path = compile_path(self.asked.sort_by)
        return sorted(rows, key=lambda row: sort_key(path, row.get("object")))

    def _objects(self, targets: list[Target]) -> None:
        items = [
            (t.resource, item) for t in targets for page in self._pages(t, JSON) for item in _items(page, t)
        ]
        if self.asked.sort_by:
            path = compile_path(self.asked.sort_by)
            items.sort(key=lambda pair: sort_key(path, pair[1]))
        single = len(targets) == 1 and bool(targets[0].name)
        if single and not items:
            return
        if self.asked.form.name == "name":
            output.show("".join(f"{full_name(r)}/{item['metadata']['name']}\n" for r, item in items))
            return
        shown = [
            item if self.asked.show_managed_fields else render.without_managed_fields(item)
            for _, item in items
        ]
        output.show(output.written(output.one_or_list(shown, single), self.asked.form))

    def _pages(self, target: Target, accept: str) -> list[Any]:
        client, path = self.connection.client, where(target, self.connection, self.asked)
        try:
            if target.name:
                return [client.get(path, query(self.asked, target, limit=False), accept)]
            return client.pages(path, query(self.asked, target), accept)
        except NotFound as e:
            if not (self.asked.ignore_not_found and target.name):
                say.error(e)
                self.code = e.exit_code
            return []


@dataclass
class Watching:
    """What is there, then every change."""

    connection: Connection
    asked: Options

    def run(self, targets: list[Target]) -> None:
        if len(targets) != 1:
            raise Misused(
                f"only one kind, or one object, can be watched; this names {len(targets)}",
                fix="run one `get -w` for each",
            )
        target = targets[0]
        table = self.asked.form.is_table
        self.grid = Grid(target.resource, look(self.asked, several=False))
        self.seen: dict[str, str] = {}
        silent = self.asked.watch_only
        while True:
            revision = self._list(target, silent)
            silent = False
            asked = query(self.asked, target, by_name=True)
            follower = Follower(self.connection.client, self._path(target), asked, TABLE if table else JSON)
            try:
                for _, value in follower.changes(revision):
                    self._show(value)
            except Gone:
                continue  # the server forgot where we were: list again, show what is new

    def _path(self, target: Target) -> str:
        return where(Target(target.resource), self.connection, self.asked)

    def _list(self, target: Target, silent: bool) -> str:
        accept = TABLE if self.asked.form.is_table else JSON
        pages = self.connection.client.pages(
            self._path(target), query(self.asked, target, by_name=True), accept
        )
        if target.name and not silent and not any(page.get("rows") or page.get("items") for page in pages):
            raise NotFound(
                f"{full_name(target.resource)} {target.name!r} does not exist",
                fix=f"`lattice get {target.resource.plural}` lists them",
            )
        for page in pages:
            if silent:
                self.grid.learn(page)
                continue
            for value in [page] if self.asked.form.is_table else _items(page, Target(target.resource)):
                self._show(value)
        return str(pages[0]["metadata"].get("resourceVersion", ""))

    def _show(self, value: Any) -> None:
        if not self.asked.form.is_table:
            if self._is_new(value):
                output.show(self._document(value))
            return
        self.grid.learn(value)
        rows = [row for row in value.get("rows") or [] if self._is_new(row.get("object") or {})]
        if rows:
            click.echo("\n".join(self.grid.lines(rows)))

    def _is_new(self, value: dict[str, Any]) -> bool:
        metadata, revision = value.get("metadata") or {}, revision_of(value)
        key = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
        if revision and self.seen.get(key) == revision:
            return False
        self.seen[key] = revision
        return True

    def _document(self, value: dict[str, Any]) -> str:
        if self.asked.form.name == "name":
            return f"{full_name(self.grid.resource)}/{value['metadata']['name']}\n"
        shown = value if self.asked.show_managed_fields else render.without_managed_fields(value)
        return ("---\n" if self.asked.form.name == "yaml" else "") + output.written(shown, self.asked.form)


def look(asked: Options, several: bool) -> Look:
    return Look(
        asked.form.name == "wide", asked.all_namespaces, asked.show_labels, not asked.no_headers, several
    )


def where(target: Target, connection: Connection, asked: Options) -> str:
    namespaced = target.resource.namespaced and not asked.all_namespaces
    return address(target.resource, connection.namespace if namespaced else None, target.name)


def query(asked: Options, target: Target, *, limit: bool = True, by_name: bool = False) -> dict[str, str]:
    named = f"metadata.name={target.name}" if by_name and target.name else ""
    return {
        "labelSelector": asked.selector,
        "fieldSelector": ",".join(part for part in (asked.field_selector, named) if part),
        "limit": str(asked.chunk_size) if limit and asked.chunk_size else "",
        "includeObject": "Object" if asked.sort_by and asked.form.is_table else "",
    }


def _items(page: dict[str, Any], target: Target) -> list[Any]:
    """Objects of a list say what they are only on the list itself."""
    if target.name:
        return [page]
    resource: Resource = target.resource
    return [
        {"apiVersion": resource.api_version, "kind": resource.kind, **item}
        for item in page.get("items") or []
    ]


def _nothing(targets: list[Target], connection: Connection, everywhere: bool) -> str:
    if everywhere or not all(t.resource.namespaced for t in targets):
        return "No resources found"
    return f"No resources found in {connection.namespace} namespace."
