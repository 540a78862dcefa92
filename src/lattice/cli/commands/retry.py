"""`lattice retry`: restarts failed workloads without waiting for the back-off and resets their attempt
counters."""

from typing import Any

import click

from lattice.cli.client.http import Request
from lattice.cli.client.kind_names import resource_path
from lattice.cli.client.options import DRY_RUN_SUFFIXES, Command, Connection, dry_run_option, with_connection
from lattice.cli.client.workload_selection import select_workloads
from lattice.cli.output import messages as say
from lattice.errors import Conflict, LatticeError
from lattice.kinds.workload import LatticeWorkload


@click.command(cls=Command)
@click.argument("words", nargs=-1, required=True, metavar="WORKLOAD|service/NAME...")
@dry_run_option
@with_connection
def retry(connection: Connection, words: tuple[str, ...], dry_run: str) -> int:
    """Restart failed replicas now and reset the attempt counter.

    For a service, lattice retries the replicas that failed or wait for their next attempt.

    \b
    Examples:
      lattice retry web-0
      lattice retry service/web
    """
    codes = set()
    for word in words:
        selection = select_workloads(connection, word)
        # Of a service, only failed replicas are retried; a workload that the user names is always retried.
        failed = [
            workload for workload in selection.workloads if not selection.service or has_failed(workload)
        ]
        if not failed:
            say.note(f"service/{selection.service}: no replica has failed")
        for workload in failed:
            metadata, spec = workload["metadata"], workload.get("spec") or {}
            name = metadata["name"]
            path = f"{resource_path(LatticeWorkload.resource, metadata['namespace'], name)}/retry"
            try:
                if spec.get("desiredState", "Running") != "Running":
                    message = f"workload/{name} should not run: nothing to retry"
                    raise Conflict(message, fix="set spec.desiredState to Running first")
                if dry_run != "client":
                    query = {"dryRun": "All"} if dry_run == "server" else {}
                    connection.client.send(Request("POST", path, query))
            except LatticeError as error:
                say.error(error)
                codes.add(error.exit_code)
                continue
            # The server decides whether to retry. The state that was read before the request only chooses the
            # text to print.
            outcome = "will be retried" if has_failed(workload) else "has not failed: nothing to retry"
            click.echo(f"workload/{name} {outcome}{DRY_RUN_SUFFIXES[dry_run]}")
    return say.combined_exit_code(codes)


def has_failed(workload: dict[str, Any]) -> bool:
    status = workload.get("status") or {}
    return status.get("actualState") == "Failed" or bool((status.get("retry") or {}).get("attempts"))
