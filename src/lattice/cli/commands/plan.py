"""`lattice plan`: the effect of manifests on placements and cost, and the services left unplaced."""

import os
import shutil
import sys
from typing import Any

import click

from lattice.cli.client.options import manifests_option
from lattice.cli.fleet.fleet_command import (
    EXIT_CHANGES,
    EXIT_INFEASIBLE,
    FleetCommand,
    fit_hint,
    run_query,
    with_fleet_inputs,
)
from lattice.cli.fleet.fleet_inputs import FleetInputs
from lattice.cli.output import output_format as output


@click.command(cls=FleetCommand)
@manifests_option("File, folder, URL or - with manifests to plan. Repeatable.")
@click.option(
    "--delete",
    "deletions",
    multiple=True,
    metavar="KIND/NAME",
    help="Assume that this object is deleted. Repeatable.",
)
@click.option(
    "--force-conflicts", is_flag=True, help="Assume that fields of other field managers are taken over."
)
@output.output_option("table", "wide", "json", help_text="table, wide (clusters, prices) or json.")
@with_fleet_inputs
def plan(sources: FleetInputs, form: output.OutputFormat) -> int:
    """Show how a change would affect placements and cost.

    Manifests may be services, pools, node classes, infrastructure or policies. The plan lists every affected service.
    Without manifests, the plan shows the pending work for the declared objects. Nothing is changed. Running replicas stay
    where they are: WOULD MOVE lists the services whose present pools do not meet their requirements after the change.

    Exit code: 0 if nothing would change, 1 if something would change, 2 if a service of the change, or a service that is
    placed now, would be left unplaced, 3 or more on an error.

    \b
    Examples:
      lattice plan -f shop/                            against the server
      lattice plan -f pool.yaml --world fleet/         against files, without a server
      lattice plan --world fleet/                      all declared objects, from an empty fleet
      lattice plan --delete pool/us-east
      lattice plan -f policy.yaml -o json
    """
    document = run_query(sources, {"ask": "plan"})
    print_plan(document, form, sources)
    return plan_exit_code(document)


def plan_exit_code(document: dict[str, Any]) -> int:
    """Exit code of a plan: 2 if a service stays unplaced, 1 with changes, 0 without."""
    if not document["isFeasible"]:
        return EXIT_INFEASIBLE
    return 0 if document["isEmpty"] else EXIT_CHANGES


def print_plan(document: dict[str, Any], form: output.OutputFormat, sources: FleetInputs) -> None:
    if form.name == "json":
        output.print_raw(output.serialize(document, form))
        return
    from lattice.cli.output.plan_tables import plan_lines

    print_lines([*plan_lines(document, table_renderer(form)), *fit_hint(document, sources)])
    if document["isEmpty"]:
        return
    # A plan with deletions, or without manifests, cannot be applied with one command: its id is of no use.
    if not sources.files or sources.deletions:
        return
    hint, namespace = f"plan {document['id']}", sources.connection.explicit_namespace
    flags = sources.change_flags + (f" -n {namespace}" if namespace else "")
    if sources.is_offline:
        hint += f"   computed from these files; to plan on a server: lattice plan {flags}"
    else:
        hint += f"   apply with: lattice apply {flags} --plan {document['id']}"
    print_lines(["", hint])


def table_renderer(form: output.OutputFormat) -> Any:
    from lattice.cli.output.table_renderer import TableRenderer

    is_terminal = sys.stdout.isatty()
    colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return TableRenderer(
        form.name == "wide", shutil.get_terminal_size().columns if is_terminal else 0, colour
    )


def print_lines(lines: list[str]) -> None:
    click.echo("\n".join(lines))
