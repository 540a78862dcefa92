"""`lattice optimise`: which services should move where, what would that save, and how much more could be saved at most?"""

from decimal import Decimal

import click

from lattice.cli.output import formats as output
from lattice.cli.fleet.context import FleetCommand, Sources, about_the_fleet, ask, fit_hint
from lattice.cli.client.options import Duration
from lattice.cli.commands.plan import FORM, echo, look, plan_code
from lattice.usage import Misused

HOUR = 3600


@click.command(cls=FleetCommand)
@click.option(
    "--max-moves",
    type=click.IntRange(min=0),
    default=None,
    metavar="N",
    help="Move at most so many replicas; any number if absent.",
)
@click.option(
    "--payback",
    type=Duration(),
    default="720h",
    show_default=True,
    metavar="DURATION",
    help="A move must save what it costs within this.",
)
@click.option(
    "--move-cost",
    default="0.05",
    show_default=True,
    metavar="DOLLARS",
    help="What moving one replica costs, such as running it twice.",
)
@click.option(
    "--time-limit",
    type=Duration(),
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="How long to look for better plans.",
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
    help="table, wide (clusters, prices) or json.",
)
@about_the_fleet
def optimise(
    sources: Sources,
    max_moves: int | None,
    payback: float,
    move_cost: str,
    time_limit: float,
    form: output.Form,
) -> int:
    """Show the moves that would make the whole fleet cheaper, and how far from the best that is at most.

    Only moves that pay for themselves in time are listed. The gap is between the cost after them and a bound that no
    arrangement can go below. Nothing is moved.

    Ends with 0 if nothing would change, 1 if moves would save money, 2 if some service has no place, or would have none, 3 or more if
    something is wrong.

    \b
    Examples:
      lattice optimise
      lattice optimise --max-moves 10 --payback 168h
      lattice optimise --world fleet/ --time-limit 60s -o json
    """
    if payback < HOUR or time_limit <= 0:
        raise Misused(
            "--payback takes an hour or more, --time-limit more than nothing",
            fix="write them like 168h and 30s",
        )
    question = {
        "ask": "optimise",
        "maxMoves": max_moves,
        "paybackHours": int(payback // HOUR),
        "moveCostMicros": _micros(move_cost),
        "timeLimitSeconds": time_limit,
    }
    document = ask(sources, question)
    if form.name == "json":
        output.show(output.written(document, form))
        return plan_code(document)
    from lattice.cli.output.plan_tables import optimum_lines

    echo([*optimum_lines(document, look(form)), *fit_hint(document, sources)])
    return plan_code(document)


def _micros(text: str) -> int:
    from lattice.errors import LatticeError
    from lattice.kinds.meta.quantity import micros

    try:
        return micros(Decimal(text.removeprefix("$")))
    except (LatticeError, ArithmeticError) as e:
        raise Misused(
            f"--move-cost must be an amount in dollars such as 0.05, got {text!r}", fix="write a plain number"
        ) from e
