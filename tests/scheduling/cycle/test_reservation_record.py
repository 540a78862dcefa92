"""Reservations, binding attempts and GPUs of stored workloads, in the present and in the earlier form."""

from typing import Any

import msgspec
import pytest
from build.objects import a_workload

from lattice.kinds.workload import LatticeWorkload, ReservationRecord, WorkloadStatus
from lattice.scheduling.cycle.reservation_record import (
    allocated_gpus,
    binding_reservation,
    gang_attempt_of,
    reservation_record,
    scheduling_status,
)

UNTIL = "2026-01-01T00:00:30+00:00"
RECORD = {"node": "n1", "uid": "u1", "until": UNTIL, "gang": "r-1 a", "lead": "default/w"}
BINDING = {"node": "n1", "uid": "u1", "term": 3}
EXPLANATION = {"profile": "balanced", "best": {"n1": 93.5}}


def stored(status: dict[str, Any]) -> LatticeWorkload:
    return msgspec.structs.replace(a_workload("w"), status=msgspec.convert(status, WorkloadStatus))


@pytest.mark.parametrize(
    ("earlier", "present"),
    [
        pytest.param(
            {"decision": {**EXPLANATION, "gpus": [1, 3], "prepared": {"reservation": "r-1", **RECORD}}},
            {"reservation": {"id": "r-1", **RECORD}, "allocatedGpus": [1, 3], "decision": EXPLANATION},
            id="a reserved member of a gang",
        ),
        pytest.param(
            {"binding": BINDING, "decision": {**EXPLANATION, "reservation": "r-1", "gpus": [0]}},
            {
                "binding": {**BINDING, "reservation": "r-1"},
                "allocatedGpus": [0],
                "decision": EXPLANATION,
            },
            id="a bound workload",
        ),
        pytest.param(
            {"binding": BINDING, "decision": {"reservation": "r-1", "gang": "r-1 a"}},
            {"binding": {**BINDING, "reservation": "r-1", "gang": "r-1 a"}},
            id="a bound member of a gang",
        ),
        pytest.param(
            {"binding": BINDING, "decision": {"gpus": [1]}},
            {"binding": BINDING, "allocatedGpus": [1]},
            id="GPUs without a reservation",
        ),
        pytest.param({"decision": EXPLANATION}, {"decision": EXPLANATION}, id="an unschedulable workload"),
        pytest.param({}, {}, id="a new workload"),
    ],
)
def test_earlier_form_reads_like_the_present_form(earlier: dict[str, Any], present: dict[str, Any]) -> None:
    read = scheduling_status(stored(earlier))
    assert msgspec.json.decode(msgspec.json.encode(read)) == present
    again = stored(present)
    assert scheduling_status(again) is again.status, "the present form needs no conversion"


@pytest.mark.parametrize(
    "status",
    [
        {"reservation": {"id": "r-1", **RECORD}, "allocatedGpus": [1]},
        {"decision": {"prepared": {"reservation": "r-1", **RECORD}, "gpus": [1]}},
    ],
    ids=["present", "earlier"],
)
def test_reserved_workload_has_record_and_gpus(status: dict[str, Any]) -> None:
    workload = stored(status)
    assert reservation_record(workload) == ReservationRecord(id="r-1", **RECORD)
    assert allocated_gpus(workload) == (1,)
    assert (binding_reservation(workload), gang_attempt_of(workload)) == ("", "")


@pytest.mark.parametrize(
    "status",
    [
        {"binding": {**BINDING, "reservation": "r-1", "gang": "a"}},
        {"binding": BINDING, "decision": {"reservation": "r-1", "gang": "a"}},
    ],
    ids=["present", "earlier"],
)
def test_bound_workload_has_reservation_and_gang_attempt(status: dict[str, Any]) -> None:
    workload = stored(status)
    assert reservation_record(workload) is None
    assert (binding_reservation(workload), gang_attempt_of(workload)) == ("r-1", "a")
    # After a release, an attempt in the decision record names no binding.
    unbound = stored({name: value for name, value in status.items() if name != "binding"})
    assert (binding_reservation(unbound), gang_attempt_of(unbound)) == ("", "")
