"""Read, merge and remove the conditions of a status, and the condition types that several kinds share."""

from collections.abc import Iterable, Sequence

import msgspec

from lattice.kinds.meta.base import Condition

# Whether the object does its work: the agent of a node reports, a workload is ready, an offer is usable.
READY_CONDITION = "Ready"
# Whether every object that the spec refers to exists.
RESOLVED_CONDITION = "ReferencesResolved"


def find_condition(conditions: Iterable[Condition], condition_type: str) -> Condition | None:
    """Return the condition of the type, or None if the status has no such condition."""
    for condition in conditions:
        if condition.type == condition_type:
            return condition
    return None


def is_true(conditions: Iterable[Condition], condition_type: str) -> bool:
    """Whether the condition of the type exists with status True."""
    condition = find_condition(conditions, condition_type)
    return condition is not None and condition.status == "True"


def find_false(conditions: Iterable[Condition], condition_type: str) -> Condition | None:
    """Return the condition of the type if its status is False; None for every other status and for an absent
    condition."""
    condition = find_condition(conditions, condition_type)
    return condition if condition is not None and condition.status == "False" else None


def without_condition(conditions: Iterable[Condition], condition_type: str) -> tuple[Condition, ...]:
    """Return the conditions of all other types, in their order."""
    return tuple(condition for condition in conditions if condition.type != condition_type)


def merge_conditions(
    previous: Sequence[Condition], current: Iterable[Condition], now: str
) -> tuple[Condition, ...]:
    """Replace conditions by type with the current conditions and return the conditions sorted by type.

    The transition time of a condition changes only when the status of the condition changes.
    """
    by_type = {condition.type: condition for condition in previous}
    for condition in current:
        previous_condition = by_type.get(condition.type)
        since = (
            previous_condition.last_transition_time
            if previous_condition is not None and previous_condition.status == condition.status
            else now
        )
        by_type[condition.type] = msgspec.structs.replace(condition, last_transition_time=since)
    return tuple(by_type[name] for name in sorted(by_type))
