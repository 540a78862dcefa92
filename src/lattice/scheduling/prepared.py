"""What is written down of a binding that is prepared and not yet made: in the decision of its workload, so that it goes when that goes."""

from datetime import datetime
from typing import Any

import msgspec

from lattice.kinds.base import Part
from lattice.kinds.workload import LatticeWorkload

PREPARED = "prepared"  # in status.decision
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


def prepared(workload: LatticeWorkload) -> Prepared | None:
    found: Any = workload.status.decision.get(PREPARED)
    return None if found is None else msgspec.convert(found, Prepared)


def bound_by(workload: LatticeWorkload) -> str:
    """The reservation that bound it; empty if it is not bound."""
    return str(workload.status.decision.get(RESERVATION, "")) if workload.status.binding else ""


def gang_of(workload: LatticeWorkload) -> str:
    """The attempt that bound it together with others; empty if it is not bound, or alone."""
    return str(workload.status.decision.get(GANG, "")) if workload.status.binding else ""
