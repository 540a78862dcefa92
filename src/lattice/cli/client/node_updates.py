"""Updates of a node's spec by cordon, uncordon and drain, with optimistic locking so that no concurrent
change is lost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from lattice.cli.client.http import Request
from lattice.cli.client.kind_names import Target, kind_names, resource_path
from lattice.cli.client.options import DRY_RUN_SUFFIXES, Connection
from lattice.cli.output import messages as say
from lattice.errors import Conflict, LatticeError, UsageError
from lattice.kinds.node import DRAINED_CONDITION, LatticeNode

# A conflict means that another writer changed the node between the read and the write.
MAX_UPDATE_ATTEMPTS = 10
NODE_RESOURCE = LatticeNode.resource
Object = dict[str, Any]


def select_nodes(connection: Connection, words: Sequence[str], selector: str) -> list[str]:
    """Names of nodes from words (`n1`, `node/n1`) or from a label selector."""
    if bool(words) == bool(selector):
        raise UsageError(
            "name the nodes, or select them by labels", fix="give either node names or -l LABELS"
        )
    if selector:
        path = resource_path(NODE_RESOURCE, None)
        pages = connection.client.list_pages(path, {"labelSelector": selector, "limit": "500"})
        names = []
        for page in pages:
            names += [item["metadata"]["name"] for item in page.get("items") or []]
        if not names:
            say.note("No nodes found")
        return names
    targets = [
        kind_names().parse_targets([word])[0] if "/" in word else Target(NODE_RESOURCE, word)
        for word in words
    ]
    wrong = next((target for target in targets if target.resource.id != NODE_RESOURCE.id), None)
    if wrong is not None:
        raise UsageError(f"{wrong.resource.singular}/{wrong.name} is not a node", fix="name nodes only")
    return [target.name for target in targets]


def drain_message(node: Object) -> str:
    """Message of the node's Drained condition while the drain is not finished: the remaining workloads and
    their blockers."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return next(
        (
            str(condition.get("message", ""))
            for condition in conditions
            if condition["type"] == DRAINED_CONDITION and condition["status"] == "False"
        ),
        "",
    )


@dataclass(frozen=True)
class NodeSpecUpdate:
    """Edits the spec of nodes and prints the result per node."""

    connection: Connection
    # Result to print, such as "cordoned".
    verb: str
    # Returns the edited spec; an equal spec means that no write is needed.
    edit_spec: Callable[[Object], Object]
    dry_run: str = "none"

    def run(self, nodes: Sequence[str]) -> int:
        codes = set()
        for name in nodes:
            try:
                is_changed = self._update(name)
            except LatticeError as error:
                say.error(error)
                codes.add(error.exit_code)
            else:
                outcome = self.verb if is_changed else f"already {self.verb}"
                click.echo(f"node/{name} {outcome}{DRY_RUN_SUFFIXES[self.dry_run]}")
        return say.combined_exit_code(codes)

    def _update(self, name: str) -> bool:
        """Read, edit and write one node; return whether the spec changed."""
        client, path = self.connection.client, resource_path(NODE_RESOURCE, None, name)
        for attempt in range(1, MAX_UPDATE_ATTEMPTS + 1):
            node = client.get(path)
            spec = self.edit_spec(node.get("spec", {}))
            if spec == node.get("spec", {}):
                return False
            # A client dry run compares only; the server is not asked to validate.
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
            # The PUT carries the resourceVersion that was read: on a conflict, edit the newer spec.
            except Conflict:
                if attempt == MAX_UPDATE_ATTEMPTS:
                    raise
            else:
                return True
        return False


def cordoned_spec(spec: Object) -> Object:
    return {**spec, "unschedulable": True}


def uncordoned_spec(spec: Object) -> Object:
    """The spec without the cordon and without the draining taint: uncordon also ends a drain."""
    from lattice.kinds.node import DRAINING_TAINT

    remaining_taints = [taint for taint in spec.get("taints", []) if taint.get("key") != DRAINING_TAINT]
    other_fields = {key: value for key, value in spec.items() if key not in ("unschedulable", "taints")}
    return {**other_fields, **({"taints": remaining_taints} if remaining_taints else {})}


def draining_spec(spec: Object) -> Object:
    """The spec cordoned and with the draining taint, whose NoExecute effect evicts the workloads."""
    from lattice.kinds.node import DRAINING_TAINT

    taints = spec.get("taints", [])
    # Draining already: an equal spec avoids a needless write.
    if spec.get("unschedulable") and any(taint.get("key") == DRAINING_TAINT for taint in taints):
        return spec
    other_taints = [taint for taint in taints if taint.get("key") != DRAINING_TAINT]
    return {
        **spec,
        "unschedulable": True,
        "taints": [*other_taints, {"key": DRAINING_TAINT, "effect": "NoExecute"}],
    }
