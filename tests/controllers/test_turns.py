"""Whose turn is it? Keys in lanes, each once, with waits that grow and never get longer by being woken."""

import random

from store.virtual import VirtualClock

from lattice.controllers.runtime.workqueue import LEAST, PROMPT, TROUBLE, Again, Lane, Turns


def test_two_servers_do_not_back_off_in_step() -> None:
    waits = []
    for seed in (1, 2):
        turns = Turns(VirtualClock(), random.Random(seed))  # noqa: S311
        turns.wake("a")
        turns.take()
        waits.append(turns.failed("a", TROUBLE))
    assert waits[0] != waits[1]


def test_waking_never_makes_a_wait_longer() -> None:
    clock = VirtualClock()
    turns = Turns(clock, random.Random(1))  # noqa: S311
    turns.wake("a")
    turns.take()
    wait = turns.failed("a", TROUBLE)
    assert wait < PROMPT
    turns.wake("a")
    assert turns.next_due() == wait


def test_a_key_that_is_woken_over_and_over_keeps_its_place() -> None:
    turns = Turns(VirtualClock(), random.Random(1))  # noqa: S311
    for key in ("busy", "quiet", "busy", "busy"):
        turns.wake(key)
    assert [turns.take(), turns.take(), turns.take()] == ["busy", "quiet", None]


def test_what_a_person_asks_for_goes_first_and_no_lane_starves() -> None:
    clock = VirtualClock()
    turns = Turns(clock, random.Random(1))  # noqa: S311
    for index in range(20):
        turns.wake(f"all{index}", Lane.BACKGROUND)
        turns.wake(f"changed{index}")
    turns.wake("changed19", Lane.URGENT)
    turns.wake("changed19", Lane.BACKGROUND)
    order = [turns.take() for _ in range(40)]
    assert order[:9] == ["changed19", *(f"changed{index}" for index in range(6)), "all0", "changed6"]
    assert turns.take() is None
    assert len(set(order)) == 40


def test_a_wait_that_is_too_short_for_a_clock_to_show_is_a_wait_all_the_same() -> None:
    """What is left of a time that is counted down may be less than the smallest step of a clock: that must not make a key spin."""
    clock = VirtualClock()
    turns = Turns(clock, random.Random(1))  # noqa: S311
    turns.wake("a")
    turns.take()
    turns.done("a", Again(1e-14))
    assert turns.next_due() == LEAST


def test_a_key_that_is_put_off_again_and_again_leaves_nothing_behind() -> None:
    clock = VirtualClock()
    turns = Turns(clock, random.Random(1))  # noqa: S311
    for _ in range(10_000):
        turns.wake("a")
        assert turns.take() == "a"
        turns.done("a", Again(300))
    assert len(turns._later) < 200
    assert turns.pending == 0
