"""The work queue under constant failures, and batches of keys."""

import random

from build.virtual import VirtualClock

from lattice.controllers.runtime.workqueue import ERROR_BACKOFF, Priority, WorkQueue


async def test_failing_key_is_retried_in_bounded_time() -> None:
    clock = VirtualClock()
    queue = WorkQueue(clock, random.Random(1))
    for _ in range(2000):
        queue.wake("x", Priority.URGENT)
        assert queue.take() == "x"
        queue.failed("x", ERROR_BACKOFF)
    assert queue.pending == 1
    assert queue.next_due() <= clock.monotonic() + ERROR_BACKOFF.max_s
    assert queue.take_batch(10) == ()
    await clock.advance(ERROR_BACKOFF.max_s)
    assert queue.take_batch(10) == ("x",)
    queue.done("x")
    assert queue.pending == 0


def test_batch_takes_ready_keys_in_order_up_to_its_limit() -> None:
    queue = WorkQueue(VirtualClock(), random.Random(1))
    assert queue.take_batch(3) == ()
    for key in "abcd":
        queue.wake(key)
    queue.wake("d", Priority.URGENT)
    assert queue.take_batch(3) == ("d", "a", "b")
    # A key in progress is not taken again before its reconcile ends.
    queue.wake("a")
    assert queue.take_batch(3) == ("c",)
    assert queue.pending == 4
    for key in "abcd":
        queue.done(key)
    assert queue.take_batch(3) == ("a",)
