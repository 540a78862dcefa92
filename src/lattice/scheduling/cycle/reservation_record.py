"""Read the reservation, the binding attempt and the GPUs of a stored workload, also of a workload that an
earlier version wrote."""

import re

import msgspec

from lattice.kinds.workload import LatticeWorkload, ReservationRecord, WorkloadStatus

_TERM = re.compile(r"([^/]*)/.*\.([0-9]+)[- ]")
# Keys of status.decision in which earlier versions stored the reservation record, the reservation and the gang
# attempt that bound the workload, and the allocated GPUs.
_RECORD_KEY, _BOUND_RESERVATION_KEY, _GANG_KEY, _GPUS_KEY = "prepared", "reservation", "gang", "gpus"
_EARLIER_KEYS = (_RECORD_KEY, _BOUND_RESERVATION_KEY, _GANG_KEY, _GPUS_KEY)


def holder_name(role: str, holder: str, term: int) -> str:
    """The name under which the scheduler of a term holds reservations and node locks."""
    return f"{role}/{holder}.{term}"


def term_of(holder: str) -> tuple[str, int] | None:
    """Role and number of the term in a reservation or lock name; None for a name without a term."""
    match = _TERM.match(holder)
    return (match[1], int(match[2])) if match else None


def scheduling_status(workload: LatticeWorkload) -> WorkloadStatus:
    """The status with reservation, binding attempt and GPUs in their own fields, and with a decision record
    that holds none of these values.

    Earlier versions stored these values in the decision record. An object keeps that form until the scheduler
    writes the object.
    """
    status = workload.status
    decision = status.decision
    # Every stored gang attempt has a reservation beside it, so the gang key needs no check.
    if not (_RECORD_KEY in decision or _BOUND_RESERVATION_KEY in decision or _GPUS_KEY in decision):
        return status
    binding, reservation = status.binding, status.reservation
    if binding is not None and not binding.reservation:
        binding = msgspec.structs.replace(
            binding,
            reservation=str(decision.get(_BOUND_RESERVATION_KEY, "")),
            gang=str(decision.get(_GANG_KEY, "")),
        )
    if reservation is None and _RECORD_KEY in decision:
        fields = dict(decision[_RECORD_KEY])
        reservation = msgspec.convert({"id": fields.pop("reservation"), **fields}, ReservationRecord)
    return msgspec.structs.replace(
        status,
        binding=binding,
        reservation=reservation,
        allocated_gpus=status.allocated_gpus or tuple(decision.get(_GPUS_KEY, ())),
        decision={name: value for name, value in decision.items() if name not in _EARLIER_KEYS},
    )


def reservation_record(workload: LatticeWorkload) -> ReservationRecord | None:
    """The reservation record of a workload, or None."""
    return scheduling_status(workload).reservation


def binding_reservation(workload: LatticeWorkload) -> str:
    """The reservation that bound the workload; "" for a workload that is not bound."""
    binding = scheduling_status(workload).binding
    return binding.reservation if binding else ""


def gang_attempt_of(workload: LatticeWorkload) -> str:
    """The attempt that bound the workload with its gang; "" for a workload that is not bound, or bound alone."""
    binding = scheduling_status(workload).binding
    return binding.gang if binding else ""


def allocated_gpus(workload: LatticeWorkload) -> tuple[int, ...]:
    """The GPUs of the node that a bound or reserved workload may use, by index."""
    return scheduling_status(workload).allocated_gpus
