"""Tests of the workload state machine: one named case for every row of the decision table."""

from dataclasses import replace as replace
from typing import Any

import pytest
from build.workload_inputs import OLD, REV, a_report, a_retry, ago, an_action, an_input
from msgspec import structs

from lattice.kinds.workload import Retry
from lattice.lifecycle.retry import FINAL_FAILURES, NODE_FAULTS, is_exhausted, succeed
from lattice.lifecycle.workload import (
    START_ACTIONS,
    Action,
    decide,
)

LOST = "its node has been silent for too long"
APPLIED = {"retry": a_retry(), "last_action": an_action("Apply", 1000)}
FIRST = {"retry": a_retry(), "last_action": an_action("Apply", 1)}
RUNNING = [
    pytest.param({"node": "None"}, "Assign", "Not bound to a node yet", id="new: it needs a node"),
    pytest.param(
        {"node": "None", "retry": a_retry(2, 3, wait=4)},
        "BackoffWait",
        "Back-off after 2 failures",
        id="without a node it waits its back-off first",
    ),
    pytest.param(
        {"node": "None", "retry": a_retry(2, 3, wait=-1)},
        "Assign",
        "Not bound to a node yet",
        id="without a node, back-off over",
    ),
    pytest.param(
        {"node": "None", "retry": a_retry(5, 6)},
        "NoAction",
        "Failed permanently; change the workload or request a retry",
        id="failed for good needs no node",
    ),
    pytest.param({}, "Apply", "Start order sent to the node", id="Running, Missing, never applied: Apply"),
    pytest.param(
        {**FIRST},
        "NoAction",
        "Start order sent; waiting for the report of the node",
        id="Missing, just applied: grace",
    ),
    pytest.param(
        {**APPLIED},
        "BackoffWait",
        "MISSING; back-off after 1 failure",
        id="Missing long after it was applied: a failure, and wait",
    ),
    pytest.param(
        {
            "retry": a_retry(),
            "last_action": an_action("Apply", 20),
            "report": a_report("Missing", knows_order=False),
        },
        "NoAction",
        "Start order sent; waiting for the report of the node",
        id="Missing, reported before the order arrived: no failure",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Missing", knows_order=False)},
        "BackoffWait",
        "NOT_APPLIED; back-off after 1 failure",
        id="an order that never arrives: a failure in the end",
    ),
    pytest.param(
        {**FIRST, "report": a_report("Pending")}, "NoAction", "The node reports Pending", id="Pending: grace"
    ),
    pytest.param(
        {**FIRST, "report": a_report("Starting")},
        "NoAction",
        "The node reports Starting",
        id="Starting: grace",
    ),
    pytest.param(
        {**FIRST, "report": a_report("Unknown")},
        "NoAction",
        "The node reports Unknown",
        id="Unknown on a node that answers: grace",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Starting")},
        "BackoffWait",
        "START_TIMEOUT; back-off after 1 failure",
        id="Starting for too long: a failure",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Running")}, "NoAction", "Running", id="Running, Running: nothing"
    ),
    pytest.param(
        {"retry": a_retry(), "last_action": an_action("Assign"), "report": a_report("Running")},
        "NoAction",
        "Running",
        id="a running node has its order, despite a later write",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Failed", failure="RUNTIME_ERROR")},
        "BackoffWait",
        "RUNTIME_ERROR; back-off after 1 failure",
        id="Running, Failed: counted, and wait",
    ),
    pytest.param(
        {
            "retry": a_retry(1, 2, wait=3),
            "last_action": an_action("BackoffWait"),
            "report": a_report("Failed", 1),
        },
        "BackoffWait",
        "Back-off after 1 failure",
        id="the same failure is not counted twice",
    ),
    pytest.param(
        {
            "retry": a_retry(1, 2, wait=3),
            "last_action": an_action("BackoffWait"),
            "report": a_report("Stopped", 2),
        },
        "BackoffWait",
        "Back-off after 1 failure",
        id="the next run, stopped during its back-off, has not failed",
    ),
    pytest.param(
        {
            "retry": a_retry(1, 2, wait=-0.1),
            "last_action": an_action("BackoffWait"),
            "report": a_report("Failed", 1),
        },
        "Recreate",
        "Restarting after 1 failure: attempt 2 of 5",
        id="Running, Failed, wait over: Recreate",
    ),
    pytest.param(
        {
            "retry": a_retry(1, 2, wait=-5),
            "last_action": an_action("Recreate"),
            "report": a_report("Failed", 1),
        },
        "NoAction",
        "Start order sent; waiting for the report of the node",
        id="an old failure says nothing about the new run",
    ),
    pytest.param(
        {
            "retry": a_retry(4, 5),
            "last_action": an_action("Recreate"),
            "report": a_report("Failed", 5, "RUNTIME_ERROR"),
        },
        "MarkFailed",
        "RUNTIME_ERROR; not restarted after 5 failures",
        id="the fifth failure ends it",
    ),
    pytest.param(
        {
            **APPLIED,
            "report": replace(
                a_report("Failed", failure="RUNTIME_ERROR"), failure_message="ended with code 7"
            ),
        },
        "BackoffWait",
        "RUNTIME_ERROR: ended with code 7; back-off after 1 failure",
        id="the failure reason is included",
    ),
    pytest.param(
        {**APPLIED, "report": replace(a_report("Starting"), failure_message="ended with code 7")},
        "BackoffWait",
        "START_TIMEOUT; back-off after 1 failure",
        id="the failure reason of another run is not",
    ),
    pytest.param(
        {"retry": a_retry(5, 6), "last_action": an_action("MarkFailed"), "report": a_report("Failed", 5)},
        "NoAction",
        "Failed permanently; change the workload or request a retry",
        id="failed for good stays failed",
    ),
    pytest.param(
        {"retry": a_retry(5, 6), "last_action": an_action("MarkFailed"), "report": a_report("Running", 5)},
        "ApplyStopped",
        "Failed permanently; stopping the remaining copy",
        id="failed for good but something runs",
    ),
    pytest.param(
        {"retry": a_retry(5, 6), "last_action": an_action("Retry"), "revision": OLD},
        "Apply",
        "Start order sent to the node",
        id="another revision begins anew",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Stopped")},
        "BackoffWait",
        "EXITED: exited with code 0, but the workload should run; back-off after 1 failure",
        id="it ended by itself: a failure, so that it does not spin",
    ),
    pytest.param(
        {"retry": a_retry(), "last_action": an_action("ApplyStopped"), "report": a_report("Stopped")},
        "Apply",
        "Start order sent to the node, which reports Stopped",
        id="Running, Stopped: Apply",
    ),
    pytest.param(
        {"retry": a_retry(), "last_action": an_action("ApplyStopped"), "report": a_report("Running")},
        "Apply",
        "Start order sent to the node, which reports Running",
        id="a stop is taken back before it happened",
    ),
    pytest.param(
        {**APPLIED, "revision": OLD, "report": a_report("Running")},
        "Apply",
        f"Replacing revision {REV} with revision {OLD}",
        id="Running, Running, another revision: Apply",
    ),
    pytest.param(
        {**FIRST, "report": a_report("Running", revision=OLD)},
        "NoAction",
        "Start order sent; waiting for the report of the node",
        id="the old revision still runs: grace",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Running", revision=OLD)},
        "BackoffWait",
        "NOT_APPLIED; back-off after 1 failure",
        id="the old revision runs long after: a failure",
    ),
    pytest.param(
        {
            "retry": a_retry(2, 3),
            "last_action": an_action("Recreate", 100),
            "ready_since": ago(90),
            "report": a_report("Running", 3),
        },
        "NoAction",
        "Running after 2 failures",
        id="running again, failures remembered",
    ),
    pytest.param(
        {
            "retry": a_retry(2, 3),
            "last_action": an_action("Recreate", 700),
            "ready_since": ago(600),
            "report": a_report("Running", 3),
        },
        "Forgive",
        "Ready for 600 s; failure count reset",
        id="running for long, failures forgotten",
    ),
    pytest.param(
        {"retry": a_retry(0, 3), "last_action": an_action("Forgive", 300), "report": a_report("Failed", 3)},
        "BackoffWait",
        "EXITED; back-off after 1 failure",
        id="forgiven, and failed again",
    ),
    pytest.param(
        {"retry": a_retry(0, 3), "last_action": an_action("Forgive", 300)},
        "BackoffWait",
        "MISSING; back-off after 1 failure",
        id="forgiven, and vanished",
    ),
    pytest.param(
        {**APPLIED, "node": "Silent"},
        "AwaitFailover",
        "No heartbeat from the node; the node may return before failover starts",
        id="node silent: wait",
    ),
    pytest.param(
        {**APPLIED, "node": "Silent", "failover_reason": LOST},
        "Reschedule",
        "its node has been silent for too long",
        id="node silent for too long: another node",
    ),
    pytest.param(
        {**APPLIED, "node": "Gone"},
        "Reschedule",
        "Rescheduling: the node was removed",
        id="node gone: another node at once",
    ),
    pytest.param(
        {"retry": a_retry(5, 6), "node": "Gone"},
        "Release",
        "Released: the node was removed. Failed permanently; change the workload or request a retry",
        id="failed for good and node gone",
    ),
    pytest.param(
        {"retry": a_retry(5, 6), "node": "Silent", "failover_reason": LOST},
        "AwaitFailover",
        "No heartbeat from the node; the node may return before failover starts",
        id="failed for good and node silent",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Running"), "eviction_reason": "drain"},
        "ApplyStopped",
        "Evicting: drain",
        id="leaving: stopped first",
    ),
    pytest.param(
        {
            "retry": a_retry(),
            "last_action": an_action("ApplyStopped"),
            "report": a_report("Running"),
            "eviction_reason": "drain",
        },
        "NoAction",
        "Evicting: drain; stop order sent",
        id="leaving: being stopped",
    ),
    pytest.param(
        {
            "retry": a_retry(),
            "last_action": an_action("ApplyStopped"),
            "report": a_report("Missing", knows_order=False),
            "eviction_reason": "drain",
        },
        "NoAction",
        "Evicting: drain; stop order sent",
        id="leaving: a word from before the order proves nothing",
    ),
    pytest.param(
        {
            "retry": a_retry(),
            "last_action": an_action("ApplyStopped"),
            "report": a_report("Missing"),
            "eviction_reason": "drain",
        },
        "Reschedule",
        "Evicted: drain",
        id="leaving: stopped, so it may go elsewhere",
    ),
    pytest.param(
        {**FIRST, "eviction_reason": "drain"},
        "ApplyStopped",
        "Evicting: drain",
        id="leaving: an order to start may be on its way",
    ),
    pytest.param(
        {"retry": a_retry(5, 6), "report": a_report("Failed"), "eviction_reason": "drain"},
        "Release",
        "Evicted after permanent failure: drain",
        id="leaving: failed for good",
    ),
]
STOPPED = [
    pytest.param(
        {"node": "None"}, "NoAction", "Stopped and not bound to a node", id="Stopped, no node: nothing"
    ),
    pytest.param(
        {"node": "Gone"},
        "Release",
        "Released: the node was removed, and the desired state is Stopped",
        id="Stopped, node gone",
    ),
    pytest.param(
        {"node": "Silent"},
        "AwaitNode",
        "No heartbeat from the node, which cannot receive the stop order",
        id="Stopped, node silent",
    ),
    pytest.param(
        {"node": "Silent", "failover_reason": LOST},
        "AwaitNode",
        "No heartbeat from the node, which cannot receive the stop order",
        id="Stopped, node silent for long",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Running")},
        "ApplyStopped",
        "Stopping as requested",
        id="Stopped, Running: ApplyStopped",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Pending")},
        "ApplyStopped",
        "Stopping as requested",
        id="Stopped, Pending: ApplyStopped",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Starting")},
        "ApplyStopped",
        "Stopping as requested",
        id="Stopped, Starting: ApplyStopped",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Unknown")},
        "ApplyStopped",
        "Stopping as requested",
        id="Stopped, Unknown: ApplyStopped",
    ),
    pytest.param(
        {**FIRST},
        "ApplyStopped",
        "Stopping as requested",
        id="Stopped, Missing, but an order to start is on its way",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Stopped")},
        "NoAction",
        "Stopped",
        id="Stopped, Stopped: nothing",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Failed")}, "NoAction", "Stopped", id="Stopped, Failed: nothing"
    ),
    pytest.param(
        {"last_action": an_action("ApplyStopped")},
        "NoAction",
        "Stopped",
        id="Stopped, Missing: nothing",
    ),
    pytest.param(
        {**APPLIED, "report": a_report("Stopped"), "eviction_reason": "drain"},
        "Release",
        "Released while stopped: drain",
        id="Stopped, on a node that it must leave",
    ),
    pytest.param(
        {"last_action": an_action("ApplyStopped"), "report": a_report("Running")},
        "NoAction",
        "Stopping as requested; stop order sent",
        id="being stopped: grace",
    ),
    pytest.param(
        {"last_action": an_action("ApplyStopped", 61), "report": a_report("Running")},
        "ApplyStopped",
        "Stopping as requested",
        id="not stopped in time: ordered again",
    ),
]
DELETED = [
    pytest.param({"node": "None"}, "FinalizeDelete", "Deleted: no node runs the workload", id="Deleted, no node: finalize"),
    pytest.param({"node": "Gone"}, "FinalizeDelete", "Deleted: no node runs the workload", id="Deleted, node gone: finalize"),
    pytest.param({"node": "Silent"}, "AwaitNode", "No heartbeat from the node, which may still run the workload; the record stays until the node reports that the workload has ended", id="Deleted, node silent: the record stays"),
    pytest.param({"node": "Silent", "failover_reason": LOST}, "AwaitNode", "No heartbeat from the node, which may still run the workload; the record stays until the node reports that the workload has ended", id="Deleted, node silent for long: the record stays"),
    *(pytest.param({**APPLIED, "report": a_report(state)}, "Delete", "Stopping before deletion", id=f"Deleted, {state}: Delete") for state in ("Pending", "Starting", "Running", "Stopped", "Failed", "Unknown")),
    pytest.param({**FIRST}, "Delete", "Stopping before deletion", id="Deleted, Missing, but an order to start is on its way"),
    pytest.param({"last_action": an_action("Delete"), "report": a_report("Stopped")}, "NoAction", "Stopping before deletion; stop order sent", id="being deleted: grace"),
    pytest.param({"last_action": an_action("Delete"), "report": a_report("Missing", knows_order=False)}, "NoAction", "Stopping before deletion; stop order sent", id="Missing from before the order proves nothing"),
    pytest.param({"last_action": an_action("Delete")}, "FinalizeDelete", "Deleted: the node has removed the workload", id="Deleted, Missing: finalize"),
]  # fmt: skip


