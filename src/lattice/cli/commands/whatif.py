"""`lattice whatif`: who would move where, who would be left without, and what would it cost, if this happened?"""

import functools
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import click

from lattice.cli.commands.plan import FLEET_OUTPUT_TYPE, plan_exit_code, print_lines, table_renderer
from lattice.cli.fleet.fleet_command import FleetCommand, FleetInputs, fit_hint, run_query, with_fleet_inputs
from lattice.cli.output import output_format as output
from lattice.errors import UsageError

_PERCENT_CHANGE = re.compile(r"([+-]?)(\d+(?:\.\d+)?)\s*%")
MILLIONTHS = 1_000_000


class PriceChange(click.ParamType):  # type: ignore[type-arg]
    """`+20%` as the factor 1.2, in millionths."""

    name = "change"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _PERCENT_CHANGE.fullmatch(value.strip())
        if found is None:
            self.fail(f"{value!r} is not a change of prices; write it like +20% or -5%", param, ctx)
        by = int(Decimal(found[2]) * 10_000) * (-1 if found[1] == "-" else 1)
        if not -MILLIONTHS <= by <= 999 * MILLIONTHS:
            self.fail(f"prices can change by -100% to +99900%, got {value}", param, ctx)
        return MILLIONTHS + by


class PoolCompliance(click.ParamType):  # type: ignore[type-arg]
    """`us-east:gdpr`."""

    name = "pool:certificate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        pool, colon, certificate = value.rpartition(":")
        if not colon or not pool or not certificate:
            self.fail(f"{value!r} is not POOL:CERTIFICATE, such as us-east:gdpr", param, ctx)
        return pool, certificate


@dataclass(frozen=True)
class WhatIfEvent:
    """What happens to the fleet, as it was typed."""

    lost_pools: tuple[str, ...] = ()
    price_factors_millionths: tuple[int, ...] = ()
    dropped_compliance: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lost_pools or self.price_factors_millionths or self.dropped_compliance)

    @property
    def query(self) -> dict[str, Any]:
        return (
            {
                "lose": list(self.lost_pools),
                "drop": list(self.dropped_compliance),
                "priceMillionths": _combine_factors(self.price_factors_millionths),
            }
            if self
            else {}
        )

    @property
    def flags(self) -> str:
        words = [f"--lose-pool {shlex.quote(each)}" for each in dict.fromkeys(self.lost_pools)]
        words += [f"--price {(each - MILLIONTHS) / 10_000:+g}%" for each in self.price_factors_millionths]
        return " ".join(
            [
                *words,
                *(
                    f"--drop-compliance {shlex.quote(f'{pool}:{word}')}"
                    for pool, word in dict.fromkeys(self.dropped_compliance)
                ),
            ]
        )


_EVENT_OPTIONS = [
    click.option(
        "--lose-pool",
        "lose",
        multiple=True,
        metavar="POOL",
        help="A pool, a cloud's region, or an infrastructure with all it has, is gone.",
    ),
    click.option(
        "--price",
        "prices_by",
        multiple=True,
        type=PriceChange(),
        metavar="+20%",
        help="All prices rise, or fall, by so much.",
    ),
    click.option(
        "--drop-compliance",
        "drop",
        multiple=True,
        type=PoolCompliance(),
        metavar="POOL:CERTIFICATE",
        help="A pool loses a certificate.",
    ),
]


def with_whatif_event(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags that say what happens; the command gets them together, as `event`."""

    @functools.wraps(function)
    def call(
        *given: Any,
        lose: tuple[str, ...],
        prices_by: tuple[int, ...],
        drop: tuple[tuple[str, str], ...],
        **rest: Any,
    ) -> Any:
        return function(*given, event=WhatIfEvent(lose, prices_by, drop), **rest)

    wrapped: Callable[..., Any] = call
    for option in reversed(_EVENT_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


@click.command(cls=FleetCommand)
@with_whatif_event
@click.option(
    "--lose-each-pool",
    "each",
    is_flag=True,
    help="Every pool in turn is gone: who would be left without, each time.",
)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE|DIR|URL|-",
    help="As if these manifests were applied before.",
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
def whatif(sources: FleetInputs, event: WhatIfEvent, each: bool, form: output.OutputFormat) -> int:
    """Show who would move where, who would be left without, and the cost after.

    Several things may happen at once: each flag may be given again. Unlike with a plan, replicas that are lost, or may no longer be
    where they are, are placed anew. Nothing is changed.

    Ends with 0 if nothing would change, 1 if something would, 2 if something would be left without a place, 3 or more if something
    is wrong.

    \b
    Examples:
      lattice whatif --lose-pool us-east
      lattice whatif --lose-pool aws/eu-west-1 --price +20%
      lattice whatif --drop-compliance us-east:gdpr --world fleet/
      lattice whatif --lose-each-pool                  one after the other: which loss hurts?
    """
    if not (event or each):
        raise UsageError(
            "what if what?", fix="give --lose-pool, --price, --drop-compliance or --lose-each-pool"
        )
    if each and event:
        raise UsageError(
            "--lose-each-pool goes alone", fix="drop the other flags, or name the pool with --lose-pool"
        )
    document = run_query(sources, {"ask": "whatif", **({"loseEach": True} if each else event.query)})
    if form.name == "json":
        output.print_raw(output.serialize(document, form))
    else:
        from lattice.cli.output.plan_tables import pool_loss_lines, whatif_lines

        told = (
            []
            if each
            else [*whatif_lines(document, table_renderer(form)), *fit_hint(document, sources, event.flags)]
        )
        print_lines(told or pool_loss_lines(document, table_renderer(form)))
    return plan_exit_code(document)


def _combine_factors(changes: tuple[int, ...]) -> int:
    """One after the other."""
    factor = Decimal(1)
    for each in changes:
        factor = factor * each / MILLIONTHS
    return int(factor * MILLIONTHS)
