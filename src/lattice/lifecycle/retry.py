"""Retry and back-off of failed workloads: kinds of failures, and the times of further attempts.

The decisions depend only on the stored retry state and the current time, so a restart of the server forgets
no failure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from lattice.kinds.meta.timestamps import MAX_CLOCK_SKEW_S, format_micro_time, parse_time
from lattice.kinds.workload import RETRY_REQUESTED_ANNOTATION, LatticeWorkload, Retry

# Failures that no retry can mend: the spec must change, or a user must ask for a retry.
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
# A failure that is final only for a workload without a service: the other program may release the port.
PORT_CONFLICT = "PORT_BIND_CONFLICT"
# Failures that no retry of a replica of a service can mend.
FINAL_SERVICE_FAILURES = FINAL_FAILURES - {PORT_CONFLICT}
# A run that ended with exit code 0 although the workload should run.
EXITED = "EXITED"
# Failures before the program started: under restartPolicy Never such a workload is still started.
NOT_STARTED_FAILURES = frozenset(
    {
        "IMAGE_NOT_FOUND",
        "IMAGE_PULL_FAILED",
        "NETWORK_ERROR",
        "STORAGE_ERROR",
        "RUNTIME_UNAVAILABLE",
        "PORT_TAKEN",
    }
)
# Failures under restartPolicy Never of a program that may have started and that its node no longer runs.
NODE_LOST, EVICTED_FROM_NODE = "NODE_LOST", "EVICTED"
# A port that Lattice allocated is in use on the node; a port that the spec names is PORT_BIND_CONFLICT.
PORT_TAKEN = "PORT_TAKEN"
# Failures that a new binding may mend.
NODE_FAULTS = {
    "RUNTIME_UNAVAILABLE": "rescheduling, because another node may run the workload",
    PORT_TAKEN: "rescheduling with other ports",
}
# The node was cut off and stopped the workload, as its disconnect policy demands: the failure does not count
# as an attempt.
UNCOUNTED_FAILURES = frozenset({"DISCONNECTED"})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Back-off and number of attempts; durations are in seconds."""

    # Delay after the first failure; doubles with every further failure.
    initial_backoff: float = 5.0
    max_backoff: float = 120.0
    # Failures after which the workload is reported as failed. A workload without a service then stops for
    # good.
    max_attempts: int = 5
    # Seconds of readiness after which earlier failures are forgotten.
    reset_after: float = 600.0
    # The longest back-off of a replica of a service.
    service_max_backoff: float = 300.0
    # True: further attempts follow after `max_attempts` failures.
    keeps_trying: bool = False

    def backoff(self, failures: int) -> float:
        """Seconds from the last failure to the next start."""
        if failures <= 0:
            return 0.0
        # The exponent is capped: a larger power would overflow before the minimum is taken.
        return min(self.max_backoff, self.initial_backoff * 2.0 ** min(failures - 1, 60))

    def for_service(self) -> "RetryPolicy":
        """Return the policy of a replica of a service, which is meant to run: attempts never end."""
        return replace(self, max_backoff=self.service_max_backoff, keeps_trying=True)


DEFAULT_RETRY_POLICY = RetryPolicy()


def next_run(previous: Retry | None, revision: str, policy: RetryPolicy = DEFAULT_RETRY_POLICY) -> Retry:
    """Return a retry state without failures for the next run: after a new revision, a stop, a move to another
    node or a manual retry."""
    run = (previous.run or 0) if previous else 0
    return Retry(attempts=0, max=policy.max_attempts, revision=revision, run=run + 1)


def count_failure(previous: Retry, now: datetime, policy: RetryPolicy = DEFAULT_RETRY_POLICY) -> Retry:
    """Return the retry state after one more failure.

    Every counted failure also raises the run number. A second report of the failed run then names an earlier
    run, and the failure is not counted twice.
    """
    attempts = (previous.attempts or 0) + 1
    is_last = attempts >= policy.max_attempts and not policy.keeps_trying
    next_at = None if is_last else format_micro_time(now + timedelta(seconds=policy.backoff(attempts)))
    return Retry(
        attempts=attempts,
        max=policy.max_attempts,
        next_at=next_at,
        revision=previous.revision,
        run=(previous.run or 0) + 1,
    )


