"""`lattice why`: the decision record of a service, and the rejection of every other pool."""

from typing import Any

import click

from lattice.cli.commands.plan import FLEET_OUTPUT_TYPE, print_lines, table_renderer
from lattice.cli.fleet.fleet_command import (
    FleetCommand,
    FleetInputs,
    run_query,
    service_key,
    with_fleet_inputs,
)
from lattice.cli.output import output_format as output


@click.command(cls=FleetCommand)
@click.argument("service", metavar="service/NAME")
@click.option(
    "--pool",
    default="",
    metavar="POOL",
    help="Only what is about this pool, a cloud's region, or a data center.",
)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE|DIR|URL|-",
    help="As if these manifests were applied.",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=FLEET_OUTPUT_TYPE,
    default=output.OutputFormat(),
    metavar="FORM",
    help="table, wide (all scores) or json.",
)
@with_fleet_inputs
def why(sources: FleetInputs, service: str, pool: str, form: output.OutputFormat) -> int:
    """Say why a service is where it is, and why not elsewhere.

    Every replica is decided anew, as of now, as if the service had just been declared: what was chosen and what came second, the
    parts of every score from 0 to 100 with their weights, and for every pool all that rules it out, in need, have, missing.

    \b
    Examples:
      lattice why service/api -n shop
      lattice why service/api --pool us-east
      lattice why service/api -f api.yaml --world fleet/
    """
    question: dict[str, Any] = {
        "ask": "why",
        "service": service_key(service, sources.namespace),
        "pool": pool,
    }
    document = run_query(sources, question)
    if form.name == "json":
        output.print_raw(output.serialize(document, form))
        return 0
    from lattice.cli.output.service_tables import why_lines

    print_lines(why_lines(document, table_renderer(form), pool))
    return 0
