"""What does all that is known of a workload come to: the situation to decide about, and the status to show?"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from msgspec.structs import replace

from lattice.kinds.workload import ActualState, DesiredState, LatticeWorkload, WorkloadStatus
from lattice.lifecycle.workload import (
    UNDER_WAY,
    Action,
    Decision,
    Last,
    NodeState,
    Report,
    Situation,
    how_it_failed,
)
from lattice.lifecycle.retry import SKEW, read, written
from lattice.scheduling.cycle.scheduler_cache import LEAVING

LONGEST_LOG = 2048  # characters of the last lines
MENDED = frozenset({Action.APPLY, Action.FORGIVE, Action.RETRY})  # after these the last failure is history
MISSING = Report()
UNTOUCHED = WorkloadStatus()
STATES: tuple[ActualState, ...] = get_args(ActualState)
HOMELESS = frozenset(
    {Action.RESCHEDULE, Action.RELEASE, Action.FINALIZE_DELETE}
)  # after these it has no node


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of a workload besides its record."""

    node: NodeState
    is_heard: bool = (
        True  # False: its node counts as silent only because this server has not heard all of it yet
    )
    report: Report = MISSING
    ready: bool = False
    log: str = ""
    told_for: float | None = None  # seconds that its node could have been told anything: since it connected
    leaving: str = ""
    why: str = ""  # its node is not Ready
    acted_for: float | None = (
        None  # seconds since its last action, timed by whoever looks; None: only the stored time tells
    )
    state_for: float | None = None  # seconds that it has been in its present state, likewise


def reported(state: str) -> ActualState:
    """What a node says, if it is a word that we know."""
    known: ActualState = next((each for each in STATES if each == state), "Unknown")
    return known


def desired(workload: LatticeWorkload) -> DesiredState:
    return "Deleted" if workload.metadata.deletion_timestamp else workload.spec.desired_state


def situation(workload: LatticeWorkload, sight: Sight, now: datetime) -> Situation:
    status = workload.status
    at, since = read(status.last_action_at), read(status.state_since)
    if at is not None and sight.acted_for is not None:
        at = now - timedelta(
            seconds=min(sight.acted_for, sight.acted_for if sight.told_for is None else sight.told_for)
        )
    elif at is not None and sight.told_for is not None:
        told = now - timedelta(seconds=sight.told_for)
        at = (
            told if at > now + timedelta(seconds=SKEW) else max(at, told)
        )  # the clock was set back: it says nothing any more
    return Situation(
        desired=desired(workload),
        revision=workload.spec.runs,
        now=now,
        node=sight.node,
        report=sight.report,
        retry=status.retry,
        last=Last(status.last_action, at),
        since=(since if sight.state_for is None else now - timedelta(seconds=sight.state_for))
        if _state(workload, sight) == status.actual_state
        else now,
        leaving=sight.leaving,
        why=sight.why,
    )


def after(workload: LatticeWorkload, sight: Sight, decision: Decision, now: datetime) -> WorkloadStatus:
    """The status once this was seen and decided; equal to the present one if there is nothing to write."""
    status = _seen(workload, sight, now)
    if decision.retry is not None:
        status = replace(status, retry=decision.retry)
    if decision.failure:
        status = replace(status, failure_reason=decision.failure, last_log=sight.log[-LONGEST_LOG:])
        status = replace(status, failure_message=how_it_failed(sight.report, decision.failure))
    if not decision.is_stored:
        return status
    status = replace(status, last_action=str(decision.action), last_action_at=written(now))
    if decision.action in MENDED:
        status = replace(status, failure_reason="", failure_message="")
    if decision.action is Action.MARK_FAILED:
        status = _in_state(status, "Failed", now)
    if decision.action in HOMELESS:
        conditions = tuple(each for each in status.conditions if each.type != LEAVING)
        bare = replace(
            status, binding=None, allocated_ports={}, decision={}, ready=False, conditions=conditions
        )
        status = _in_state(bare, _homeless(workload), now)
    return status


def _seen(workload: LatticeWorkload, sight: Sight, now: datetime) -> WorkloadStatus:
    state = _state(workload, sight)
    if not sight.is_heard:
        return workload.status
    is_ready = sight.node == "Ready" and sight.ready and sight.report.state == "Running"
    before = workload.status
    is_known = before.ready is not None or (sight.node == "Ready" and sight.report.state != "Missing")
    status = replace(before, ready=is_ready if is_known else None)
    if sight.node == "Ready":
        is_current = sight.report.revision == workload.spec.runs
        strict = (
            workload.spec.disconnect.policy == "stop"
            if is_current
            else status.strict and bool(sight.report.revision)
        )
        status = replace(status, applied_revision=sight.report.revision, strict=strict)
    return _in_state(status, state, now)


def _in_state(status: WorkloadStatus, state: ActualState, now: datetime) -> WorkloadStatus:
    return (
        status
        if status.actual_state == state
        else replace(status, actual_state=state, state_since=written(now))
    )


def _state(workload: LatticeWorkload, sight: Sight) -> ActualState:
    status = workload.status
    if not sight.is_heard:
        return status.actual_state
    if sight.node in ("Silent", "Abandoned"):
        return "Unknown"
    if sight.node != "Ready":
        return _homeless(workload)
    state = _homeless(workload)
    has_failed = desired(workload) == "Running" and (
        state == "Failed" or status.last_action in (Action.BACKOFF_WAIT, Action.MARK_FAILED)
    )
    if has_failed and sight.report.state in (
        "Missing",
        "Stopped",
    ):  # it was told to stay stopped until it is tried again
        return "Failed"
    return state if sight.report.state == "Missing" else sight.report.state


def _homeless(workload: LatticeWorkload) -> ActualState:
    retry = workload.status.retry
    if desired(workload) == "Stopped":
        return "Stopped"
    return (
        "Failed"
        if retry is not None and retry.is_over and retry.revision == workload.spec.runs
        else "Pending"
    )


def awaits_node(workload: LatticeWorkload) -> bool:
    """Was nothing done about it yet, and is there nothing to do but to find it a node?"""
    return (
        workload.status == UNTOUCHED and not workload.metadata.annotations and desired(workload) == "Running"
    )


def is_settled(workload: LatticeWorkload) -> bool:
    """Runs as it should: only news of itself, or of its node, could change that."""
    status = workload.status
    runs = status.actual_state == "Running" and status.last_action in UNDER_WAY
    is_same = (
        status.retry is not None and status.retry.revision == workload.spec.runs and not status.retry.attempts
    )
    return runs and is_same and desired(workload) == "Running"