def check(desired: str, parts: dict[str, Any], action: str, reason: str) -> None:
    decision = decide(an_input(desired=desired, **parts))
    assert (decision.action, decision.reason) == (action, reason)
    assert decide(an_input(desired=desired, **parts)) == decision


@pytest.mark.parametrize(("parts", "action", "reason"), RUNNING)
def test_decide_desired_running(parts: dict[str, Any], action: str, reason: str) -> None:
    check("Running", parts, action, reason)


@pytest.mark.parametrize(("parts", "action", "reason"), STOPPED)
def test_decide_desired_stopped(parts: dict[str, Any], action: str, reason: str) -> None:
    check("Stopped", parts, action, reason)


@pytest.mark.parametrize(("parts", "action", "reason"), DELETED)
def test_decide_desired_deleted(parts: dict[str, Any], action: str, reason: str) -> None:
    check("Deleted", parts, action, reason)


@pytest.mark.parametrize("why", sorted(FINAL_FAILURES))
def test_final_failure_is_not_retried(why: str) -> None:
    decision = decide(an_input(**APPLIED, report=a_report("Failed", failure=why)))
    assert (decision.action, decision.failure_reason, decision.event) == (
        Action.MARK_FAILED,
        why,
        "WorkloadFailed",
    )
    assert decision.retry is not None
    assert is_exhausted(decision.retry)


