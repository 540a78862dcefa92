"""`lattice fit`: the smallest changes that would place a service, with the cost of each change."""

import click

from lattice.cli.client.options import manifests_option
from lattice.cli.commands.plan import print_lines, table_renderer
from lattice.cli.commands.whatif import WhatIfEvent, with_whatif_event
from lattice.cli.fleet.fleet_command import (
    EXIT_INFEASIBLE,
    FleetCommand,
    run_query,
    service_key,
    with_fleet_inputs,
)
from lattice.cli.fleet.fleet_inputs import FleetInputs
from lattice.cli.output import output_format as output


@click.command(cls=FleetCommand)
@click.argument("service", metavar="service/NAME")
@with_whatif_event
@manifests_option("Assume that these manifests are applied. Repeatable.")
@click.option(
    "--delete",
    "deletions",
    multiple=True,
    metavar="KIND/NAME",
    help="Assume that this object is deleted. Repeatable.",
)
@output.output_option("table", "wide", "json", help_text="table, wide (fields to change) or json.")
@with_fleet_inputs
def fit(sources: FleetInputs, service: str, event: WhatIfEvent, form: output.OutputFormat) -> int:
    """List the smallest changes that would place a service, each with its cost.

    Some changes are for the team that declares the service, others for the platform team. Lattice verified each change: the
    service fits with it, and no part can be left out. MORE is the increase of the total bill once the service is placed.

    With flags of `whatif`, or with -f and --delete, the answer assumes that event or change.

    Exit code: 0 if the service fits or a change was found, 2 if no change was found, 3 or more on an error.

    \b
    Examples:
      lattice fit service/api -n shop
      lattice fit service/api --lose-pool us-east
      lattice fit service/api --world fleet/ -o json
    """
    document = run_query(
        sources, {"ask": "fit", "service": service_key(service, sources.namespace), **event.query}
    )
    if form.name == "json":
        output.print_raw(output.serialize(document, form))
    else:
        from lattice.cli.output.service_tables import fit_lines

        print_lines(fit_lines(document, table_renderer(form)))
    is_feasible = document["isPlaced"] or any(
        suggestion["isEnough"] for suggestion in document["suggestions"]
    )
    return 0 if is_feasible else EXIT_INFEASIBLE
