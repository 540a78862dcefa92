"""`lattice why`: what keeps a service or a workload from running; the chosen pool of a service, the alternatives
with their scores, and the rejected pools."""

import contextlib
from typing import Any

import click

from lattice.cli.client.options import manifests_option
from lattice.cli.commands.plan import print_lines, table_renderer
from lattice.cli.fleet.fleet_command import FleetCommand, run_query, service_key, with_fleet_inputs
from lattice.cli.fleet.fleet_inputs import FleetInputs
from lattice.cli.output import output_format as output
from lattice.errors import NotFound
from lattice.kinds.meta.base import GROUP, VERSION

DIAGNOSIS_API_PATH = f"/apis/{GROUP}/{VERSION}/diagnosis"


@click.command(cls=FleetCommand)
@click.argument("word", metavar="service/NAME|workload/NAME")
@click.option(
    "--pool",
    default="",
    metavar="POOL",
    help="Show only this pool, cloud region or data center.",
)
@manifests_option("Assume that these manifests are applied. Repeatable.")
@output.output_option("table", "wide", "json", help_text="table, wide (all scores) or json.")
@with_fleet_inputs
def why(sources: FleetInputs, word: str, pool: str, form: output.OutputFormat) -> int:
    """Explain why a service is not running, its placement, and every rejected pool.

    The first part answers why the service, or the workload, is not running: what blocks first of placement,
    budget, machine, node, image, start, crash, probe and rollout, since when, what Lattice does next, and what
    would help. With --world or -f there is no such part.

    The second part explains the placement. Lattice takes the replicas of the service out of the present fleet
    and places them again, as if the service were new. If replicas are missing, the output may explain only
    these. The output lists the chosen pool and the alternatives, with every score from 0 to 100 and its weight.
    For each rejected pool it lists the reasons, with need, have and missing.

    \b
    Examples:
      lattice why service/api -n shop
      lattice why workload/api-0
      lattice why service/api --pool us-east
      lattice why service/api -f api.yaml --world fleet/
    """
    if workload := _workload_key(word, sources):
        document = _diagnosis(sources, {"workload": workload})
        _print(document, [], form)
        return 0
    service = service_key(word, sources.namespace)
    # The stored state says nothing about a world of files, or about manifests that are not applied.
    diagnosis = None
    if not (sources.is_offline or sources.files or pool):
        # A service that does not exist is reported by the query, with similar names; an earlier server has no
        # diagnoses.
        with contextlib.suppress(NotFound):
            diagnosis = _diagnosis(sources, {"service": service})
    document = run_query(sources, {"ask": "why", "service": service, "pool": pool})
    if form.name == "json":
        document = {**document, "running": diagnosis} if diagnosis else document
        output.print_raw(output.serialize(document, form))
        return 0
    from lattice.cli.output.service_tables import why_lines

    _print(diagnosis, why_lines(document, table_renderer(form), pool), form)
    return 0


def _workload_key(word: str, sources: FleetInputs) -> str:
    """namespace/name of the workload that the word names; empty if it names no workload."""
    from lattice.cli.client.kind_names import kind_names
    from lattice.errors import UsageError

    kind, slash, name = word.rpartition("/")
    is_workload = [resource.kind for resource in kind_names().resolve(kind)] if slash else []
    if is_workload != ["LatticeWorkload"]:
        return ""
    if sources.is_offline or not name:
        raise UsageError(f"{word!r} cannot be explained", fix="write workload/NAME, without --world")
    return f"{sources.namespace}/{name}"


def _diagnosis(sources: FleetInputs, query: dict[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = sources.connection.client.get(DIAGNOSIS_API_PATH, query)
    return document


def _print(diagnosis: dict[str, Any] | None, placement: list[str], form: output.OutputFormat) -> None:
    if form.name == "json":
        output.print_raw(output.serialize(diagnosis, form))
        return
    from lattice.cli.output.diagnosis_lines import diagnosis_lines
    from lattice.cli.output.table_renderer import join_blocks

    lines = diagnosis_lines(diagnosis, table_renderer(form)) if diagnosis else []
    if diagnosis and diagnosis["blockers"] and placement:
        placement = ["PLACEMENT", *placement]
    print_lines(join_blocks(lines, placement))
