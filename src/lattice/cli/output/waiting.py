"""A word to whoever sits at a terminal while something takes long."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 1.0  # seconds of silence
_CLEAR = "\r\x1b[K"


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says what is going on and for how long, and wipes it away again. Nobody watches a pipe: there it says nothing."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(what, done), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _tell(what: str, done: threading.Event) -> None:
    begin = time.monotonic()
    told = False
    while not done.wait(PATIENCE):
        sys.stderr.write(f"{_CLEAR}{what} … {time.monotonic() - begin:.0f} s")
        sys.stderr.flush()
        told = True
    if told:
        sys.stderr.write(_CLEAR)
        sys.stderr.flush()
