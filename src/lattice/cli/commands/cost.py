"""`lattice cost`: what does everything cost, whose part is how much, and how much of it is machines that nobody uses?"""

from typing import Any

import click

from lattice.cli.output import formats as output
from lattice.cli.fleet.context import FleetCommand, Sources, about_the_fleet, ask
from lattice.cli.commands.plan import FORM, echo, look


class By(click.ParamType):  # type: ignore[type-arg]
    name = "by"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in ("pool", "service") and not (
            value.startswith("label:") and value.removeprefix("label:").strip()
        ):
            self.fail(f"{value!r} is not pool, service or label:KEY, such as label:team", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in ("pool", "service", "label:") if name.startswith(incomplete)]


@click.command(cls=FleetCommand)
@click.option(
    "--by",
    type=By(),
    default="pool",
    show_default=True,
    metavar="pool|service|label:KEY",
    help="What to sum by.",
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
    help="table, wide (with prices) or json.",
)
@about_the_fleet
def cost(sources: Sources, by: str, form: output.Form) -> int:
    """Show what everything costs: in an hour, in 30 days, and whose share it is.

    A machine's price is split among the replicas on it, by the largest share that each takes of any resource. Machines that nobody
    is on are listed by themselves, so that the rows always add up. Services that wait for their place are counted as if they had it.
    With -n, only what the services of that namespace pay.

    \b
    Examples:
      lattice cost
      lattice cost --by label:team
      lattice cost -n shop
      lattice cost --by service --world fleet/ --prices aws.csv -o wide
    """
    namespace = sources.connection.asked_namespace
    document = ask(sources, {"ask": "cost", "by": by, **({"inNamespace": namespace} if namespace else {})})
    if form.name == "json":
        output.show(output.written(document, form))
        return 0
    from lattice.cli.output.plan_tables import cost_lines

    echo(cost_lines(document, look(form)))
    return 0
