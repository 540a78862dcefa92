"""`lattice cordon` and `lattice uncordon`: exclude nodes from new workloads, and include them again."""

import click

from lattice.cli.client import node_updates as marks
from lattice.cli.client.options import Command, Connection, with_connection

_NODES = click.argument("nodes", nargs=-1, metavar="NODE...")
_SELECTOR = click.option("-l", "--selector", default="", metavar="LABELS", help="Nodes with these labels.")
_DRY_RUN = click.option(
    "--dry-run",
    type=click.Choice(["none", "client", "server"]),
    default="none",
    help="Only say what would happen.",
    metavar="[=server|client|none]",
)


@click.command(cls=Command)
@_NODES
@_SELECTOR
@_DRY_RUN
@with_connection
def cordon(connection: Connection, nodes: tuple[str, ...], selector: str, dry_run: str) -> int:
    """Put nothing new on these nodes. What runs there stays.

    \b
    Examples:
      lattice cordon north-001-nano-1
      lattice cordon -l lattice.dev/zone=a
    """
    return marks.NodeSpecUpdate(connection, "cordoned", marks.cordoned_spec, dry_run).run(
        marks.select_nodes(connection, nodes, selector)
    )


@click.command(cls=Command)
@_NODES
@_SELECTOR
@_DRY_RUN
@with_connection
def uncordon(connection: Connection, nodes: tuple[str, ...], selector: str, dry_run: str) -> int:
    """Let these nodes take workloads again; ends a drain, too."""
    return marks.NodeSpecUpdate(connection, "uncordoned", marks.uncordoned_spec, dry_run).run(
        marks.select_nodes(connection, nodes, selector)
    )