def postpone(previous: Retry, now: datetime, policy: RetryPolicy = DEFAULT_RETRY_POLICY) -> Retry:
    """Return the retry state after a run that ended without a fault of the workload: not counted as a
    failure, but with a back-off."""
    next_at = format_micro_time(now + timedelta(seconds=policy.initial_backoff))
    return Retry(
        attempts=previous.attempts or 0,
        max=policy.max_attempts,
        next_at=next_at,
        revision=previous.revision,
        run=(previous.run or 0) + 1,
    )


def fail_permanently(previous: Retry, policy: RetryPolicy = DEFAULT_RETRY_POLICY) -> Retry:
    """Return the retry state after a failure that no further attempt can mend."""
    count, run = (previous.attempts or 0) + 1, (previous.run or 0) + 1
    return Retry(attempts=count, max=policy.max_attempts, final=True, revision=previous.revision, run=run)


def reset_attempts(previous: Retry, policy: RetryPolicy = DEFAULT_RETRY_POLICY) -> Retry:
    """Return the retry state of the same run without its earlier failures."""
    return Retry(attempts=0, max=policy.max_attempts, revision=previous.revision, run=previous.run)


def succeed(previous: Retry, policy: RetryPolicy = DEFAULT_RETRY_POLICY) -> Retry:
    """Return the retry state after a run that ended with exit code 0 and is never repeated."""
    run = (previous.run or 0) + 1
    return Retry(attempts=0, max=policy.max_attempts, revision=previous.revision, run=run, succeeded=True)


def manual_retry(
    previous: Retry | None, revision: str, now: datetime, policy: RetryPolicy = DEFAULT_RETRY_POLICY
) -> Retry:
    """Return the retry state after a user asks for a retry: due at once, with all attempts available."""
    fresh = next_run(previous, revision, policy)
    return Retry(attempts=0, max=fresh.max, next_at=format_micro_time(now), revision=revision, run=fresh.run)


def with_retry_request(metadata: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return the stored metadata of a workload with the annotation that requests a manual retry.

    The leader sees the annotation, resets the retry state and removes the annotation.
    """
    return {**metadata, "annotations": {**metadata.get("annotations", {}), RETRY_REQUESTED_ANNOTATION: now}}


def is_exhausted(retry: Retry, policy: RetryPolicy = DEFAULT_RETRY_POLICY) -> bool:
    """Whether no restart follows, by the present policy and not by the stored `retry.max`."""
    is_spent = (retry.attempts or 0) >= policy.max_attempts and not policy.keeps_trying
    return retry.final or retry.succeeded or is_spent


def current_retry(workload: LatticeWorkload) -> Retry | None:
    """Return the stored retry state, or None if it belongs to another revision than the spec."""
    retry = workload.status.retry
    return retry if retry is not None and retry.revision == workload.spec.effective_revision else None


def is_reported_failed(workload: LatticeWorkload) -> bool:
    """Whether the workload failed so often, or in such a way, that it is reported as failed."""
    retry = current_retry(workload)
    return retry is not None and retry.has_failed


def has_succeeded(workload: LatticeWorkload) -> bool:
    """Whether the run of the present revision ended with exit code 0 and is never repeated."""
    retry = current_retry(workload)
    return retry is not None and retry.succeeded


def has_ended(workload: LatticeWorkload) -> bool:
    """Whether no restart of the present revision follows. A replica of a service is restarted even after it
    is reported as failed, unless a restart cannot help."""
    retry = current_retry(workload)
    if retry is None:
        return False
    return retry.final or retry.succeeded or (retry.has_failed and not workload.spec.service)


def is_quiet(retry: Retry) -> bool:
    """Whether the failure has no event: after a replica is reported as failed, only failures whose number is a
    power of two have events, so that a crash loop does not fill the store."""
    attempts = retry.attempts or 0
    return retry.max is not None and attempts > retry.max and attempts & (attempts - 1) != 0


def backoff_remaining(retry: Retry, now: datetime, policy: RetryPolicy = DEFAULT_RETRY_POLICY) -> float:
    """Seconds until the workload may start; 0 when the workload may start now.

    A start time further ahead than any back-off was written by a clock that runs ahead, or before the
    leader's clock was set back: the start is due.
    """
    due = parse_time(retry.next_at)
    if due is None:
        return 0.0
    seconds = (due - now).total_seconds()
    longest = policy.backoff(max(1, retry.attempts or 0)) + MAX_CLOCK_SKEW_S
    return 0.0 if seconds > longest else max(0.0, seconds)
