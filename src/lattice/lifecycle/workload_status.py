"""Build the input of a workload decision from the stored workload and the observation, and the status of the
workload after the decision."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from msgspec.structs import replace

from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.conditions import READY_CONDITION, find_condition, without_condition
from lattice.kinds.meta.quantity import pluralize
from lattice.kinds.meta.timestamps import MAX_CLOCK_SKEW_S, format_micro_time, parse_time
from lattice.kinds.workload import (
    EVICTED,
    FAILED_CONDITION,
    ActualState,
    LatticeWorkload,
    WorkloadStatus,
)
from lattice.lifecycle.eviction import NOT_EVICTING, RELEASING_ACTIONS, Eviction, EvictionCause
from lattice.lifecycle.retry import EXITED, has_succeeded, is_reported_failed
from lattice.lifecycle.workload import (
    LIVE_STATES,
    START_ACTIONS,
    Action,
    BoundNodeState,
    Decision,
    LastAction,
    Report,
    WorkloadInput,
    desired_state,
    failure_message_for,
)

# Characters of the last log lines.
MAX_LOG_CHARS = 2048
# Actions that clear the last failure from the status.
FAILURE_CLEARING_ACTIONS = frozenset({Action.APPLY, Action.FORGIVE, Action.RETRY, Action.SUCCEED})
# Actions that start a failed workload again.
RESTART_ACTIONS = frozenset({Action.RECREATE, Action.RETRY})
MISSING_REPORT = Report()
EMPTY_STATUS = WorkloadStatus()
ACTUAL_STATES: tuple[ActualState, ...] = get_args(ActualState)
# Actions after which the workload is bound to no node.
UNBINDING_ACTIONS = RELEASING_ACTIONS | {Action.FINALIZE_DELETE}


@dataclass(frozen=True, slots=True)
class WorkloadObservation:
    """What the leader knows of a workload besides the stored object."""

    node: BoundNodeState
    # False: the node counts as silent only because this leader has not received its whole report yet.
    is_node_heard: bool = True
    report: Report = MISSING_REPORT
    ready: bool = False
    log: str = ""
    # Seconds since the node connected, the time in which its agent could receive orders.
    connected_for: float | None = None
    eviction: Eviction = NOT_EVICTING
    # The reason why the node is not Ready.
    node_reason: str = ""
    # Seconds since the last action, measured by the controller on its monotonic clock; None: only the stored
    # time is known.
    since_last_action: float | None = None
    # Seconds since the stored change to ready, on the same clock; None: only the stored time is known.
    since_ready: float | None = None


def parse_actual_state(state: str) -> ActualState:
    """Return the state that an agent reports, or Unknown for a state that this version does not know."""
    actual: ActualState = next((name for name in ACTUAL_STATES if name == state), "Unknown")
    return actual


def build_input(workload: LatticeWorkload, observation: WorkloadObservation, now: datetime) -> WorkloadInput:
    """Build the input of the lifecycle decision from the stored workload and the observation."""
    status = workload.status
    action_at = parse_time(status.last_action_at)
    if action_at is not None and observation.since_last_action is not None:
        # An order cannot age before the agent is connected: grace periods start at the connection.
        age = observation.since_last_action
        if observation.connected_for is not None:
            age = min(age, observation.connected_for)
        action_at = now - timedelta(seconds=age)
    elif action_at is not None and observation.connected_for is not None:
        connected_at = now - timedelta(seconds=observation.connected_for)
        # A stored time in the future means that the clock was set back: only the connection time counts.
        is_in_future = action_at > now + timedelta(seconds=MAX_CLOCK_SKEW_S)
        action_at = connected_at if is_in_future else max(action_at, connected_at)
    eviction = observation.eviction
    is_failover = eviction.cause is EvictionCause.NODE_LOST
    return WorkloadInput(
        desired=desired_state(workload),
        revision=workload.spec.effective_revision,
        now=now,
        node=observation.node,
        report=observation.report,
        retry=status.retry,
        last_action=LastAction(status.last_action, action_at),
        ready_since=_ready_since(workload, observation, now),
        is_service_replica=bool(workload.spec.service),
        restart_policy=workload.spec.restart_policy,
        eviction_reason="" if is_failover else eviction.reason,
        node_reason=observation.node_reason,
        failover_reason=eviction.reason if is_failover else "",
    )


def _ready_since(
    workload: LatticeWorkload, observation: WorkloadObservation, now: datetime
) -> datetime | None:
    """When the workload became ready; None while it is not ready."""
    if not observation.ready or observation.report.state != "Running":
        return None
    ready = find_condition(workload.status.conditions, READY_CONDITION)
    # The stored condition may not show the present readiness yet.
    if ready is None or ready.status != "True":
        return now
    if observation.since_ready is not None:
        return now - timedelta(seconds=observation.since_ready)
    return parse_time(ready.last_transition_time) or now


def next_status(
    workload: LatticeWorkload, observation: WorkloadObservation, decision: Decision, now: datetime
) -> WorkloadStatus:
    """Return the workload status after the observation and the decision; equal to the present status if there
    is no change to write."""
    status = _observed_status(workload, observation, now)
    if decision.retry is not None:
        status = replace(status, retry=decision.retry)
    if decision.failure_reason:
        status = replace(
            status, failure_reason=decision.failure_reason, last_log=observation.log[-MAX_LOG_CHARS:]
        )
        status = replace(
            status,
            failure_message=failure_message_for(observation.report, decision.failure_reason),
            last_exit_code=_exit_code(observation.report, decision.failure_reason),
        )
    if not decision.is_stored:
        return status
    status = replace(status, last_action=str(decision.action), last_action_at=format_micro_time(now))
    if decision.action in FAILURE_CLEARING_ACTIONS:
        status = replace(status, failure_reason="", failure_message="")
    if decision.action in RESTART_ACTIONS:
        status = replace(status, restarts=(status.restarts or 0) + 1)
    elif decision.action is Action.APPLY:
        status = replace(status, restarts=status.restarts or 0)
    if decision.action is Action.MARK_FAILED:
        status = _in_state(status, "Failed", now)
    if decision.action is Action.SUCCEED:
        # The binding stays, so that the log remains available; ports and GPUs are free for other workloads.
        status = replace(status, last_exit_code=0, allocated_ports={}, allocated_gpus=(), ready=False)
        status = _in_state(status, "Succeeded", now)
    if decision.action in UNBINDING_ACTIONS:
        conditions = without_condition(status.conditions, EVICTED)
        unbound = replace(
            status,
            binding=None,
            reservation=None,
            allocated_ports={},
            allocated_gpus=(),
            decision={},
            ready=False,
            conditions=conditions,
        )
        status = _in_state(unbound, _unbound_state(replace(workload, status=unbound)), now)
    return status


def _exit_code(report: Report, failure: str) -> int | None:
    """The exit code of the run that the failure ended; None if it is unknown, or if the leader detected
    the failure and no run ended."""
    if failure == EXITED and report.state == "Stopped":
        return 0
    return report.exit_code if failure == report.failure_reason else None


def _observed_status(
    workload: LatticeWorkload, observation: WorkloadObservation, now: datetime
) -> WorkloadStatus:
    """The status with the reported state, readiness, revision and disconnect policy, before the decision is
    applied."""
    state = _actual_state(workload, observation)
    if not observation.is_node_heard:
        return workload.status
    is_ready = observation.node == "Ready" and observation.ready and observation.report.state == "Running"
    previous = workload.status
    is_readiness_known = previous.ready is not None or (
        observation.node == "Ready" and observation.report.state != "Missing"
    )
    status = replace(previous, ready=is_ready if is_readiness_known else None)
    if observation.node == "Ready":
        # The agent reports a revision, and the policy of an older revision is unknown here. While the report
        # names an older revision, the recorded policy stays; if the report names none, `strict` is False.
        is_current = observation.report.revision == workload.spec.effective_revision
        strict = (
            workload.spec.disconnect.policy == "stop"
            if is_current
            else status.strict and bool(observation.report.revision)
        )
        status = replace(status, applied_revision=observation.report.revision, strict=strict)
    return _in_state(status, state, now)


def _in_state(status: WorkloadStatus, state: ActualState, now: datetime) -> WorkloadStatus:
    """The status in the state; the time of the change is set only if the state differs."""
    if status.actual_state == state:
        return status
    return replace(status, actual_state=state, state_since=format_micro_time(now))


def _actual_state(workload: LatticeWorkload, observation: WorkloadObservation) -> ActualState:
    """The state to show: reported by the agent, or derived from the stored status where no report counts."""
    status = workload.status
    if not observation.is_node_heard:
        return status.actual_state
    if observation.node == "Silent":
        return "Unknown"
    state = _unbound_state(workload)
    if observation.node != "Ready":
        return state
    if state == "Succeeded" and observation.report.state not in LIVE_STATES:
        return state
    has_failed = desired_state(workload) == "Running" and (
        state == "Failed" or status.last_action in (Action.BACKOFF_WAIT, Action.MARK_FAILED)
    )
    # The agent was ordered to keep the failed workload stopped until the next attempt.
    if has_failed and observation.report.state in ("Missing", "Stopped"):
        return "Failed"
    return state if observation.report.state == "Missing" else observation.report.state


def _unbound_state(workload: LatticeWorkload) -> ActualState:
    """The state of a workload without a running copy: Stopped, Succeeded, Failed or Pending."""
    if has_succeeded(workload):
        return "Succeeded"
    if desired_state(workload) == "Stopped":
        return "Stopped"
    return "Failed" if is_reported_failed(workload) else "Pending"


def workload_conditions(status: WorkloadStatus, reason: str) -> Iterator[Condition]:
    """Return the conditions Ready and Failed of the status; `reason` is the reason of the last decision.

    A workload that was never reported as failed has no condition Failed.
    """
    yield Condition(
        type=READY_CONDITION,
        status="True" if status.ready else "False",
        # The failure of an earlier run stays in the status; a workload that is ready has none.
        reason=status.actual_state if status.ready else status.failure_reason or status.actual_state,
        message=reason,
    )
    retry = status.retry
    if retry is not None and retry.has_failed:
        cause = f"{status.failure_reason}: {status.failure_message}".removesuffix(": ")
        failures = pluralize(retry.attempts or 0, "failure")
        message = f"{failures}, the last: {cause}" if cause else failures
        yield Condition(
            type=FAILED_CONDITION, status="True", reason=status.failure_reason or "Failed", message=message
        )
    elif find_condition(status.conditions, FAILED_CONDITION):
        yield Condition(type=FAILED_CONDITION, status="False", reason="AsExpected")


def awaits_node(workload: LatticeWorkload) -> bool:
    """Whether the workload is new and only waits for the scheduler: no controller has written its status."""
    status = workload.status
    # The API creates workloads with the observed generation 0 and an unknown Ready condition.
    condition_types = {condition.type for condition in status.conditions}
    if status.observed_generation == 0 and condition_types == {READY_CONDITION}:
        status = replace(status, observed_generation=None, conditions=())
    return (
        status == EMPTY_STATUS and not workload.metadata.annotations and desired_state(workload) == "Running"
    )


def is_settled(workload: LatticeWorkload) -> bool:
    """Whether the workload runs without failures: only a new report or a change of its node can require an
    action."""
    status = workload.status
    runs = status.actual_state == "Running" and status.last_action in START_ACTIONS
    is_current = (
        status.retry is not None
        and status.retry.revision == workload.spec.effective_revision
        and not status.retry.attempts
    )
    return runs and is_current and desired_state(workload) == "Running"
