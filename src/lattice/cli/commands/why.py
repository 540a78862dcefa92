"""`lattice why`: why is a service where it is, and why not in each of the other pools?"""

from typing import Any

import click

from lattice.cli.output import formats as output
from lattice.cli.fleet.context import FleetCommand, Sources, about_the_fleet, ask, service_named
from lattice.cli.commands.plan import FORM, echo, look


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
    type=FORM,
    default=output.Form(),
    metavar="FORM",
    help="table, wide (all scores) or json.",
)
@about_the_fleet
def why(sources: Sources, service: str, pool: str, form: output.Form) -> int:
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
        "service": service_named(service, sources.namespace),
        "pool": pool,
    }
    document = ask(sources, question)
    if form.name == "json":
        output.show(output.written(document, form))
        return 0
    from lattice.cli.output.service_tables import why_lines

    echo(why_lines(document, look(form), pool))
    return 0
