"""`lattice whatif`: placements and cost after an event such as the loss of a pool, a price change or lost
compliance."""

import functools
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import click

from lattice.cli.client.options import manifests_option
from lattice.cli.commands.plan import plan_exit_code, print_lines, table_renderer
from lattice.cli.fleet.fleet_command import FleetCommand, fit_hint, run_query, with_fleet_inputs
from lattice.cli.fleet.fleet_inputs import FleetInputs
from lattice.cli.output import output_format as output
from lattice.errors import UsageError
from lattice.kinds.meta.quantity import MILLIONTHS

_PERCENT_CHANGE = re.compile(r"([+-]?)(\d+(?:\.\d+)?)\s*%")


class PriceChange(click.ParamType):  # type: ignore[type-arg]
    """Click type of a price change: `+20%` becomes the factor 1.2 in millionths."""

    name = "change"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _PERCENT_CHANGE.fullmatch(value.strip())
        if match is None:
            self.fail(f"{value!r} is not a price change; write a percentage such as +20% or -5%", param, ctx)
        # One percent is 10,000 millionths.
        change = int(Decimal(match[2]) * 10_000) * (-1 if match[1] == "-" else 1)
        if not -MILLIONTHS <= change <= 999 * MILLIONTHS:
            self.fail(f"prices can change by -100% to +99900%, got {value}", param, ctx)
        return MILLIONTHS + change


class PoolCompliance(click.ParamType):  # type: ignore[type-arg]
    """Click type of a pool and a compliance: `us-east:gdpr`."""

    name = "pool:compliance"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        # The compliance is the text after the last colon.
        pool, colon, compliance = value.rpartition(":")
        if not colon or not pool or not compliance:
            self.fail(f"{value!r} is not POOL:COMPLIANCE, such as us-east:gdpr", param, ctx)
        return pool, compliance


@dataclass(frozen=True)
class WhatIfEvent:
    """The event of a what-if query: lost pools, price factors in millionths, and dropped compliance."""

    lost_pools: tuple[str, ...] = ()
    price_factors_millionths: tuple[int, ...] = ()
    dropped_compliance: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lost_pools or self.price_factors_millionths or self.dropped_compliance)

    @property
    def query(self) -> dict[str, Any]:
        """Fields of the query; empty without an event."""
        if not self:
            return {}
        # Several --price flags multiply.
        factor = Decimal(1)
        for factor_millionths in self.price_factors_millionths:
            factor = factor * factor_millionths / MILLIONTHS
        return {
            "lose": list(self.lost_pools),
            "drop": list(self.dropped_compliance),
            "priceMillionths": int(factor * MILLIONTHS),
        }

    @property
    def flags(self) -> str:
        words = [f"--lose-pool {shlex.quote(pool)}" for pool in dict.fromkeys(self.lost_pools)]
        words += [f"--price {(factor - MILLIONTHS) / 10_000:+g}%" for factor in self.price_factors_millionths]
        for pool, compliance in dict.fromkeys(self.dropped_compliance):
            words.append(f"--drop-compliance {shlex.quote(f'{pool}:{compliance}')}")
        return " ".join(words)


_EVENT_OPTIONS = [
    click.option(
        "--lose-pool",
        "lose",
        multiple=True,
        metavar="POOL",
        help="Assume the loss of a pool, a cloud region or a whole infrastructure. Repeatable.",
    ),
    click.option(
        "--price",
        "prices_by",
        multiple=True,
        type=PriceChange(),
        metavar="+20%",
        help="Assume that all prices change by this percentage. Repeatable.",
    ),
    click.option(
        "--drop-compliance",
        "drop",
        multiple=True,
        type=PoolCompliance(),
        metavar="POOL:COMPLIANCE",
        help="Assume that a pool loses a compliance, such as gdpr. Repeatable.",
    ),
]


def with_whatif_event(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of a what-if event to a command, which gets them as the argument `event`."""

    @functools.wraps(function)
    def call(
        *arguments: Any,
        lose: tuple[str, ...],
        prices_by: tuple[int, ...],
        drop: tuple[tuple[str, str], ...],
        **other_options: Any,
    ) -> Any:
        return function(*arguments, event=WhatIfEvent(lose, prices_by, drop), **other_options)

    wrapped: Callable[..., Any] = call
    for option in reversed(_EVENT_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


@click.command(cls=FleetCommand)
@with_whatif_event
@click.option(
    "--lose-each-pool",
    is_flag=True,
    help="Assume the loss of every pool in turn, and list the services left unplaced.",
)
@manifests_option("Assume that these manifests are applied first. Repeatable.")
@output.output_option("table", "wide", "json", help_text="table, wide (clusters, prices) or json.")
@with_fleet_inputs
def whatif(sources: FleetInputs, event: WhatIfEvent, lose_each_pool: bool, form: output.OutputFormat) -> int:
    """Show moved services, unplaced services and cost after an event.

    Events can be combined. Unlike plan, whatif moves replicas that are lost or that may no longer run where
    they are. Nothing is changed.

    Exit code: 0 if nothing would change, 1 if something would change, 2 if a service would be left unplaced, 3 or more on
    an error.

    \b
    Examples:
      lattice whatif --lose-pool us-east
      lattice whatif --lose-pool aws/eu-west-1 --price +20%
      lattice whatif --drop-compliance us-east:gdpr --world fleet/
      lattice whatif --lose-each-pool                  every pool in turn
    """
    if not (event or lose_each_pool):
        raise UsageError(
            "no event is given", fix="add --lose-pool, --price, --drop-compliance or --lose-each-pool"
        )
    if lose_each_pool and event:
        raise UsageError(
            "--lose-each-pool cannot be combined with other events",
            fix="remove the other flags, or name the pool with --lose-pool",
        )
    query = {"loseEach": True} if lose_each_pool else event.query
    document = run_query(sources, {"ask": "whatif", **query})
    if form.name == "json":
        output.print_raw(output.serialize(document, form))
    else:
        from lattice.cli.output.plan_tables import pool_loss_lines, whatif_lines

        renderer = table_renderer(form)
        lines = (
            pool_loss_lines(document, renderer)
            if lose_each_pool
            else [*whatif_lines(document, renderer), *fit_hint(document, sources, event.flags)]
        )
        print_lines(lines)
    return plan_exit_code(document)
