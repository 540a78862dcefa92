"""Looking for garbage among what stays takes longer than many an answer about a large fleet: seldom, and not there."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 50_000  # new containers between two collections: at Python's 700 one fifth of the time for a large fleet went there


def settle_down() -> None:
    """All that is known by now is left alone from here on, until this is said again."""
    gc.set_threshold(SELDOM)
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextmanager
def undisturbed() -> Iterator[None]:
    """For one answer: after it all is as before."""
    before = gc.get_threshold()
    gc.set_threshold(SELDOM)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
