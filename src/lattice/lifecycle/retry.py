"""When is a workload that failed tried again? Told by what is stored and what time it is, so a restart forgets nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lattice.kinds.workload import RETRY_REQUESTED, Retry

SKEW = (
    5.0  # seconds by which the clocks of two servers may differ before a stored time is taken for a mistake
)


@dataclass(frozen=True, slots=True)
class RetryRules:
    first: float = 5.0  # seconds after the first failure; doubles with each
    longest: float = 120.0
    attempts: int = 5  # so many failures end it
    steady: float = (
        240.0  # seconds of running after which earlier failures are forgotten: twice the longest wait
    )

    def wait(self, failures: int) -> float:
        """Seconds from the last failure to the next start."""
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 60)) if failures > 0 else 0.0


RULES = RetryRules()


def written(when: datetime) -> str:
    """To the microsecond: a wait that is stored is neither longer nor shorter afterwards."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read(text: str | None) -> datetime | None:
    if not text:
        return None
    when = datetime.fromisoformat(text)
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def begun(before: Retry | None, revision: str, rules: RetryRules = RULES) -> Retry:
    """A new count, for the next start: of a new revision, on another node, or because a person asks."""
    run = (before.run or 0) if before else 0
    return Retry(attempts=0, max=rules.attempts, revision=revision, run=run + 1)


def failed(before: Retry, now: datetime, rules: RetryRules = RULES) -> Retry:
    """One failure more. What is counted is the run: the same one is not counted twice, because the next has another number."""
    attempts = (before.attempts or 0) + 1
    is_last = attempts >= rules.attempts
    next_at = None if is_last else written(now + timedelta(seconds=rules.wait(attempts)))
    return Retry(
        attempts=attempts,
        max=rules.attempts,
        next_at=next_at,
        revision=before.revision,
        run=(before.run or 0) + 1,
    )


def postponed(before: Retry, now: datetime, rules: RetryRules = RULES) -> Retry:
    """It ended through no fault of its own: not counted, but not at once either."""
    next_at = written(now + timedelta(seconds=rules.first))
    return Retry(
        attempts=before.attempts or 0,
        max=rules.attempts,
        next_at=next_at,
        revision=before.revision,
        run=(before.run or 0) + 1,
    )


def ended(before: Retry, rules: RetryRules = RULES) -> Retry:
    """No attempt is left, because none would help."""
    count, run = (before.attempts or 0) + 1, (before.run or 0) + 1
    return Retry(attempts=count, max=rules.attempts, final=True, revision=before.revision, run=run)


def by_hand(before: Retry | None, revision: str, now: datetime, rules: RetryRules = RULES) -> Retry:
    """A person wants it tried again: at once, with all attempts to come."""
    fresh = begun(before, revision, rules)
    return Retry(attempts=0, max=fresh.max, next_at=written(now), revision=revision, run=fresh.run)


def requested(metadata: Mapping[str, Any], now: str) -> dict[str, Any]:
    """The stored metadata of a workload that a person wants tried again: the leader sees it, acts, and takes the mark off."""
    return {**metadata, "annotations": {**metadata.get("annotations", {}), RETRY_REQUESTED: now}}


def is_spent(retry: Retry, rules: RetryRules = RULES) -> bool:
    return retry.final or (retry.attempts or 0) >= rules.attempts


def remaining(retry: Retry, now: datetime, rules: RetryRules = RULES) -> float:
    """Seconds until it may start; 0 when it may.

    A time further ahead than any wait was written by another clock, or before ours was set back: it is due.
    """
    due = read(retry.next_at)
    if due is None:
        return 0.0
    seconds = (due - now).total_seconds()
    return 0.0 if seconds > rules.wait(max(1, retry.attempts or 0)) + SKEW else max(0.0, seconds)
