"""`lattice simulate`: where would these workloads go on these nodes? Decided offline, nothing is sent anywhere."""

import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from lattice.cli.output import formats as output, messages as say
from lattice.cli.client.options import Command
from lattice.errors import Cause, Invalid, LatticeError, NotFound

if TYPE_CHECKING:
    from lattice.cli.fleet.inventory import Inventory
    from lattice.kinds.meta.yaml_manifest import Document
    from lattice.scheduling.cycle.profile import ProfileSpec
    from lattice.scheduling.offline.simulate import Report

LONG = 2000  # workloads from which on it takes long enough to watch
WARNED = 20  # oddities told one by one
SEEDS = 2**63


class Seed(click.ParamType):  # type: ignore[type-arg]
    """A whole number that fits into 64 bits."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            seed = int(value)
        except ValueError:
            self.fail(f"must be a whole number such as 7, got {value!r}", param, ctx)
        if not -SEEDS <= seed < SEEDS:
            self.fail(f"must be from -2^63 to 2^63 - 1, got {value}", param, ctx)
        return seed


class Chosen(NamedTuple):
    """How to decide: by which profile, with which dice."""

    profile: "ProfileSpec"
    dice: random.Random
    seed: int


@dataclass(frozen=True)
class Options:
    files: tuple[str, ...]
    form: output.Form
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
    chosen = profile_named(asked.profile, asked.seed)
    report = _simulated(found, asked.explain, chosen)
    _warn(report, found)
    from lattice.cli.output import simulation_report as forecast

    if asked.form.name == "json":
        output.show(output.written(forecast.as_json(report, asked.profile, chosen.seed), asked.form))
    else:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        for line in forecast.lines(report, wide=asked.form.name == "wide", columns=columns):
            click.echo(line)
    say.note(forecast.timing(report))
    return 1 if asked.exit_code and report.unplaced else 0


def _inventory(asked: Options) -> "Inventory | None":
    """None: something is wrong with the manifests, and was said."""
    from lattice.cli.fleet.inventory import REPORTED, read

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


def _warn(report: "Report", found: "Inventory") -> None:
    for odd in report.odd[:WARNED]:
        say.warning(f"{found.place_of(odd.kind, odd.name)}{odd.kind} {odd.name} {odd.what}")
    if len(report.odd) > WARNED:
        say.warning(f"and {len(report.odd) - WARNED:,} more like these; -o json lists all")


def _simulated(found: "Inventory", to_explain: str, chosen: Chosen) -> "Report":
    from lattice.scheduling.offline.simulate import Run
    from lattice.scheduling.offline.simulate import simulate as decide_all

    explain = to_explain if "/" in to_explain or not to_explain else f"default/{to_explain}"
    with _progress(len(found.workloads)) as tell:
        run = Run(chosen.profile, chosen.seed, chosen.dice, time.perf_counter, tell, explain)
        try:
            return decide_all(found.nodes.values(), found.workloads.values(), run)
        except NotFound as e:
            raise NotFound(e.what, where=f"{found.place_of('workload', e.where)}{e.where}", fix=e.fix) from e


def profile_named(name: str, seed: int | None) -> Chosen:
    """A preset, or a profile that the user wrote. Equals go by the table's own order unless the profile says how."""
    from lattice.scheduling.cycle.profile import PRESETS, preset

    if name in PRESETS or not (Path(name).suffix or "/" in name or Path(name).exists()):
        spec = preset(name)
    else:
        spec = _written_profile(_profile_document(name))
    chosen = spec.seed if seed is None else seed
    return Chosen(spec, random.Random(chosen), chosen)  # noqa: S311 - a tie, not a secret


def _written_profile(document: "Document") -> "ProfileSpec":
    from lattice.scheduling.cycle.profile import parse_profile

    try:
        return parse_profile(document.value)
    except Invalid as e:
        in_order = sorted(e.causes, key=lambda cause: document.line_of(cause.field))
        causes = [
            Cause(f"{document.at(cause.field)}: {cause.field}", cause.message, cause.reason)
            for cause in in_order
        ]
        raise Invalid("is not a profile", where=document.source, fix=e.fix, causes=causes) from e


def _profile_document(name: str) -> "Document":
    """The one mapping in a file."""
    from lattice.cli.client.manifests import documents

    fix = "give a file with one mapping, such as `scores: {BinPacking: 1}`, or the name of a preset"
    if Path(name).is_dir():
        raise Invalid("is a folder, not a profile", where=name, fix=fix)
    try:
        found = documents([name])
    except LatticeError as e:
        if "manifest" not in e.what:
            raise
        raise Invalid(e.what.replace("manifest", "profile"), where=e.where or name, fix=fix) from e
    if len(found) > 1:
        raise Invalid(f"holds {len(found)} documents, a profile is one", where=name, fix=fix)
    return found[0]


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
