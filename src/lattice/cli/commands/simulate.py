"""`lattice simulate`: where would these workloads go on these nodes? Decided offline, nothing is sent anywhere."""

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

PROGRESS_MIN_WORKLOADS = 2000  # workloads from which on it takes long enough to watch
MAX_WARNINGS = 20  # oddities told one by one
SEED_LIMIT = 2**63


class Seed(click.ParamType):  # type: ignore[type-arg]
    """A whole number that fits into 64 bits."""

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
    help="Where the manifests are; may be given again.",
)
@click.option("-R", "--recursive", is_flag=True, help="Look in folders below, too.")
@click.option(
    "--profile",
    default="balanced",
    show_default=True,
    metavar="NAME|FILE",
    help="Which plugins count how much.",
)
@click.option(
    "--seed",
    type=Seed(),
    default=None,
    metavar="INTEGER",
    help="Another order among equals; the profile's seed, or 0, if absent.",
)
@click.option(
    "--explain",
    default="",
    metavar="WORKLOAD",
    help="Also say for every node why it takes this workload or not.",
)
@click.option(
    "--exit-code",
    is_flag=True,
    help="End with 1 if something is not placed; otherwise 0 once everything is decided.",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=output.OutputFormatType("table", "wide", "json"),
    default=output.OutputFormat(),
    metavar="FORM",
    help="table, wide (every placement) or json.",
)
def simulate(**options: Any) -> int:
    """Decide offline where workloads would go, and say why.

    Reads LatticeNode and LatticeWorkload manifests: YAML, JSON, or an object a line (.jsonl) for many. Workloads that have
    a binding are on their node from the start; the others are decided by priority, then in the order given. The same
    manifests, profile and seed always give the same placements.

    \b
    Examples:
      lattice simulate -f nodes.yaml -f workloads.jsonl
      lattice simulate -f fleet/ --profile resource-efficiency -o json
      lattice simulate -f fleet/ --explain shop/api-0
    """
    asked = SimulateOptions(**options)
    found = _load_inventory(asked)
    if found is None:
        return 1
    chosen = load_profile(asked.profile, asked.seed)
    report = _run_simulation(found, asked.explain, chosen)
    _print_warnings(report, found)
    from lattice.cli.output import simulation_report as forecast

    if asked.form.name == "json":
        output.print_raw(output.serialize(forecast.as_json(report, asked.profile, chosen.seed), asked.form))
    else:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        for line in forecast.report_lines(report, wide=asked.form.name == "wide", max_width=columns):
            click.echo(line)
    say.note(forecast.timing(report))
    return 1 if asked.exit_code and report.unschedulable else 0


def _load_inventory(asked: SimulateOptions) -> "Inventory | None":
    """None: something is wrong with the manifests, and was said."""
    from lattice.cli.fleet.inventory import MAX_PROBLEMS, read_inventory

    found = read_inventory(asked.files, asked.recursive)
    for problem in found.problems:
        say.error(problem)
    if found.has_too_many_problems:
        say.note(f"gave up after {MAX_PROBLEMS} problems")
    if found.problems:
        return None
    if found.ignored:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.ignored.items()))
        say.note(f"ignored {kinds}: only LatticeNode and LatticeWorkload matter here")
    return found


def _print_warnings(report: "SimulationReport", found: "Inventory") -> None:
    for odd in report.warnings[:MAX_WARNINGS]:
        say.warning(f"{found.location_of(odd.kind, odd.name)}{odd.kind} {odd.name} {odd.message}")
    if len(report.warnings) > MAX_WARNINGS:
        say.warning(f"and {len(report.warnings) - MAX_WARNINGS:,} more like these; -o json lists all")


def _run_simulation(found: "Inventory", to_explain: str, chosen: ProfileChoice) -> "SimulationReport":
    from lattice.scheduling.offline.simulate import SimulationOptions
    from lattice.scheduling.offline.simulate import simulate as decide_all

    explain = to_explain if "/" in to_explain or not to_explain else f"default/{to_explain}"
    with _progress(len(found.workloads)) as tell:
        run = SimulationOptions(chosen.profile, chosen.seed, chosen.rng, time.perf_counter, tell, explain)
        try:
            return decide_all(found.nodes.values(), found.workloads.values(), run)
        except NotFound as e:
            raise NotFound(
                e.message, where=f"{found.location_of('workload', e.where)}{e.where}", fix=e.fix
            ) from e


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    if total < PROGRESS_MIN_WORKLOADS or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("deciding", total=total)
        yield lambda done: bar.update(task, completed=done)
