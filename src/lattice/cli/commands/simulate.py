"""`lattice simulate`: placements of workloads on nodes, decided offline from manifests."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from lattice.app.profile_file import ProfileChoice, load_profile
from lattice.cli.client.options import Command
from lattice.cli.output import messages as say
from lattice.cli.output import output_format as output
from lattice.errors import NotFound

if TYPE_CHECKING:
    from lattice.cli.fleet.inventory import Inventory
    from lattice.scheduling.offline.simulate import SimulationReport

# With this number of workloads or more, the simulation takes long enough to show progress.
PROGRESS_MIN_WORKLOADS = 2000
# Limit of printed warnings; further warnings are only counted.
MAX_WARNINGS = 20
SEED_LIMIT = 2**63


class Seed(click.ParamType):  # type: ignore[type-arg]
    """Click type of a seed: an integer of 64 bits."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            seed = int(value)
        except ValueError:
            self.fail(f"must be a whole number such as 7, got {value!r}", param, ctx)
        if not -SEED_LIMIT <= seed < SEED_LIMIT:
            self.fail(f"must be from -2^63 to 2^63 - 1, got {value}", param, ctx)
        return seed


@dataclass(frozen=True)
class SimulateOptions:
    files: tuple[str, ...]
    form: output.OutputFormat
    recursive: bool = False
    profile: str = "balanced"
    seed: int | None = None
    explain: str = ""
    exit_code: bool = False


@click.command(cls=Command)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE|DIR|-",
    help="File, folder, URL or - with manifests. Repeatable.",
)
@click.option("-R", "--recursive", is_flag=True, help="Include subfolders.")
@click.option(
    "--profile",
    default="balanced",
    show_default=True,
    metavar="NAME|FILE",
    help="Scheduling profile with the weights of the plugins.",
)
@click.option(
    "--seed",
    type=Seed(),
    default=None,
    metavar="INTEGER",
    help="Seed for ties; default: the profile's seed, or 0.",
)
@click.option(
    "--explain",
    default="",
    metavar="WORKLOAD",
    help="Also explain for every node why it accepts or rejects this workload.",
)
@click.option(
    "--exit-code",
    is_flag=True,
    help="Exit with 1 if a workload is not placed.",
)
@output.output_option("table", "wide", "json", help_text="table, wide (every placement) or json.")
def simulate(**options: Any) -> int:
    """Schedule workloads offline and explain the decisions.

    Reads LatticeNode and LatticeWorkload manifests: YAML, JSON, or one object per line (.jsonl) for large fleets. Bound
    workloads are on their node from the start; the others are scheduled by priority, then in the given order. The same
    manifests, profile and seed always give the same result.

    \b
    Examples:
      lattice simulate -f nodes.yaml -f workloads.jsonl
      lattice simulate -f fleet/ --profile resource-efficiency -o json
      lattice simulate -f fleet/ --explain shop/api-0
    """
    choices = SimulateOptions(**options)
    inventory = _load_inventory(choices)
    if inventory is None:
        return 1
    chosen = load_profile(choices.profile, choices.seed)
    report = _run_simulation(inventory, choices.explain, chosen)
    for warning in report.warnings[:MAX_WARNINGS]:
        location = inventory.location_of(warning.kind, warning.name)
        say.warning(f"{location}{warning.kind} {warning.name} {warning.message}")
    if len(report.warnings) > MAX_WARNINGS:
        say.warning(f"and {len(report.warnings) - MAX_WARNINGS:,} more warnings; -o json lists all")
    from lattice.cli.output import simulation_report

    if choices.form.name == "json":
        output.print_raw(
            output.serialize(simulation_report.as_json(report, choices.profile, chosen.seed), choices.form)
        )
    else:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        for line in simulation_report.report_lines(
            report, wide=choices.form.name == "wide", max_width=columns
        ):
            click.echo(line)
    say.note(simulation_report.timing(report))
    return 1 if choices.exit_code and report.unschedulable else 0


def _load_inventory(choices: SimulateOptions) -> "Inventory | None":
    """The nodes and workloads of the manifests, or None after printing the problems of the manifests."""
    from lattice.cli.fleet.inventory import MAX_PROBLEMS, read_inventory

    inventory = read_inventory(choices.files, choices.recursive)
    for problem in inventory.problems:
        say.error(problem)
    if inventory.has_too_many_problems:
        say.note(f"stopped after {MAX_PROBLEMS} problems")
    if inventory.problems:
        return None
    if inventory.ignored:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(inventory.ignored.items()))
        say.note(f"ignored {kinds}: simulate uses only LatticeNode and LatticeWorkload")
    return inventory


def _run_simulation(inventory: "Inventory", to_explain: str, chosen: ProfileChoice) -> "SimulationReport":
    from lattice.scheduling.offline.simulate import SimulationOptions
    from lattice.scheduling.offline.simulate import simulate as decide_all

    # A name without a namespace means the namespace default.
    explain = to_explain if "/" in to_explain or not to_explain else f"default/{to_explain}"
    with _progress(len(inventory.workloads)) as report_progress:
        run = SimulationOptions(
            chosen.profile, chosen.seed, chosen.rng, time.perf_counter, report_progress, explain
        )
        try:
            return decide_all(inventory.nodes.values(), inventory.workloads.values(), run)
        except NotFound as e:
            raise NotFound(
                e.message, where=f"{inventory.location_of('workload', e.where)}{e.where}", fix=e.fix
            ) from e


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    if total < PROGRESS_MIN_WORKLOADS or not sys.stderr.isatty():
        yield lambda done: None
        return
    progress = say.CountProgress(total, "workloads decided")
    try:
        yield progress.update
    finally:
        progress.erase()
