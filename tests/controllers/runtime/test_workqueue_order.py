"""The order of the work queue: priority lanes, one entry per key, and back-off that a wake-up never prolongs."""

import random

from build.virtual import VirtualClock

from lattice.controllers.runtime.workqueue import (
    CHANGED_KEY_RETRY_S,
    ERROR_BACKOFF,
    MIN_REQUEUE_S,
    Priority,
    Requeue,
    WorkQueue,
)


def test_two_servers_do_not_back_off_in_step() -> None:
    waits = []
    for seed in (1, 2):
        turns = WorkQueue(VirtualClock(), random.Random(seed))
        turns.wake("a")
        turns.take()
        waits.append(turns.failed("a", ERROR_BACKOFF))
    assert waits[0] != waits[1]


def test_wake_never_prolongs_wait() -> None:
    clock = VirtualClock()
    turns = WorkQueue(clock, random.Random(1))
    turns.wake("a")
    turns.take()
    wait = turns.failed("a", ERROR_BACKOFF)
    assert wait < CHANGED_KEY_RETRY_S
    turns.wake("a")
    assert turns.next_due() == wait


def test_repeatedly_woken_key_keeps_its_place() -> None:
    turns = WorkQueue(VirtualClock(), random.Random(1))
    for key in ("busy", "quiet", "busy", "busy"):
        turns.wake(key)
    assert [turns.take(), turns.take(), turns.take()] == ["busy", "quiet", None]


def test_user_requests_go_first_and_no_lane_starves() -> None:
    clock = VirtualClock()
    turns = WorkQueue(clock, random.Random(1))
    for index in range(20):
        turns.wake(f"all{index}", Priority.BACKGROUND)
        turns.wake(f"changed{index}")
    turns.wake("changed19", Priority.URGENT)
    turns.wake("changed19", Priority.BACKGROUND)
    order = [turns.take() for _ in range(40)]
    assert order[:9] == ["changed19", *(f"changed{index}" for index in range(6)), "all0", "changed6"]
    assert turns.take() is None
    assert len(set(order)) == 40


def test_wait_below_clock_resolution_still_waits() -> None:
    """The rest of a countdown may be below the resolution of the clock; the key must not spin."""
    clock = VirtualClock()
    turns = WorkQueue(clock, random.Random(1))
    turns.wake("a")
    turns.take()
    turns.done("a", Requeue(1e-14))
    assert turns.next_due() == MIN_REQUEUE_S


def test_repeatedly_delayed_key_leaves_no_stale_entries() -> None:
    clock = VirtualClock()
    turns = WorkQueue(clock, random.Random(1))
    for _ in range(10_000):
        turns.wake("a")
        assert turns.take() == "a"
        turns.done("a", Requeue(300))
    assert len(turns._delayed) < 200
    assert turns.pending == 0
