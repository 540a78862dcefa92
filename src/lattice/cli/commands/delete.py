"""`lattice delete`: deletes objects by name, label or manifest and waits until the objects are gone."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from lattice.cli.client import node_updates
from lattice.cli.client.http import Request
from lattice.cli.client.kind_names import Target, full_name, kind_names, resource_path
from lattice.cli.client.manifests import read_manifests
from lattice.cli.client.options import (
    DRY_RUN_SUFFIXES,
    Command,
    Connection,
    Duration,
    complete_kind,
    dry_run_option,
    manifests_option,
    with_connection,
)
from lattice.cli.fleet.delete_warning import delete_warning
from lattice.cli.output import messages as say
from lattice.cli.output import output_format as output
from lattice.errors import LatticeError, NotFound, Unavailable, UnknownUser, UsageError

_PROPAGATION_POLICIES = {"background": "Background", "foreground": "Foreground", "orphan": "Orphan"}
# Seconds between two checks whether the object is gone.
_MIN_POLL_S, _MAX_POLL_S = 0.02, 1.0
# Seconds before the first note about a deletion that waits.
QUIET_WAIT_S = 5.0


@dataclass(frozen=True)
class DeleteOptions:
    words: tuple[str, ...]
    files: tuple[str, ...]
    form: output.OutputFormat
    recursive: bool = False
    selector: str = ""
    all_objects: bool = False
    all_namespaces: bool = False
    wait: bool = True
    timeout: float = 0
    ignore_not_found: bool = False
    dry_run: str = "none"
    cascade: str = "background"


@dataclass(frozen=True)
class DeletionTarget:
    """One object to delete; the uid is empty until the server has answered."""

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
@manifests_option("Delete the objects of these manifests. Repeatable.")
@click.option("-R", "--recursive", is_flag=True, help="Include subfolders.")
@click.option(
    "-l", "--selector", default="", metavar="LABELS", help="Delete objects of the kind with these labels."
)
@click.option("--all", "all_objects", is_flag=True, help="Delete all objects of the kind in the namespace.")
@click.option("-A", "--all-namespaces", is_flag=True, help="With -l or --all: in all namespaces.")
@click.option("--wait/--no-wait", default=True, help="Wait until the objects are gone.", show_default=True)
@click.option(
    "--timeout", type=Duration(), default="0", help="Maximum wait; 0 waits without limit.", metavar="DURATION"
)
@click.option("--ignore-not-found", is_flag=True, help="Do not fail on objects that do not exist.")
@dry_run_option
@click.option(
    "--cascade",
    type=click.Choice(list(_PROPAGATION_POLICIES)),
    default="background",
    show_default=True,
    help="What to do with owned objects.",
)
@output.output_option("name", help_text="name")
@with_connection
def delete(connection: Connection, **options: Any) -> int:
    """Delete objects and wait until they are gone.

    Deleting a pool does not stop its machines: a warning lists what keeps running, and the cost.

    \b
    Examples:
      lattice delete pool us-east
      lattice delete service/api service/web -n shop
      lattice delete -f shop/
      lattice delete services -l team=shop --no-wait
    """
    choices = DeleteOptions(**options)
    if choices.files and (choices.words or choices.all_objects or choices.selector):
        raise UsageError(
            "-f cannot be combined with kinds, names or selectors",
            fix="give one or the other",
        )
    if not choices.files and not choices.words:
        raise UsageError("no objects are named", fix="give KIND NAME, or -f FILE")
    if choices.all_objects and choices.selector:
        raise UsageError("--all and -l cannot be combined", fix="remove --all")
    return Deleter(connection, choices).run()


@dataclass
class Deleter:
    """Deletes the targets, prints each result, and waits for finalizers."""

    connection: Connection
    options: DeleteOptions
    exit_codes: set[int] = field(default_factory=set)

    def run(self) -> int:
        deleted = []
        # All targets are selected before the first deletion: a wrong word deletes nothing.
        for target in list(self._select_targets()):
            orphans = delete_warning(self.connection, target.target)
            try:
                value = self._send_delete(target)
            # Without credentials or without a server every further deletion fails, too.
            except (UnknownUser, Unavailable):
                raise
            except LatticeError as e:
                if not (isinstance(e, NotFound) and self.options.ignore_not_found):
                    say.error(e)
                    self.exit_codes.add(e.exit_code)
                continue
            name = f"{full_name(target.target.resource)}/{target.target.name}"
            result = f"{target} deleted{DRY_RUN_SUFFIXES[self.options.dry_run]}"
            click.echo(name if self.options.form.name == "name" else result)
            if orphans:
                say.warning(orphans)
            # The server answers with the object while finalizers remain, else with a Status.
            uid = (value.get("metadata") or {}).get("uid") or (value.get("details") or {}).get("uid") or ""
            deleted.append(DeletionTarget(target.target, target.namespace, uid))
        if self.options.wait and self.options.dry_run == "none":
            # --timeout covers all objects together.
            deadline = time.monotonic() + self.options.timeout if self.options.timeout else None
            for target in deleted:
                self._wait_until_deleted(target, deadline)
        return say.combined_exit_code(self.exit_codes)

    def _select_targets(self) -> Iterator[DeletionTarget]:
        if self.options.files:
            # Reverse order: objects of later manifests may live in objects of earlier ones.
            for document, target in reversed(read_manifests(self.options.files, self.options.recursive)):
                declared = document.value["metadata"].get("namespace")
                yield DeletionTarget(target, declared or self._namespace(target))
            return
        is_by_rule = self.options.all_objects or bool(self.options.selector)
        for target in kind_names().parse_targets(self.options.words):
            if target.name and is_by_rule:
                raise UsageError(
                    "a name cannot be combined with -l or --all", fix="give either names or a selector"
                )
            if not target.name and not is_by_rule:
                raise UsageError(
                    "no names are given", where=target.resource.plural, fix="give names, -l LABELS, or --all"
                )
            if target.name:
                yield DeletionTarget(target, self._namespace(target))
                continue
            is_empty = True
            for page in self.connection.client.list_pages(
                resource_path(
                    target.resource, None if self.options.all_namespaces else self._namespace(target)
                ),
                {"labelSelector": self.options.selector, "limit": "500"},
            ):
                for item in page.get("items") or []:
                    is_empty = False
                    metadata = item["metadata"]
                    yield DeletionTarget(Target(target.resource, metadata["name"]), metadata.get("namespace"))
            if is_empty:
                say.note("No resources found")

    def _namespace(self, target: Target) -> str | None:
        return self.connection.namespace if target.resource.namespaced else None

    def _send_delete(self, target: DeletionTarget) -> dict[str, Any]:
        client = self.connection.client
        # A client dry run still fails for an object that does not exist.
        if self.options.dry_run == "client":
            current: dict[str, Any] = client.get(target.path)
            return current
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": _PROPAGATION_POLICIES[self.options.cascade],
        }
        query = {"dryRun": "All"} if self.options.dry_run == "server" else {}
        response = client.send(Request("DELETE", target.path, query, body)).body
        return response if isinstance(response, dict) else {}

    def _wait_until_deleted(self, target: DeletionTarget, deadline: float | None) -> None:
        pause, silent_until = _MIN_POLL_S, time.monotonic() + QUIET_WAIT_S
        while True:
            try:
                remaining: dict[str, Any] = self.connection.client.get(target.path)
            except NotFound:
                return
            # An object with the same name and another uid is a new object.
            if target.uid and remaining["metadata"].get("uid") != target.uid:
                return
            now = time.monotonic()
            if deadline is not None and now + pause > deadline:
                problem = Unavailable(
                    f"{target} is not gone yet: {_deletion_blockers(remaining)}",
                    fix="wait for the finalizers, or increase --timeout",
                )
                say.error(problem)
                self.exit_codes.add(problem.exit_code)
                return
            if now > silent_until:
                say.note(f"waiting for {target}: {_deletion_blockers(remaining)}")
                # One note per object is enough.
                silent_until = math.inf
            time.sleep(pause)
            pause = min(pause * 2, _MAX_POLL_S)


def _deletion_blockers(remaining: dict[str, Any]) -> str:
    """Blockers of a deletion: conditions of a namespace, the drain of a node, and finalizers."""
    conditions = (
        (remaining.get("status") or {}).get("conditions") or []
        if remaining.get("kind") == "Namespace"
        else []
    )
    blockers = [
        condition["message"]
        for condition in conditions
        if condition.get("status") == "True" and condition.get("message")
    ]
    if remaining.get("kind") == node_updates.NODE_RESOURCE.kind and (
        drain_blocker := node_updates.drain_message(remaining)
    ):
        blockers.append(drain_blocker)
    if finalizers := remaining["metadata"].get("finalizers"):
        blockers.append(f"waiting for finalizers {', '.join(finalizers)}")
    return "; ".join(blockers) or "reason unknown; the server may be busy or have no leader"
