"""What is to be done about one workload? Its desired state against what its node says, what was done before, and what time it is.

Doing twice what was done once is prevented by two numbers: a revision names what runs, a run names one start of it. A node starts
each run once; a run that ended is followed by the next only after its failure was counted.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from lattice.kinds.workload import ActualState, DesiredState, Retry
from lattice.lifecycle.retry import RetryRules, begun, by_hand, ended, failed, is_spent, postponed, remaining

NodeState = Literal["None", "Ready", "Silent", "Abandoned", "Gone"]
ReportedState = ActualState | Literal["Missing"]

# Trying again would not help: the workload must be changed, or a person must say that the cause is gone.
FINAL = frozenset(
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
BLAMELESS = frozenset(
    {"DISCONNECTED"}
)  # its node was cut off and ended it, as it was told to: no attempt is lost


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


UNDER_WAY = frozenset(
    {Action.APPLY, Action.RECREATE, Action.FORGIVE}
)  # after these the node has been told to start the run
AWAITS = frozenset(
    {Action.AWAIT_FAILOVER, Action.AWAIT_NODE}
)  # what they wait for is shown, also when it becomes something else
WAITS = frozenset(
    {Action.ASSIGN, Action.BACKOFF_WAIT, Action.AWAIT_FAILOVER, Action.AWAIT_NODE, Action.NO_ACTION}
)
LIVE = frozenset({"Pending", "Starting", "Running", "Unknown"})
EVENTS = {
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
class Graces:
    """Seconds that something may take before it counts as a failure, or is ordered once more."""

    missing: float = 15.0  # from an order until the node has it at all
    start: float = 300.0  # from an order until it runs; fetching an image included
    stop: float = 60.0  # from an order until it is gone
    retry: RetryRules = field(default_factory=RetryRules)


@dataclass(frozen=True, slots=True)
class Report:
    """What the node says of it; one that has it not says Missing."""

    state: ReportedState = "Missing"
    revision: str = ""
    run: int = 0
    failure: str = ""  # why it failed, in one word
    knows_order: bool = True  # whether the node had our last order when it said so
    how: str = ""  # it failed, in words: an exit code, a signal


@dataclass(frozen=True, slots=True)
class Last:
    """What was last done about it, as stored; whoever binds it anew writes Assign here."""

    action: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    desired: DesiredState
    revision: str
    now: datetime
    node: NodeState = "Ready"
    report: Report = Report()
    retry: Retry | None = None
    last: Last = Last()
    since: datetime | None = None  # when it reached the reported state
    leaving: str = ""  # why it must leave its node: a drain, a taint
    why: str = ""  # its node counts as it does: what a silent one is waited for, or why it was given up

    def age(self, when: datetime | None) -> float:
        """Seconds since; never less than none, should the clock have been set back."""
        return float("inf") if when is None else max(0.0, (self.now - when).total_seconds())


@dataclass(frozen=True, slots=True)
class Decision:
    """`retry` and the action are stored before anything is done; then `again` seconds pass at most until the next look."""

    action: Action
    reason: str
    retry: Retry | None = None  # None: as it was
    again: float | None = None
    failure: str = ""  # one word, when a failure was counted

    @property
    def is_stored(self) -> bool:
        return self.retry is not None or self.action not in WAITS

    @property
    def event(self) -> str:
        """The event that tells of it; empty for none. Waiting is told of once, when the failure is counted."""
        return EVENTS.get(self.action, "") if self.is_stored else ""


STOPPED = Decision(Action.NO_ACTION, "it is stopped")


def decide(found: Situation, graces: Graces = Graces()) -> Decision:  # noqa: B008 - frozen
    match found.desired:
        case "Deleted":
            return _deleted(found, graces)
        case "Stopped":
            return _stopped(found, graces)
        case "Running":
            return _running(found, graces)


def retry_by_hand(found: Situation, graces: Graces = Graces()) -> Decision:  # noqa: B008 - frozen
    """A person asks: at once, with all attempts to come. What has not failed is left alone."""
    retry = _current(found, graces)
    if found.desired != "Running" or not retry.attempts:
        return Decision(Action.NO_ACTION, "it has not failed")
    if found.report.state == "Running" and _is_about(found, retry):
        return Decision(Action.FORGIVE, "it runs: its failures are forgotten", _forgiven(retry, graces))
    return Decision(
        Action.RETRY, "a person asked for it", by_hand(retry, found.revision, found.now, graces.retry)
    )


def _deleted(found: Situation, graces: Graces) -> Decision:
    if found.node in ("None", "Gone"):
        return Decision(Action.FINALIZE_DELETE, "no node has it")
    if found.node != "Ready":
        return Decision(
            Action.AWAIT_NODE,
            "its node is silent and may still run it: the record stays until the node says otherwise",
        )
    if found.report.state == "Missing" and found.last.action not in UNDER_WAY and found.report.knows_order:
        return Decision(Action.FINALIZE_DELETE, "its node says that it is gone")
    return _once(found, Action.DELETE, "it is to be deleted", graces.stop)


def _stopped(found: Situation, graces: Graces) -> Decision:
    match found.node:
        case "None":
            return Decision(Action.NO_ACTION, "it is stopped and has no node")
        case "Gone":
            return _released(found, "its node is gone, and it is to be stopped", graces)
        case "Silent" | "Abandoned":
            return Decision(Action.AWAIT_NODE, "its node is silent and cannot be told to stop it")
    if _is_down(found):
        return (
            _released(found, f"it is stopped and must leave its node: {found.leaving}", graces)
            if found.leaving
            else STOPPED
        )
    return _once(found, Action.APPLY_STOPPED, "it is to be stopped", graces.stop)


def _released(found: Situation, reason: str, graces: Graces) -> Decision:
    """Should it be wanted again, that is another run, unless it has failed for good."""
    retry = _current(found, graces)
    return Decision(
        Action.RELEASE,
        reason,
        None if is_spent(retry, graces.retry) else begun(retry, found.revision, graces.retry),
    )


def _running(found: Situation, graces: Graces) -> Decision:
    retry = _current(found, graces)
    spent = is_spent(retry, graces.retry)
    match found.node:
        case "None":
            return _unbound(found, retry, graces)
        case "Gone" if spent:
            return Decision(Action.RELEASE, "it has failed for good, and its node is gone")
        case "Gone":
            return Decision(Action.RESCHEDULE, "its node is gone", begun(retry, found.revision, graces.retry))
        case "Abandoned" if not spent:
            words = found.why or "its node has been silent for too long"
            return Decision(Action.RESCHEDULE, words, begun(retry, found.revision, graces.retry))
        case "Silent" | "Abandoned":
            return Decision(
                Action.AWAIT_FAILOVER,
                f"its node is silent; {found.why or 'it may be back before the time is up'}",
            )
    if found.leaving:
        return _leaving(found, retry, graces)
    if spent:
        return _spent(found, graces)
    if retry is found.retry and _was_ordered(found, retry):
        return _ordered(found, retry, graces)
    return _start(found, retry, graces)


def _current(found: Situation, graces: Graces) -> Retry:
    """The count that is stored, unless it is of another revision."""
    if found.retry is not None and found.retry.revision == found.revision:
        return found.retry
    return begun(found.retry, found.revision, graces.retry)


def _unbound(found: Situation, retry: Retry, graces: Graces) -> Decision:
    if is_spent(retry, graces.retry):
        return Decision(Action.NO_ACTION, "it has failed for good; change it, or ask for a retry")
    if wait := remaining(retry, found.now, graces.retry):
        return Decision(Action.BACKOFF_WAIT, f"it failed {_times(retry)}", again=wait)
    return Decision(Action.ASSIGN, "it has no node")  # a new count is stored with the first order


def _leaving(found: Situation, retry: Retry, graces: Graces) -> Decision:
    """Stopped here before it may start elsewhere."""
    if not _is_down(found):
        return _once(found, Action.APPLY_STOPPED, f"it must leave its node: {found.leaving}", graces.stop)
    if is_spent(retry, graces.retry):
        return Decision(Action.RELEASE, f"it has failed for good and must leave its node: {found.leaving}")
    return Decision(
        Action.RESCHEDULE,
        f"it has left its node: {found.leaving}",
        begun(retry, found.revision, graces.retry),
    )


def _spent(found: Situation, graces: Graces) -> Decision:
    if found.report.state in LIVE:
        return _once(
            found,
            Action.APPLY_STOPPED,
            "it has failed for good, and what is left of it is stopped",
            graces.stop,
        )
    return Decision(Action.NO_ACTION, "it has failed for good; change it, or ask for a retry")


def _start(found: Situation, retry: Retry, graces: Graces) -> Decision:
    """Nothing was ordered yet for this run."""
    report, was_stopped = found.report, found.last.action == Action.APPLY_STOPPED
    if wait := remaining(retry, found.now, graces.retry):
        return Decision(
            Action.BACKOFF_WAIT, f"it failed {_times(retry)}", None if retry is found.retry else retry, wait
        )
    if was_stopped and report.state not in LIVE and retry is found.retry:
        retry = begun(retry, found.revision, graces.retry)  # the run that was stopped is over
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


def _ordered(found: Situation, retry: Retry, graces: Graces) -> Decision:
    """The node was told to start this run."""
    report, age = found.report, found.age(found.last.at)
    if not _is_about(found, retry):
        is_missing = (
            report.state == "Missing" and report.knows_order
        )  # what was said before the order came tells nothing
        grace, lost = (graces.missing, "MISSING") if is_missing else (graces.start, "NOT_APPLIED")
        return _within(grace - age, "its node has been told to start it") or _failure(
            found, retry, lost, graces
        )
    match report.state:
        case "Running":
            return _steady(found, retry, graces)
        case "Failed" | "Stopped":
            return _failure(found, retry, report.failure or "EXITED", graces)
    return _within(graces.start - age, f"it is {report.state}") or _failure(
        found, retry, "START_TIMEOUT", graces
    )


def _steady(found: Situation, retry: Retry, graces: Graces) -> Decision:
    if not retry.attempts:
        return Decision(Action.NO_ACTION, "it runs")
    left = graces.retry.steady - found.age(found.since or found.last.at)
    if left > 0:
        return Decision(Action.NO_ACTION, f"it runs, after it failed {_times(retry)}", again=left)
    return Decision(Action.FORGIVE, f"it has run for {graces.retry.steady:g} s", _forgiven(retry, graces))


def _forgiven(retry: Retry, graces: Graces) -> Retry:
    return Retry(attempts=0, max=graces.retry.attempts, revision=retry.revision, run=retry.run)


def _failure(found: Situation, retry: Retry, why: str, graces: Graces) -> Decision:
    words = f"{why}, {how}" if (how := how_it_failed(found.report, why)) else why
    if why in FINAL:
        return Decision(
            Action.MARK_FAILED,
            f"{words}: trying again would not help",
            ended(retry, graces.retry),
            failure=why,
        )
    if why in BLAMELESS:
        after = postponed(retry, found.now, graces.retry)
        return Decision(
            Action.BACKOFF_WAIT,
            f"{words}: it is started again",
            after,
            remaining(after, found.now, graces.retry),
            why,
        )
    after = failed(retry, found.now, graces.retry)
    if is_spent(after, graces.retry):
        return Decision(
            Action.MARK_FAILED,
            f"{words}: it failed {_times(after)}, which was the last attempt",
            after,
            failure=why,
        )
    wait = remaining(after, found.now, graces.retry)
    if why in NODE_FAULTS:
        return Decision(Action.RESCHEDULE, f"{words}: {NODE_FAULTS[why]}", after, wait, why)
    return Decision(Action.BACKOFF_WAIT, f"{words}: it failed {_times(after)}", after, wait, why)


def how_it_failed(report: Report, why: str) -> str:
    """As its node put it; nothing where it was not the node that said so."""
    return report.how if why == report.failure else ""


def _was_ordered(found: Situation, retry: Retry) -> bool:
    """A node that speaks of the run was told of it, unless that was taken back since."""
    return found.last.action in UNDER_WAY or (
        _is_about(found, retry) and found.last.action != Action.APPLY_STOPPED
    )


def _is_about(found: Situation, retry: Retry) -> bool:
    """Is it this run that the node speaks of? One that runs will do, though a later was ordered when it was thought to be lost."""
    report = found.report
    if report.revision != found.revision:
        return False
    is_earlier = report.state == "Running" and report.knows_order and report.run < (retry.run or 0)
    return report.run == retry.run or is_earlier


def _is_down(found: Situation) -> bool:
    """Does the node say, knowing what it was told last, that nothing of it runs or is about to?"""
    report = found.report
    may_start = found.last.action in UNDER_WAY and (found.retry is None or report.run != found.retry.run)
    return report.state not in LIVE and report.knows_order and not may_start


def _once(found: Situation, action: Action, reason: str, grace: float) -> Decision:
    left = grace - found.age(found.last.at) if found.last.action == action else 0.0
    return _within(left, f"{reason}, and its node has been told") or Decision(action, reason, again=grace)


def _within(left: float, reason: str) -> Decision | None:
    return Decision(Action.NO_ACTION, reason, again=left) if left > 0 else None


def _times(retry: Retry) -> str:
    count = retry.attempts or 0
    return "once" if count == 1 else f"{count} times"
