"""Memory that one thread has given back serves the others, too."""

import ctypes

M_ARENA_MAX = -8  # of glibc's mallopt
ARENAS = 2


def share_arenas() -> None:
    """To be said before threads begin: by default each takes from a heap of its own, and a twentieth of a large server lies idle."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have one heap
    if mallopt is not None:
        mallopt(M_ARENA_MAX, ARENAS)
