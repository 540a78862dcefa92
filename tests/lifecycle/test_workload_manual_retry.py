"""A manual retry of a workload: which failures it forgives, and when it acts."""

from dataclasses import replace
from typing import Any

import pytest
from build.workload_inputs import NOW, a_report, a_retry, an_action, an_input

from lattice.lifecycle.workload import (
    Action,
    LastAction,
    decide,
    decide_manual_retry,
)


@pytest.mark.parametrize(
    ("parts", "action", "attempts"),
    [
        pytest.param(
            {"retry": a_retry(5, 6), "last_action": an_action("MarkFailed"), "report": a_report("Failed", 5)},
            "Retry",
            0,
            id="failed for good: once more",
        ),
        pytest.param(
            {"retry": a_retry(3, 4, wait=40), "report": a_report("Failed", 3)},
            "Retry",
            0,
            id="waiting: at once",
        ),
        pytest.param(
            {"retry": a_retry(3, 4), "report": a_report("Running", 4)},
            "Forgive",
            0,
            id="runs again: only forgotten",
        ),
        pytest.param(
            {"retry": a_retry(0, 4), "report": a_report("Running", 4)},
            "NoAction",
            None,
            id="healthy: left alone",
        ),
        pytest.param(
            {"retry": a_retry(5, 4), "desired": "Stopped"},
            "NoAction",
            None,
            id="is to be stopped: left alone",
        ),
    ],
)
def test_manual_retry(parts: dict[str, Any], action: str, attempts: int | None) -> None:
    situation = an_input(**parts)
    decision = decide_manual_retry(situation)
    assert decision.action == action
    assert (decision.retry and decision.retry.attempts) == attempts
    if decision.action is Action.RETRY:
        after = decide(replace(situation, retry=decision.retry, last_action=LastAction("Retry", NOW)))
        assert (after.action, decision.event) == (Action.APPLY, "RetryTriggered")
