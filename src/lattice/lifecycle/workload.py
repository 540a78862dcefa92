"""The lifecycle decision for one workload, from the desired state, the agent's report, the last action and
the time.

Two identifiers keep an action from taking effect twice. The revision names what runs; here it is the digest
of containers, requests, limits and disconnect policy, and not the revision of a commit. The run number names
one start of the revision. An agent starts a run once. A run that ended by itself is followed by the next run
only after its end is stored in the retry state.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from lattice.kinds.meta.quantity import pluralize
from lattice.kinds.workload import (
    ActualState,
    DesiredRun,
    DesiredState,
    LatticeWorkload,
    RestartPolicy,
    Retry,
)
from lattice.lifecycle.retry import (
    EVICTED_FROM_NODE,
    EXITED,
    FINAL_FAILURES,
    FINAL_SERVICE_FAILURES,
    NODE_FAULTS,
    NODE_LOST,
    NOT_STARTED_FAILURES,
    UNCOUNTED_FAILURES,
    RetryPolicy,
    backoff_remaining,
    count_failure,
    fail_permanently,
    is_exhausted,
    is_quiet,
    manual_retry,
    next_run,
    postpone,
    reset_attempts,
    succeed,
)

BoundNodeState = Literal["None", "Ready", "Silent", "Gone"]
ReportedState = ActualState | Literal["Missing"]

LIVE_STATES = frozenset({"Pending", "Starting", "Running", "Unknown"})


def desired_state(workload: LatticeWorkload) -> DesiredState:
    """Return the desired state of the workload; a workload that is marked for deletion is Deleted."""
    return "Deleted" if workload.metadata.deletion_timestamp else workload.spec.desired_state


class Action(StrEnum):
    """The next action of the workload controller for a workload; the status stores the last action."""

    ASSIGN = "Assign"  # as a decision: wait for the scheduler; as the stored action: the workload was bound
    APPLY = "Apply"
    RECREATE = "Recreate"
    APPLY_STOPPED = "ApplyStopped"
    DELETE = "Delete"
    FINALIZE_DELETE = "FinalizeDelete"  # remove the object
    RESCHEDULE = "Reschedule"  # unbind, and schedule again
    RELEASE = "Release"  # unbind only
    RETRY = "Retry"  # a user asks for a retry
    MARK_FAILED = "MarkFailed"
    SUCCEED = "Succeed"  # the run ended with exit code 0 and is not repeated
    FORGIVE = "Forgive"  # reset the count of failures
    BACKOFF_WAIT = "BackoffWait"
    AWAIT_FAILOVER = "AwaitFailover"
    AWAIT_NODE = "AwaitNode"
    NO_ACTION = "NoAction"


# After these actions the agent has an order to start the run.
START_ACTIONS = frozenset({Action.APPLY, Action.RECREATE, Action.FORGIVE})
# While the decision for a workload is one of these actions, the status shows the reason and follows every
# change of the reason.
AWAIT_ACTIONS = frozenset({Action.AWAIT_FAILOVER, Action.AWAIT_NODE})
# A decision with one of these actions is stored only if it changes the retry state.
UNSTORED_ACTIONS = frozenset(
    {Action.ASSIGN, Action.BACKOFF_WAIT, Action.AWAIT_FAILOVER, Action.AWAIT_NODE, Action.NO_ACTION}
)
EVENT_REASONS = {
    Action.APPLY: "WorkloadApplied",
    Action.RECREATE: "RetryTriggered",
    Action.RETRY: "RetryTriggered",
    Action.APPLY_STOPPED: "WorkloadStopping",
    Action.DELETE: "WorkloadDeleting",
    Action.FINALIZE_DELETE: "WorkloadDeleted",
    Action.RESCHEDULE: "Rescheduled",
    Action.RELEASE: "WorkloadReleased",
    Action.MARK_FAILED: "WorkloadFailed",
    Action.SUCCEED: "WorkloadSucceeded",
    Action.FORGIVE: "WorkloadSteady",
    Action.BACKOFF_WAIT: "WorkloadBackOff",
}


@dataclass(frozen=True, slots=True)
class GracePeriods:
    """Seconds before a delay counts as a failure, or before an order is repeated."""

    # From the order until the agent reports the workload at all.
    missing: float = 15.0
    # From the order until the workload runs, including the image pull.
    start: float = 300.0
    # From the order until the workload has stopped.
    stop: float = 60.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True, slots=True)
class Report:
    """The agent's report of the workload; the state is Missing if the node does not have the workload."""

    state: ReportedState = "Missing"
    revision: str = ""
    run: int = 0
    # The failure in one word.
    failure_reason: str = ""
    # Whether the agent had received the leader's last order when it reported.
    includes_last_order: bool = True
    # The failure in words: an exit code, a signal.
    failure_message: str = ""
    # None: the run has not ended, or the agent does not report exit codes.
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class LastAction:
    """The last action for the workload, as stored; the scheduler stores Assign when it binds the workload."""

    action: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WorkloadInput:
    """All facts that the lifecycle decision depends on."""

    desired: DesiredState
    revision: str
    now: datetime
    node: BoundNodeState = "Ready"
    report: Report = Report()
    retry: Retry | None = None
    last_action: LastAction = LastAction()
    # When the workload became ready; None while it is not ready.
    ready_since: datetime | None = None
    # A replica of a service is restarted even after it is reported as failed.
    is_service_replica: bool = False
    restart_policy: RestartPolicy = "Always"
    # Why the workload must leave its node: a drain, a taint or a preemption.
    eviction_reason: str = ""
    # Why the node is silent, and what the workload waits for.
    node_reason: str = ""
    # Why the workload leaves its silent node; empty while the workload waits for the node.
    failover_reason: str = ""

    def age(self, time: datetime | None) -> float:
        """Seconds since the time. A time in the future, which means that the clock was set back, gives 0;
        None gives infinity."""
        return float("inf") if time is None else max(0.0, (self.now - time).total_seconds())


