"""`lattice whatif`: who would move where, who would be left without, and what would it cost, if this happened?"""

import re
from decimal import Decimal
from typing import Any

import click

from lattice.cli import output
from lattice.cli.fleet import FleetCommand, Sources, about_the_fleet, ask
from lattice.cli.plan import FORM, echo, look, plan_code
from lattice.cli.usage import Misused

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

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        pool, colon, certificate = value.rpartition(":")
        if not colon or not pool or not certificate:
            self.fail(f"{value!r} is not POOL:CERTIFICATE, such as us-east:gdpr", param, ctx)
        return pool, certificate


@click.command(cls=FleetCommand)
@click.option(
    "--lose-pool", "lose", multiple=True, metavar="POOL", help="A pool, a cloud's region, or an infrastructure with all it has, is gone."
)
@click.option("--lose-each-pool", "each", is_flag=True, help="Every pool in turn is gone: who would be left without, each time.")
@click.option("--price", "prices_by", multiple=True, type=Change(), metavar="+20%", help="All prices rise, or fall, by so much.")
@click.option(
    "--drop-compliance", "drop", multiple=True, type=Certificate(), metavar="POOL:CERTIFICATE", help="A pool loses a certificate."
)
@click.option("-f", "--filename", "files", multiple=True, metavar="FILE|DIR|URL|-", help="As if these manifests were applied before.")
@click.option("-o", "--output", "form", type=FORM, default=output.Form(), metavar="FORM", help="table, wide (clusters, prices) or json.")
@about_the_fleet
def whatif(
    sources: Sources, lose: tuple[str, ...], each: bool, prices_by: tuple[int, ...], drop: tuple[tuple[str, str], ...], form: output.Form
) -> int:
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
    if not (lose or prices_by or drop or each):
        raise Misused("what if what?", fix="give --lose-pool, --price, --drop-compliance or --lose-each-pool")
    if each and (lose or prices_by or drop):
        raise Misused("--lose-each-pool goes alone", fix="drop the other flags, or name the pool with --lose-pool")
    happens = {"lose": list(lose), "drop": list(drop), "priceMillionths": _together(prices_by)}
    document = ask(sources, {"ask": "whatif", "loseEach": True} if each else {"ask": "whatif", **happens})
    if form.name == "json":
        output.show(output.written(document, form))
    else:
        from lattice.cli.fleet_tables import drill_lines, whatif_lines

        echo(drill_lines(document, look(form)) if each else whatif_lines(document, look(form)))
    return plan_code(document)


def _together(changes: tuple[int, ...]) -> int:
    """One after the other."""
    factor = Decimal(1)
    for each in changes:
        factor = factor * each / WHOLE
    return int(factor * WHOLE)
