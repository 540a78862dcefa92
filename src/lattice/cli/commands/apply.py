"""`lattice apply`: server-side apply of manifests, object by object, every refusal with file and line."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import click

from lattice.cli.output import formats as output, render, messages as say
from lattice.cli.client.http import APPLY, Request
from lattice.cli.client.kind_names import Target, address, full_name
from lattice.cli.client.options import Command, Connection, connected
from lattice.cli.client.manifests import manifests
from lattice.usage import Misused
from lattice.errors import (
    Cause,
    Conflict,
    Invalid,
    LatticeError,
    Malformed,
    NotFound,
    Unavailable,
    UnknownUser,
)
from lattice.kinds.meta.yaml_manifest import Document

Key = tuple[str, str, str]  # kind, namespace, name
_FIRST = ("namespaces",)  # what the others live in


@dataclass(frozen=True)
class Options:
    files: tuple[str, ...]
    form: output.Form
    recursive: bool = False
    dry_run: str = "none"
    force_conflicts: bool = False
    field_manager: str = "lattice"
    server_side: bool = True
    show_managed_fields: bool = False
    plan: str = ""
    prices: tuple[str, ...] = ()
    latency: str = ""


@click.command(cls=Command)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE|DIR|URL|-",
    help="Where the manifests are; may be given again.",
)
@click.option("-R", "--recursive", is_flag=True, help="Look in folders below, too.")
@click.option(
    "--dry-run",
    type=click.Choice(["none", "client", "server"]),
    default="none",
    help="Only say what would happen.",
    metavar="[=server|client|none]",
)
@click.option("--force-conflicts", is_flag=True, help="Take fields over from whoever else manages them.")
@click.option("--field-manager", default="lattice", show_default=True, help="As whom the fields are managed.")
@click.option(
    "--server-side", is_flag=True, hidden=True, help="Always so; accepted for those used to kubectl."
)
@click.option("--show-managed-fields", is_flag=True, help="Keep managedFields in json and yaml.")
@click.option(
    "--plan",
    default="",
    metavar="ID|FILE",
    help="Only if the outcome is the one of this plan: its id, or what plan -o json printed.",
)
@click.option(
    "--prices", multiple=True, metavar="CSV", help="With --plan: prices as they were given to plan."
)
@click.option(
    "--latency", default="", metavar="CSV", help="With --plan: round trips as they were given to plan."
)
@click.option(
    "-o",
    "--output",
    "form",
    type=output.FormType("name", "json", "yaml"),
    default=output.Form(),
    metavar="FORM",
    help="name, json or yaml.",
)
@connected
def apply(connection: Connection, **options: Any) -> int:
    """Create objects, or change them to what the manifests say.

    Fields that you stop writing are removed again, unless somebody else manages them. All manifests are read
    before anything is sent: one that cannot be read stops all of them.

    \b
    Examples:
      lattice apply -f pool.yaml
      lattice apply -f shop/ -R -n shop
      cat pool.yaml | lattice apply -f -
      lattice apply -f pool.yaml --dry-run         ask the server, change nothing
      lattice apply -f shop/ --dry-run=client      check the manifests, without a server
      lattice apply -f shop/ --plan p-1f0c2a9b8d7e6f50      only if that is what it would still do
    """
    asked = Options(**options)
    if (asked.prices or asked.latency) and not asked.plan:
        raise Misused("--prices and --latency are for --plan", fix="drop them, or name the plan")
    found = manifests(
        asked.files, asked.recursive, lambda document, target: _in_one_namespace(connection, document, target)
    )
    planned: dict[Key, tuple[str, Any]] = {}
    if asked.plan:
        from lattice.cli.fleet.plan_check import hold_to

        planned = hold_to(connection, asked, found)
    return Applying(connection, asked, found, planned).run()


def _in_one_namespace(connection: Connection, document: Document, target: Target) -> None:
    given, asked = document.value["metadata"].get("namespace"), connection.asked_namespace
    if target.resource.namespaced and given and asked and given != asked:
        raise Malformed(
            f"is in namespace {given}, but -n says {asked}",
            where=document.at("metadata.namespace"),
            fix="drop one of the two",
        )


@dataclass
class Applying:
    connection: Connection
    asked: Options
    objects: list[tuple[Document, Target]]
    planned: dict[Key, tuple[str, Any]] = field(
        default_factory=dict
    )  # what was applied with its plan already
    results: list[tuple[Target, Any]] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    codes: set[int] = field(default_factory=set)

    def run(self) -> int:
        for document, target in sorted(self.objects, key=lambda pair: pair[1].resource.id not in _FIRST):
            try:
                verdict, value = self._one(document, target)
            except (UnknownUser, Unavailable):
                raise  # the next one would fare no better
            except LatticeError as e:
                say.error(located(e, document, target))
                self.codes.add(e.exit_code)
                verdict, value = "failed", None
            self.tally[verdict] += 1
            if value is not None:
                self._tell(target, verdict, value)
        return self._finish()

    def _one(self, document: Document, target: Target) -> tuple[str, Any]:
        value = self._in_namespace(document, target)
        if self.asked.dry_run == "client":
            _check_here(target, value)
            return "checked", value
        if (done := self.planned.get((target.resource.kind, _namespace(value), target.name))) is not None:
            return done
        client, path = self.connection.client, address(target.resource, _namespace(value), target.name)
        before = _existing(lambda: client.get(path))
        answer = client.send(Request("PATCH", path, self._query(), value, content=APPLY))
        if answer.status == 201 or before is None:
            return "created", answer.value
        return ("unchanged" if _same(before, answer.value) else "configured"), answer.value

    def _query(self) -> dict[str, str]:
        return {
            "fieldManager": self.asked.field_manager,
            "fieldValidation": "Strict",
            "force": "true" if self.asked.force_conflicts else "",
            "dryRun": "All" if self.asked.dry_run == "server" else "",
        }

    def _in_namespace(self, document: Document, target: Target) -> dict[str, Any]:
        metadata = document.value["metadata"]
        given, asked = metadata.get("namespace"), self.connection.asked_namespace
        if given or not target.resource.namespaced:
            return document.value
        namespace = asked or ("default" if self.asked.dry_run == "client" else self.connection.namespace)
        return {**document.value, "metadata": {**metadata, "namespace": namespace}}

    def _tell(self, target: Target, verdict: str, value: Any) -> None:
        self.results.append((target, value))
        if self.asked.form.name == "name":
            click.echo(f"{full_name(target.resource)}/{target.name}")
        elif self.asked.form.is_table:
            dry = {"server": " (server dry run)", "client": " (dry run)"}.get(self.asked.dry_run, "")
            click.echo(f"{full_name(target.resource)}/{target.name} {verdict}{dry}")

    def _finish(self) -> int:
        if self.asked.form.name in ("json", "yaml") and self.results:
            shown = [
                v if self.asked.show_managed_fields else render.without_managed_fields(v)
                for _, v in self.results
            ]
            output.show(output.written(output.one_or_list(shown, single=True), self.asked.form))
        if len(self.objects) > 1:
            say.note(", ".join(f"{count} {verdict}" for verdict, count in sorted(self.tally.items())))
        return say.exit_code(self.codes)


def located(e: LatticeError, document: Document, target: Target) -> LatticeError:
    """The same refusal, with the file and line of every field it names."""
    name = f"{full_name(target.resource)}/{target.name}"
    in_order = sorted(e.causes, key=lambda cause: document.line_of(cause.field.removeprefix(".")))
    causes = [_placed(c, document) for c in in_order]
    if causes and isinstance(e, Conflict):
        return _owned_by_others(name, document, causes)
    if causes and isinstance(
        e, Invalid | Malformed
    ):  # then what it says is only the causes again, on one line
        return Invalid(f"{name} is invalid", where=document.at(), fix=e.fix, causes=causes)
    return type(e)(f"{name}: {e.what}", where=e.where or document.at(), fix=e.fix, causes=causes)


def _owned_by_others(name: str, document: Document, causes: list[Cause]) -> Conflict:
    """The causes say which and by whom; the server's own message is all of them again on one line."""
    one = len(causes) == 1
    what = "1 field is" if one else f"{len(causes)} fields are"
    it = "it" if one else "them"
    fix = f"take {it} over with --force-conflicts, or leave {it} out of the manifest"
    return Conflict(f"{name}: {what} managed by somebody else", where=document.at(), fix=fix, causes=causes)


