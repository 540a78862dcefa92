"""Marks that people put on nodes: cordoned, draining. Put on with what was read, so that nobody else's change is lost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from lattice.cli.output import messages as say
from lattice.cli.client.http import Request
from lattice.cli.client.kind_names import Target, address, names
from lattice.cli.client.options import Connection
from lattice.usage import Misused
from lattice.errors import Conflict, LatticeError
from lattice.kinds.node import LatticeNode

ATTEMPTS = 10  # each one lost is one that somebody else's change won
NODES = LatticeNode.resource
Object = dict[str, Any]


def chosen(connection: Connection, words: Sequence[str], selector: str) -> list[str]:
    """Names of nodes, as given (`n1`, `node/n1`) or by their labels."""
    if bool(words) == bool(selector):
        raise Misused("which nodes?", fix="give their names, or -l LABELS")
    if selector:
        path = address(NODES, None)
        pages = connection.client.pages(path, {"labelSelector": selector, "limit": "500"})
        found = [item["metadata"]["name"] for page in pages for item in page.get("items") or []]
        if not found:
            say.note("No nodes found")
        return found
    targets = [_target(word) for word in words]
    wrong = next((each for each in targets if each.resource.id != NODES.id), None)
    if wrong is not None:
        raise Misused(f"{wrong.resource.singular}/{wrong.name} is not a node", fix="name nodes only")
    return [each.name for each in targets]


def _target(word: str) -> Target:
    return names().targets([word])[0] if "/" in word else Target(NODES, word)


def drain_words(node: Object) -> str:
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
class Marking:
    """Changes the spec of nodes, and says what was done."""

    connection: Connection
    done: str  # "cordoned"
    change: Callable[[Object], Object]  # of the spec; the same one: nothing is to do
    dry_run: str = "none"

    def run(self, nodes: Sequence[str]) -> int:
        codes = set()
        for name in nodes:
            try:
                changed = self._mark(name)
            except LatticeError as error:
                say.error(error)
                codes.add(error.exit_code)
            else:
                dry = {"server": " (server dry run)", "client": " (dry run)"}.get(self.dry_run, "")
                click.echo(f"node/{name} {self.done if changed else f'already {self.done}'}{dry}")
        return say.exit_code(codes)

    def _mark(self, name: str) -> bool:
        client, path = self.connection.client, address(NODES, None, name)
        for attempt in range(1, ATTEMPTS + 1):
            node = client.get(path)
            spec = self.change(node.get("spec", {}))
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
                if attempt == ATTEMPTS:
                    raise
            else:
                return True
        return False


def cordon(spec: Object) -> Object:
    return {**spec, "unschedulable": True}


def uncordon(spec: Object) -> Object:
    """Not drained any more either."""
    from lattice.scheduling.table.node_info import DRAINING_TAINT

    rest = [taint for taint in spec.get("taints", []) if taint.get("key") != DRAINING_TAINT]
    kept = {key: value for key, value in spec.items() if key not in ("unschedulable", "taints")}
    return {**kept, **({"taints": rest} if rest else {})}


def drained(spec: Object) -> Object:
    from lattice.scheduling.table.node_info import DRAINING_TAINT

    taints = spec.get("taints", [])
    if spec.get("unschedulable") and any(taint.get("key") == DRAINING_TAINT for taint in taints):
        return spec
    others = [taint for taint in taints if taint.get("key") != DRAINING_TAINT]
    return {
        **spec,
        "unschedulable": True,
        "taints": [*others, {"key": DRAINING_TAINT, "effect": "NoExecute"}],
    }
