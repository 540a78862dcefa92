"""`lattice apply`: server-side apply of manifests, object by object, with file and line of every rejected
field."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import click

from lattice.cli.client.http import APPLY_PATCH_MEDIA_TYPE, Request
from lattice.cli.client.kind_names import Target, full_name, resource_path
from lattice.cli.client.manifests import locate_error, read_manifests
from lattice.cli.client.options import (
    DRY_RUN_SUFFIXES,
    Command,
    Connection,
    dry_run_option,
    manifests_option,
    with_connection,
)
from lattice.cli.output import messages as say
from lattice.cli.output import output_format as output
from lattice.cli.output import render
from lattice.errors import LatticeError, Malformed, NotFound, Unavailable, UnknownUser, UsageError
from lattice.kinds.meta.yaml_manifest import Document

# Kind, namespace, name.
Key = tuple[str, str, str]
# Resources that other objects live in.
_APPLIED_FIRST = ("namespaces",)


@dataclass(frozen=True)
class ApplyOptions:
    files: tuple[str, ...]
    form: output.OutputFormat
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
@manifests_option("File, folder, URL or - with manifests. Repeatable.", required=True)
@click.option("-R", "--recursive", is_flag=True, help="Include subfolders.")
@dry_run_option
@click.option("--force-conflicts", is_flag=True, help="Take over fields from other field managers.")
@click.option("--field-manager", default="lattice", show_default=True, help="Name of the field manager.")
@click.option(
    "--server-side", is_flag=True, hidden=True, help="Always on; accepted for compatibility with kubectl."
)
@click.option("--show-managed-fields", is_flag=True, help="Show managedFields in json and yaml.")
@click.option(
    "--plan",
    default="",
    metavar="ID|FILE",
    help="Apply only if the outcome still matches this plan: an id, or a file from `plan -o json`.",
)
@click.option(
    "--prices", multiple=True, metavar="CSV", help="With --plan: the price file that plan used. Repeatable."
)
@click.option("--latency", default="", metavar="CSV", help="With --plan: the latency file that plan used.")
@output.output_option("name", "json", "yaml", help_text="name, json or yaml.")
@with_connection
def apply(connection: Connection, **options: Any) -> int:
    """Create or update objects from manifests.

    Fields that you remove from a manifest are removed from the object, unless another field manager owns them.
    All manifests are read before the first request: one unreadable manifest stops the command.

    \b
    Examples:
      lattice apply -f pool.yaml
      lattice apply -f shop/ -R -n shop
      cat pool.yaml | lattice apply -f -
      lattice apply -f pool.yaml --dry-run         validate on the server, change nothing
      lattice apply -f shop/ --dry-run=client      validate without a server
      lattice apply -f shop/ --plan p-1f0c2a9b8d7e6f50      only if the plan still holds
    """
    choices = ApplyOptions(**options)
    if (choices.prices or choices.latency) and not choices.plan:
        raise UsageError("--prices and --latency need --plan", fix="remove them, or add --plan")

    def check_namespace(document: Document, target: Target) -> None:
        declared, explicit = document.value["metadata"].get("namespace"), connection.explicit_namespace
        if target.resource.namespaced and declared and explicit and declared != explicit:
            raise Malformed(
                f"is in namespace {declared}, but -n says {explicit}",
                where=document.location("metadata.namespace"),
                fix="remove one of the two",
            )

    manifests = read_manifests(choices.files, choices.recursive, check_namespace)
    planned: dict[Key, tuple[str, Any]] = {}
    if choices.plan:
        from lattice.cli.fleet.plan_check import PlanCheck, enforce_plan

        check = PlanCheck(
            choices.plan,
            choices.dry_run,
            choices.field_manager,
            choices.force_conflicts,
            choices.prices,
            choices.latency,
        )
        planned = enforce_plan(connection, check, manifests)
    return Applier(connection, choices, manifests, planned).run()


@dataclass
class Applier:
    """Applies the manifests one by one, prints each result and collects the exit codes of failures."""

    connection: Connection
    options: ApplyOptions
    objects: list[tuple[Document, Target]]
    # With --plan: outcome (created, configured or unchanged) and object of every manifest. The server has
    # already applied all manifests in one request, after it checked that the result matches the plan.
    planned: dict[Key, tuple[str, Any]] = field(default_factory=dict)
    results: list[tuple[Target, Any]] = field(default_factory=list)
    outcome_counts: Counter[str] = field(default_factory=Counter)
    exit_codes: set[int] = field(default_factory=set)

    def run(self) -> int:
        # Namespaces first: an object in a missing namespace is rejected.
        namespaces = {_namespace(self._with_namespace(document, target)) for document, target in self.objects}
        # Two objects of one name in two namespaces would look the same.
        shows_namespace = len(namespaces - {""}) > 1
        in_order = sorted(self.objects, key=lambda pair: pair[1].resource.id not in _APPLIED_FIRST)
        for document, target in in_order:
            try:
                outcome, value = self._apply_object(document, target)
            # Without credentials or without a server every further object fails, too.
            except (UnknownUser, Unavailable):
                raise
            except LatticeError as e:
                say.error(locate_error(e, document, target))
                self.exit_codes.add(e.exit_code)
                outcome, value = "failed", None
            self.outcome_counts[outcome] += 1
            if value is None:
                continue
            self.results.append((target, value))
            name = f"{full_name(target.resource)}/{target.name}"
            if self.options.form.name == "name":
                click.echo(name)
            elif self.options.form.is_table:
                where = f" in namespace {_namespace(value)}" if shows_namespace and _namespace(value) else ""
                click.echo(f"{name} {outcome}{where}{DRY_RUN_SUFFIXES[self.options.dry_run]}")
        if self.options.form.name in ("json", "yaml") and self.results:
            shown = [value for _, value in self.results]
            if not self.options.show_managed_fields:
                shown = [render.without_managed_fields(value) for value in shown]
            output.print_raw(output.serialize(output.one_or_list(shown, single=True), self.options.form))
        if len(self.objects) > 1:
            counts = sorted(self.outcome_counts.items())
            say.note(", ".join(f"{count} {outcome}" for outcome, count in counts))
        return say.combined_exit_code(self.exit_codes)

    def _with_namespace(self, document: Document, target: Target) -> dict[str, Any]:
        """The manifest with the namespace to apply it in."""
        value: dict[str, Any] = document.value
        if not target.resource.namespaced or value["metadata"].get("namespace"):
            return value
        namespace = self.connection.explicit_namespace
        # A client dry run needs no server, so it reads no kubeconfig.
        if not namespace:
            is_local = self.options.dry_run == "client"
            namespace = "default" if is_local else self.connection.namespace
        return {**value, "metadata": {**value["metadata"], "namespace": namespace}}

    def _apply_object(self, document: Document, target: Target) -> tuple[str, Any]:
        value = self._with_namespace(document, target)
        if self.options.dry_run == "client":
            _admit_locally(target, value)
            return "checked", value
        # With --plan the server has already applied the object.
        if (result := self.planned.get((target.resource.kind, _namespace(value), target.name))) is not None:
            return result
        client, path = self.connection.client, resource_path(target.resource, _namespace(value), target.name)
        # Read first: the answer to an apply does not say whether the object changed.
        try:
            current = client.get(path)
        except NotFound:
            current = None
        query = {
            "fieldManager": self.options.field_manager,
            "fieldValidation": "Strict",
            "force": "true" if self.options.force_conflicts else "",
            "dryRun": "All" if self.options.dry_run == "server" else "",
        }
        response = client.send(Request("PATCH", path, query, value, content_type=APPLY_PATCH_MEDIA_TYPE))
        if response.status == 201 or current is None:
            return "created", response.body
        # Compared by content: a dry run keeps the revision, and a controller may write status meanwhile.
        is_unchanged = _comparable_content(current) == _comparable_content(response.body)
        return ("unchanged" if is_unchanged else "configured"), response.body


def validate_locally(document: Document, target: Target) -> None:
    """Raise the errors that the server would raise from the manifest alone, with the line of every error."""
    metadata = document.value["metadata"]
    namespace = {"namespace": metadata.get("namespace") or "default"} if target.resource.namespaced else {}
    try:
        _admit_locally(target, {**document.value, "metadata": metadata | namespace})
    except LatticeError as e:
        raise locate_error(e, document, target) from e


def _admit_locally(target: Target, value: dict[str, Any]) -> None:
    """Validate the object as the server would, without a server."""
    from lattice.kinds import KINDS
    from lattice.server.requests.catalog import compile_kind
    from lattice.server.resources.admission import admit

    kind = next((k for k in KINDS if k.resource == target.resource), None)
    # Only the server validates kinds that are not in KINDS.
    if kind is not None:
        admit(compile_kind(kind), value, "Strict")


def _namespace(value: dict[str, Any]) -> str:
    return str(value["metadata"].get("namespace") or "")


def _comparable_content(value: dict[str, Any]) -> dict[str, Any]:
    # Fields that a write sets even if the content stays the same.
    ignored = ("managedFields", "resourceVersion", "generation")
    return {
        **value,
        "status": None,
        "metadata": {k: v for k, v in value["metadata"].items() if k not in ignored},
    }
