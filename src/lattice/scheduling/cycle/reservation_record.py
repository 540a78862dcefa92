"""What is written down of a binding that is prepared and not yet made: in the decision of its workload, so that it goes when that goes."""

import re
from datetime import datetime
from typing import Any

import msgspec

from lattice.kinds.meta.base import Part
from lattice.kinds.workload import LatticeWorkload

RESERVATION_RECORD_KEY = "prepared"  # in status.decision
_TERM = re.compile(r"([^/]*)/.*\.([0-9]+)[- ]")
RESERVATION_KEY, GANG_KEY = (
    "reservation",
    "gang",
)  # next to it: which attempt bound it, and together with whom


class ReservationRecord(Part):
    """Room on a node that is taken until the binding is made, or given up once the time is over."""

    node: str
    uid: str
    reservation: str
    until: str  # wall time
    gang: str = ""  # bound together with others: the attempt that all of them belong to
    lead: str = ""  # whose binding decides for all of that attempt: once it is bound so are all

    def is_expired(self, now: datetime) -> bool:
        return now >= datetime.fromisoformat(self.until)


def holder_name(role: str, holder: str, term: int) -> str:
    """Under which name the scheduler of a term holds room and locks nodes."""
    return f"{role}/{holder}.{term}"


def term_of(held: str) -> tuple[str, int] | None:
    """Role and number of the scheduler that made this reservation or lock; None if it is of no term."""
    found = _TERM.match(held)
    return (found[1], int(found[2])) if found else None


def reservation_record(workload: LatticeWorkload) -> ReservationRecord | None:
    found: Any = workload.status.decision.get(RESERVATION_RECORD_KEY)
    return None if found is None else msgspec.convert(found, ReservationRecord)


def binding_reservation(workload: LatticeWorkload) -> str:
    """The reservation that bound it; empty if it is not bound."""
    return str(workload.status.decision.get(RESERVATION_KEY, "")) if workload.status.binding else ""


def gang_attempt_of(workload: LatticeWorkload) -> str:
    """The attempt that bound it together with others; empty if it is not bound, or alone."""
    return str(workload.status.decision.get(GANG_KEY, "")) if workload.status.binding else ""
