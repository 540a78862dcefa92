"""Looking for garbage among what stays takes longer than many an answer about a large fleet: seldom, and not there."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

GC_THRESHOLD = 50_000  # new containers between two collections: at Python's 700 one fifth of the time for a large fleet went there


M_ARENA_MAX = -8  # of glibc's mallopt
MAX_MALLOC_ARENAS = 2


def freeze_heap() -> None:
    """All that is known by now is left alone from here on, until this is said again."""
    gc.set_threshold(GC_THRESHOLD)
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextmanager
def reduced_gc() -> Iterator[None]:
    """For one answer: after it all is as before."""
    before = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def limit_malloc_arenas() -> None:
    """To be said before threads begin: by default each takes from a heap of its own, and a twentieth of a large server lies idle."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have one heap
    if mallopt is not None:
        mallopt(M_ARENA_MAX, MAX_MALLOC_ARENAS)
