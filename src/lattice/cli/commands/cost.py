"""`lattice cost`: cost of the fleet by pool, service, node or label, with the cost of machines without replicas."""

from typing import Any

import click

from lattice.cli.client.options import manifests_option
from lattice.cli.commands.plan import print_lines, table_renderer
from lattice.cli.fleet.fleet_command import FleetCommand, run_query, with_fleet_inputs
from lattice.cli.fleet.fleet_inputs import FleetInputs
from lattice.cli.output import output_format as output


class CostGrouping(click.ParamType):  # type: ignore[type-arg]
    name = "by"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in ("pool", "service", "node") and not (
            value.startswith("label:") and value.removeprefix("label:").strip()
        ):
            self.fail(f"{value!r} is not pool, service, node or label:KEY, such as label:team", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name)
            for name in ("pool", "service", "node", "label:")
            if name.startswith(incomplete)
        ]


@click.command(cls=FleetCommand)
@click.option(
    "--by",
    type=CostGrouping(),
    default="pool",
    show_default=True,
    metavar="pool|service|node|label:KEY",
    help="Grouping of the cost.",
)
@manifests_option("Assume that these manifests are applied. Repeatable.")
@output.output_option("table", "wide", "json", help_text="table, wide (with prices) or json.")
@with_fleet_inputs
def cost(sources: FleetInputs, by: str, form: output.OutputFormat) -> int:
    """Show the cost per hour and per 30 days, by pool, service, node or label.

    The total is the bill: the machines that exist or are being made, at the price of now. Lattice splits a machine's price
    among the replicas on it, by the largest share that each takes of any resource. Machines without replicas (empty, being
    made, leaving) have their own rows, so that the rows add up. Files without a ledger count as if every service that fits
    were placed. With -n, the output covers only the services of that namespace.

    \b
    Examples:
      lattice cost
      lattice cost --by label:team
      lattice cost -n shop
      lattice cost --by service --world fleet/ --prices aws.csv -o wide
    """
    namespace = sources.connection.explicit_namespace
    document = run_query(
        sources, {"ask": "cost", "by": by, **({"inNamespace": namespace} if namespace else {})}
    )
    if form.name == "json":
        output.print_raw(output.serialize(document, form))
        return 0
    from lattice.cli.output.cost_tables import cost_lines

    print_lines(cost_lines(document, table_renderer(form)))
    return 0