@pytest.mark.parametrize("why", sorted(NODE_FAULTS))
def test_node_fault_reschedules_with_backoff_until_exhausted(why: str) -> None:
    retry, steps = a_retry(), []
    while True:
        decision = decide(
            an_input(
                retry=retry,
                last_action=an_action("Apply", 100),
                report=a_report("Failed", retry.run or 0, why),
            )
        )
        steps.append((decision.action, decision.requeue_after))
        assert decision.retry is not None
        retry = decision.retry
        if decision.action is not Action.RESCHEDULE:
            break
    assert steps == [*((Action.RESCHEDULE, wait) for wait in (5, 10, 20, 40)), (Action.MARK_FAILED, None)]


def test_disconnect_failure_does_not_count_as_attempt() -> None:
    decision = decide(
        an_input(
            retry=a_retry(4, 5),
            last_action=an_action("Recreate", 100),
            report=a_report("Failed", 5, "DISCONNECTED"),
        )
    )
    assert (decision.action, decision.requeue_after) == (Action.BACKOFF_WAIT, 5)
    assert decision.retry is not None
    assert (decision.retry.attempts, decision.retry.run) == (4, 6)


def test_old_revision_has_longer_grace_than_missing_one() -> None:
    told = {"retry": a_retry(), "last_action": an_action("Apply", 20)}
    assert decide(an_input(**told, report=a_report("Running", revision=OLD))).action is Action.NO_ACTION
    assert decide(an_input(**told)).action is Action.BACKOFF_WAIT


