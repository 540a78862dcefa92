"""`lattice up`: server, store and agents on this machine, and suggestions of commands to try."""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from lattice.cli.client.config import is_default_kubeconfig
from lattice.cli.client.daemon_flags import config_flag
from lattice.cli.commands.server import SERVER_FLAGS, configure_logging, install_stop_event, settings_flags
from lattice.settings import Settings

if TYPE_CHECKING:
    from lattice.app.serve import RunningServer

# This marker file exists in the data folder from the creation of the state until the seeds are applied.
UNSEEDED_MARKER_FILE = "unseeded"
# A service that fits nowhere in the quickstart.
UNPLACEABLE_EXAMPLE = "examples/vault.yaml"
# The folder of the examples in an installed wheel, and in a checkout.
EXAMPLE_DIRS = (Path(__file__).parents[2] / "examples", Path(__file__).parents[4] / "examples")


@click.command()
@config_flag("LATTICE_CONFIG")
@settings_flags(*SERVER_FLAGS)
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    metavar="FILE|DIR|quickstart",
    help="Manifests, or the built-in quickstart, to apply when the state is new. Repeatable.",
)
@click.option(
    "--apply",
    "manifests",
    multiple=True,
    metavar="FILE|DIR",
    help="Manifests to apply at every start. Repeatable.",
)
@click.option(
    "--log",
    "log_file",
    default="",
    metavar="FILE",
    help="Write the log here instead of server.log in the data folder.",
)
def up(seeds: tuple[str, ...], manifests: tuple[str, ...], log_file: str, **values: Any) -> None:
    """Run everything on this machine: server, store and agents.

    The data folder keeps the state: stop with Ctrl-C, start again, and everything is there.

    \b
    Examples:
      lattice up
      lattice up --seed quickstart
      lattice up --data-dir /tmp/try --port 0
    """
    is_port_chosen = (
        click.get_current_context().get_parameter_source("port") is not click.core.ParameterSource.DEFAULT
    )
    asyncio.run(
        _run(Settings(**values), UpOptions(seeds, manifests, log_file, fallback_port=not is_port_chosen))
    )


@dataclass(frozen=True)
class UpOptions:
    seeds: tuple[str, ...]
    manifests: tuple[str, ...]
    log_file: str
    # A port that the user chose is never replaced by another port.
    fallback_port: bool


async def _run(settings: Settings, options: UpOptions) -> None:
    from lattice.app.serve import serve

    folder = Path(settings.data_dir)
    # Checked before the server creates the file.
    is_new_state = not settings.store and not (folder / "state.db").exists()
    # Standard input can be read only once, and the apply reads it: `-` is not validated here.
    if sources := [_resolve_seed(seed) for seed in options.seeds if seed != "-"]:
        from lattice.cli.client.manifests import read_manifests
        from lattice.cli.commands.apply import validate_locally

        # Before the state is created: a state that began without its seeds never gets them. Seeds of an
        # existing state are only parsed.
        read_manifests(sources, check=validate_locally if is_new_state else lambda document, target: None)
    # The log and the state may hold secrets: only this user may read them.
    os.umask(0o077)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    unseeded = folder / UNSEEDED_MARKER_FILE
    # The marker survives a crash: the next start applies the seeds that this start did not reach.
    if options.seeds and is_new_state:
        unseeded.touch()
    with _logging_to(Path(options.log_file) if options.log_file else folder / "server.log"):
        async with serve(settings, fallback_port=options.fallback_port) as running:
            stop = install_stop_event()
            _print_banner(running, settings)
            new = not running.is_resumed or unseeded.exists()
            if options.seeds and not new:
                _print_unused_seeds(options.seeds, running.kubeconfig)
            for manifest in (*(map(_resolve_seed, options.seeds) if new else ()), *options.manifests):
                # In a thread: the server that answers the apply runs on this event loop.
                await asyncio.to_thread(_apply, running.kubeconfig, manifest)
            # Interrupted seeds: keep the marker, so that the next start applies them.
            if not stop.is_set():
                unseeded.unlink(missing_ok=True)
            if options.seeds or options.manifests:
                click.echo("")
            click.echo("Try, in another terminal:")
            shown = suggestions(running.kubeconfig)
            width = max(len(command) for command, _ in shown)
            for command, purpose in shown:
                click.echo(f"  {command:<{width}}  {purpose}")
            click.echo("\nPress Ctrl-C to stop.")
            await stop.wait()
            click.echo("\nstopping; the state stays in " + _relative_path(folder.resolve()))
            # The agents need some seconds to stop their workloads; another Ctrl-C would only leave these running.
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGINT, click.echo, "still stopping: the agents end their workloads first"
            )


