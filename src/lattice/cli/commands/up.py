"""`lattice up`: everything on this machine, and the next things to try."""

import asyncio
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from lattice.cli.client.config import is_default_kubeconfig
from lattice.cli.client.server_settings import config_flag
from lattice.cli.commands.server import SERVER_FLAGS, configure_logging, install_stop_event, settings_flags
from lattice.settings import Settings

if TYPE_CHECKING:
    from lattice.app.serve import RunningServer

UNSEEDED_MARKER_FILE = (
    "unseeded"  # a file in the data folder, from before the state is made until the seeds are applied
)
UNPLACEABLE_EXAMPLE = "examples/vault.yaml"  # a service that fits nowhere in the quickstart
EXAMPLE_DIRS = (
    Path(__file__).parents[2] / "examples",
    Path(__file__).parents[4] / "examples",
)  # in a wheel; in a checkout


@click.command()
@config_flag("LATTICE_CONFIG")
@settings_flags(*SERVER_FLAGS)
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    metavar="FILE|DIR|quickstart",
    help="Apply these, or the built-in example, when the state is new. Repeatable.",
)
@click.option(
    "--apply", "manifests", multiple=True, metavar="FILE|DIR", help="Apply these at every start. Repeatable."
)
@click.option(
    "--log",
    "log_file",
    default="",
    metavar="FILE",
    help="Write the log here instead of server.log in the data folder.",
)
def up(seeds: tuple[str, ...], manifests: tuple[str, ...], log_file: str, **values: Any) -> None:
    """Run everything on this machine: the server, its store, and agents that services run on.

    State stays in the data folder: stop with Ctrl-C, start again, and everything is there.

    \b
    Examples:
      lattice up
      lattice up --seed quickstart
      lattice up --data-dir /tmp/try --port 0
    """
    chosen = (
        click.get_current_context().get_parameter_source("port") is not click.core.ParameterSource.DEFAULT
    )
    asyncio.run(_run(Settings(**values), UpOptions(seeds, manifests, log_file, fallback_port=not chosen)))


@dataclass(frozen=True)
class UpOptions:
    seeds: tuple[str, ...]
    manifests: tuple[str, ...]
    log_file: str
    fallback_port: bool  # who chose a port means that one


async def _run(settings: Settings, start: UpOptions) -> None:
    from lattice.app.serve import serve

    folder = Path(settings.data_dir)
    blank = not settings.store and not (folder / "state.db").exists()
    _check_seeds(start.seeds, blank)
    os.umask(0o077)  # the log tells more than others need to know
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    unseeded = folder / UNSEEDED_MARKER_FILE
    if start.seeds and blank:
        unseeded.touch()
    with _logging_to(Path(start.log_file) if start.log_file else folder / "server.log"):
        async with serve(settings, fallback_port=start.fallback_port) as running:
            stop = install_stop_event()
            _print_banner(running, settings)
            new = not running.is_resumed or unseeded.exists()
            if start.seeds and not new:
                _print_unused_seeds(start.seeds, running.kubeconfig)
            for manifest in (*(map(_resolve_seed, start.seeds) if new else ()), *start.manifests):
                await asyncio.to_thread(_apply, running.kubeconfig, manifest)
            if not stop.is_set():
                unseeded.unlink(missing_ok=True)
            if start.seeds or start.manifests:
                click.echo("")
            _print_suggestions(running)
            await stop.wait()
            click.echo("\nstopping; the state stays in " + _relative_path(folder.resolve()))


def _check_seeds(seeds: tuple[str, ...], blank: bool) -> None:
    """Before anything is made: a state that began without its seeds would never get them. What is kept already is not judged again."""
    from lattice.cli.client.manifests import read_manifests
    from lattice.cli.commands.apply import validate_locally

    if places := [_resolve_seed(seed) for seed in seeds if seed != "-"]:
        read_manifests(places, check=validate_locally if blank else lambda document, target: None)


def _print_unused_seeds(seeds: tuple[str, ...], kubeconfig: Path) -> None:
    click.echo(f"state resumed; {', '.join(seeds)} is applied only when the state is new")
    told = (
        ""
        if is_default_kubeconfig(kubeconfig)
        else f" --kubeconfig {shlex.quote(_relative_path(kubeconfig))}"
    )
    files = "".join(f" -f {shlex.quote(_resolve_seed(seed))}" for seed in seeds)
    click.echo(f"  to apply it now: {_program_name()} apply{told}{files}\n")


def _resolve_seed(seed: str) -> str:
    """A file or folder of the user's; else an example that comes with Lattice, if one is called so."""
    examples = [str(folder / seed) for folder in EXAMPLE_DIRS if (folder / seed).exists()]
    return seed if Path(seed).exists() or not examples else examples[0]


class _logging_to:  # noqa: N801 - reads as a phrase where it is used
    """The terminal is for people; the log goes to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        import structlog

        configure_logging(verbose=False)
        self._file = self._path.open("a")
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(cast("TextIO", self)))

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def write(self, line: str) -> None:
        """A full disk must not stop what only wanted to tell something."""
        with contextlib.suppress(OSError):
            self._file.write(line)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


def _print_banner(running: "RunningServer", settings: Settings) -> None:
    click.echo(f"Lattice is {'back ' if running.is_resumed else ''}up at {running.url}")
    if running.used_fallback_port:
        click.echo(f"  (port {settings.port} was taken)")
    click.echo(
        f"  state       {_relative_path(Path(running.store_location)) if '://' not in running.store_location else running.store_location}"
    )
    click.echo(f"  kubeconfig  {_relative_path(running.kubeconfig)}")
    click.echo(f"  page        {running.sign_in_url}")
    click.echo("")


def _apply(kubeconfig: Path, manifest: str) -> None:
    """By the public API, as anybody would."""
    command = [
        sys.executable,
        "-m",
        "lattice.cli.main",
        "apply",
        "--kubeconfig",
        str(kubeconfig),
        "-f",
        manifest,
    ]
    sys.stdout.flush()
    subprocess.run(command, check=False)


def _print_suggestions(running: "RunningServer") -> None:
    click.echo("Try, in another terminal:")
    for command, why in suggestions(running.kubeconfig):
        click.echo(f"  {command:<57}  {why}")
    click.echo("\nCtrl-C stops it.")


def suggestions(kubeconfig: Path) -> list[tuple[str, str]]:
    """Commands that work as they are printed, from the folder that this was started in."""
    named = f" --kubeconfig {shlex.quote(_relative_path(kubeconfig))}"
    lattice, told = _program_name(), "" if is_default_kubeconfig(kubeconfig) else named
    more = (
        (f"{lattice} plan{told} -f {UNPLACEABLE_EXAMPLE}", "what a change would do")
        if Path(UNPLACEABLE_EXAMPLE).exists()
        else (f"{lattice} --help", "what else there is")
    )
    return [
        (f"{lattice} top{told}", "what runs where, live"),
        (f"kubectl{named} get lattice -A", "everything, with kubectl"),
        (f"{lattice} cost{told}", "what it costs"),
        more,
    ]


def _program_name() -> str:
    """What to type to run this program again: its name where that finds it, else its path."""
    own, found = Path(sys.executable).parent / "lattice", shutil.which("lattice")
    if found and (not own.exists() or Path(found).samefile(own)):
        return "lattice"
    return shlex.quote(_relative_path(own if own.exists() else Path(sys.argv[0]).resolve()))


def _relative_path(path: Path) -> str:
    """As short as it can be said from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
