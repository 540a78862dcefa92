"""`lattice logs`: what a workload printed, or all replicas of a service; with -f what it goes on to print."""

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

MAX_FOLLOWED_LOGS = 20  # logs that are followed at a time
DEFAULT_TAIL_LINES = 10  # lines of each, when there are several
Object = dict[str, Any]


@dataclass(frozen=True)
class LogsOptions:
    container: str = ""
    tail: int | None = None
    follow: bool = False
    every: bool = False
    prefix: bool | None = None


@click.command(cls=Command)
@click.argument("word", metavar="WORKLOAD|service/NAME")
@click.option("-c", "--container", default="", metavar="NAME", help="Which container, if there are several.")
@click.option(
    "--tail",
    type=int,
    metavar="N",
    help=f"Last lines only; -1 for all. With --all {DEFAULT_TAIL_LINES} of each by default.",
)
@click.option("-f", "--follow", is_flag=True, help="Then show what it prints from now on.")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="All replicas of the service, each line with the name of its replica.",
)
@click.option("--prefix/--no-prefix", default=None, help="Name the replica before each line.")
@with_connection
def logs(connection: Connection, word: str, **options: Any) -> int:
    """Show what a workload printed. Of a service, a replica that is well, or all.

    If its node does not answer, the last lines that were heard of it are shown.

    \b
    Examples:
      lattice logs web-0                  one workload
      lattice logs service/web -f         a replica of a service, as it prints
      lattice logs service/web --all -f   all of them
      lattice logs job -c main --tail 20  the last lines of one container
    """
    asked = LogsOptions(**options)
    if asked.tail is not None and asked.tail < -1:
        raise UsageError(
            f"there are no {asked.tail} lines", where="--tail", fix="give a number of lines, or -1 for all"
        )
    return Logs(connection, asked).run(word)


@dataclass(frozen=True)
class Logs:
    connection: Connection
    options: LogsOptions

    def run(self, word: str) -> int:
        found = select_workloads(self.connection, word)
        if not found.workloads:
            raise NotFound(
                f"service/{found.service} has no replicas",
                fix=f"`lattice why service/{found.service}` says why",
            )
        if not self.options.every:
            chosen, *others = found.workloads
            if others:
                say.note(f"{len(others) + 1} replicas, this is {chosen['metadata']['name']}; --all shows all")
            found = found._replace(workloads=[chosen])
        if len(found.workloads) > MAX_FOLLOWED_LOGS and self.options.follow:
            raise UsageError(
                f"{len(found.workloads)} logs are too many to follow at once",
                fix=f"name one; at most {MAX_FOLLOWED_LOGS} go together",
            )
        if self.options.follow and len(found.workloads) > 1:
            return self._follow_all(found.workloads)
        return say.combined_exit_code({code for each in found.workloads if (code := self._print_log(each))})

    def _print_log(self, workload: Object) -> int:
        try:
            for piece in self._stream_log(workload, self.connection.client):
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        except LatticeError as error:
            say.error(error)
            return error.exit_code
        return 0

    def _follow_all(self, workloads: list[Object]) -> int:
        """Line by line, as they come."""
        lines: queue.Queue[bytes | LatticeError | None] = queue.Queue(1000)
        for each in workloads:
            threading.Thread(target=self._follow, args=(each, lines), daemon=True).start()
        left, codes = len(workloads), set()
        while left:
            line = lines.get()
            if isinstance(line, bytes):
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            elif line is None:
                left -= 1
            else:
                say.error(line)
                codes.add(line.exit_code)
        return say.combined_exit_code(codes)

    def _follow(self, workload: Object, lines: "queue.Queue[bytes | LatticeError | None]") -> None:
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
        tail = (
            self.options.tail
            if self.options.tail is not None
            else DEFAULT_TAIL_LINES
            if self.options.every
            else -1
        )
        query = {
            "container": self.options.container,
            "tail": str(tail),
            "follow": "true" if self.options.follow else "",
        }
        pieces = client.stream_text(Request("GET", path, query, accept="*/*"))
        wants_prefix = self.options.every if self.options.prefix is None else self.options.prefix
        yield from (prefix_lines(pieces, f"[{metadata['name']}] ".encode()) if wants_prefix else pieces)


def prefix_lines(pieces: Iterator[bytes], prefix: bytes) -> Iterator[bytes]:
    """Whole lines, each with its prefix; a last one that has no end gets one."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        if whole:
            yield b"".join(prefix + line + b"\n" for line in whole)
    if rest:
        yield prefix + rest + b"\n"
