"""What is written down of a binding that is prepared and not yet made: in the decision of its workload, so that it goes when that goes."""

import re
from datetime import datetime
from typing import Any

import msgspec

from lattice.kinds.meta.base import Part
from lattice.kinds.workload import LatticeWorkload

PREPARED = "prepared"  # in status.decision
_TERM = re.compile(r"([^/]*)/.*\.([0-9]+)[- ]")
RESERVATION, GANG = "reservation", "gang"  # next to it: which attempt bound it, and together with whom


class Prepared(Part):
    """Room on a node that is taken until the binding is made, or given up once the time is over."""

    node: str
    uid: str
    reservation: str
    until: str  # wall time
    gang: str = ""  # bound together with others: the attempt that all of them belong to
    lead: str = ""  # whose binding decides for all of that attempt: once it is bound so are all

    def is_over(self, now: datetime) -> bool:
        return now >= datetime.fromisoformat(self.until)


def made_by(role: str, holder: str, term: int) -> str:
    """Under which name the scheduler of a term holds room and locks nodes."""
    return f"{role}/{holder}.{term}"


def term_of(held: str) -> tuple[str, int] | None:
    """Role and number of the scheduler that made this reservation or lock; None if it is of no term."""
    found = _TERM.match(held)
    return (found[1], int(found[2])) if found else None


def prepared(workload: LatticeWorkload) -> Prepared | None:
    found: Any = workload.status.decision.get(PREPARED)
    return None if found is None else msgspec.convert(found, Prepared)


def bound_by(workload: LatticeWorkload) -> str:
    """The reservation that bound it; empty if it is not bound."""
    return str(workload.status.decision.get(RESERVATION, "")) if workload.status.binding else ""


def gang_of(workload: LatticeWorkload) -> str:
    """The attempt that bound it together with others; empty if it is not bound, or alone."""
    return str(workload.status.decision.get(GANG, "")) if workload.status.binding else ""
