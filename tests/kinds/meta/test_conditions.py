"""Reading, merging and removing conditions."""

from typing import Literal

import pytest

from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.conditions import (
    find_condition,
    find_false,
    is_true,
    merge_conditions,
    without_condition,
)

EARLIER, NOW = "2026-11-15T07:40:00Z", "2026-11-15T08:00:00Z"


def condition(name: str, status: Literal["True", "False", "Unknown"], since: str | None = None) -> Condition:
    return Condition(type=name, status=status, last_transition_time=since)


@pytest.mark.parametrize(
    ("conditions", "is_found", "holds", "is_false"),
    [
        pytest.param([], False, False, False, id="no conditions"),
        pytest.param([condition("Placed", "True")], False, False, False, id="another type"),
        pytest.param([condition("Placed", "True"), condition("Ready", "True")], True, True, False, id="true"),
        pytest.param([condition("Ready", "False")], True, False, True, id="false"),
        pytest.param([condition("Ready", "Unknown")], True, False, False, id="unknown is neither"),
    ],
)
def test_look_up(conditions: list[Condition], is_found: bool, holds: bool, is_false: bool) -> None:
    assert (find_condition(conditions, "Ready") is not None) is is_found
    assert is_true(conditions, "Ready") is holds
    assert (find_false(conditions, "Ready") is not None) is is_false


def test_removal_preserves_the_order_of_the_other_conditions() -> None:
    conditions = [condition(name, "True") for name in ("Scheduled", "Ready", "Placed")]
    assert [item.type for item in without_condition(conditions, "Ready")] == ["Scheduled", "Placed"]


def test_transition_time_changes_with_the_status_only() -> None:
    previous = [condition("Ready", "True", EARLIER), condition("Placed", "True", EARLIER)]
    current = [condition("Placed", "False"), condition("Ready", "True"), condition("Drained", "True")]
    merged = merge_conditions(previous, current, NOW)
    assert [(item.type, item.status, item.last_transition_time) for item in merged] == [
        ("Drained", "True", NOW),
        ("Placed", "False", NOW),
        ("Ready", "True", EARLIER),
    ]
