"""Everything that is done about a workload is told."""

import pytest

from lattice.lifecycle.workload import EVENTS, WAITS, Action, Decision


@pytest.mark.parametrize("action", sorted({*set(Action) - WAITS, Action.BACKOFF_WAIT}), ids=str)
def test_every_action_has_an_event(action: Action) -> None:
    assert EVENTS[action]


@pytest.mark.parametrize("action", sorted(WAITS), ids=str)
def test_waiting_on_is_not_told_again_and_again(action: Action) -> None:
    assert Decision(action, "").event == ""
