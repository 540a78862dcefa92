"""`lattice status`: what is wrong now, by severity, with cause and next command."""

import click

from lattice.cli.client.options import Command, Connection, with_connection
from lattice.cli.commands.plan import print_lines, table_renderer
from lattice.cli.output import output_format as output
from lattice.kinds.meta.base import GROUP, VERSION

PROBLEMS_API_PATH = f"/apis/{GROUP}/{VERSION}/problems"
EXIT_WRONG = 1


@click.command(cls=Command)
@output.output_option("table", "wide", "json", help_text="table, wide (all problems) or json.")
@with_connection
def status(connection: Connection, form: output.OutputFormat) -> int:
    """Show what is wrong now, the most severe first.

    The list has services, workloads, nodes, clusters, pools, clouds, data centers, node classes, budgets and automation
    rules. Each entry names the cause, since when it lasts, and the command that shows more. The server reads what is
    stored and plans nothing.

    Exit code: 0 if nothing is wrong, 1 if there is a warning or a critical problem, 2 or more on an error. An info needs no
    action.

    \b
    Examples:
      lattice status
      lattice status -o json
    """
    document = connection.client.get(PROBLEMS_API_PATH)
    if form.name == "json":
        output.print_raw(output.serialize(document, form))
    else:
        from lattice.cli.output.diagnosis_lines import problem_lines

        print_lines(problem_lines(document, table_renderer(form)))
    return EXIT_WRONG if document["isWrong"] else 0
