"""`lattice delete`: objects by name, by label or as manifests name them; waits until they are gone."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from lattice.cli.client import node_updates as marks
from lattice.cli.client.http import Request
from lattice.cli.client.kind_names import Target, full_name, kind_names, resource_path
from lattice.cli.client.manifests import read_manifests
from lattice.cli.client.options import Command, Connection, Duration, complete_kind, with_connection
from lattice.cli.fleet.orphan_warning import orphan_warning
from lattice.cli.output import messages as say
from lattice.cli.output import output_format as output
from lattice.errors import LatticeError, NotFound, Unavailable, UnknownUser, UsageError

_PROPAGATION_POLICIES = {"background": "Background", "foreground": "Foreground", "orphan": "Orphan"}
_MIN_POLL_S, _MAX_POLL_S = 0.02, 1.0  # seconds between looks at whether it is gone
QUIET_WAIT_S = 5.0  # seconds of waiting in silence


@dataclass(frozen=True)
class DeleteOptions:
    words: tuple[str, ...]
    files: tuple[str, ...]
    form: output.OutputFormat
    recursive: bool = False
    selector: str = ""
    every: bool = False
    all_namespaces: bool = False
    wait: bool = True
    timeout: float = 0
    ignore_not_found: bool = False
    dry_run: str = "none"
    cascade: str = "background"


@dataclass(frozen=True)
class DeletionTarget:
    """One object to delete; `uid` is known once the server has answered."""

    target: Target
    namespace: str | None
    uid: str = ""

    @property
    def path(self) -> str:
        return resource_path(self.target.resource, self.namespace, self.target.name)

    def __str__(self) -> str:
        return f'{full_name(self.target.resource)} "{self.target.name}"'


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[KIND NAME... | KIND/NAME...]", shell_complete=complete_kind)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE|DIR|URL|-",
    help="Delete what these manifests name.",
)
@click.option("-R", "--recursive", is_flag=True, help="Look in folders below, too.")
@click.option(
    "-l", "--selector", default="", metavar="LABELS", help="Delete objects of the kind with these labels."
)
@click.option("--all", "every", is_flag=True, help="Delete all objects of the kind in the namespace.")
@click.option("-A", "--all-namespaces", is_flag=True, help="With -l or --all: in all namespaces.")
@click.option("--wait/--no-wait", default=True, help="Wait until the objects are gone.", show_default=True)
@click.option(
    "--timeout", type=Duration(), default="0", help="How long to wait; 0 for ever.", metavar="DURATION"
)
@click.option("--ignore-not-found", is_flag=True, help="Objects that do not exist are no error.")
@click.option(
    "--dry-run",
    type=click.Choice(["none", "client", "server"]),
    default="none",
    help="Only say what would happen.",
    metavar="[=server|client|none]",
)
@click.option(
    "--cascade",
    type=click.Choice(list(_PROPAGATION_POLICIES)),
    default="background",
    show_default=True,
    help="What becomes of the objects it owns.",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=output.OutputFormatType("name"),
    default=output.OutputFormat(),
    metavar="FORM",
    help="name",
)
@with_connection
def delete(connection: Connection, **options: Any) -> int:
    """Delete objects, and wait until they are gone.

    A pool takes nothing with it that runs: a warning says what runs on there, and what it costs.

    \b
    Examples:
      lattice delete pool us-east
      lattice delete service/api service/web -n shop
      lattice delete -f shop/
      lattice delete services -l team=shop --no-wait
    """
    asked = DeleteOptions(**options)
    _check_options(asked)
    return Deleter(connection, asked).run()


def _check_options(asked: DeleteOptions) -> None:
    if asked.files and (asked.words or asked.every or asked.selector):
        raise UsageError(
            "-f says what to delete; kinds, names and selectors cannot go with it",
            fix="give one or the other",
        )
    if not asked.files and not asked.words:
        raise UsageError("nothing to delete is named", fix="give KIND NAME, or -f FILE")
    if asked.every and asked.selector:
        raise UsageError("--all and -l cannot go together", fix="drop --all")


@dataclass
class Deleter:
    connection: Connection
    options: DeleteOptions
    exit_codes: set[int] = field(default_factory=set)

    def run(self) -> int:
        doomed = [d for d in (self._delete(d) for d in list(self._select_targets())) if d is not None]
        if self.options.wait and self.options.dry_run == "none":
            until = time.monotonic() + self.options.timeout if self.options.timeout else None
            for one in doomed:
                self._wait_until_deleted(one, until)
        return say.combined_exit_code(self.exit_codes)

    def _select_targets(self) -> Iterator[DeletionTarget]:
        if self.options.files:
            yield from self._from_manifests()
            return
        targets = kind_names().parse_targets(self.options.words)
        chosen_by_rule = self.options.every or bool(self.options.selector)
        for target in targets:
            if target.name and chosen_by_rule:
                raise UsageError("a name cannot go with -l or --all", fix="give either the name or the rule")
            if not target.name and not chosen_by_rule:
                raise UsageError(
                    "which ones?", where=target.resource.plural, fix="give names, -l LABELS, or --all"
                )
            yield from (
                [DeletionTarget(target, self._namespace(target))]
                if target.name
                else self._list_matching(target)
            )

    def _from_manifests(self) -> Iterator[DeletionTarget]:
        for document, target in reversed(
            read_manifests(self.options.files, self.options.recursive)
        ):  # what was made last goes first
            given = document.value["metadata"].get("namespace")
            yield DeletionTarget(target, given or self._namespace(target))

    def _namespace(self, target: Target) -> str | None:
        return self.connection.namespace if target.resource.namespaced else None

    def _list_matching(self, target: Target) -> Iterator[DeletionTarget]:
        path = resource_path(
            target.resource, None if self.options.all_namespaces else self._namespace(target)
        )
        found = False
        for page in self.connection.client.list_pages(
            path, {"labelSelector": self.options.selector, "limit": "500"}
        ):
            for item in page.get("items") or []:
                found = True
                yield DeletionTarget(
                    Target(target.resource, item["metadata"]["name"]), item["metadata"].get("namespace")
                )
        if not found:
            say.note("No resources found")

    def _delete(self, doomed: DeletionTarget) -> DeletionTarget | None:
        left = orphan_warning(self.connection, doomed.target)
        try:
            value = self._send_delete(doomed)
        except (UnknownUser, Unavailable):
            raise
        except LatticeError as e:
            if not (isinstance(e, NotFound) and self.options.ignore_not_found):
                say.error(e)
                self.exit_codes.add(e.exit_code)
            return None
        dry = {"server": " (server dry run)", "client": " (dry run)"}.get(self.options.dry_run, "")
        name = f"{full_name(doomed.target.resource)}/{doomed.target.name}"
        click.echo(name if self.options.form.name == "name" else f"{doomed} deleted{dry}")
        if left:
            say.warning(left)
        uid = (value.get("metadata") or {}).get("uid") or (value.get("details") or {}).get("uid") or ""
        return DeletionTarget(doomed.target, doomed.namespace, uid)

    def _send_delete(self, doomed: DeletionTarget) -> dict[str, Any]:
        client = self.connection.client
        if self.options.dry_run == "client":
            found: dict[str, Any] = client.get(doomed.path)
            return found
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": _PROPAGATION_POLICIES[self.options.cascade],
        }
        query = {"dryRun": "All"} if self.options.dry_run == "server" else {}
        answer = client.send(Request("DELETE", doomed.path, query, body)).body
        return answer if isinstance(answer, dict) else {}

    def _wait_until_deleted(self, doomed: DeletionTarget, until: float | None) -> None:
        pause, silent_until = _MIN_POLL_S, time.monotonic() + QUIET_WAIT_S
        while (left := self._get_if_exists(doomed)) is not None:
            now = time.monotonic()
            if until is not None and now + pause > until:
                problem = Unavailable(
                    f"{doomed} is not gone yet: {_deletion_blockers(left)}",
                    fix="see who must let it go, or give it more --timeout",
                )
                say.error(problem)
                self.exit_codes.add(problem.exit_code)
                return
            if now > silent_until:
                say.note(f"waiting for {doomed}: {_deletion_blockers(left)}")
                silent_until = math.inf
            time.sleep(pause)
            pause = min(pause * 2, _MAX_POLL_S)

    def _get_if_exists(self, doomed: DeletionTarget) -> dict[str, Any] | None:
        """The object while it is there; a new one of the same name is another one."""
        try:
            found: dict[str, Any] = self.connection.client.get(doomed.path)
        except NotFound:
            return None
        return None if doomed.uid and found["metadata"].get("uid") != doomed.uid else found


def _deletion_blockers(left: dict[str, Any]) -> str:
    """What keeps it: a namespace and a node say so in their conditions, everything else has finalizers."""
    conditions = (left.get("status") or {}).get("conditions") or [] if left.get("kind") == "Namespace" else []
    told = [c["message"] for c in conditions if c.get("status") == "True" and c.get("message")]
    if left.get("kind") == marks.NODE_RESOURCE.kind and (words := marks.drain_message(left)):
        told.append(words)
    if finalizers := left["metadata"].get("finalizers"):
        told.append(f"held by its finalizers {', '.join(finalizers)}")
    return "; ".join(told) or "nothing says why; the server may be busy or have no leader"
