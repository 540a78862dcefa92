"""`lattice version`: the versions of this program and of the server."""

import platform
from typing import Any

import click

from lattice import __version__
from lattice.cli.client.options import Command, Connection, with_connection
from lattice.cli.output import messages as say
from lattice.cli.output import output_format as output
from lattice.errors import LatticeError


@click.command(cls=Command)
@click.option(
    "--client", "client_only", is_flag=True, help="Show only the version of this program, without a server."
)
@output.output_option("json", "yaml", help_text="json or yaml.")
@with_connection
def version(connection: Connection, client_only: bool, form: output.OutputFormat) -> int:
    """Show the versions of this program and of the server.

    \b
    Examples:
      lattice version
      lattice version --client -o json
    """
    versions: dict[str, Any] = {
        "clientVersion": {
            "version": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
    }
    problem = None
    if not client_only:
        try:
            versions["serverVersion"] = connection.client.get("/version")
        except LatticeError as e:
            problem = e
    if form.is_table:
        click.echo(f"Client Version: {__version__}")
        if "serverVersion" in versions:
            click.echo(f"Server Version: {versions['serverVersion'].get('gitVersion', 'unknown')}")
    else:
        output.print_raw(output.serialize(versions, form))
    if problem is None:
        return 0
    say.error(problem)
    return problem.exit_code
