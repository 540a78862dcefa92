"""`lattice fit`: what are the smallest changes that would give a service its place, and what would each cost?"""

import click

from lattice.cli.output import formats as output
from lattice.cli.fleet.context import INFEASIBLE, FleetCommand, Sources, about_the_fleet, ask, service_named
from lattice.cli.commands.plan import FORM, echo, look
from lattice.cli.commands.whatif import Happening, happening


@click.command(cls=FleetCommand)
@click.argument("service", metavar="service/NAME")
@happening
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE|DIR|URL|-",
    help="As if these manifests were applied.",
)
@click.option(
    "--delete",
    "gone",
    multiple=True,
    metavar="KIND/NAME",
    help="As if this were deleted; may be given again.",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=FORM,
    default=output.Form(),
    metavar="FORM",
    help="table, wide (fields to change) or json.",
)
@about_the_fleet
def fit(sources: Sources, service: str, happens: Happening, form: output.Form) -> int:
    """List the smallest changes that would place a service, each with its price.

    Some are for the team that declares the service, some for those who run the platform. Each was tried: with it the service fits,
    and no part of it can be left out. The price is what would be paid more than now, once the service has its place.

    With flags of `whatif`, or with -f and --delete, it is asked as if that had happened: what would make it fit then?

    Ends with 0 if the service fits or there is something to change, 2 if nothing was found, 3 or more if something is wrong.

    \b
    Examples:
      lattice fit service/api -n shop
      lattice fit service/api --lose-pool us-east
      lattice fit service/api --world fleet/ -o json
    """
    document = ask(
        sources, {"ask": "fit", "service": service_named(service, sources.namespace), **happens.question}
    )
    if form.name == "json":
        output.show(output.written(document, form))
    else:
        from lattice.cli.output.service_tables import fit_lines

        echo(fit_lines(document, look(form)))
    return (
        0 if document["isPlaced"] or any(each["isEnough"] for each in document["suggestions"]) else INFEASIBLE
    )