@dataclass(frozen=True, slots=True)
class Decision:
    """The next action for the workload.

    The controller stores `retry` and the action before it acts, and reconciles the workload after
    `requeue_after` seconds at the latest.
    """

    action: Action
    reason: str
    # None: the retry state stays.
    retry: Retry | None = None
    requeue_after: float | None = None
    # The failure in one word, when the decision follows a failed run.
    failure_reason: str = ""

    @property
    def is_stored(self) -> bool:
        return self.retry is not None or self.action not in UNSTORED_ACTIONS

    @property
    def is_reporting_failed(self) -> bool:
        """Whether this decision is the one that reports the workload as failed."""
        retry, is_counted = self.retry, self.failure_reason not in ("", *UNCOUNTED_FAILURES)
        return retry is not None and is_counted and (retry.final or retry.attempts == retry.max)

    @property
    def event(self) -> str:
        """The reason of the event for the decision; empty for no event.

        A back-off has one event, when its retry state is stored.
        """
        if self.is_reporting_failed:
            return "WorkloadFailed"
        if not self.is_stored or (self.retry is not None and is_quiet(self.retry)):
            return ""
        return EVENT_REASONS.get(self.action, "")


PERMANENT_FAILURE = "Failed permanently; change the workload or request a retry"
SUCCEEDED = "Succeeded with exit code 0; the restart policy does not repeat the run"
STOPPED = Decision(Action.NO_ACTION, "Stopped")
# The default is frozen: one shared instance is safe.
DEFAULT_GRACE_PERIODS = GracePeriods()


def decide(inputs: WorkloadInput, grace_periods: GracePeriods = DEFAULT_GRACE_PERIODS) -> Decision:
    """Decide the next action for the workload."""
    grace_periods = _grace_periods_for(inputs, grace_periods)
    match inputs.desired:
        case "Deleted":
            return _decide_deleted(inputs, grace_periods)
        case "Stopped":
            return _decide_stopped(inputs, grace_periods)
        case "Running":
            return _decide_running(inputs, grace_periods)


