"""`lattice whatif`: who would move where, who would be left without, and what would it cost, if this happened?"""

import functools
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import click

from lattice.cli.output import formats as output
from lattice.cli.fleet.context import FleetCommand, Sources, about_the_fleet, ask, fit_hint
from lattice.cli.commands.plan import FORM, echo, look, plan_code
from lattice.usage import Misused

_CHANGE = re.compile(r"([+-]?)(\d+(?:\.\d+)?)\s*%")
WHOLE = 1_000_000


class Change(click.ParamType):  # type: ignore[type-arg]
    """`+20%` as the factor 1.2, in millionths."""

    name = "change"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _CHANGE.fullmatch(value.strip())
        if found is None:
            self.fail(f"{value!r} is not a change of prices; write it like +20% or -5%", param, ctx)
        by = int(Decimal(found[2]) * 10_000) * (-1 if found[1] == "-" else 1)
        if not -WHOLE <= by <= 999 * WHOLE:
            self.fail(f"prices can change by -100% to +99900%, got {value}", param, ctx)
        return WHOLE + by


class Certificate(click.ParamType):  # type: ignore[type-arg]
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
class Happening:
    """What happens to the fleet, as it was typed."""

    lose: tuple[str, ...] = ()
    prices_by: tuple[int, ...] = ()
    drop: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lose or self.prices_by or self.drop)

    @property
    def question(self) -> dict[str, Any]:
        return (
            {"lose": list(self.lose), "drop": list(self.drop), "priceMillionths": _together(self.prices_by)}
            if self
            else {}
        )

    @property
    def flags(self) -> str:
        words = [f"--lose-pool {shlex.quote(each)}" for each in dict.fromkeys(self.lose)]
        words += [f"--price {(each - WHOLE) / 10_000:+g}%" for each in self.prices_by]
        return " ".join(
            [
                *words,
                *(
                    f"--drop-compliance {shlex.quote(f'{pool}:{word}')}"
                    for pool, word in dict.fromkeys(self.drop)
                ),
            ]
        )


_FLAGS = [
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
        type=Change(),
        metavar="+20%",
        help="All prices rise, or fall, by so much.",
    ),
    click.option(
        "--drop-compliance",
        "drop",
        multiple=True,
        type=Certificate(),
        metavar="POOL:CERTIFICATE",
        help="A pool loses a certificate.",
    ),
]


def happening(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags that say what happens; the command gets them together, as `happens`."""

    @functools.wraps(function)
    def call(
        *given: Any,
        lose: tuple[str, ...],
        prices_by: tuple[int, ...],
        drop: tuple[tuple[str, str], ...],
        **rest: Any,
    ) -> Any:
        return function(*given, happens=Happening(lose, prices_by, drop), **rest)

    wrapped: Callable[..., Any] = call
    for option in reversed(_FLAGS):
        wrapped = option(wrapped)
    return wrapped


@click.command(cls=FleetCommand)
@happening
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
    type=FORM,
    default=output.Form(),
    metavar="FORM",
    help="table, wide (clusters, prices) or json.",
)
@about_the_fleet
def whatif(sources: Sources, happens: Happening, each: bool, form: output.Form) -> int:
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
    if not (happens or each):
        raise Misused("what if what?", fix="give --lose-pool, --price, --drop-compliance or --lose-each-pool")
    if each and happens:
        raise Misused(
            "--lose-each-pool goes alone", fix="drop the other flags, or name the pool with --lose-pool"
        )
    document = ask(sources, {"ask": "whatif", **({"loseEach": True} if each else happens.question)})
    if form.name == "json":
        output.show(output.written(document, form))
    else:
        from lattice.cli.output.plan_tables import drill_lines, whatif_lines

        told = (
            [] if each else [*whatif_lines(document, look(form)), *fit_hint(document, sources, happens.flags)]
        )
        echo(told or drill_lines(document, look(form)))
    return plan_code(document)


def _together(changes: tuple[int, ...]) -> int:
    """One after the other."""
    factor = Decimal(1)
    for each in changes:
        factor = factor * each / WHOLE
    return int(factor * WHOLE)
