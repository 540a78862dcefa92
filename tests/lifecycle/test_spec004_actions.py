"""Tests that every stored action on a workload emits an event."""

import pytest

from lattice.lifecycle.workload import EVENT_REASONS, UNSTORED_ACTIONS, Action, Decision


@pytest.mark.parametrize("action", sorted({*set(Action) - UNSTORED_ACTIONS, Action.BACKOFF_WAIT}), ids=str)
def test_every_action_has_an_event(action: Action) -> None:
    assert EVENT_REASONS[action]


@pytest.mark.parametrize("action", sorted(UNSTORED_ACTIONS), ids=str)
def test_unstored_action_emits_no_event(action: Action) -> None:
    assert Decision(action, "").event == ""