def decide_manual_retry(
    inputs: WorkloadInput, grace_periods: GracePeriods = DEFAULT_GRACE_PERIODS
) -> Decision:
    """Decide the answer to a user's request for a retry: start at once with all attempts available.

    A workload that has not failed, or that should not run, stays as it is.
    """
    grace_periods = _grace_periods_for(inputs, grace_periods)
    retry = _current_retry(inputs, grace_periods)
    if inputs.desired != "Running" or not retry.attempts:
        return Decision(
            Action.NO_ACTION, "No retry: the workload has not failed, or its desired state is not Running"
        )
    if inputs.report.state == "Running" and _reports_run(inputs, retry):
        return Decision(
            Action.FORGIVE, "Running; failure count reset", reset_attempts(retry, grace_periods.retry)
        )
    return Decision(
        Action.RETRY,
        "Restarting: a user requested a retry",
        manual_retry(retry, inputs.revision, inputs.now, grace_periods.retry),
    )


def _grace_periods_for(inputs: WorkloadInput, grace_periods: GracePeriods) -> GracePeriods:
    if not inputs.is_service_replica or grace_periods.retry.keeps_trying:
        return grace_periods
    return replace(grace_periods, retry=grace_periods.retry.for_service())


def _decide_deleted(inputs: WorkloadInput, grace_periods: GracePeriods) -> Decision:
    """Keep the object until no node can run the workload any more (I-13)."""
    if inputs.node in ("None", "Gone"):
        return Decision(Action.FINALIZE_DELETE, "Deleted: no node runs the workload")
    if inputs.node != "Ready":
        return Decision(
            Action.AWAIT_NODE,
            "No heartbeat from the node, which may still run the workload; "
            "the record stays until the node reports that the workload has ended",
        )
    if (
        inputs.report.state == "Missing"
        and inputs.last_action.action not in START_ACTIONS
        and inputs.report.includes_last_order
    ):
        return Decision(Action.FINALIZE_DELETE, "Deleted: the node has removed the workload")
    return _order_once(inputs, Action.DELETE, "Stopping before deletion", grace_periods.stop)


def _decide_stopped(inputs: WorkloadInput, grace_periods: GracePeriods) -> Decision:
    match inputs.node:
        case "None":
            return Decision(Action.NO_ACTION, "Stopped and not bound to a node")
        case "Gone":
            return _release(
                inputs, "Released: the node was removed, and the desired state is Stopped", grace_periods
            )
        case "Silent":
            return Decision(
                Action.AWAIT_NODE, "No heartbeat from the node, which cannot receive the stop order"
            )
    if _is_down(inputs):
        if inputs.eviction_reason:
            reason = f"Released while stopped: {inputs.eviction_reason}"
            return _release(inputs, reason, grace_periods)
        return STOPPED
    return _order_once(inputs, Action.APPLY_STOPPED, "Stopping as requested", grace_periods.stop)


def _release(inputs: WorkloadInput, reason: str, grace_periods: GracePeriods) -> Decision:
    """Unbind the workload; a later start is another run, unless the workload has failed for good."""
    retry = _current_retry(inputs, grace_periods)
    return Decision(
        Action.RELEASE,
        reason,
        None
        if is_exhausted(retry, grace_periods.retry)
        else next_run(retry, inputs.revision, grace_periods.retry),
    )