def test_running_copy_of_earlier_run_is_kept() -> None:
    for last in (an_action("Recreate"), an_action("BackoffWait")):
        decision = decide(
            an_input(
                retry=a_retry(1, 2, wait=3),
                last_action=last,
                ready_since=ago(1),
                report=a_report("Running", 1),
            )
        )
        assert (decision.action, decision.reason) == (Action.NO_ACTION, "Running after 1 failure")
    stale = decide(
        an_input(
            retry=a_retry(0, 2),
            last_action=an_action("Assign"),
            report=a_report("Running", 1, knows_order=False),
        )
    )
    assert stale.action is Action.APPLY


def test_restart_after_stop_is_a_new_run() -> None:
    decision = decide(
        an_input(retry=a_retry(2, 3), last_action=an_action("ApplyStopped"), report=a_report("Stopped", 3))
    )
    assert (decision.action, decision.retry) == (Action.APPLY, a_retry(0, 4))


def test_clock_set_back_does_not_extend_grace() -> None:
    decision = decide(an_input(retry=a_retry(), last_action=an_action("Apply", -3600)))
    assert (decision.action, decision.requeue_after) == (Action.NO_ACTION, 15)


def test_new_revision_starts_after_final_failure() -> None:
    decision = decide(
        an_input(
            retry=a_retry(5, 6),
            last_action=an_action("MarkFailed"),
            report=a_report("Failed", 5),
            revision=OLD,
        )
    )
    assert decision.action is Action.APPLY
    assert decision.retry == Retry(attempts=0, max=5, revision=OLD, run=7)


