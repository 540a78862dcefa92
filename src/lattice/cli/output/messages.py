"""What the command line says on standard error: errors, warnings, remarks."""

import os
import sys
from collections.abc import Iterable

from lattice.errors import LatticeError

_RED, _YELLOW, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"


def error(problem: LatticeError) -> None:
    """What, where, every cause, and how to fix it."""
    where = f"{problem.where}: " if problem.where else ""
    lines = [f"{_coloured('error:', _RED)} {where}{problem.what}"]
    lines += [f"  {cause}" for cause in problem.causes if str(cause) not in problem.what]
    lines += [f"  fix: {problem.fix}"] if problem.fix else []
    note("\n".join(lines))


def exit_code(codes: Iterable[int]) -> int:
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
