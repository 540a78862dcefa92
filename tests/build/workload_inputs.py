"""Builders of inputs of the workload state machine: retries, reports, actions and observations."""

from datetime import UTC, datetime, timedelta
from typing import Any

from lattice.kinds.meta.timestamps import format_micro_time
from lattice.kinds.workload import Retry
from lattice.lifecycle.workload import LastAction, Report, WorkloadInput

NOW = datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=UTC)
REV, OLD = "a" * 24, "b" * 24


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def a_retry(failures: int = 0, run: int = 1, wait: float | None = None, revision: str = REV) -> Retry:
    return Retry(
        attempts=failures,
        max=5,
        revision=revision,
        run=run,
        next_at=None if wait is None else format_micro_time(NOW + timedelta(seconds=wait)),
    )


def a_report(
    state: Any, run: int = 1, failure: str = "", revision: str = REV, knows_order: bool = True
) -> Report:
    return Report(
        state, "" if state == "Missing" else revision, 0 if state == "Missing" else run, failure, knows_order
    )


def an_action(action: str, seconds: float = 1.0) -> LastAction:
    return LastAction(action, ago(seconds))


def an_input(**parts: Any) -> WorkloadInput:
    return WorkloadInput(**{"desired": "Running", "revision": REV, "now": NOW, **parts})
