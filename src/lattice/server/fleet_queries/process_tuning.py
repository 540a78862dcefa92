"""Garbage collector and malloc tuning for processes with a large, long-lived heap.

Scanning the long-lived objects of a large fleet takes longer than many queries.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# New containers between two collections. At Python's default of 700, a large fleet spent one fifth of the
# time in the collector.
GC_THRESHOLD = 50_000


# Option number of mallopt in glibc.
M_ARENA_MAX = -8
# Limits glibc to few heaps: one heap per thread leaves a twentieth of the memory of a large server idle.
MAX_MALLOC_ARENAS = 2


def freeze_heap() -> None:
    """Exclude every object that exists now from later collections, until the next call."""
    gc.set_threshold(GC_THRESHOLD)
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextmanager
def reduced_gc() -> Iterator[None]:
    """Collect rarely during one query, then restore the previous threshold."""
    previous_threshold = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*previous_threshold)


def limit_malloc_arenas() -> None:
    """Limit the number of malloc arenas of glibc; call before the first thread starts."""
    # C libraries other than glibc have no mallopt and one heap.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, MAX_MALLOC_ARENAS)
