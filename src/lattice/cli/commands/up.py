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

from lattice.cli.client.config import is_found
from lattice.cli.commands.server import SERVER_FLAGS, configure_logging, settings_flags, stop_asked
from lattice.cli.client.settings_file import config_flag
from lattice.settings import Settings

if TYPE_CHECKING:
    from lattice.app.serve import Running

UNSEEDED = "unseeded"  # a file in the data folder, from before the state is made until the seeds are applied
MISFIT = "examples/vault.yaml"  # a service that fits nowhere in the quickstart
EXAMPLES = (
    Path(__file__).parents[1] / "examples",
    Path(__file__).parents[3] / "examples",
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
    asyncio.run(_run(Settings(**values), Start(seeds, manifests, log_file, fallback_port=not chosen)))


@dataclass(frozen=True)
class Start:
    seeds: tuple[str, ...]
    manifests: tuple[str, ...]
    log_file: str
    fallback_port: bool  # who chose a port means that one


async def _run(settings: Settings, start: Start) -> None:
    from lattice.app.serve import serve

    folder = Path(settings.data_dir)
    blank = not settings.store and not (folder / "state.db").exists()
    _refuse_unusable(start.seeds, blank)
    os.umask(0o077)  # the log tells more than others need to know
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    unseeded = folder / UNSEEDED
    if start.seeds and blank:
        unseeded.touch()
    with _logging_to(Path(start.log_file) if start.log_file else folder / "server.log"):
        async with serve(settings, fallback_port=start.fallback_port) as running:
            stop = stop_asked()
            _greet(running, settings)
            new = not running.resumed or unseeded.exists()
            if start.seeds and not new:
                _tell_unused(start.seeds, running.kubeconfig)
            for manifest in (*(map(_found, start.seeds) if new else ()), *start.manifests):
                await asyncio.to_thread(_apply, running.kubeconfig, manifest)
            if not stop.is_set():
                unseeded.unlink(missing_ok=True)
            if start.seeds or start.manifests:
                click.echo("")
            _suggest(running)
            await stop.wait()
            click.echo("\nstopping; the state stays in " + _near(folder.resolve()))


def _refuse_unusable(seeds: tuple[str, ...], blank: bool) -> None:
    """Before anything is made: a state that began without its seeds would never get them. What is kept already is not judged again."""
    from lattice.cli.commands.apply import check_alone
    from lattice.cli.client.manifests import manifests

    if places := [_found(seed) for seed in seeds if seed != "-"]:
        manifests(places, check=check_alone if blank else lambda document, target: None)


def _tell_unused(seeds: tuple[str, ...], kubeconfig: Path) -> None:
    click.echo(f"state resumed; {', '.join(seeds)} is applied only when the state is new")
    told = "" if is_found(kubeconfig) else f" --kubeconfig {shlex.quote(_near(kubeconfig))}"
    files = "".join(f" -f {shlex.quote(_found(seed))}" for seed in seeds)
    click.echo(f"  to apply it now: {_called()} apply{told}{files}\n")


def _found(seed: str) -> str:
    """A file or folder of the user's; else an example that comes with Lattice, if one is called so."""
    examples = [str(folder / seed) for folder in EXAMPLES if (folder / seed).exists()]
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


def _greet(running: "Running", settings: Settings) -> None:
    click.echo(f"Lattice is {'back ' if running.resumed else ''}up at {running.url}")
    if running.moved:
        click.echo(f"  (port {settings.port} was taken)")
    click.echo(f"  state       {_near(Path(running.store)) if '://' not in running.store else running.store}")
    click.echo(f"  kubeconfig  {_near(running.kubeconfig)}")
    click.echo(f"  page        {running.page}")
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


def _suggest(running: "Running") -> None:
    click.echo("Try, in another terminal:")
    for command, why in suggestions(running.kubeconfig):
        click.echo(f"  {command:<57}  {why}")
    click.echo("\nCtrl-C stops it.")


def suggestions(kubeconfig: Path) -> list[tuple[str, str]]:
    """Commands that work as they are printed, from the folder that this was started in."""
    named = f" --kubeconfig {shlex.quote(_near(kubeconfig))}"
    lattice, told = _called(), "" if is_found(kubeconfig) else named
    more = (
        (f"{lattice} plan{told} -f {MISFIT}", "what a change would do")
        if Path(MISFIT).exists()
        else (f"{lattice} --help", "what else there is")
    )
    return [
        (f"{lattice} top{told}", "what runs where, live"),
        (f"kubectl{named} get lattice -A", "everything, with kubectl"),
        (f"{lattice} cost{told}", "what it costs"),
        more,
    ]


def _called() -> str:
    """What to type to run this program again: its name where that finds it, else its path."""
    own, found = Path(sys.executable).parent / "lattice", shutil.which("lattice")
    if found and (not own.exists() or Path(found).samefile(own)):
        return "lattice"
    return shlex.quote(_near(own if own.exists() else Path(sys.argv[0]).resolve()))


def _near(path: Path) -> str:
    """As short as it can be said from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
