"""`lattice logs`: output of a workload or of all replicas of a service, with -f also new output."""

import queue
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from lattice.cli.client.http import Client, Request
from lattice.cli.client.kind_names import resource_path
from lattice.cli.client.options import Command, Connection, with_connection
from lattice.cli.client.workload_selection import select_workloads
from lattice.cli.output import messages as say
from lattice.errors import LatticeError, NotFound, UsageError
from lattice.kinds.workload import LatticeWorkload

# Every followed log needs a connection and a thread.
MAX_FOLLOWED_LOGS = 20
# Lines per replica with --all.
DEFAULT_TAIL_LINES = 10
Object = dict[str, Any]


@dataclass(frozen=True)
class LogsOptions:
    container: str = ""
    tail: int | None = None
    follow: bool = False
    all_replicas: bool = False
    prefix: bool | None = None


@click.command(cls=Command)
@click.argument("word", metavar="WORKLOAD|service/NAME")
@click.option("-c", "--container", default="", metavar="NAME", help="Container, if the workload has several.")
@click.option(
    "--tail",
    type=int,
    metavar="N",
    help=f"Number of last lines; -1 for all. Default with --all: {DEFAULT_TAIL_LINES} per replica.",
)
@click.option("-f", "--follow", is_flag=True, help="Print the output, then all new output.")
@click.option(
    "--all",
    "all_replicas",
    is_flag=True,
    help="Show all replicas of the service, with the replica's name on each line.",
)
@click.option("--prefix/--no-prefix", default=None, help="Print the replica's name before each line.")
@with_connection
def logs(connection: Connection, word: str, **options: Any) -> int:
    """Show the output of a workload. For a service, of one replica (a ready one if there is any), or of all
    replicas with --all.

    If the node does not answer, the last received lines are shown.

    \b
    Examples:
      lattice logs web-0                  one workload
      lattice logs service/web -f         a replica of a service, with new output
      lattice logs service/web --all -f   all replicas
      lattice logs job -c main --tail 20  the last lines of one container
    """
    choices = LogsOptions(**options)
    if choices.tail is not None and choices.tail < -1:
        raise UsageError(
            f"must be -1 or more, got {choices.tail}",
            where="--tail",
            fix="give a number of lines, or -1 for all",
        )
    return Logs(connection, choices).run(word)


@dataclass(frozen=True)
class Logs:
    """Prints or follows the logs of the selected workloads."""

    connection: Connection
    options: LogsOptions

    def run(self, word: str) -> int:
        selection = select_workloads(self.connection, word)
        if not selection.workloads:
            raise NotFound(
                f"service/{selection.service} has no replicas",
                fix=f"`lattice why service/{selection.service}` explains why",
            )
        if not self.options.all_replicas:
            chosen, *other_replicas = selection.workloads
            if other_replicas:
                say.note(
                    f"showing {chosen['metadata']['name']} of {len(other_replicas) + 1} replicas; --all shows all"
                )
            selection = selection._replace(workloads=[chosen])
        if len(selection.workloads) > MAX_FOLLOWED_LOGS and self.options.follow:
            raise UsageError(
                f"{len(selection.workloads)} logs are too many to follow",
                fix=f"name one replica; at most {MAX_FOLLOWED_LOGS} logs can be followed",
            )
        if self.options.follow and len(selection.workloads) > 1:
            return self._follow_all(selection.workloads)
        codes = set()
        for workload in selection.workloads:
            try:
                has_output = False
                for piece in self._stream_log(workload, self.connection.client):
                    has_output = has_output or bool(piece)
                    sys.stdout.buffer.write(piece)
                    sys.stdout.buffer.flush()
                if not has_output:
                    say.note(no_output_message(workload))
            except LatticeError as error:
                say.error(error)
                codes.add(error.exit_code)
        return say.combined_exit_code(codes)

    def _follow_all(self, workloads: list[Object]) -> int:
        """Follow several logs at once, line by line; returns when every stream has ended."""
        # Bounded: a slow terminal must slow the readers down instead of filling the memory.
        lines: queue.Queue[bytes | LatticeError | None] = queue.Queue(1000)
        for workload in workloads:
            # Daemon threads: Ctrl-C must not wait for open streams.
            threading.Thread(target=self._follow, args=(workload, lines), daemon=True).start()
        open_streams, codes = len(workloads), set()
        while open_streams:
            line = lines.get()
            if isinstance(line, bytes):
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            elif line is None:
                open_streams -= 1
            else:
                say.error(line)
                codes.add(line.exit_code)
        return say.combined_exit_code(codes)

    def _follow(self, workload: Object, lines: "queue.Queue[bytes | LatticeError | None]") -> None:
        # http.client connections are not safe to share between threads.
        client = Client(self.connection.server, self.connection.timeout)
        try:
            for line in self._stream_log(workload, client):
                lines.put(line)
        except LatticeError as error:
            lines.put(error)
        finally:
            lines.put(None)

    def _stream_log(self, workload: Object, client: Client) -> Iterator[bytes]:
        metadata = workload["metadata"]
        path = f"{resource_path(LatticeWorkload.resource, metadata['namespace'], metadata['name'])}/log"
        tail = DEFAULT_TAIL_LINES if self.options.all_replicas else -1
        if self.options.tail is not None:
            tail = self.options.tail
        query = {
            "container": self.options.container,
            "tail": str(tail),
            "follow": "true" if self.options.follow else "",
        }
        pieces = client.stream_text(Request("GET", path, query, accept="*/*"))
        wants_prefix = self.options.all_replicas if self.options.prefix is None else self.options.prefix
        yield from (prefix_lines(pieces, f"[{metadata['name']}] ".encode()) if wants_prefix else pieces)


def no_output_message(workload: Object) -> str:
    """Why the log of a workload is empty: its failure, or its state."""
    name, status = workload["metadata"]["name"], workload.get("status") or {}
    if not status.get("failureReason"):
        return f"{name} has no output; its state is {status.get('actualState', 'Pending')}"
    details = status.get("failureMessage", "")
    failure = f"{status['failureReason']}: {details}" if details else status["failureReason"]
    exit_code = status.get("lastExitCode")
    code = f" (exit code {exit_code})" if exit_code is not None else ""
    return f"{name} has no output; its last run failed: {failure}{code}. `lattice why workload/{name}` shows more"


def prefix_lines(pieces: Iterator[bytes], prefix: bytes) -> Iterator[bytes]:
    """Complete lines, each with the prefix; a last line without a line break gets one."""
    incomplete = b""
    for piece in pieces:
        *complete, incomplete = (incomplete + piece).split(b"\n")
        if complete:
            yield b"".join(prefix + line + b"\n" for line in complete)
    if incomplete:
        yield prefix + incomplete + b"\n"