def _print_unused_seeds(seeds: tuple[str, ...], kubeconfig: Path) -> None:
    click.echo(f"state resumed; {', '.join(seeds)} is applied only when the state is new")
    kubeconfig_flag = (
        ""
        if is_default_kubeconfig(kubeconfig)
        else f" --kubeconfig {shlex.quote(_relative_path(kubeconfig))}"
    )
    files = "".join(f" -f {shlex.quote(_resolve_seed(seed))}" for seed in seeds)
    click.echo(f"  to apply the manifests now: {_program_name()} apply{kubeconfig_flag}{files}\n")


def _resolve_seed(seed: str) -> str:
    """The user's file or folder, else the bundled example of that name."""
    examples = [str(folder / seed) for folder in EXAMPLE_DIRS if (folder / seed).exists()]
    return seed if Path(seed).exists() or not examples else examples[0]


class _logging_to:  # noqa: N801 - reads as a phrase where it is used
    """Context that writes the log to a file, because the terminal is for the user."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        import structlog

        configure_logging(verbose=False, in_words=False)
        self._file = self._path.open("a")
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(cast("TextIO", self)))

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def write(self, line: str) -> None:
        """Write a log line; a full disk must not stop the server."""
        with contextlib.suppress(OSError):
            self._file.write(line)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


def _print_banner(running: "RunningServer", settings: Settings) -> None:
    click.echo(f"Lattice is {'back ' if running.is_resumed else ''}up at {running.url}")
    if running.used_fallback_port:
        click.echo(f"  (port {settings.port} is in use)")
    location = running.store_location
    shown = location if "://" in location else _relative_path(Path(location))
    click.echo(f"  state       {shown}")
    click.echo(f"  kubeconfig  {_relative_path(running.kubeconfig)}")
    click.echo(f"  page        {running.sign_in_url}")
    click.echo("")


def _apply(kubeconfig: Path, manifest: str) -> None:
    """Apply a manifest through the public API, in a subprocess."""
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
    # The subprocess prints to the same terminal.
    sys.stdout.flush()
    # A failed apply has printed its error, and the server goes on.
    subprocess.run(command, check=False)


def suggestions(kubeconfig: Path) -> list[tuple[str, str]]:
    """Commands, with their purposes, that work as printed in the current folder."""
    named = f" --kubeconfig {shlex.quote(_relative_path(kubeconfig))}"
    lattice, flag = _program_name(), "" if is_default_kubeconfig(kubeconfig) else named
    last = (
        (f"{lattice} plan{flag} -f {UNPLACEABLE_EXAMPLE}", "effect of a change")
        if Path(UNPLACEABLE_EXAMPLE).exists()
        else (f"{lattice} --help", "all commands")
    )
    return [
        (f"{lattice} top{flag}", "current usage and cost"),
        (f"kubectl{named} get lattice -A", "all objects, with kubectl"),
        (f"{lattice} cost{flag}", "cost by pool"),
        last,
    ]


def _program_name() -> str:
    """The command that runs this program: its name if the PATH finds the program, else its path."""
    own_path, path_on_path = Path(sys.executable).parent / "lattice", shutil.which("lattice")
    if path_on_path and (not own_path.exists() or Path(path_on_path).samefile(own_path)):
        return "lattice"
    return shlex.quote(_relative_path(own_path if own_path.exists() else Path(sys.argv[0]).resolve()))


def _relative_path(path: Path) -> str:
    """The path relative to the current folder if below the folder, else the full path."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
