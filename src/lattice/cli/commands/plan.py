"""`lattice plan`: what would applying these manifests change, what would it cost, and who would be left without a place?"""

import os
import shutil
import sys
from typing import Any

import click

from lattice.cli.output import formats as output
from lattice.cli.fleet.context import (
    CHANGES,
    INFEASIBLE,
    FleetCommand,
    Sources,
    about_the_fleet,
    ask,
    fit_hint,
)

FORM = output.FormType("table", "wide", "json")


@click.command(cls=FleetCommand)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE|DIR|URL|-",
    help="Manifests to be applied; may be given again.",
)
@click.option(
    "--delete",
    "gone",
    multiple=True,
    metavar="KIND/NAME",
    help="As if this were deleted as well; may be given again.",
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
def plan(sources: Sources, form: output.Form) -> int:
    """Show what a change would do, in places and in money, before it happens.

    Manifests may be services, pools, node classes, infrastructure or policies: every service that they affect is listed. Without
    any, the plan is what is still to be done for what is declared. Nothing is changed. What runs already stays where it is: a
    service that the change makes misplaced is listed as one that would move.

    Ends with 0 if nothing would change, 1 if something would, 2 if something would not be placed that the change is about or that has
    its place now, 3 or more if something is wrong.

    \b
    Examples:
      lattice plan -f shop/                            against the server
      lattice plan -f pool.yaml --world fleet/         against files, without a server
      lattice plan --world fleet/                      from nothing to all that is declared
      lattice plan --delete pool/us-east
      lattice plan -f policy.yaml -o json
    """
    document = ask(sources, {"ask": "plan"})
    show(document, form, sources)
    return plan_code(document)


def plan_code(document: dict[str, Any]) -> int:
    if not document["isFeasible"]:
        return INFEASIBLE
    return 0 if document["isEmpty"] else CHANGES


def show(document: dict[str, Any], form: output.Form, sources: Sources) -> None:
    if form.name == "json":
        output.show(output.written(document, form))
        return
    from lattice.cli.output.plan_tables import plan_lines

    echo([*plan_lines(document, look(form)), *fit_hint(document, sources)])
    if not document["isEmpty"]:
        echo(["", _next(document, sources)])


def _next(document: dict[str, Any], sources: Sources) -> str:
    """What may be done with the plan. One that was made from files is no server's, which may come to another."""
    told, namespace = f"plan {document['id']}", sources.connection.asked_namespace
    typed = sources.change_flags + (f" -n {namespace}" if namespace else "")
    if not sources.files or sources.gone:
        return told
    if sources.is_offline:
        return f"{told}   of these files; what a server would do: lattice plan {typed}"
    return f"{told}   apply with: lattice apply {typed} --plan {document['id']}"


def look(form: output.Form) -> Any:
    from lattice.cli.output.columns import Look

    is_terminal = sys.stdout.isatty()
    colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Look(form.name == "wide", shutil.get_terminal_size().columns if is_terminal else 0, colour)


def echo(lines: list[str]) -> None:
    click.echo("\n".join(lines))