def _decide_running(inputs: WorkloadInput, grace_periods: GracePeriods) -> Decision:
    retry = _current_retry(inputs, grace_periods)
    is_spent = is_exhausted(retry, grace_periods.retry)
    ended_reason = SUCCEEDED if retry.succeeded else PERMANENT_FAILURE
    match inputs.node:
        case "None" if is_spent:
            return Decision(Action.NO_ACTION, ended_reason)
        case "None":
            if wait := backoff_remaining(retry, inputs.now, grace_periods.retry):
                return Decision(Action.BACKOFF_WAIT, f"Back-off after {_failures(retry)}", requeue_after=wait)
            # A fresh retry state is stored with the first order.
            return Decision(Action.ASSIGN, "Not bound to a node yet")
        case "Gone" if is_spent:
            return Decision(Action.RELEASE, f"Released: the node was removed. {ended_reason}")
        case "Gone" if _must_not_repeat(inputs):
            return _end_without_repeat(inputs, retry, NODE_LOST, "the node was removed", grace_periods)
        case "Gone":
            return Decision(
                Action.RESCHEDULE,
                "Rescheduling: the node was removed",
                next_run(retry, inputs.revision, grace_periods.retry),
            )
        case "Silent" if inputs.failover_reason and not is_spent and _must_not_repeat(inputs):
            return _end_without_repeat(inputs, retry, NODE_LOST, inputs.failover_reason, grace_periods)
        case "Silent" if inputs.failover_reason and not is_spent:
            return Decision(
                Action.RESCHEDULE,
                inputs.failover_reason,
                next_run(retry, inputs.revision, grace_periods.retry),
            )
        case "Silent":
            return Decision(
                Action.AWAIT_FAILOVER,
                "No heartbeat from the node; "
                f"{inputs.node_reason or 'the node may return before failover starts'}",
            )
    if inputs.eviction_reason:
        return _decide_evicted(inputs, retry, grace_periods)
    if inputs.retry is not None and inputs.retry.succeeded and not is_spent:
        # The resources of the succeeded run were released: the new revision needs a node again.
        return Decision(Action.RESCHEDULE, "Rescheduling: a new revision follows a succeeded run", retry)
    if is_spent and inputs.report.state in LIVE_STATES:
        reason = f"{ended_reason.partition(';')[0]}; stopping the remaining copy"
        return _order_once(inputs, Action.APPLY_STOPPED, reason, grace_periods.stop)
    if is_spent:
        return Decision(Action.NO_ACTION, ended_reason)
    # If the agent reports the run, the run was ordered, even if the last action is not a start. After a stop
    # order, the run must be ordered again.
    last_action = inputs.last_action.action
    # During the back-off the agent is ordered to keep the next run stopped, which is no further failure.
    wait = backoff_remaining(retry, inputs.now, grace_periods.retry)
    is_kept_stopped = last_action == Action.APPLY_STOPPED or (
        bool(wait) and inputs.report.state not in LIVE_STATES
    )
    was_ordered = last_action in START_ACTIONS or (_reports_run(inputs, retry) and not is_kept_stopped)
    if retry is inputs.retry and was_ordered:
        return _decide_ordered(inputs, retry, grace_periods)
    return _decide_start(inputs, retry, grace_periods)


def _current_retry(inputs: WorkloadInput, grace_periods: GracePeriods) -> Retry:
    """The stored retry state, or a fresh state if the stored state belongs to another revision."""
    if inputs.retry is not None and inputs.retry.revision == inputs.revision:
        return inputs.retry
    return next_run(inputs.retry, inputs.revision, grace_periods.retry)


def _decide_evicted(inputs: WorkloadInput, retry: Retry, grace_periods: GracePeriods) -> Decision:
    """Stop the workload on its node before another node may start it."""
    if not _is_down(inputs):
        reason = f"Evicting: {inputs.eviction_reason}"
        return _order_once(inputs, Action.APPLY_STOPPED, reason, grace_periods.stop)
    if is_exhausted(retry, grace_periods.retry):
        ended = "the run succeeded" if retry.succeeded else "permanent failure"
        return Decision(Action.RELEASE, f"Evicted after {ended}: {inputs.eviction_reason}")
    if _must_not_repeat(inputs):
        return _end_without_repeat(inputs, retry, EVICTED_FROM_NODE, inputs.eviction_reason, grace_periods)
    return Decision(
        Action.RESCHEDULE,
        f"Evicted: {inputs.eviction_reason}",
        next_run(retry, inputs.revision, grace_periods.retry),
    )


def _decide_start(inputs: WorkloadInput, retry: Retry, grace_periods: GracePeriods) -> Decision:
    """Order the start of a run that the agent has no order for yet, after the back-off."""
    report, was_stopped = inputs.report, inputs.last_action.action == Action.APPLY_STOPPED
    if wait := backoff_remaining(retry, inputs.now, grace_periods.retry):
        return Decision(
            Action.BACKOFF_WAIT,
            f"Back-off after {_failures(retry)}",
            None if retry is inputs.retry else retry,
            wait,
        )
    if was_stopped and report.state not in LIVE_STATES and retry is inputs.retry:
        # The stopped run is over: a start needs a new run number.
        retry = next_run(retry, inputs.revision, grace_periods.retry)
    if retry.attempts:
        attempt, longest = retry.attempts + 1, grace_periods.retry.max_attempts
        of = f" of {longest}" if attempt <= longest else ""
        reason = f"Restarting after {_failures(retry)}: attempt {attempt}{of}"
        return Decision(Action.RECREATE, reason, retry, grace_periods.missing)
    if report.revision not in ("", inputs.revision):
        return Decision(
            Action.APPLY,
            f"Replacing revision {report.revision} with revision {inputs.revision}",
            retry,
            grace_periods.missing,
        )
    reason = "Start order sent to the node"
    if report.state != "Missing":
        reason += f", which reports {report.state}"
    return Decision(Action.APPLY, reason, retry, grace_periods.missing)


