"""`lattice optimise`: moves of replicas that would save money, and a lower bound of the cost."""

from decimal import Decimal

import click

from lattice.cli.client.options import Duration, manifests_option
from lattice.cli.commands.plan import plan_exit_code, print_lines, table_renderer
from lattice.cli.fleet.fleet_command import FleetCommand, fit_hint, run_query, with_fleet_inputs
from lattice.cli.fleet.fleet_inputs import FleetInputs
from lattice.cli.output import output_format as output
from lattice.errors import LatticeError, UsageError

HOUR_S = 3600


@click.command(cls=FleetCommand)
@click.option(
    "--max-moves",
    type=click.IntRange(min=0),
    default=None,
    metavar="N",
    help="Maximum number of replicas to move; default: no limit.",
)
@click.option(
    "--payback",
    type=Duration(),
    default="720h",
    show_default=True,
    metavar="DURATION",
    help="Period in which a move must save its own cost.",
)
@click.option(
    "--move-cost",
    default="0.05",
    show_default=True,
    metavar="DOLLARS",
    help="Cost of moving one replica, such as running it twice.",
)
@click.option(
    "--time-limit",
    type=Duration(),
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="Time limit of the search.",
)
@manifests_option("Assume that these manifests are applied. Repeatable.")
@output.output_option("table", "wide", "json", help_text="table, wide (clusters, prices) or json.")
@with_fleet_inputs
def optimise(
    sources: FleetInputs,
    max_moves: int | None,
    payback: float,
    move_cost: str,
    time_limit: float,
    form: output.OutputFormat,
) -> int:
    """Show moves that would make the whole fleet cheaper, and the largest possible gap to the optimum.

    Only moves that save their own cost within --payback are listed. The gap is the difference between the cost after the
    moves and a lower bound of the cost of any placement. Nothing is moved.

    Exit code: 0 if nothing would change, 1 if moves would save money, 2 if a service is or would be left unplaced, 3 or
    more on an error.

    \b
    Examples:
      lattice optimise
      lattice optimise --max-moves 10 --payback 168h
      lattice optimise --world fleet/ --time-limit 60s -o json
    """
    if payback < HOUR_S or time_limit <= 0:
        raise UsageError(
            "--payback must be 1h or more, --time-limit more than 0s",
            fix="write them like 168h and 30s",
        )
    from lattice.kinds.meta.quantity import dollars_to_micros

    try:
        move_cost_micros = dollars_to_micros(Decimal(move_cost.removeprefix("$")))
    except (LatticeError, ArithmeticError) as e:
        raise UsageError(
            f"--move-cost must be an amount in dollars such as 0.05, got {move_cost!r}",
            fix="write a plain number",
        ) from e
    query = {
        "ask": "optimise",
        "maxMoves": max_moves,
        "paybackHours": int(payback // HOUR_S),
        "moveCostMicros": move_cost_micros,
        "timeLimitSeconds": time_limit,
    }
    document = run_query(sources, query)
    if form.name == "json":
        output.print_raw(output.serialize(document, form))
        return plan_exit_code(document)
    from lattice.cli.output.plan_tables import optimise_lines

    print_lines([*optimise_lines(document, table_renderer(form)), *fit_hint(document, sources)])
    return plan_exit_code(document)
