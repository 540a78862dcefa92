"""`lattice top`: current usage and cost of pools, clusters, nodes and services, once or continuously."""

import os
import shutil
import sys
import time
from dataclasses import dataclass
from typing import Any

import click

from lattice.cli.client.options import Command, Connection, Duration, with_connection
from lattice.cli.output import output_format as output
from lattice.errors import UsageError
from lattice.kinds.meta.base import GROUP, VERSION

TOP_API_PATH = f"/apis/{GROUP}/{VERSION}/top"
PLURALS = {"pool": "pools", "cluster": "clusters", "node": "nodes", "service": "services"}
# The alternate screen keeps the terminal's previous content; the cursor is hidden.
_ENTER_SCREEN, _LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_CURSOR_HOME, _CLEAR_TO_LINE_END, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[pools|services|clusters|nodes]...")
@click.option("-w", "--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--interval",
    type=Duration(),
    default="2s",
    show_default=True,
    help="Time between refreshes with -w.",
    metavar="DURATION",
)
@output.output_option("table", "wide", "json", help_text="table, wide or json.")
@with_connection
def top(
    connection: Connection, words: tuple[str, ...], watch: bool, interval: float, form: output.OutputFormat
) -> None:
    """Show current usage, as measured by the nodes, and cost.

    CPU is in cores. Percentages are of the capacity for workloads. SPENT is the cost of this calendar month so far;
    PROJECTED is the cost of the month if nothing changes. `-o wide` lists every row, `-o json` is for programs.

    \b
    Examples:
      lattice top                    all tables, once
      lattice top -w                 refreshed every 2 seconds
      lattice top nodes -o wide
      lattice top services -o json
    """
    from lattice.cli.output.top_tables import TABLES

    names = []
    for word in words:
        names += [PLURALS.get(part, part) for part in word.lower().split(",") if part]
    if unknown := [name for name in names if name not in TABLES]:
        raise UsageError(f"there is no table {unknown[0]!r}", fix=f"choose from {', '.join(TABLES)}")
    view = Top(connection, ",".join(dict.fromkeys(names)), form)
    if not watch:
        click.echo(view.text(), nl=False)
        return
    # At most ten requests per second.
    view.watch(max(interval, 0.1))


@dataclass(frozen=True)
class Top:
    """The tables of usage that the user asked for, and their output format."""

    connection: Connection
    tables: str
    form: output.OutputFormat

    def fetch_usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = self.connection.client.get(TOP_API_PATH, {"of": self.tables})
        return usage

    def text(self) -> str:
        document = self.fetch_usage()
        if self.form.name == "json":
            return output.serialize(document, self.form)
        return "".join(f"{line}\n" for line in self._lines(document))

    def watch(self, interval: float) -> None:
        """Redraw in place on a terminal; to a pipe, print one result after the other with an empty line
        between."""
        # Output for a program or a pipe is never redrawn in place.
        if not sys.stdout.isatty() or self.form.name == "json":
            separator = ""
            while True:
                click.echo(separator + self.text(), nl=False)
                sys.stdout.flush()
                separator = "" if self.form.name == "json" else "\n"
                time.sleep(interval)
        sys.stdout.write(_ENTER_SCREEN)
        try:
            while True:
                document = self.fetch_usage()
                # Read for every frame, because the user may resize the window.
                size = shutil.get_terminal_size()
                head = f"{self.connection.server.url}   {document['at']}   every {interval:g} s, Ctrl-C ends"
                sys.stdout.write(render_frame([head, "", *self._lines(document)], size.columns, size.lines))
                sys.stdout.flush()
                time.sleep(interval)
        finally:
            # Also after Ctrl-C or an error: the terminal must be usable again.
            sys.stdout.write(_LEAVE_SCREEN)
            sys.stdout.flush()

    def _lines(self, document: dict[str, Any]) -> list[str]:
        from lattice.cli.output.table_renderer import TableRenderer
        from lattice.cli.output.top_tables import BarRenderer, top_lines

        return top_lines(
            document, TableRenderer(self.form.name == "wide"), BarRenderer(sys.stdout.encoding or "")
        )


def render_frame(lines: list[str], columns: int, rows: int) -> str:
    """One frame for the terminal: overwrites the previous frame and is cut to the window, so that the screen
    does not scroll."""
    # The last two rows are for the note and the cursor.
    shown = lines if len(lines) < rows else [*lines[: rows - 2], f"… and {len(lines) - rows + 2} more lines"]
    # One column less, so that a full line does not wrap.
    painted = [colour_line(line[: max(1, columns - 1)]) for line in shown]
    return _CURSOR_HOME + "".join(f"{line}{_CLEAR_TO_LINE_END}\n" for line in painted) + _CLEAR_BELOW


_RED, _YELLOW, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"
_ERROR_WORDS = ("Failed", "NotReady", "Unschedulable", "OverBudget", "not connected", "100%")
_WARNING_WORDS = ("Degraded", "Draining", "cordoned", "Progressing", "Pending")


def colour_line(line: str) -> str:
    """The line in red with an error phase, in yellow with a warning phase, else unchanged."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return line
    if any(word in line for word in _ERROR_WORDS):
        return f"{_RED}{line}{_PLAIN}"
    if any(word in line for word in _WARNING_WORDS):
        return f"{_YELLOW}{line}{_PLAIN}"
    return line