def _decide_ordered(inputs: WorkloadInput, retry: Retry, grace_periods: GracePeriods) -> Decision:
    """Judge a run that the agent was ordered to start."""
    report, age = inputs.report, inputs.age(inputs.last_action.at)
    if not _reports_run(inputs, retry):
        # A report from before the order arrived does not tell whether the node has the run.
        is_missing = report.state == "Missing" and report.includes_last_order
        grace, failure = (
            (grace_periods.missing, "MISSING") if is_missing else (grace_periods.start, "NOT_APPLIED")
        )
        reason = "Start order sent; waiting for the report of the node"
        return _wait_within_grace(grace - age, reason) or _decide_failure(
            inputs, retry, failure, grace_periods
        )
    match report.state:
        case "Running" if not retry.attempts:
            return Decision(Action.NO_ACTION, "Running")
        case "Running" if inputs.ready_since is None:
            return Decision(Action.NO_ACTION, f"Running after {_failures(retry)}, and not ready yet")
        case "Running":
            remaining = grace_periods.retry.reset_after - inputs.age(inputs.ready_since)
            if remaining > 0:
                reason = f"Running after {_failures(retry)}"
                return Decision(Action.NO_ACTION, reason, requeue_after=remaining)
            return Decision(
                Action.FORGIVE,
                f"Ready for {grace_periods.retry.reset_after:g} s; failure count reset",
                reset_attempts(retry, grace_periods.retry),
            )
        case "Stopped" if not report.failure_reason and inputs.restart_policy != "Always":
            return Decision(Action.SUCCEED, SUCCEEDED, succeed(retry, grace_periods.retry))
        case "Failed" | "Stopped":
            return _decide_failure(inputs, retry, report.failure_reason or EXITED, grace_periods)
    reason = f"The node reports {report.state}"
    return _wait_within_grace(grace_periods.start - age, reason) or _decide_failure(
        inputs, retry, "START_TIMEOUT", grace_periods
    )


def _decide_failure(
    inputs: WorkloadInput, retry: Retry, failure: str, grace_periods: GracePeriods
) -> Decision:
    """Count the failure and choose between another attempt, another node and giving up."""
    details = failure_message_for(inputs.report, failure)
    words = f"{failure}: {details}" if details else failure
    final_reason = _final_reason(inputs, failure)
    if final_reason:
        return Decision(
            Action.MARK_FAILED,
            f"{words}; not restarted, because {final_reason}",
            fail_permanently(retry, grace_periods.retry),
            failure_reason=failure,
        )
    if failure in UNCOUNTED_FAILURES:
        next_retry = postpone(retry, inputs.now, grace_periods.retry)
        return Decision(
            Action.BACKOFF_WAIT,
            f"{words}; restarting",
            next_retry,
            backoff_remaining(next_retry, inputs.now, grace_periods.retry),
            failure,
        )
    next_retry = count_failure(retry, inputs.now, grace_periods.retry)
    if is_exhausted(next_retry, grace_periods.retry):
        return Decision(
            Action.MARK_FAILED,
            f"{words}; not restarted after {_failures(next_retry)}",
            next_retry,
            failure_reason=failure,
        )
    wait = backoff_remaining(next_retry, inputs.now, grace_periods.retry)
    if next_retry.has_failed:
        words += "; reported as failed, and restarts go on"
    if failure in NODE_FAULTS:
        return Decision(Action.RESCHEDULE, f"{words}; {NODE_FAULTS[failure]}", next_retry, wait, failure)
    return Decision(
        Action.BACKOFF_WAIT, f"{words}; back-off after {_failures(next_retry)}", next_retry, wait, failure
    )