def _placed(cause: Cause, document: Document) -> Cause:
    path = cause.field.removeprefix(".")
    named = path and path not in cause.message
    return Cause(f"{document.at(path)}: {path}" if named else document.at(path), cause.message, cause.reason)


def check_alone(document: Document, target: Target) -> None:
    """Refuses, with its line, what the server would refuse about the object alone."""
    metadata = document.value["metadata"]
    namespace = {"namespace": metadata.get("namespace") or "default"} if target.resource.namespaced else {}
    try:
        _check_here(target, {**document.value, "metadata": metadata | namespace})
    except LatticeError as e:
        raise located(e, document, target) from e


def _check_here(target: Target, value: dict[str, Any]) -> None:
    """What the server would refuse about the object alone, found without one."""
    from lattice.kinds import KINDS
    from lattice.server.resources.admission import admit
    from lattice.server.requests.catalog import serve

    kind = next((k for k in KINDS if k.resource == target.resource), None)
    if kind is not None:
        admit(serve(kind), value, "Strict")


def _existing(read: Any) -> Any:
    try:
        return read()
    except NotFound:
        return None


def _namespace(value: dict[str, Any]) -> str:
    return str(value["metadata"].get("namespace") or "")


def _same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """By content: a dry run keeps the revision, and a controller may have written status meanwhile."""
    return _content(before) == _content(after)


def _content(value: dict[str, Any]) -> dict[str, Any]:
    ignored = ("managedFields", "resourceVersion", "generation")
    return {
        **value,
        "status": None,
        "metadata": {k: v for k, v in value["metadata"].items() if k not in ignored},
    }
