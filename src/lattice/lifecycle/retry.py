"""When is a workload that failed tried again? Told by what is stored and what time it is, so a restart forgets nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lattice.kinds.meta.timestamps import MAX_CLOCK_SKEW_S, format_micro_time, parse_time
from lattice.kinds.workload import RETRY_REQUESTED_ANNOTATION, Retry


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    initial_backoff: float = 5.0  # seconds after the first failure; doubles with each
    max_backoff: float = 120.0
    max_attempts: int = 5  # so many failures end it
    reset_after: float = (
        240.0  # seconds of running after which earlier failures are forgotten: twice the longest wait
    )

    def backoff(self, failures: int) -> float:
        """Seconds from the last failure to the next start."""
        return (
            min(self.max_backoff, self.initial_backoff * 2.0 ** min(failures - 1, 60))
            if failures > 0
            else 0.0
        )


DEFAULT_RETRY_POLICY = RetryPolicy()


def next_run(before: Retry | None, revision: str, rules: RetryPolicy = DEFAULT_RETRY_POLICY) -> Retry:
    """A new count, for the next start: of a new revision, on another node, or because a person asks."""
    run = (before.run or 0) if before else 0
    return Retry(attempts=0, max=rules.max_attempts, revision=revision, run=run + 1)


def count_failure(before: Retry, now: datetime, rules: RetryPolicy = DEFAULT_RETRY_POLICY) -> Retry:
    """One failure more. What is counted is the run: the same one is not counted twice, because the next has another number."""
    attempts = (before.attempts or 0) + 1
    is_last = attempts >= rules.max_attempts
    next_at = None if is_last else format_micro_time(now + timedelta(seconds=rules.backoff(attempts)))
    return Retry(
        attempts=attempts,
        max=rules.max_attempts,
        next_at=next_at,
        revision=before.revision,
        run=(before.run or 0) + 1,
    )


def postpone(before: Retry, now: datetime, rules: RetryPolicy = DEFAULT_RETRY_POLICY) -> Retry:
    """It ended through no fault of its own: not counted, but not at once either."""
    next_at = format_micro_time(now + timedelta(seconds=rules.initial_backoff))
    return Retry(
        attempts=before.attempts or 0,
        max=rules.max_attempts,
        next_at=next_at,
        revision=before.revision,
        run=(before.run or 0) + 1,
    )


def fail_permanently(before: Retry, rules: RetryPolicy = DEFAULT_RETRY_POLICY) -> Retry:
    """No attempt is left, because none would help."""
    count, run = (before.attempts or 0) + 1, (before.run or 0) + 1
    return Retry(attempts=count, max=rules.max_attempts, final=True, revision=before.revision, run=run)


def manual_retry(
    before: Retry | None, revision: str, now: datetime, rules: RetryPolicy = DEFAULT_RETRY_POLICY
) -> Retry:
    """A person wants it tried again: at once, with all attempts to come."""
    fresh = next_run(before, revision, rules)
    return Retry(attempts=0, max=fresh.max, next_at=format_micro_time(now), revision=revision, run=fresh.run)


def with_retry_request(metadata: Mapping[str, Any], now: str) -> dict[str, Any]:
    """The stored metadata of a workload that a person wants tried again: the leader sees it, acts, and takes the mark off."""
    return {**metadata, "annotations": {**metadata.get("annotations", {}), RETRY_REQUESTED_ANNOTATION: now}}


def is_exhausted(retry: Retry, rules: RetryPolicy = DEFAULT_RETRY_POLICY) -> bool:
    return retry.final or (retry.attempts or 0) >= rules.max_attempts


def backoff_remaining(retry: Retry, now: datetime, rules: RetryPolicy = DEFAULT_RETRY_POLICY) -> float:
    """Seconds until it may start; 0 when it may.

    A time further ahead than any wait was written by another clock, or before ours was set back: it is due.
    """
    due = parse_time(retry.next_at)
    if due is None:
        return 0.0
    seconds = (due - now).total_seconds()
    return (
        0.0 if seconds > rules.backoff(max(1, retry.attempts or 0)) + MAX_CLOCK_SKEW_S else max(0.0, seconds)
    )
