"""`lattice up`: everything on this machine, in one process, and the next three things to try."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from lattice.cli.server import configure_logging, settings_flags, until_stopped
from lattice.settings import Settings

if TYPE_CHECKING:
    from lattice.cli.serve import Running


@click.command()
@settings_flags("data-dir", "store", "listen", "port", "allow-etcd-that-loses-writes")
@click.option("--apply", "manifests", multiple=True, metavar="FILE|DIR", help="Apply these once it runs. Repeatable.")
@click.option("--log", "log_file", default="", metavar="FILE", help="Write the log here instead of server.log in the data folder.")
def up(manifests: tuple[str, ...], log_file: str, **values: Any) -> None:
    """Run everything on this machine, in one process: the server and its store.

    State stays in the data folder: stop with Ctrl-C, start again, and everything is there.

    \b
    Examples:
      lattice up
      lattice up --apply examples/quickstart
      lattice up --data-dir /tmp/try --port 0
    """
    settings = Settings(**values)
    asyncio.run(_run(settings, manifests, log_file))


async def _run(settings: Settings, manifests: tuple[str, ...], log_file: str) -> None:
    from lattice.cli.serve import serve

    folder = Path(settings.data_dir)
    os.umask(0o077)  # the log tells more than others need to know
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _logging_to(Path(log_file) if log_file else folder / "server.log"):
        async with serve(settings, fallback_port=True) as running:
            stopped = asyncio.create_task(until_stopped())
            _greet(running, settings)
            for manifest in manifests:
                await asyncio.to_thread(_apply, running.kubeconfig, manifest)
            if manifests:
                click.echo("")
            _suggest(running)
            await stopped
            click.echo("\nstopping; the state stays in " + _near(folder.resolve()))


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
    click.echo("")


def _apply(kubeconfig: Path, manifest: str) -> None:
    """By the public API, as anybody would."""
    command = [sys.executable, "-m", "lattice.cli.main", "apply", "--kubeconfig", str(kubeconfig), "-f", manifest]
    sys.stdout.flush()
    subprocess.run(command, check=False)


def _suggest(running: "Running") -> None:
    path, lattice = _near(running.kubeconfig), _called()
    click.echo("Try, in another terminal:")
    for command, why in (
        (f"{lattice} get pools,services -A", "what is declared"),
        (f"kubectl --kubeconfig {path} get lattice -A", "the same, with kubectl"),
        (f"{lattice} apply -f examples/worlds/seed-000", "declare more"),
    ):
        click.echo(f"  {command:<58} {why}")
    click.echo("\nCtrl-C stops it.")


def _called() -> str:
    """What to type to run this program again."""
    return "lattice" if shutil.which("lattice") else _near(Path(sys.argv[0]).resolve())


def _near(path: Path) -> str:
    """As short as it can be said from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
