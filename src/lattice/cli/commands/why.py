"""`lattice why`: the chosen pool of a service, the alternatives with their scores, and the rejected pools."""

from typing import Any

import click

from lattice.cli.client.options import manifests_option
from lattice.cli.commands.plan import print_lines, table_renderer
from lattice.cli.fleet.fleet_command import FleetCommand, run_query, service_key, with_fleet_inputs
from lattice.cli.fleet.fleet_inputs import FleetInputs
from lattice.cli.output import output_format as output


@click.command(cls=FleetCommand)
@click.argument("service", metavar="service/NAME")
@click.option(
    "--pool",
    default="",
    metavar="POOL",
    help="Show only this pool, cloud region or data center.",
)
@manifests_option("Assume that these manifests are applied. Repeatable.")
@output.output_option("table", "wide", "json", help_text="table, wide (all scores) or json.")
@with_fleet_inputs
def why(sources: FleetInputs, service: str, pool: str, form: output.OutputFormat) -> int:
    """Explain the placement of a service and every rejected pool.

    Lattice takes the replicas of the service out of the present fleet and places them again, as if the
    service were new. If replicas are missing, the output may explain only these. The output lists the chosen
    pool and the alternatives, with every score from 0 to 100 and its weight. For each rejected pool it lists
    the reasons, with need, have and missing.

    \b
    Examples:
      lattice why service/api -n shop
      lattice why service/api --pool us-east
      lattice why service/api -f api.yaml --world fleet/
    """
    query: dict[str, Any] = {
        "ask": "why",
        "service": service_key(service, sources.namespace),
        "pool": pool,
    }
    document = run_query(sources, query)
    if form.name == "json":
        output.print_raw(output.serialize(document, form))
        return 0
    from lattice.cli.output.service_tables import why_lines

    print_lines(why_lines(document, table_renderer(form), pool))
    return 0
