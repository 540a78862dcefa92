"""The LatticeError that a call raises."""

from collections.abc import Callable

from lattice.errors import LatticeError


def raised_error(act: Callable[[], object]) -> LatticeError | None:
    """The LatticeError that `act` raises, or None when it returns; other exceptions propagate."""
    try:
        act()
    except LatticeError as error:
        return error
    return None
