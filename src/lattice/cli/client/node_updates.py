"""Marks that people put on nodes: cordoned, draining. Put on with what was read, so that nobody else's change is lost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from lattice.cli.client.http import Request
from lattice.cli.client.kind_names import Target, kind_names, resource_path
from lattice.cli.client.options import Connection
from lattice.cli.output import messages as say
from lattice.errors import Conflict, LatticeError, UsageError
from lattice.kinds.node import LatticeNode

MAX_UPDATE_ATTEMPTS = 10  # each one lost is one that somebody else's change won
NODE_RESOURCE = LatticeNode.resource
Object = dict[str, Any]


def select_nodes(connection: Connection, words: Sequence[str], selector: str) -> list[str]:
    """Names of nodes, as given (`n1`, `node/n1`) or by their labels."""
    if bool(words) == bool(selector):
        raise UsageError("which nodes?", fix="give their names, or -l LABELS")
    if selector:
        path = resource_path(NODE_RESOURCE, None)
        pages = connection.client.list_pages(path, {"labelSelector": selector, "limit": "500"})
        found = [item["metadata"]["name"] for page in pages for item in page.get("items") or []]
        if not found:
            say.note("No nodes found")
        return found
    targets = [_target(word) for word in words]
    wrong = next((each for each in targets if each.resource.id != NODE_RESOURCE.id), None)
    if wrong is not None:
        raise UsageError(f"{wrong.resource.singular}/{wrong.name} is not a node", fix="name nodes only")
    return [each.name for each in targets]


def _target(word: str) -> Target:
    return kind_names().parse_targets([word])[0] if "/" in word else Target(NODE_RESOURCE, word)


def drain_message(node: Object) -> str:
    """What is left on a node that is being emptied, and what holds it there."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return next(
        (
            str(each.get("message", ""))
            for each in conditions
            if each["type"] == "Drained" and each["status"] == "False"
        ),
        "",
    )


@dataclass(frozen=True)
class NodeSpecUpdate:
    """Changes the spec of nodes, and says what was done."""

    connection: Connection
    verb: str  # "cordoned"
    edit_spec: Callable[[Object], Object]  # of the spec; the same one: nothing is to do
    dry_run: str = "none"

    def run(self, nodes: Sequence[str]) -> int:
        codes = set()
        for name in nodes:
            try:
                changed = self._update(name)
            except LatticeError as error:
                say.error(error)
                codes.add(error.exit_code)
            else:
                dry = {"server": " (server dry run)", "client": " (dry run)"}.get(self.dry_run, "")
                click.echo(f"node/{name} {self.verb if changed else f'already {self.verb}'}{dry}")
        return say.combined_exit_code(codes)

    def _update(self, name: str) -> bool:
        client, path = self.connection.client, resource_path(NODE_RESOURCE, None, name)
        for attempt in range(1, MAX_UPDATE_ATTEMPTS + 1):
            node = client.get(path)
            spec = self.edit_spec(node.get("spec", {}))
            if spec == node.get("spec", {}):
                return False
            if self.dry_run == "client":
                return True
            try:
                client.send(
                    Request(
                        "PUT",
                        path,
                        {"dryRun": "All"} if self.dry_run == "server" else {},
                        {**node, "spec": spec},
                    )
                )
            except Conflict:
                if attempt == MAX_UPDATE_ATTEMPTS:
                    raise
            else:
                return True
        return False


def cordoned_spec(spec: Object) -> Object:
    return {**spec, "unschedulable": True}


def uncordoned_spec(spec: Object) -> Object:
    """Not drained any more either."""
    from lattice.kinds.node import DRAINING_TAINT

    rest = [taint for taint in spec.get("taints", []) if taint.get("key") != DRAINING_TAINT]
    kept = {key: value for key, value in spec.items() if key not in ("unschedulable", "taints")}
    return {**kept, **({"taints": rest} if rest else {})}


def draining_spec(spec: Object) -> Object:
    from lattice.kinds.node import DRAINING_TAINT

    taints = spec.get("taints", [])
    if spec.get("unschedulable") and any(taint.get("key") == DRAINING_TAINT for taint in taints):
        return spec
    others = [taint for taint in taints if taint.get("key") != DRAINING_TAINT]
    return {
        **spec,
        "unschedulable": True,
        "taints": [*others, {"key": DRAINING_TAINT, "effect": "NoExecute"}],
    }