def failure_message_for(report: Report, failure: str) -> str:
    """Return the agent's message for the failure; empty for a failure that the leader detected."""
    if failure == EXITED and report.state == "Stopped":
        return "exited with code 0, but the workload should run"
    return report.failure_message if failure == report.failure_reason else ""


def _final_reason(inputs: WorkloadInput, failure: str) -> str:
    """Why the failed workload is not restarted without a change; empty if a restart follows."""
    if failure in (FINAL_SERVICE_FAILURES if inputs.is_service_replica else FINAL_FAILURES):
        return "a retry would fail again"
    if inputs.restart_policy == "Never" and failure not in NOT_STARTED_FAILURES:
        return "its restartPolicy is Never"
    return ""


def _must_not_repeat(inputs: WorkloadInput) -> bool:
    """Whether the program may have started on the node and its restart policy forbids a second start."""
    may_have_started = inputs.last_action.action in START_ACTIONS | {Action.APPLY_STOPPED}
    return inputs.restart_policy == "Never" and may_have_started


def _end_without_repeat(
    inputs: WorkloadInput, retry: Retry, failure: str, reason: str, grace_periods: GracePeriods
) -> Decision:
    """Release the workload as failed: its node no longer runs it, and no other node may start it."""
    return Decision(
        Action.RELEASE,
        f"{failure}: {reason}; not restarted, because its restartPolicy is {inputs.restart_policy}",
        fail_permanently(retry, grace_periods.retry),
        failure_reason=failure,
    )


def _reports_run(inputs: WorkloadInput, retry: Retry) -> bool:
    """Whether the agent reports the run of the retry state.

    A running earlier run of the same revision counts too: the leader ordered the later run when the earlier
    run seemed lost.
    """
    report = inputs.report
    if report.revision != inputs.revision:
        return False
    is_earlier = report.state == "Running" and report.includes_last_order and report.run < (retry.run or 0)
    return report.run == retry.run or is_earlier


def _is_down(inputs: WorkloadInput) -> bool:
    """Whether the agent has received the last order and reports that no copy of the workload runs or is about
    to start."""
    report = inputs.report
    may_start = inputs.last_action.action in START_ACTIONS and (
        inputs.retry is None or report.run != inputs.retry.run
    )
    return report.state not in LIVE_STATES and report.includes_last_order and not may_start


def _order_once(inputs: WorkloadInput, action: Action, reason: str, grace: float) -> Decision:
    """Give the order; if it was given already, wait, and give it again after the grace period."""
    remaining = grace - inputs.age(inputs.last_action.at) if inputs.last_action.action == action else 0.0
    return _wait_within_grace(remaining, f"{reason}; stop order sent") or Decision(
        action, reason, requeue_after=grace
    )


def _wait_within_grace(remaining: float, reason: str) -> Decision | None:
    return Decision(Action.NO_ACTION, reason, requeue_after=remaining) if remaining > 0 else None


def _failures(retry: Retry) -> str:
    return pluralize(retry.attempts or 0, "failure")


# After these actions the agent has no assignment: the workload was just bound, or must leave the node.
NO_RUN_ACTIONS = frozenset(
    {"", Action.ASSIGN, Action.DELETE, Action.FINALIZE_DELETE, Action.RESCHEDULE, Action.RELEASE}
)


def desired_run(workload: LatticeWorkload) -> DesiredRun | None:
    """Return the run that the agent is ordered to have; None: the agent must not have the workload.

    A failed workload in back-off stays on its node as stopped, so that its log remains available. The agent
    may receive a new revision of the spec before the controller has reconciled it. The order then already has
    the next run number. The controller later stores the same number, so the agent starts this run only once.
    """
    spec, status = workload.spec, workload.status
    if status.binding is None or status.last_action in NO_RUN_ACTIONS:
        return None
    revision = spec.effective_revision
    run = (status.retry.run or 0) if status.retry else 0
    if status.last_action not in START_ACTIONS:
        return DesiredRun("Stopped", revision, run)
    if status.retry is not None and status.retry.revision == revision:
        return DesiredRun("Running", revision, run)
    should_run = spec.desired_state == "Running" and not workload.metadata.deletion_timestamp
    return DesiredRun("Running" if should_run else "Stopped", revision, run + 1)
