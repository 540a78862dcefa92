"""What is to be done about one workload? Its desired state against what its node says, what was done before, and what time it is.

Doing twice what was done once is prevented by two numbers: a revision names what runs, a run names one start of it. A node starts
each run once; a run that ended is followed by the next only after its failure was counted.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from lattice.kinds.workload import ActualState, DesiredRun, DesiredState, LatticeWorkload, Retry
from lattice.lifecycle.retry import (
    RetryPolicy,
    backoff_remaining,
    count_failure,
    fail_permanently,
    is_exhausted,
    manual_retry,
    next_run,
    postpone,
)

BoundNodeState = Literal["None", "Ready", "Silent", "Abandoned", "Gone"]
ReportedState = ActualState | Literal["Missing"]

# Trying again would not help: the workload must be changed, or a person must say that the cause is gone.
FINAL_FAILURES = frozenset(
    {
        "INVALID_IMAGE",
        "INVALID_SPEC",
        "INVALID_SPECIFICATION",
        "INVALID_CONFIGURATION",
        "PORT_BIND_CONFLICT",
        "COMMAND_NOT_FOUND",
    }
)
PORT_TAKEN = (
    "PORT_TAKEN"  # one that was chosen for it: a port that it asks for by number is PORT_BIND_CONFLICT
)
NODE_FAULTS = {
    "RUNTIME_UNAVAILABLE": "another node may do better",
    PORT_TAKEN: "others are chosen for it",
}  # what a new binding may mend
UNCOUNTED_FAILURES = frozenset(
    {"DISCONNECTED"}
)  # its node was cut off and ended it, as it was told to: no attempt is lost


LIVE_STATES = frozenset({"Pending", "Starting", "Running", "Unknown"})


class Action(StrEnum):
    ASSIGN = "Assign"  # it needs a node
    APPLY = "Apply"
    RECREATE = "Recreate"
    APPLY_STOPPED = "ApplyStopped"
    DELETE = "Delete"
    FINALIZE_DELETE = "FinalizeDelete"  # remove the record
    RESCHEDULE = "Reschedule"  # take its node away, it needs another
    RELEASE = "Release"  # take its node away, it needs none
    RETRY = "Retry"  # a person wants it tried again
    MARK_FAILED = "MarkFailed"
    FORGIVE = "Forgive"  # it has run so long that earlier failures do not count any more
    BACKOFF_WAIT = "BackoffWait"
    AWAIT_FAILOVER = "AwaitFailover"
    AWAIT_NODE = "AwaitNode"
    NO_ACTION = "NoAction"


START_ACTIONS = frozenset(
    {Action.APPLY, Action.RECREATE, Action.FORGIVE}
)  # after these the node has been told to start the run
AWAIT_ACTIONS = frozenset(
    {Action.AWAIT_FAILOVER, Action.AWAIT_NODE}
)  # what they wait for is shown, also when it becomes something else
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
    Action.FORGIVE: "WorkloadSteady",
    Action.BACKOFF_WAIT: "WorkloadBackOff",
}


@dataclass(frozen=True, slots=True)
class GracePeriods:
    """Seconds that something may take before it counts as a failure, or is ordered once more."""

    missing: float = 15.0  # from an order until the node has it at all
    start: float = 300.0  # from an order until it runs; fetching an image included
    stop: float = 60.0  # from an order until it is gone
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True, slots=True)
class Report:
    """What the node says of it; one that has it not says Missing."""

    state: ReportedState = "Missing"
    revision: str = ""
    run: int = 0
    failure_reason: str = ""  # why it failed, in one word
    includes_last_order: bool = True  # whether the node had our last order when it said so
    failure_message: str = ""  # it failed, in words: an exit code, a signal


@dataclass(frozen=True, slots=True)
class LastAction:
    """What was last done about it, as stored; whoever binds it anew writes Assign here."""

    action: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WorkloadInput:
    desired: DesiredState
    revision: str
    now: datetime
    node: BoundNodeState = "Ready"
    report: Report = Report()
    retry: Retry | None = None
    last_action: LastAction = LastAction()
    state_since: datetime | None = None  # when it reached the reported state
    eviction_reason: str = ""  # why it must leave its node: a drain, a taint
    node_reason: str = (
        ""  # its node counts as it does: what a silent one is waited for, or why it was given up
    )

    def age(self, when: datetime | None) -> float:
        """Seconds since; never less than none, should the clock have been set back."""
        return float("inf") if when is None else max(0.0, (self.now - when).total_seconds())


@dataclass(frozen=True, slots=True)
class Decision:
    """`retry` and the action are stored before anything is done; then `again` seconds pass at most until the next look."""

    action: Action
    reason: str
    retry: Retry | None = None  # None: as it was
    requeue_after: float | None = None
    failure_reason: str = ""  # one word, when a failure was counted

    @property
    def is_stored(self) -> bool:
        return self.retry is not None or self.action not in UNSTORED_ACTIONS

    @property
    def event(self) -> str:
        """The event that tells of it; empty for none. Waiting is told of once, when the failure is counted."""
        return EVENT_REASONS.get(self.action, "") if self.is_stored else ""


STOPPED = Decision(Action.NO_ACTION, "it is stopped")


def decide(found: WorkloadInput, graces: GracePeriods = GracePeriods()) -> Decision:  # noqa: B008 - frozen
    match found.desired:
        case "Deleted":
            return _decide_deleted(found, graces)
        case "Stopped":
            return _decide_stopped(found, graces)
        case "Running":
            return _decide_running(found, graces)


def decide_manual_retry(found: WorkloadInput, graces: GracePeriods = GracePeriods()) -> Decision:  # noqa: B008 - frozen
    """A person asks: at once, with all attempts to come. What has not failed is left alone."""
    retry = _current_retry(found, graces)
    if found.desired != "Running" or not retry.attempts:
        return Decision(Action.NO_ACTION, "it has not failed")
    if found.report.state == "Running" and _reports_run(found, retry):
        return Decision(Action.FORGIVE, "it runs: its failures are forgotten", _reset_attempts(retry, graces))
    return Decision(
        Action.RETRY, "a person asked for it", manual_retry(retry, found.revision, found.now, graces.retry)
    )


def _decide_deleted(found: WorkloadInput, graces: GracePeriods) -> Decision:
    if found.node in ("None", "Gone"):
        return Decision(Action.FINALIZE_DELETE, "no node has it")
    if found.node != "Ready":
        return Decision(
            Action.AWAIT_NODE,
            "its node is silent and may still run it: the record stays until the node says otherwise",
        )
    if (
        found.report.state == "Missing"
        and found.last_action.action not in START_ACTIONS
        and found.report.includes_last_order
    ):
        return Decision(Action.FINALIZE_DELETE, "its node says that it is gone")
    return _order_once(found, Action.DELETE, "it is to be deleted", graces.stop)


def _decide_stopped(found: WorkloadInput, graces: GracePeriods) -> Decision:
    match found.node:
        case "None":
            return Decision(Action.NO_ACTION, "it is stopped and has no node")
        case "Gone":
            return _release(found, "its node is gone, and it is to be stopped", graces)
        case "Silent" | "Abandoned":
            return Decision(Action.AWAIT_NODE, "its node is silent and cannot be told to stop it")
    if _is_down(found):
        return (
            _release(found, f"it is stopped and must leave its node: {found.eviction_reason}", graces)
            if found.eviction_reason
            else STOPPED
        )
    return _order_once(found, Action.APPLY_STOPPED, "it is to be stopped", graces.stop)


def _release(found: WorkloadInput, reason: str, graces: GracePeriods) -> Decision:
    """Should it be wanted again, that is another run, unless it has failed for good."""
    retry = _current_retry(found, graces)
    return Decision(
        Action.RELEASE,
        reason,
        None if is_exhausted(retry, graces.retry) else next_run(retry, found.revision, graces.retry),
    )


def _decide_running(found: WorkloadInput, graces: GracePeriods) -> Decision:
    retry = _current_retry(found, graces)
    spent = is_exhausted(retry, graces.retry)
    match found.node:
        case "None":
            return _decide_unbound(found, retry, graces)
        case "Gone" if spent:
            return Decision(Action.RELEASE, "it has failed for good, and its node is gone")
        case "Gone":
            return Decision(
                Action.RESCHEDULE, "its node is gone", next_run(retry, found.revision, graces.retry)
            )
        case "Abandoned" if not spent:
            words = found.node_reason or "its node has been silent for too long"
            return Decision(Action.RESCHEDULE, words, next_run(retry, found.revision, graces.retry))
        case "Silent" | "Abandoned":
            return Decision(
                Action.AWAIT_FAILOVER,
                f"its node is silent; {found.node_reason or 'it may be back before the time is up'}",
            )
    if found.eviction_reason:
        return _decide_evicted(found, retry, graces)
    if spent:
        return _decide_exhausted(found, graces)
    if retry is found.retry and _was_ordered(found, retry):
        return _decide_ordered(found, retry, graces)
    return _decide_start(found, retry, graces)


def _current_retry(found: WorkloadInput, graces: GracePeriods) -> Retry:
    """The count that is stored, unless it is of another revision."""
    if found.retry is not None and found.retry.revision == found.revision:
        return found.retry
    return next_run(found.retry, found.revision, graces.retry)


def _decide_unbound(found: WorkloadInput, retry: Retry, graces: GracePeriods) -> Decision:
    if is_exhausted(retry, graces.retry):
        return Decision(Action.NO_ACTION, "it has failed for good; change it, or ask for a retry")
    if wait := backoff_remaining(retry, found.now, graces.retry):
        return Decision(Action.BACKOFF_WAIT, f"it failed {_times(retry)}", requeue_after=wait)
    return Decision(Action.ASSIGN, "it has no node")  # a new count is stored with the first order


def _decide_evicted(found: WorkloadInput, retry: Retry, graces: GracePeriods) -> Decision:
    """Stopped here before it may start elsewhere."""
    if not _is_down(found):
        return _order_once(
            found, Action.APPLY_STOPPED, f"it must leave its node: {found.eviction_reason}", graces.stop
        )
    if is_exhausted(retry, graces.retry):
        return Decision(
            Action.RELEASE, f"it has failed for good and must leave its node: {found.eviction_reason}"
        )
    return Decision(
        Action.RESCHEDULE,
        f"it has left its node: {found.eviction_reason}",
        next_run(retry, found.revision, graces.retry),
    )


def _decide_exhausted(found: WorkloadInput, graces: GracePeriods) -> Decision:
    if found.report.state in LIVE_STATES:
        return _order_once(
            found,
            Action.APPLY_STOPPED,
            "it has failed for good, and what is left of it is stopped",
            graces.stop,
        )
    return Decision(Action.NO_ACTION, "it has failed for good; change it, or ask for a retry")


def _decide_start(found: WorkloadInput, retry: Retry, graces: GracePeriods) -> Decision:
    """Nothing was ordered yet for this run."""
    report, was_stopped = found.report, found.last_action.action == Action.APPLY_STOPPED
    if wait := backoff_remaining(retry, found.now, graces.retry):
        return Decision(
            Action.BACKOFF_WAIT, f"it failed {_times(retry)}", None if retry is found.retry else retry, wait
        )
    if was_stopped and report.state not in LIVE_STATES and retry is found.retry:
        retry = next_run(retry, found.revision, graces.retry)  # the run that was stopped is over
    if retry.attempts:
        return Decision(
            Action.RECREATE, f"it failed {_times(retry)} and its wait is over", retry, graces.missing
        )
    if report.revision not in ("", found.revision):
        return Decision(
            Action.APPLY,
            f"revision {found.revision} takes the place of {report.revision}",
            retry,
            graces.missing,
        )
    words = {"Missing": "its node does not have it yet", "Stopped": "it is stopped and is to run"}
    return Decision(
        Action.APPLY, words.get(report.state, f"it is {report.state} and is to run"), retry, graces.missing
    )


def _decide_ordered(found: WorkloadInput, retry: Retry, graces: GracePeriods) -> Decision:
    """The node was told to start this run."""
    report, age = found.report, found.age(found.last_action.at)
    if not _reports_run(found, retry):
        is_missing = (
            report.state == "Missing" and report.includes_last_order
        )  # what was said before the order came tells nothing
        grace, lost = (graces.missing, "MISSING") if is_missing else (graces.start, "NOT_APPLIED")
        return _wait_within_grace(grace - age, "its node has been told to start it") or _decide_failure(
            found, retry, lost, graces
        )
    match report.state:
        case "Running":
            return _decide_steady(found, retry, graces)
        case "Failed" | "Stopped":
            return _decide_failure(found, retry, report.failure_reason or "EXITED", graces)
    return _wait_within_grace(graces.start - age, f"it is {report.state}") or _decide_failure(
        found, retry, "START_TIMEOUT", graces
    )


def _decide_steady(found: WorkloadInput, retry: Retry, graces: GracePeriods) -> Decision:
    if not retry.attempts:
        return Decision(Action.NO_ACTION, "it runs")
    left = graces.retry.reset_after - found.age(found.state_since or found.last_action.at)
    if left > 0:
        return Decision(Action.NO_ACTION, f"it runs, after it failed {_times(retry)}", requeue_after=left)
    return Decision(
        Action.FORGIVE, f"it has run for {graces.retry.reset_after:g} s", _reset_attempts(retry, graces)
    )


def _reset_attempts(retry: Retry, graces: GracePeriods) -> Retry:
    return Retry(attempts=0, max=graces.retry.max_attempts, revision=retry.revision, run=retry.run)


def _decide_failure(found: WorkloadInput, retry: Retry, why: str, graces: GracePeriods) -> Decision:
    words = f"{why}, {how}" if (how := failure_message_for(found.report, why)) else why
    if why in FINAL_FAILURES:
        return Decision(
            Action.MARK_FAILED,
            f"{words}: trying again would not help",
            fail_permanently(retry, graces.retry),
            failure_reason=why,
        )
    if why in UNCOUNTED_FAILURES:
        after = postpone(retry, found.now, graces.retry)
        return Decision(
            Action.BACKOFF_WAIT,
            f"{words}: it is started again",
            after,
            backoff_remaining(after, found.now, graces.retry),
            why,
        )
    after = count_failure(retry, found.now, graces.retry)
    if is_exhausted(after, graces.retry):
        return Decision(
            Action.MARK_FAILED,
            f"{words}: it failed {_times(after)}, which was the last attempt",
            after,
            failure_reason=why,
        )
    wait = backoff_remaining(after, found.now, graces.retry)
    if why in NODE_FAULTS:
        return Decision(Action.RESCHEDULE, f"{words}: {NODE_FAULTS[why]}", after, wait, why)
    return Decision(Action.BACKOFF_WAIT, f"{words}: it failed {_times(after)}", after, wait, why)


def failure_message_for(report: Report, why: str) -> str:
    """As its node put it; nothing where it was not the node that said so."""
    return report.failure_message if why == report.failure_reason else ""


def _was_ordered(found: WorkloadInput, retry: Retry) -> bool:
    """A node that speaks of the run was told of it, unless that was taken back since."""
    return found.last_action.action in START_ACTIONS or (
        _reports_run(found, retry) and found.last_action.action != Action.APPLY_STOPPED
    )


def _reports_run(found: WorkloadInput, retry: Retry) -> bool:
    """Is it this run that the node speaks of? One that runs will do, though a later was ordered when it was thought to be lost."""
    report = found.report
    if report.revision != found.revision:
        return False
    is_earlier = report.state == "Running" and report.includes_last_order and report.run < (retry.run or 0)
    return report.run == retry.run or is_earlier


def _is_down(found: WorkloadInput) -> bool:
    """Does the node say, knowing what it was told last, that nothing of it runs or is about to?"""
    report = found.report
    may_start = found.last_action.action in START_ACTIONS and (
        found.retry is None or report.run != found.retry.run
    )
    return report.state not in LIVE_STATES and report.includes_last_order and not may_start


def _order_once(found: WorkloadInput, action: Action, reason: str, grace: float) -> Decision:
    left = grace - found.age(found.last_action.at) if found.last_action.action == action else 0.0
    return _wait_within_grace(left, f"{reason}, and its node has been told") or Decision(
        action, reason, requeue_after=grace
    )


def _wait_within_grace(left: float, reason: str) -> Decision | None:
    return Decision(Action.NO_ACTION, reason, requeue_after=left) if left > 0 else None


def _times(retry: Retry) -> str:
    count = retry.attempts or 0
    return "once" if count == 1 else f"{count} times"


# Nothing is ordered: it was only just bound, or has to go.
NO_RUN_ACTIONS = frozenset(
    {"", Action.ASSIGN, Action.DELETE, Action.FINALIZE_DELETE, Action.RESCHEDULE, Action.RELEASE}
)


def desired_run(workload: LatticeWorkload) -> DesiredRun | None:
    """None: it is not to be there. Otherwise what its node is told; one that failed and waits is told to stay stopped, and keeps its log.

    A new revision is ordered as its own first run, the number that the next look stores: whoever sees it first, it starts once.
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
    is_to_run = spec.desired_state == "Running" and not workload.metadata.deletion_timestamp
    return DesiredRun("Running" if is_to_run else "Stopped", revision, run + 1)
