"""Tests of the retry policy: exact back-off times, which survive a restart."""

from datetime import timedelta

import pytest
from build.workload_inputs import NOW, OLD, REV, a_retry
from hypothesis import given
from hypothesis import strategies as st

from lattice.kinds.meta.timestamps import parse_time
from lattice.lifecycle.retry import (
    RetryPolicy,
    backoff_remaining,
    count_failure,
    fail_permanently,
    is_exhausted,
    manual_retry,
    next_run,
)


def test_backoff_doubles_and_fifth_failure_is_final() -> None:
    retry, waits = next_run(None, REV), []
    for _ in range(5):
        retry = count_failure(retry, NOW)
        waits.append(backoff_remaining(retry, NOW))
    assert waits == [5, 10, 20, 40, 0]
    assert (retry.attempts, retry.next_at, is_exhausted(retry)) == (5, None, True)


def test_backoff_is_capped_at_120_seconds() -> None:
    rules = RetryPolicy(max_attempts=9)
    retry, waits = next_run(None, REV, rules), []
    for _ in range(8):
        retry = count_failure(retry, NOW, rules)
        waits.append(backoff_remaining(retry, NOW, rules))
    assert waits == [5, 10, 20, 40, 80, 120, 120, 120]


@given(failures=st.integers(1, 4), passed=st.floats(0, 200), micro=st.integers(0, 999_999))
def test_backoff_survives_restart_to_the_microsecond(failures: int, passed: float, micro: int) -> None:
    start = NOW.replace(microsecond=micro)
    retry = next_run(None, REV)
    for _ in range(failures):
        retry = count_failure(retry, start)
    later = start + timedelta(seconds=passed)
    assert backoff_remaining(retry, later) == max(
        0.0, (start + timedelta(seconds=5 * 2 ** (failures - 1)) - later).total_seconds()
    )
    assert parse_time(retry.next_at) == start + timedelta(seconds=5 * 2 ** (failures - 1))


@pytest.mark.parametrize(
    ("ahead", "wait"),
    [
        pytest.param(5.0, 5.0, id="as it was written"),
        pytest.param(9.0, 9.0, id="written by a server with a clock slightly ahead"),
        pytest.param(3600.0, 0.0, id="our clock was set back by an hour"),
        pytest.param(-3600.0, 0.0, id="our clock was set forward by an hour"),
    ],
)
def test_clock_jump_never_extends_backoff(ahead: float, wait: float) -> None:
    assert backoff_remaining(a_retry(1, 2, wait=ahead), NOW) == wait


def test_run_numbers_only_grow() -> None:
    retry = next_run(None, REV)
    seen = [retry.run]
    for step in (
        lambda r: count_failure(r, NOW),
        fail_permanently,
        lambda r: manual_retry(r, REV, NOW),
        lambda r: next_run(r, OLD),
    ):
        retry = step(retry)
        seen.append(retry.run)
    assert seen == [1, 2, 3, 4, 5]


def test_permanent_failure_is_final_until_manual_retry() -> None:
    retry = fail_permanently(next_run(None, REV))
    assert (retry.attempts, retry.next_at, is_exhausted(retry), retry.has_failed) == (1, None, True, True)
    assert not is_exhausted(manual_retry(retry, REV, NOW))
