"""`lattice delete`: objects by name, by label or as manifests name them; waits until they are gone."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from lattice.cli.client import node_marks as marks
from lattice.cli.output import formats as output, messages as say
from lattice.cli.client.http import Request
from lattice.cli.fleet.orphans import left_behind
from lattice.cli.client.kind_names import Target, address, full_name, names
from lattice.cli.client.options import Command, Connection, Duration, complete_kind, connected
from lattice.cli.client.manifests import manifests
from lattice.usage import Misused
from lattice.errors import LatticeError, NotFound, Unavailable, UnknownUser

_POLICIES = {"background": "Background", "foreground": "Foreground", "orphan": "Orphan"}
_FIRST_LOOK, _LONGEST_PAUSE = 0.02, 1.0  # seconds between looks at whether it is gone
PATIENCE = 5.0  # seconds of waiting in silence


@dataclass(frozen=True)
class Options:
    words: tuple[str, ...]
    files: tuple[str, ...]
    form: output.Form
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
class Doomed:
    """One object to delete; `uid` is known once the server has answered."""

    target: Target
    namespace: str | None
    uid: str = ""

    @property
    def path(self) -> str:
        return address(self.target.resource, self.namespace, self.target.name)

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
    type=click.Choice(list(_POLICIES)),
    default="background",
    show_default=True,
    help="What becomes of the objects it owns.",
)
@click.option(
    "-o", "--output", "form", type=output.FormType("name"), default=output.Form(), metavar="FORM", help="name"
)
@connected
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
    asked = Options(**options)
    _sensible(asked)
    return Deleting(connection, asked).run()


def _sensible(asked: Options) -> None:
    if asked.files and (asked.words or asked.every or asked.selector):
        raise Misused(
            "-f says what to delete; kinds, names and selectors cannot go with it",
            fix="give one or the other",
        )
    if not asked.files and not asked.words:
        raise Misused("nothing to delete is named", fix="give KIND NAME, or -f FILE")
    if asked.every and asked.selector:
        raise Misused("--all and -l cannot go together", fix="drop --all")


@dataclass
class Deleting:
    connection: Connection
    asked: Options
    codes: set[int] = field(default_factory=set)

    def run(self) -> int:
        doomed = [d for d in (self._delete(d) for d in list(self._chosen())) if d is not None]
        if self.asked.wait and self.asked.dry_run == "none":
            until = time.monotonic() + self.asked.timeout if self.asked.timeout else None
            for one in doomed:
                self._wait_gone(one, until)
        return say.exit_code(self.codes)

    def _chosen(self) -> Iterator[Doomed]:
        if self.asked.files:
            yield from self._from_manifests()
            return
        targets = names().targets(self.asked.words)
        chosen_by_rule = self.asked.every or bool(self.asked.selector)
        for target in targets:
            if target.name and chosen_by_rule:
                raise Misused("a name cannot go with -l or --all", fix="give either the name or the rule")
            if not target.name and not chosen_by_rule:
                raise Misused(
                    "which ones?", where=target.resource.plural, fix="give names, -l LABELS, or --all"
                )
            yield from [Doomed(target, self._namespace(target))] if target.name else self._by_rule(target)

    def _from_manifests(self) -> Iterator[Doomed]:
        for document, target in reversed(
            manifests(self.asked.files, self.asked.recursive)
        ):  # what was made last goes first
            given = document.value["metadata"].get("namespace")
            yield Doomed(target, given or self._namespace(target))

    def _namespace(self, target: Target) -> str | None:
        return self.connection.namespace if target.resource.namespaced else None

    def _by_rule(self, target: Target) -> Iterator[Doomed]:
        path = address(target.resource, None if self.asked.all_namespaces else self._namespace(target))
        found = False
        for page in self.connection.client.pages(
            path, {"labelSelector": self.asked.selector, "limit": "500"}
        ):
            for item in page.get("items") or []:
                found = True
                yield Doomed(
                    Target(target.resource, item["metadata"]["name"]), item["metadata"].get("namespace")
                )
        if not found:
            say.note("No resources found")

    def _delete(self, doomed: Doomed) -> Doomed | None:
        left = left_behind(self.connection, doomed.target)
        try:
            value = self._ask(doomed)
        except (UnknownUser, Unavailable):
            raise
        except LatticeError as e:
            if not (isinstance(e, NotFound) and self.asked.ignore_not_found):
                say.error(e)
                self.codes.add(e.exit_code)
            return None
        dry = {"server": " (server dry run)", "client": " (dry run)"}.get(self.asked.dry_run, "")
        name = f"{full_name(doomed.target.resource)}/{doomed.target.name}"
        click.echo(name if self.asked.form.name == "name" else f"{doomed} deleted{dry}")
        if left:
            say.warning(left)
        uid = (value.get("metadata") or {}).get("uid") or (value.get("details") or {}).get("uid") or ""
        return Doomed(doomed.target, doomed.namespace, uid)

    def _ask(self, doomed: Doomed) -> dict[str, Any]:
        client = self.connection.client
        if self.asked.dry_run == "client":
            found: dict[str, Any] = client.get(doomed.path)
            return found
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": _POLICIES[self.asked.cascade],
        }
        query = {"dryRun": "All"} if self.asked.dry_run == "server" else {}
        answer = client.send(Request("DELETE", doomed.path, query, body)).value
        return answer if isinstance(answer, dict) else {}

    def _wait_gone(self, doomed: Doomed, until: float | None) -> None:
        pause, silent_until = _FIRST_LOOK, time.monotonic() + PATIENCE
        while (left := self._left(doomed)) is not None:
            now = time.monotonic()
            if until is not None and now + pause > until:
                problem = Unavailable(
                    f"{doomed} is not gone yet: {_held_by(left)}",
                    fix="see who must let it go, or give it more --timeout",
                )
                say.error(problem)
                self.codes.add(problem.exit_code)
                return
            if now > silent_until:
                say.note(f"waiting for {doomed}: {_held_by(left)}")
                silent_until = math.inf
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _left(self, doomed: Doomed) -> dict[str, Any] | None:
        """The object while it is there; a new one of the same name is another one."""
        try:
            found: dict[str, Any] = self.connection.client.get(doomed.path)
        except NotFound:
            return None
        return None if doomed.uid and found["metadata"].get("uid") != doomed.uid else found


def _held_by(left: dict[str, Any]) -> str:
    """What keeps it: a namespace and a node say so in their conditions, everything else has finalizers."""
    conditions = (left.get("status") or {}).get("conditions") or [] if left.get("kind") == "Namespace" else []
    told = [c["message"] for c in conditions if c.get("status") == "True" and c.get("message")]
    if left.get("kind") == marks.NODES.kind and (words := marks.drain_words(left)):
        told.append(words)
    if finalizers := left["metadata"].get("finalizers"):
        told.append(f"held by its finalizers {', '.join(finalizers)}")
    return "; ".join(told) or "nothing says why; the server may be busy or have no leader"
