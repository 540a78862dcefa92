"""The durable record of a prepared binding. The record is a part of the workload's decision, and is deleted
with the workload."""

import re
from datetime import datetime
from typing import Any

import msgspec

from lattice.kinds.meta.base import Part
from lattice.kinds.meta.timestamps import parse_timestamp
from lattice.kinds.workload import LatticeWorkload

RESERVATION_RECORD_KEY = "prepared"  # in status.decision
_TERM = re.compile(r"([^/]*)/.*\.([0-9]+)[- ]")
# Beside the record: the reservation that bound the workload, and the gang attempt that bound the workload.
RESERVATION_KEY, GANG_KEY = "reservation", "gang"


class ReservationRecord(Part):
    """Room on a node that is taken until the binding is made, or given up once the time is over."""

    node: str
    uid: str
    reservation: str
    until: str  # wall-clock time
    gang: str = ""  # the attempt that binds the members of a gang together
    lead: str = (
        ""  # the member whose binding decides for the attempt: once it is bound, all members are bound
    )

    def is_expired(self, now: datetime) -> bool:
        return now >= parse_timestamp(self.until)


def holder_name(role: str, holder: str, term: int) -> str:
    """The name under which the scheduler of a term holds reservations and node locks."""
    return f"{role}/{holder}.{term}"


def term_of(holder: str) -> tuple[str, int] | None:
    """Role and number of the term in a reservation or lock name; None for a name without a term."""
    match = _TERM.match(holder)
    return (match[1], int(match[2])) if match else None


def reservation_record(workload: LatticeWorkload) -> ReservationRecord | None:
    """The reservation record of a workload, or None."""
    record: Any = workload.status.decision.get(RESERVATION_RECORD_KEY)
    return None if record is None else msgspec.convert(record, ReservationRecord)


def binding_reservation(workload: LatticeWorkload) -> str:
    """The reservation that bound the workload; "" for a workload that is not bound."""
    return str(workload.status.decision.get(RESERVATION_KEY, "")) if workload.status.binding else ""


def gang_attempt_of(workload: LatticeWorkload) -> str:
    """The attempt that bound the workload with its gang; "" for a workload that is not bound, or bound alone."""
    return str(workload.status.decision.get(GANG_KEY, "")) if workload.status.binding else ""
