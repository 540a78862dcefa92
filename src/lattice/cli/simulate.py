"""`lattice simulate`: where would these workloads go on these nodes? Decided offline, nothing is sent anywhere."""

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lattice.cli import output, say
from lattice.cli.options import Command
from lattice.errors import Cause, Invalid

if TYPE_CHECKING:
    from lattice.cli.inventory import Inventory
    from lattice.engine.plugin import Profile
    from lattice.scheduling.select import Selector

LONG = 2000  # workloads from which on it takes long enough to watch


@dataclass(frozen=True)
class Options:
    files: tuple[str, ...]
    form: output.Form
    recursive: bool = False
    profile: str = "balanced"
    seed: int = 0
    explain: str = ""
    exit_code: bool = False


@click.command(cls=Command)
@click.option(
    "-f", "--filename", "files", multiple=True, required=True, metavar="FILE|DIR|-", help="Where the manifests are; may be given again."
)
@click.option("-R", "--recursive", is_flag=True, help="Look in folders below, too.")
@click.option("--profile", default="balanced", show_default=True, metavar="NAME|FILE", help="Which plugins count how much.")
@click.option("--seed", type=click.IntRange(-(2**63), 2**63 - 1), default=0, show_default=True, help="Another order among equals.")
@click.option("--explain", default="", metavar="WORKLOAD", help="Also say for every node why it takes this workload or not.")
@click.option("--exit-code", is_flag=True, help="End with 1 if something is not placed; otherwise 0 once everything is decided.")
@click.option(
    "-o",
    "--output",
    "form",
    type=output.FormType("table", "wide", "json"),
    default=output.Form(),
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
    asked = Options(**options)
    found = _inventory(asked)
    if found is None:
        return 1
    report = _simulated(found, asked)
    from lattice.cli import forecast

    if asked.form.name == "json":
        output.show(output.written(forecast.as_json(report, asked.profile, asked.seed), asked.form))
    else:
        for line in forecast.lines(report, wide=asked.form.name == "wide"):
            click.echo(line)
    say.note(forecast.timing(report))
    return 1 if asked.exit_code and report.unplaced else 0


def _inventory(asked: Options) -> "Inventory | None":
    """None: something is wrong with the manifests, and was said."""
    from lattice.cli.inventory import REPORTED, read

    found = read(asked.files, asked.recursive)
    for problem in found.problems:
        say.error(problem)
    if found.is_hopeless:
        say.note(f"gave up after {REPORTED} problems")
    if found.problems:
        return None
    if found.ignored:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.ignored.items()))
        say.note(f"ignored {kinds}: only LatticeNode and LatticeWorkload matter here")
    return found


def _simulated(found: "Inventory", asked: Options) -> Any:
    from lattice.scheduling.simulate import Run
    from lattice.scheduling.simulate import simulate as decide_all

    explain = asked.explain if "/" in asked.explain or not asked.explain else f"default/{asked.explain}"
    profile, selector = profile_named(asked.profile, asked.seed)
    with _progress(len(found.workloads)) as tell:
        run = Run(profile, asked.seed, selector, time.perf_counter, tell, explain)
        return decide_all(found.nodes.values(), found.workloads.values(), run)


def profile_named(name: str, seed: int) -> "tuple[Profile, Selector]":
    """A preset, or a profile that the user wrote. Equals go by the table's own order unless the profile says how."""
    from lattice.scheduling.profile import PRESETS, compile_profile, parse_profile, preset
    from lattice.scheduling.select import Selector, TieBreaker

    if name in PRESETS or not (Path(name).suffix or "/" in name):
        return compile_profile(preset(name)), Selector()
    from lattice.cli.sources import documents

    document = documents([name])[0]
    try:
        spec = parse_profile(document.value)
    except Invalid as e:
        causes = [Cause(f"{document.at(cause.field)}: {cause.field}", cause.message, cause.reason) for cause in e.causes]
        raise Invalid("is not a profile", where=name, fix=e.fix, causes=causes) from e
    told = "tieBreaker" in document.value
    selector = Selector(TieBreaker(spec.tie_breaker), random.Random(seed or spec.seed)) if told else Selector()  # noqa: S311 - a tie, not a secret
    return compile_profile(spec), selector


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    if total < LONG or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("deciding", total=total)
        yield lambda done: bar.update(task, completed=done)
