"""`lattice drain`: evicts the workloads of nodes within their disruption budgets and waits until the nodes
are empty."""

import time
from dataclasses import dataclass
from typing import Any

import click

from lattice.cli.client import node_updates
from lattice.cli.client.kind_names import resource_path
from lattice.cli.client.options import Command, Connection, Duration, dry_run_option, with_connection
from lattice.cli.output import messages as say
from lattice.errors import LatticeError, NotFound, Unavailable
from lattice.kinds.meta.quantity import without_amounts
from lattice.kinds.workload import LatticeWorkload

# Seconds between two checks of the remaining workloads.
POLL_INTERVAL_S = 1.0
# Seconds before the first line about the remaining workloads; further lines only report changes.
PROGRESS_INTERVAL_S = 10.0


@click.command(cls=Command)
@click.argument("nodes", nargs=-1, metavar="NODE...")
@click.option("-l", "--selector", default="", metavar="LABELS", help="Select nodes by labels.")
@click.option("--wait/--no-wait", default=True, help="Wait until the nodes are empty.", show_default=True)
@click.option(
    "--timeout", type=Duration(), default="0", help="Maximum wait; 0 waits without limit.", metavar="DURATION"
)
@dry_run_option
@with_connection
def drain(connection: Connection, nodes: tuple[str, ...], selector: str, dry_run: str, **waiting: Any) -> int:
    """Evict all workloads from nodes and wait until the nodes are empty.

    The nodes accept no new workloads. Lattice evicts one replica of a service at a time and keeps the minimum of replicas
    ready: if needed, a replacement starts first, on a new machine if necessary. --dry-run lists the workloads that would
    move. Ctrl-C stops the wait, not the drain; `lattice uncordon` stops the drain.

    \b
    Examples:
      lattice drain north-001-nano-1
      lattice drain -l lattice.dev/zone=a --timeout 10m
    """
    chosen = node_updates.select_nodes(connection, nodes, selector)
    code = node_updates.NodeSpecUpdate(connection, "draining", node_updates.draining_spec, dry_run).run(
        chosen
    )
    if code or (dry_run == "none" and not waiting["wait"]):
        return code
    if dry_run == "none":
        return DrainWaiter(connection, waiting["timeout"]).run(chosen)
    # The workloads that would move; their new nodes are chosen only when the drain runs.
    workloads = _workloads_by_node(connection)
    for name in chosen:
        if not (moving := workloads.get(name)):
            click.echo(f"node/{name}: no workloads, nothing would move")
            continue
        node = connection.client.get(resource_path(node_updates.NODE_RESOURCE, None, name))
        pool = (node.get("spec") or {}).get("pool")
        priced = (
            f"; `lattice whatif --lose-pool {pool}` shows the cost of losing all of {pool}" if pool else ""
        )
        click.echo(f"node/{name}: would move {', '.join(sorted(moving))}")
        say.note(f"if no other node has free capacity, Lattice adds machines, which cost money{priced}")
    return code


@dataclass
class DrainWaiter:
    """Polls the nodes until no workload is bound to them or the timeout in seconds is over."""

    connection: Connection
    timeout: float

    def run(self, nodes: list[str]) -> int:
        deadline = time.monotonic() + self.timeout if self.timeout else None
        remaining, next_note_at = set(nodes), time.monotonic() + PROGRESS_INTERVAL_S
        # The last printed message of each node, without its amounts.
        printed: dict[str, str] = {}
        while remaining:
            workloads = _workloads_by_node(self.connection)
            # A node without bound workloads is empty.
            for name in sorted(remaining - set(workloads)):
                click.echo(f"node/{name} drained")
                remaining.discard(name)
            if not remaining:
                break
            if deadline is not None and time.monotonic() >= deadline:
                name = min(remaining)
                problem = Unavailable(
                    f"node/{name} is not empty after {self.timeout:g} s: "
                    f"{self._remaining_message(name, workloads[name])}",
                    fix="wait longer with --timeout: the drain continues until `lattice uncordon`, and Lattice adds a "
                    "machine if budgets and limits allow it",
                )
                say.error(problem)
                return problem.exit_code
            if time.monotonic() >= next_note_at:
                for name in sorted(remaining):
                    message = self._remaining_message(name, workloads[name])
                    if printed.get(name) != without_amounts(message):
                        printed[name] = without_amounts(message)
                        say.note(f"waiting for node/{name}: {message}")
                next_note_at = time.monotonic() + PROGRESS_INTERVAL_S
            time.sleep(POLL_INTERVAL_S)
        return 0

    def _remaining_message(self, node: str, workloads: list[str]) -> str:
        """Message of the node's Drained condition, else the names of the remaining workloads."""
        try:
            return node_updates.drain_message(
                self.connection.client.get(resource_path(node_updates.NODE_RESOURCE, None, node))
            ) or _truncated_list(workloads)
        except NotFound:
            return _truncated_list(workloads)


def _workloads_by_node(connection: Connection) -> dict[str, list[str]]:
    """Names of the workloads bound to each node."""
    workloads: dict[str, list[str]] = {}
    try:
        for page in connection.client.list_pages(
            resource_path(LatticeWorkload.resource, None), {"limit": "500"}
        ):
            for item in page.get("items") or []:
                node = ((item.get("status") or {}).get("binding") or {}).get("node")
                if node:
                    workloads.setdefault(node, []).append(
                        f"{item['metadata']['namespace']}/{item['metadata']['name']}"
                    )
    except NotFound as error:
        raise LatticeError(
            "the server does not serve workloads", fix="check that it is a Lattice server"
        ) from error
    return workloads


def _truncated_list(workloads: list[str]) -> str:
    shown = ", ".join(sorted(workloads)[:3])
    suffix = f" and {len(workloads) - 3} more" if len(workloads) > 3 else ""
    return f"{shown}{suffix}"
