"""The forms in which versions stored reservations and binding attempts: in their own fields, and before that
in the decision record."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from lattice.kinds.workload import Binding, ReservationRecord


class StoredForm(NamedTuple):
    """Fields of a workload status, in one stored form."""

    # Of a workload that is reserved by a reservation, with the other fields of the record.
    reserved: Callable[[str, dict[str, str]], dict[str, Any]]
    # Of a workload that is bound by a reservation and an attempt of its gang.
    bound: Callable[[Binding, str, str], dict[str, Any]]


def _reserved(reservation: str, record: dict[str, str]) -> dict[str, Any]:
    return {"reservation": ReservationRecord(id=reservation, **record)}


def _bound(binding: Binding, reservation: str, gang: str) -> dict[str, Any]:
    return {"binding": msgspec.structs.replace(binding, reservation=reservation, gang=gang)}


def _reserved_in_decision(reservation: str, record: dict[str, str]) -> dict[str, Any]:
    return {"decision": {"prepared": {"reservation": reservation, **record}}}


def _bound_in_decision(binding: Binding, reservation: str, gang: str) -> dict[str, Any]:
    return {"binding": binding, "decision": {"reservation": reservation, "gang": gang}}


STORED_FORMS = {
    "fields": StoredForm(_reserved, _bound),
    "decision record": StoredForm(_reserved_in_decision, _bound_in_decision),
}
