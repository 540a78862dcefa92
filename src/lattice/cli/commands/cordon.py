"""`lattice cordon` and `lattice uncordon`: exclude nodes from new workloads, and include them again."""

import click

from lattice.cli.client import node_updates
from lattice.cli.client.options import Command, Connection, dry_run_option, with_connection

_NODES = click.argument("nodes", nargs=-1, metavar="NODE...")
_SELECTOR = click.option("-l", "--selector", default="", metavar="LABELS", help="Select nodes by labels.")


@click.command(cls=Command)
@_NODES
@_SELECTOR
@dry_run_option
@with_connection
def cordon(connection: Connection, nodes: tuple[str, ...], selector: str, dry_run: str) -> int:
    """Exclude nodes from new workloads. Running workloads stay.

    \b
    Examples:
      lattice cordon north-001-nano-1
      lattice cordon -l lattice.dev/zone=a
    """
    return node_updates.NodeSpecUpdate(connection, "cordoned", node_updates.cordoned_spec, dry_run).run(
        node_updates.select_nodes(connection, nodes, selector)
    )


@click.command(cls=Command)
@_NODES
@_SELECTOR
@dry_run_option
@with_connection
def uncordon(connection: Connection, nodes: tuple[str, ...], selector: str, dry_run: str) -> int:
    """Let nodes accept workloads again; also stops a drain."""
    return node_updates.NodeSpecUpdate(connection, "uncordoned", node_updates.uncordoned_spec, dry_run).run(
        node_updates.select_nodes(connection, nodes, selector)
    )
