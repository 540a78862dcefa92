"""Who was refused what, and why: one line in the log each. What people sent is not in it: it may be a secret."""

import structlog

from lattice.errors import Denied, Invalid, LatticeError, Malformed, TooLarge, TooMany, UnknownUser
from lattice.server.requests.call import User

LONGEST = 200  # characters of an address
STRANGERS = (UnknownUser, Denied, TooMany)
SENDERS = (Malformed, Invalid, TooLarge)
log = structlog.get_logger()


def note_refusal(error: LatticeError, user: User | None, method: str, path: str) -> None:
    """Of those that may be an attempt to get what one must not have; being late, or second, is none."""
    if not isinstance(error, STRANGERS + SENDERS):
        return
    why = (
        {"why": error.what}
        if isinstance(error, STRANGERS)
        else {"fields": [cause.field[:LONGEST] for cause in error.causes[:20]]}
    )
    name = user.name if user is not None else ""
    log.warning(
        "refused",
        user=name,
        method=method,
        path=path[:LONGEST],
        status=error.status,
        reason=error.reason,
        **why,
    )
