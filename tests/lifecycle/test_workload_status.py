"""Tests of `next_status` and `build_input`: the status shown for every observation of a workload."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from build.workload_inputs import NOW, REV, a_report, a_retry, ago
from msgspec.structs import replace

from lattice.kinds.meta.base import Condition, Metadata
from lattice.kinds.meta.timestamps import format_micro_time, parse_time
from lattice.kinds.workload import Binding, LatticeWorkload, WorkloadSpec, WorkloadStatus
from lattice.lifecycle.workload import Action, Decision, decide
from lattice.lifecycle.workload_status import (
    WorkloadObservation,
    awaits_node,
    build_input,
    is_settled,
    next_status,
    parse_actual_state,
    workload_conditions,
)

NOTHING = Decision(Action.NO_ACTION, "")
BORN: dict[str, Any] = {
    "observed_generation": 0,
    "conditions": (Condition(type="Ready", status="Unknown", reason="Pending"),),
}
UNSCHEDULED = Condition(type="Scheduled", status="False", reason="NoNodeFits")
BOUND: dict[str, Any] = {"binding": Binding(node="n1"), "last_action": "Apply", "retry": a_retry()}


def a_workload_with_status(desired: Any = "Running", **status: Any) -> LatticeWorkload:
    spec = WorkloadSpec(containers={}, revision=REV, desired_state=desired)
    return LatticeWorkload(
        api_version="", kind="", metadata=Metadata(name="w"), spec=spec, status=WorkloadStatus(**status)
    )


@pytest.mark.parametrize(
    ("workload", "sight", "state", "ready"),
    [
        pytest.param(a_workload_with_status(), WorkloadObservation("None"), "Pending", None, id="new"),
        pytest.param(
            a_workload_with_status("Stopped"),
            WorkloadObservation("None"),
            "Stopped",
            None,
            id="to be stopped, never ran",
        ),
        pytest.param(
            a_workload_with_status(retry=a_retry(5, 6)),
            WorkloadObservation("None"),
            "Failed",
            None,
            id="failed for good, without a node",
        ),
        pytest.param(
            a_workload_with_status(**BOUND),
            WorkloadObservation("Ready"),
            "Pending",
            None,
            id="its node has it not yet",
        ),
        pytest.param(
            a_workload_with_status(**BOUND),
            WorkloadObservation("Ready", report=a_report("Starting")),
            "Starting",
            False,
            id="starts",
        ),
        pytest.param(
            a_workload_with_status(**BOUND),
            WorkloadObservation("Ready", report=a_report("Running")),
            "Running",
            False,
            id="runs, and is not ready",
        ),
        pytest.param(
            a_workload_with_status(**BOUND),
            WorkloadObservation("Ready", report=a_report("Running"), ready=True),
            "Running",
            True,
            id="runs and is ready",
        ),
        pytest.param(
            a_workload_with_status(**BOUND),
            WorkloadObservation("Ready", report=a_report("Stopped"), ready=True),
            "Stopped",
            False,
            id="only what runs is ready",
        ),
        pytest.param(
            a_workload_with_status(**BOUND, actual_state="Running", ready=True),
            WorkloadObservation("Silent"),
            "Unknown",
            False,
            id="its node is silent: Unknown",
        ),
        pytest.param(
            a_workload_with_status(**BOUND, actual_state="Running", ready=True),
            WorkloadObservation("Silent", False),
            "Running",
            True,
            id="not heard by us yet: as it was",
        ),
        pytest.param(
            a_workload_with_status(**{**BOUND, "last_action": "BackoffWait"}),
            WorkloadObservation("Ready"),
            "Failed",
            None,
            id="failed, and its node has forgotten it",
        ),
    ],
)
def test_actual_state_and_readiness(
    workload: LatticeWorkload, sight: WorkloadObservation, state: str, ready: bool | None
) -> None:
    status = next_status(workload, sight, NOTHING, NOW)
    assert (status.actual_state, status.ready) == (state, ready)
    assert (status.state_since == format_micro_time(NOW)) == (workload.status.actual_state != state)


def test_decision_is_stored_with_its_time() -> None:
    failed = Decision(Action.BACKOFF_WAIT, "it failed", a_retry(1, 2), failure_reason="RUNTIME_ERROR")
    status = next_status(
        a_workload_with_status(**BOUND),
        WorkloadObservation("Ready", report=a_report("Failed"), log="x" * 5000),
        failed,
        NOW,
    )
    assert (status.last_action, status.last_action_at, status.retry) == (
        "BackoffWait",
        format_micro_time(NOW),
        a_retry(1, 2),
    )
    assert (status.failure_reason, len(status.last_log)) == ("RUNTIME_ERROR", 2048)
    assert status.failure_message == ""
    told = dataclasses.replace(
        a_report("Failed", failure="RUNTIME_ERROR"), failure_message="ended with code 7"
    )
    status = next_status(
        a_workload_with_status(**BOUND), WorkloadObservation("Ready", report=told), failed, NOW
    )
    assert status.failure_message == "ended with code 7"
    waits = next_status(
        a_workload_with_status(**BOUND),
        WorkloadObservation("Ready", report=a_report("Failed")),
        Decision(Action.BACKOFF_WAIT, "", requeue_after=3),
        NOW,
    )
    assert waits.last_action == "Apply"


@pytest.mark.parametrize("action", [Action.RESCHEDULE, Action.RELEASE, Action.FINALIZE_DELETE])
def test_release_clears_node_fields_of_status(action: Action) -> None:
    leaving = Condition(type="Leaving", status="True")
    workload = a_workload_with_status(
        **BOUND,
        ready=True,
        actual_state="Running",
        allocated_ports={"web": 80},
        allocated_gpus=(1,),
        decision={"x": 1},
        conditions=(leaving,),
    )
    status = next_status(
        workload,
        WorkloadObservation("Ready", report=a_report("Running"), ready=True),
        Decision(action, "", a_retry(0, 2)),
        NOW,
    )
    assert (status.binding, status.allocated_ports, status.decision, status.ready, status.conditions) == (
        None,
        {},
        {},
        False,
        (),
    )
    assert (status.allocated_gpus, status.reservation) == ((), None)
    assert (status.actual_state, status.retry) == ("Pending", a_retry(0, 2))


def test_action_age_is_limited_by_connection_age() -> None:
    workload = a_workload_with_status(**BOUND, last_action_at=format_micro_time(ago(100)))
    assert build_input(
        workload, WorkloadObservation("Ready", connected_for=5), NOW
    ).last_action.at == NOW - timedelta(seconds=5)
    assert build_input(
        workload, WorkloadObservation("Ready", connected_for=500), NOW
    ).last_action.at == parse_time(format_micro_time(ago(100)))


def test_future_action_time_falls_back_to_connection_age() -> None:
    """After a clock was set back, the stored time alone would postpone every timeout by an hour."""
    ahead = a_workload_with_status(**BOUND, last_action_at=format_micro_time(ago(-3600)))
    assert build_input(
        ahead, WorkloadObservation("Ready", connected_for=40), NOW
    ).last_action.at == NOW - timedelta(seconds=40)
    skewed = a_workload_with_status(**BOUND, last_action_at=format_micro_time(ago(-2)))
    assert build_input(
        skewed, WorkloadObservation("Ready", connected_for=40), NOW
    ).last_action.at == parse_time(format_micro_time(ago(-2))), "two servers' clocks may differ a little"


@pytest.mark.parametrize(
    ("stored", "told", "acted", "age"),
    [
        pytest.param(3700, 500, 100, 100, id="the clock was set forward: only what was seen counts"),
        pytest.param(-3500, 500, 100, 100, id="the clock was set back"),
        pytest.param(3700, 5, 100, 5, id="the age is limited by the connection"),
        pytest.param(100, 500, None, 100, id="without an observed action the stored time counts"),
    ],
)
def test_observed_action_age_wins_over_stored_time(
    stored: float, told: float, acted: float | None, age: float
) -> None:
    workload = a_workload_with_status(**BOUND, last_action_at=format_micro_time(ago(stored)))
    assert build_input(
        workload, WorkloadObservation("Ready", connected_for=told, since_last_action=acted), NOW
    ).last_action.at == NOW - timedelta(seconds=age)


def test_unrecognised_state_is_unknown() -> None:
    assert (parse_actual_state("Running"), parse_actual_state("Dancing")) == ("Running", "Unknown")


@pytest.mark.parametrize(
    ("workload", "settled"),
    [
        pytest.param(a_workload_with_status(**BOUND, actual_state="Running"), True, id="runs as it should"),
        pytest.param(
            a_workload_with_status("Stopped", **BOUND, actual_state="Running"), False, id="is to stop"
        ),
        pytest.param(
            a_workload_with_status(**{**BOUND, "retry": a_retry(1)}, actual_state="Running"),
            False,
            id="has failed before",
        ),
        pytest.param(
            a_workload_with_status(**{**BOUND, "retry": a_retry(revision="b" * 24)}, actual_state="Running"),
            False,
            id="of another revision",
        ),
        pytest.param(a_workload_with_status(**BOUND), False, id="does not run yet"),
    ],
)
def test_is_settled(workload: LatticeWorkload, settled: bool) -> None:
    assert is_settled(workload) == settled


@pytest.mark.parametrize(
    ("workload", "waits"),
    [
        pytest.param(a_workload_with_status(), True, id="new"),
        pytest.param(a_workload_with_status("Stopped"), False, id="to be stopped"),
        pytest.param(a_workload_with_status(**BORN), True, id="as the API creates it"),
        pytest.param(
            a_workload_with_status(**{**BORN, "conditions": (*BORN["conditions"], UNSCHEDULED)}),
            False,
            id="created and unschedulable",
        ),
        pytest.param(
            a_workload_with_status(**{**BORN, "observed_generation": 1}), False, id="created and observed"
        ),
        pytest.param(a_workload_with_status(**BOUND), False, id="bound"),
        pytest.param(a_workload_with_status(retry=a_retry(1, 2)), False, id="failed before"),
        pytest.param(
            replace(
                a_workload_with_status(),
                metadata=Metadata(name="w", deletion_timestamp="2026-01-01T00:00:00Z"),
            ),
            False,
            id="to be deleted",
        ),
        pytest.param(
            replace(a_workload_with_status(), metadata=Metadata(name="w", annotations={"a": "b"})),
            False,
            id="with a pending manual retry",
        ),
    ],
)
def test_awaits_node(workload: LatticeWorkload, waits: bool) -> None:
    assert awaits_node(workload) is waits
    if waits:
        decision = decide(build_input(workload, WorkloadObservation("None"), NOW))
        assert decision.action is Action.ASSIGN
        assert next_status(workload, WorkloadObservation("None"), decision, NOW) == workload.status, (
            "a look would change nothing"
        )


def test_ready_workload_shows_no_earlier_failure() -> None:
    failed = WorkloadStatus(actual_state="Failed", failure_reason="RUNTIME_ERROR")
    ready = replace(failed, actual_state="Running", ready=True)
    assert [next(iter(workload_conditions(status, ""))).reason for status in (failed, ready)] == [
        "RUNTIME_ERROR",
        "Running",
    ]
