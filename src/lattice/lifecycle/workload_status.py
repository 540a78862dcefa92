"""What does all that is known of a workload come to: the situation to decide about, and the status to show?"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from msgspec.structs import replace

from lattice.kinds.meta.timestamps import MAX_CLOCK_SKEW_S, format_micro_time, parse_time
from lattice.kinds.workload import EVICTED, ActualState, DesiredState, LatticeWorkload, WorkloadStatus
from lattice.lifecycle.workload import (
    START_ACTIONS,
    Action,
    BoundNodeState,
    Decision,
    LastAction,
    Report,
    WorkloadInput,
    failure_message_for,
)

MAX_LOG_CHARS = 2048  # characters of the last lines
FAILURE_CLEARING_ACTIONS = frozenset(
    {Action.APPLY, Action.FORGIVE, Action.RETRY}
)  # after these the last failure is history
MISSING_REPORT = Report()
EMPTY_STATUS = WorkloadStatus()
STATES: tuple[ActualState, ...] = get_args(ActualState)
UNBINDING_ACTIONS = frozenset(
    {Action.RESCHEDULE, Action.RELEASE, Action.FINALIZE_DELETE}
)  # after these it has no node


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of a workload besides its record."""

    node: BoundNodeState
    is_node_heard: bool = (
        True  # False: its node counts as silent only because this server has not heard all of it yet
    )
    report: Report = MISSING_REPORT
    ready: bool = False
    log: str = ""
    connected_for: float | None = (
        None  # seconds that its node could have been told anything: since it connected
    )
    eviction_reason: str = ""
    node_reason: str = ""  # its node is not Ready
    since_last_action: float | None = (
        None  # seconds since its last action, timed by whoever looks; None: only the stored time tells
    )
    since_state_change: float | None = None  # seconds that it has been in its present state, likewise


def parse_actual_state(state: str) -> ActualState:
    """What a node says, if it is a word that we know."""
    known: ActualState = next((each for each in STATES if each == state), "Unknown")
    return known


def desired_state(workload: LatticeWorkload) -> DesiredState:
    return "Deleted" if workload.metadata.deletion_timestamp else workload.spec.desired_state


def build_input(workload: LatticeWorkload, sight: Observation, now: datetime) -> WorkloadInput:
    status = workload.status
    at, since = parse_time(status.last_action_at), parse_time(status.state_since)
    if at is not None and sight.since_last_action is not None:
        at = now - timedelta(
            seconds=min(
                sight.since_last_action,
                sight.since_last_action if sight.connected_for is None else sight.connected_for,
            )
        )
    elif at is not None and sight.connected_for is not None:
        told = now - timedelta(seconds=sight.connected_for)
        at = (
            told if at > now + timedelta(seconds=MAX_CLOCK_SKEW_S) else max(at, told)
        )  # the clock was set back: it says nothing any more
    return WorkloadInput(
        desired=desired_state(workload),
        revision=workload.spec.effective_revision,
        now=now,
        node=sight.node,
        report=sight.report,
        retry=status.retry,
        last_action=LastAction(status.last_action, at),
        state_since=(
            since if sight.since_state_change is None else now - timedelta(seconds=sight.since_state_change)
        )
        if _actual_state(workload, sight) == status.actual_state
        else now,
        eviction_reason=sight.eviction_reason,
        node_reason=sight.node_reason,
    )


def next_status(
    workload: LatticeWorkload, sight: Observation, decision: Decision, now: datetime
) -> WorkloadStatus:
    """The status once this was seen and decided; equal to the present one if there is nothing to write."""
    status = _observed_status(workload, sight, now)
    if decision.retry is not None:
        status = replace(status, retry=decision.retry)
    if decision.failure_reason:
        status = replace(status, failure_reason=decision.failure_reason, last_log=sight.log[-MAX_LOG_CHARS:])
        status = replace(status, failure_message=failure_message_for(sight.report, decision.failure_reason))
    if not decision.is_stored:
        return status
    status = replace(status, last_action=str(decision.action), last_action_at=format_micro_time(now))
    if decision.action in FAILURE_CLEARING_ACTIONS:
        status = replace(status, failure_reason="", failure_message="")
    if decision.action is Action.MARK_FAILED:
        status = _in_state(status, "Failed", now)
    if decision.action in UNBINDING_ACTIONS:
        conditions = tuple(each for each in status.conditions if each.type != EVICTED)
        bare = replace(
            status, binding=None, allocated_ports={}, decision={}, ready=False, conditions=conditions
        )
        status = _in_state(bare, _unbound_state(workload), now)
    return status


def _observed_status(workload: LatticeWorkload, sight: Observation, now: datetime) -> WorkloadStatus:
    state = _actual_state(workload, sight)
    if not sight.is_node_heard:
        return workload.status
    is_ready = sight.node == "Ready" and sight.ready and sight.report.state == "Running"
    before = workload.status
    is_known = before.ready is not None or (sight.node == "Ready" and sight.report.state != "Missing")
    status = replace(before, ready=is_ready if is_known else None)
    if sight.node == "Ready":
        is_current = sight.report.revision == workload.spec.effective_revision
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
        else replace(status, actual_state=state, state_since=format_micro_time(now))
    )


def _actual_state(workload: LatticeWorkload, sight: Observation) -> ActualState:
    status = workload.status
    if not sight.is_node_heard:
        return status.actual_state
    if sight.node in ("Silent", "Abandoned"):
        return "Unknown"
    if sight.node != "Ready":
        return _unbound_state(workload)
    state = _unbound_state(workload)
    has_failed = desired_state(workload) == "Running" and (
        state == "Failed" or status.last_action in (Action.BACKOFF_WAIT, Action.MARK_FAILED)
    )
    if has_failed and sight.report.state in (
        "Missing",
        "Stopped",
    ):  # it was told to stay stopped until it is tried again
        return "Failed"
    return state if sight.report.state == "Missing" else sight.report.state


def _unbound_state(workload: LatticeWorkload) -> ActualState:
    retry = workload.status.retry
    if desired_state(workload) == "Stopped":
        return "Stopped"
    return (
        "Failed"
        if retry is not None and retry.is_exhausted and retry.revision == workload.spec.effective_revision
        else "Pending"
    )


def awaits_node(workload: LatticeWorkload) -> bool:
    """Was nothing done about it yet, and is there nothing to do but to find it a node?"""
    return (
        workload.status == EMPTY_STATUS
        and not workload.metadata.annotations
        and desired_state(workload) == "Running"
    )


def is_settled(workload: LatticeWorkload) -> bool:
    """Runs as it should: only news of itself, or of its node, could change that."""
    status = workload.status
    runs = status.actual_state == "Running" and status.last_action in START_ACTIONS
    is_same = (
        status.retry is not None
        and status.retry.revision == workload.spec.effective_revision
        and not status.retry.attempts
    )
    return runs and is_same and desired_state(workload) == "Running"
