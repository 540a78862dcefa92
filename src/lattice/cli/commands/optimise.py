"""`lattice optimise`: moves of replicas that would save money, and a lower bound of the cost."""

from decimal import Decimal

import click

from lattice.cli.client.options import Duration
from lattice.cli.commands.plan import FLEET_OUTPUT_TYPE, plan_exit_code, print_lines, table_renderer
from lattice.cli.fleet.fleet_command import FleetCommand, FleetInputs, fit_hint, run_query, with_fleet_inputs
from lattice.cli.output import output_format as output
from lattice.errors import UsageError

HOUR_S = 3600


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
    type=FLEET_OUTPUT_TYPE,
    default=output.OutputFormat(),
    metavar="FORM",
    help="table, wide (clusters, prices) or json.",
)
@with_fleet_inputs
def optimise(
    sources: FleetInputs,
    max_moves: int | None,
    payback: float,
    move_cost: str,
    time_limit: float,
    form: output.OutputFormat,
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
    if payback < HOUR_S or time_limit <= 0:
        raise UsageError(
            "--payback takes an hour or more, --time-limit more than nothing",
            fix="write them like 168h and 30s",
        )
    question = {
        "ask": "optimise",
        "maxMoves": max_moves,
        "paybackHours": int(payback // HOUR_S),
        "moveCostMicros": _micros(move_cost),
        "timeLimitSeconds": time_limit,
    }
    document = run_query(sources, question)
    if form.name == "json":
        output.print_raw(output.serialize(document, form))
        return plan_exit_code(document)
    from lattice.cli.output.plan_tables import optimise_lines

    print_lines([*optimise_lines(document, table_renderer(form)), *fit_hint(document, sources)])
    return plan_exit_code(document)


def _micros(text: str) -> int:
    from lattice.errors import LatticeError
    from lattice.kinds.meta.quantity import dollars_to_micros

    try:
        return dollars_to_micros(Decimal(text.removeprefix("$")))
    except (LatticeError, ArithmeticError) as e:
        raise UsageError(
            f"--move-cost must be an amount in dollars such as 0.05, got {text!r}", fix="write a plain number"
        ) from e