def test_only_acting_decisions_are_stored() -> None:
    for parts, *_ in (case.values for case in (*RUNNING, *STOPPED, *DELETED)):
        decision = decide(an_input(**parts))  # type: ignore[arg-type]
        if decision.action in (Action.NO_ACTION, Action.AWAIT_FAILOVER, Action.AWAIT_NODE):
            assert not decision.is_stored
        if decision.action in START_ACTIONS or decision.action is Action.MARK_FAILED:
            assert decision.is_stored
            assert decision.retry is not None


STARTED = {"retry": a_retry(0, 3), "last_action": an_action("Apply", 100)}


@pytest.mark.parametrize(
    ("parts", "action", "failure"),
    [
        pytest.param(
            {"report": a_report("Failed", 3, "RUNTIME_ERROR")},
            "MarkFailed",
            "RUNTIME_ERROR",
            id="a non-zero exit is final",
        ),
        pytest.param(
            {"report": a_report("Failed", 3, "IMAGE_PULL_FAILED")},
            "BackoffWait",
            "IMAGE_PULL_FAILED",
            id="a program that never started is tried again",
        ),
        pytest.param({"report": a_report("Stopped", 3)}, "Succeed", "", id="exit code 0 is success"),
        pytest.param(
            {"node": "Gone", "report": a_report("Missing")},
            "Release",
            "NODE_LOST",
            id="no second start after the node was removed",
        ),
        pytest.param(
            {"node": "Silent", "failover_reason": "silent for long"},
            "Release",
            "NODE_LOST",
            id="no second start after the node was lost",
        ),
        pytest.param(
            {"eviction_reason": "the node is being drained", "report": a_report("Stopped", 3)},
            "Release",
            "EVICTED",
            id="no second start after an eviction",
        ),
        pytest.param(
            {"last_action": an_action("Assign"), "node": "Gone", "report": a_report("Missing")},
            "Reschedule",
            "",
            id="another node while the start was not ordered yet",
        ),
    ],
)
def test_never_starts_a_program_once(parts: dict[str, Any], action: str, failure: str) -> None:
    decision = decide(an_input(**{**STARTED, "restart_policy": "Never", **parts}))
    assert (decision.action, decision.failure_reason) == (action, failure)
    if failure and action != "BackoffWait":
        assert decision.retry is not None
        assert decision.retry.final
        assert decision.event == "WorkloadFailed"


