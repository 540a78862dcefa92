"""What the command line says on standard error: errors, warnings, remarks."""

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from lattice.errors import LatticeError

_RED, _YELLOW, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"


PROGRESS_INTERVAL_S = 1.0  # seconds of silence
_CLEAR = "\r\x1b[K"


def error(problem: LatticeError) -> None:
    """What, where, every cause, and how to fix it."""
    where = f"{problem.where}: " if problem.where else ""
    lines = [f"{_coloured('error:', _RED)} {where}{problem.message}"]
    lines += [f"  {cause}" for cause in problem.causes if str(cause) not in problem.message]
    lines += [f"  fix: {problem.fix}"] if problem.fix else []
    note("\n".join(lines))


def combined_exit_code(codes: Iterable[int]) -> int:
    """Of what failed on the way: their code if all agree, 1 if not, 0 if nothing did."""
    different = set(codes)
    return different.pop() if len(different) == 1 else int(bool(different))


def warning(text: str) -> None:
    note(f"{_coloured('Warning:', _YELLOW)} {text}")


def note(text: str) -> None:
    sys.stdout.flush()  # so that both streams read in order when they end up in one place
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _coloured(text: str, colour: str) -> str:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stderr.isatty():
        return text
    return f"{colour}{text}{_PLAIN}"


@contextmanager
def show_progress(what: str) -> Iterator[None]:
    """Says what is going on and for how long, and wipes it away again. Nobody watches a pipe: there it says nothing."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    teller = threading.Thread(target=_write_progress, args=(what, done), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _write_progress(what: str, done: threading.Event) -> None:
    begin = time.monotonic()
    told = False
    while not done.wait(PROGRESS_INTERVAL_S):
        sys.stderr.write(f"{_CLEAR}{what} … {time.monotonic() - begin:.0f} s")
        sys.stderr.flush()
        told = True
    if told:
        sys.stderr.write(_CLEAR)
        sys.stderr.flush()
