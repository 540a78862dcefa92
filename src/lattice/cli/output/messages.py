"""Errors, warnings, notes and progress on standard error."""

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from lattice.errors import LatticeError

_RED, _YELLOW, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"
# Seconds before the first progress line, and between two of them.
PROGRESS_INTERVAL_S = 1.0
_CLEAR_LINE = "\r\x1b[K"


def error(problem: LatticeError) -> None:
    """Print the error: location and message, then every cause, then the fix."""
    where = f"{problem.where}: " if problem.where else ""
    lines = [f"{_coloured('error:', _RED)} {where}{problem.message}"]
    # A cause that the message already contains is not repeated.
    lines += [
        f"  {cause}"
        for cause in problem.causes
        if str(cause) not in problem.message and cause.message != problem.message
    ]
    lines += [f"  fix: {problem.fix}"] if problem.fix else []
    note("\n".join(lines))


def combined_exit_code(codes: Iterable[int]) -> int:
    """Exit code of a command that handled several objects: 0 without failures, the common code if all
    failures agree, else 1."""
    distinct_codes = set(codes)
    return distinct_codes.pop() if len(distinct_codes) == 1 else int(bool(distinct_codes))


def warning(text: str) -> None:
    note(f"{_coloured('Warning:', _YELLOW)} {text}")


def note(text: str) -> None:
    # Flush stdout first: the streams keep their order when both go to the same file.
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _coloured(text: str, colour: str) -> str:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stderr.isatty():
        return text
    return f"{colour}{text}{_PLAIN}"


@contextmanager
def show_progress(activity: str) -> Iterator[None]:
    """Show an activity with its duration in seconds on the terminal and erase the line at the end; print
    nothing to a pipe."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    writer = threading.Thread(target=_write_progress, args=(activity, done), daemon=True)
    writer.start()
    try:
        yield
    finally:
        done.set()
        # Wait for the writer: otherwise the progress line could follow the result.
        writer.join()


def _write_progress(activity: str, done: threading.Event) -> None:
    started_at = time.monotonic()
    is_line_shown = False
    while not done.wait(PROGRESS_INTERVAL_S):
        sys.stderr.write(f"{_CLEAR_LINE}{activity} … {time.monotonic() - started_at:.0f} s")
        sys.stderr.flush()
        is_line_shown = True
    if is_line_shown:
        sys.stderr.write(_CLEAR_LINE)
        sys.stderr.flush()


class CountProgress:
    """Progress of a number of items on standard error: on a terminal one line that is overwritten, else a
    line after every `lines_every` items (0: no lines)."""

    def __init__(self, total: int, items: str, lines_every: int = 0) -> None:
        self._total, self._items, self._lines_every = total, items, lines_every
        self._started_at = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def update(self, done: int, details: str = "") -> None:
        speed = done / max(time.monotonic() - self._started_at, 0.001)
        text = f"{done:,} of {self._total:,} {self._items}, {speed:.1f} a second{details}"
        if self._is_terminal:
            sys.stderr.write(f"{_CLEAR_LINE}{text}")
            sys.stderr.flush()
        elif self._lines_every and done % self._lines_every == 0:
            note(text)

    def erase(self) -> None:
        """Erase the line from the terminal, so that the result takes its place."""
        if self._is_terminal:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