def test_succeeded_run_is_over_until_the_revision_changes() -> None:
    over = succeed(a_retry(0, 3))
    last = {"last_action": an_action("Succeed"), "restart_policy": "OnFailure"}
    for node in ("None", "Ready"):
        decision = decide(an_input(retry=over, node=node, report=a_report("Stopped", 3), **last))
        assert decision.action is Action.NO_ACTION
    evicted = decide(an_input(retry=over, eviction_reason="drain", report=a_report("Stopped", 3), **last))
    assert (evicted.action, evicted.retry) == (Action.RELEASE, None)
    changed = decide(
        an_input(retry=structs.replace(over, revision=OLD), report=a_report("Stopped", 3), **last)
    )
    assert changed.action is Action.RESCHEDULE


def test_service_replica_waits_only_if_no_restart_can_help() -> None:
    for failure, action in (("COMMAND_NOT_FOUND", "MarkFailed"), ("PORT_BIND_CONFLICT", "BackoffWait")):
        decision = decide(an_input(**STARTED, is_service_replica=True, report=a_report("Failed", 3, failure)))
        assert decision.action == action, failure


def test_replica_that_runs_without_readiness_keeps_its_failures() -> None:
    decision = decide(
        an_input(retry=a_retry(3, 4), last_action=an_action("Recreate", 9000), report=a_report("Running", 4))
    )
    assert (decision.action, decision.reason) == (
        Action.NO_ACTION,
        "Running after 3 failures, and not ready yet",
    )
