"""Tune the garbage collector and malloc of processes with a large, long-lived heap, which is slow to scan."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Number of new Python objects, such as lists and dicts, after which the garbage collector runs in a process
# that answers queries. At Python's default of 700, the collector took a fifth of the time with a large fleet.
QUERY_GC_THRESHOLD = 50_000
# The same number for a server: at 700, a busy server spent a sixth of its time collecting. Most garbage has
# no cycles and is freed by reference counting.
SERVER_GC_THRESHOLD = 20_000
# Option number of mallopt in glibc.
M_ARENA_MAX = -8
# Limits glibc to few heaps: one heap per thread leaves a twentieth of the memory of a large server idle.
MAX_MALLOC_ARENAS = 2


def collect_and_freeze() -> None:
    """Exclude every object that exists now from later collections."""
    # Garbage is collected before the freeze: frozen garbage would never be freed.
    gc.collect()
    gc.freeze()


def tune_server() -> None:
    """Reduce the pauses of the garbage collector after the start of a server."""
    gc.set_threshold(SERVER_GC_THRESHOLD)
    # Exclude the permanent objects from later scans: otherwise requests would wait for the scans.
    collect_and_freeze()


def freeze_heap() -> None:
    """Exclude every object that exists now from later collections, until the next call."""
    gc.set_threshold(QUERY_GC_THRESHOLD)
    gc.unfreeze()
    collect_and_freeze()


@contextmanager
def reduced_gc() -> Iterator[None]:
    """Collect rarely during one query, then restore the previous threshold."""
    previous_threshold = gc.get_threshold()
    gc.set_threshold(QUERY_GC_THRESHOLD)
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
