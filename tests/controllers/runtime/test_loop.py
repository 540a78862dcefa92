"""The controller loop: one reconcile per key at a time, bounded workers, back-off, no lost wake-ups, idle
when converged."""

import asyncio
import math
import random
from itertools import pairwise

import pytest
from build.scripted_controller import Answer, ScriptedController, a_loop, cancel_and_wait
from build.virtual import VirtualClock, settle
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from lattice import metrics
from lattice.controllers.runtime.loop import Concurrency, Loop, Priority, Requeue, Source, run_all
from lattice.controllers.runtime.workqueue import CHANGED_KEY_RETRY_S
from lattice.errors import Conflict, Fenced, Unavailable
from lattice.store.cache import Cache
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Key, Put


async def test_all_keys_are_reconciled_once_at_start() -> None:
    clock = VirtualClock()
    controller = ScriptedController(clock)
    task = asyncio.create_task(a_loop(controller, ["a", "b", "c"]).run())
    await clock.advance(1000)
    assert [key for key, _ in controller.begun] == ["a", "b", "c"]
    await cancel_and_wait(task)


async def test_key_woken_during_reconcile_is_reconciled_again() -> None:
    clock = VirtualClock()
    controller = ScriptedController(clock, seconds={"a": 10})
    loop = a_loop(controller, ["a"])
    task = asyncio.create_task(loop.run())
    await clock.advance(1)
    for _ in range(5):
        loop.wake(["a"])
    await clock.advance(100)
    assert controller.times("a") == [0, 10]
    await cancel_and_wait(task)


async def test_key_waking_itself_is_never_reconciled_twice_at_once() -> None:
    clock = VirtualClock()
    left = [3]
    loop: Loop

    class Restless(ScriptedController):
        async def reconcile(self, key: str) -> Requeue | None:
            await super().reconcile(key)
            assert len(loop.in_flight) <= 1
            left[0] -= 1
            if left[0]:
                loop.wake([key])
            return None

    controller = Restless(clock)
    loop = a_loop(controller, ["a"])
    wrong: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    task = asyncio.create_task(loop.run())
    await clock.advance(10)
    assert (len(controller.begun), loop.in_flight, loop.pending, wrong) == (3, (), 0, [])
    await cancel_and_wait(task)


async def test_slow_key_does_not_block_others_and_times_out() -> None:
    clock = VirtualClock()
    controller = ScriptedController(clock, seconds={"slow": 1e9})
    loop = a_loop(
        controller, ["slow", *"abcde"], concurrency=Concurrency(workers=2, resync_s=math.inf, timeout_s=60)
    )
    task = asyncio.create_task(loop.run())
    with capture_logs() as logs:
        await clock.advance(59)
        assert [key for key, _ in controller.ended] == list("abcde")
        assert logs == []
        await clock.advance(2)
    assert [(line["key"], line["why"].splitlines()[0]) for line in logs] == [
        ("slow", "slow: reconcile took longer than 60 s")
    ]
    assert len(controller.times("slow")) == 2
    await cancel_and_wait(task)


@settings(max_examples=40, deadline=None)
@given(
    events=st.lists(
        st.tuples(st.floats(0, 5), st.sampled_from("abcdef"), st.sampled_from(list(Priority))), max_size=60
    ),
    workers=st.integers(1, 4),
    seconds=st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 3)),
    seed=st.integers(0, 3),
)
@example(
    events=[(0.0, key, Priority.NORMAL) for key in "abc"],
    workers=1,
    seconds=dict.fromkeys("abc", 3.0),
    seed=0,
)
async def test_no_wake_up_is_lost_and_workers_stay_bounded(
    events: list[tuple[float, str, Priority]], workers: int, seconds: dict[str, float], seed: int
) -> None:
    clock = VirtualClock()
    with capture_logs():
        answers: dict[str, list[Answer]] = {
            key: random.Random(seed).choices([None, Requeue(1), Conflict("x"), Unavailable("y")], k=6)
            for key in "abc"
        }
        controller = ScriptedController(clock, answers, seconds)
        loop = a_loop(controller, concurrency=Concurrency(workers=workers, resync_s=math.inf))
        task = asyncio.create_task(loop.run())
        await settle()
        last: dict[str, int] = {}
        for pause, key, lane in events:
            await clock.advance(pause)
            last[key] = len(controller.begun)
            loop.wake([key], lane)
        await clock.advance(500)
        assert controller.most <= workers
        assert loop.pending == 0
        for key, count in last.items():
            assert key in [name for name, _ in controller.begun[count:]], (
                f"{key} was not reconciled after it was woken"
            )
        await cancel_and_wait(task)


async def test_earlier_wake_up_replaces_requeue() -> None:
    clock = VirtualClock()
    controller = ScriptedController(clock, answers={"a": [Requeue(300), Requeue(300), None]})
    loop = a_loop(controller, ["a"])
    task = asyncio.create_task(loop.run())
    await clock.advance(100)
    loop.wake(["a"])
    await clock.advance(1000)
    assert controller.times("a") == [0, 100, 400]
    await cancel_and_wait(task)


async def test_errors_back_off_with_jitter_until_success() -> None:
    clock = VirtualClock()
    trouble: list[Answer] = [Unavailable("no answer") for _ in range(12)]
    controller = ScriptedController(clock, answers={"a": [*trouble, None, Unavailable("once more"), None]})
    loop = a_loop(controller, ["a"])
    with capture_logs() as logs:
        task = asyncio.create_task(loop.run())
        await clock.advance(300)
    times = controller.times("a")
    waits = [b - a for a, b in pairwise(times)]
    assert len(times) == 13
    for index, wait in enumerate(waits):
        longest = min(30.0, 0.1 * 2**index)
        assert longest / 2 - 0.001 <= wait <= longest + 0.001
    assert [line["failures"] for line in logs] == list(range(1, 13))
    assert {line["log_level"] for line in logs} == {"warning"}
    with capture_logs() as logs:
        loop.wake(["a"])
        await clock.advance(0.2)
    assert [line["failures"] for line in logs] == [1]
    assert len(controller.times("a")) == 15
    await cancel_and_wait(task)


async def test_reconcile_cancelled_from_within_is_retried() -> None:
    class Torn(ScriptedController):
        async def reconcile(self, key: str) -> Requeue | None:
            await super().reconcile(key)
            if len(self.begun) == 1:
                raise asyncio.CancelledError
            return None

    clock = VirtualClock()
    controller = Torn(clock)
    loop = a_loop(controller, ["a"])
    task = asyncio.create_task(loop.run())
    await clock.advance(1)
    assert len(controller.begun) == 2
    assert loop.pending == 0
    await cancel_and_wait(task)


async def test_conflict_requeues_soon_without_log() -> None:
    clock = VirtualClock()
    controller = ScriptedController(clock, answers={"a": [Conflict("revision is 4, not 3")] * 3})
    with capture_logs() as logs:
        task = asyncio.create_task(a_loop(controller, ["a"]).run())
        await clock.advance(0.2)
    assert logs == []
    assert len(controller.times("a")) == 4
    await cancel_and_wait(task)


async def test_unexpected_error_is_logged_and_loop_continues() -> None:
    clock = VirtualClock()
    controller = ScriptedController(clock, answers={"a": [ZeroDivisionError("by nought")]})
    with capture_logs() as logs:
        task = asyncio.create_task(a_loop(controller, ["a", "b"]).run())
        await clock.advance(1)
    assert [(line["log_level"], line["why"]) for line in logs] == [
        ("error", "ZeroDivisionError('by nought')")
    ]
    assert [key for key, _ in controller.ended] == ["a", "b", "a"]
    await cancel_and_wait(task)


@pytest.mark.parametrize(
    ("error", "is_over"),
    [
        pytest.param(Fenced("term 3 is over"), True, id="refused"),
        pytest.param(
            ExceptionGroup("two writes", [Conflict("x"), Fenced("term 3 is over")]),
            True,
            id="refused among others",
        ),
        pytest.param(
            ExceptionGroup("two writes", [Conflict("x"), Conflict("y")]), False, id="only conflicts"
        ),
    ],
)
async def test_fenced_ends_all_loops_of_the_term(error: Exception, is_over: bool) -> None:
    clock = VirtualClock()
    first, second = (
        ScriptedController(clock, answers={"a": [error]}),
        ScriptedController(clock, seconds={"b": 1e6}),
    )
    with capture_logs() as logs:
        task = asyncio.create_task(run_all([a_loop(first, ["a"]), a_loop(second, ["b"])]))
        await clock.advance(1)
    assert task.done() == is_over
    assert [line["event"] for line in logs] == (["controllers stopped"] if is_over else [])
    assert second.running == (set() if is_over else {"b"})
    await cancel_and_wait(task)


async def test_resync_leaves_failing_keys_to_their_back_off() -> None:
    clock = VirtualClock()
    controller = ScriptedController(clock, answers={"bad": [Unavailable("gone")] * 100})
    with capture_logs():
        task = asyncio.create_task(
            a_loop(controller, ["good", "bad"], concurrency=Concurrency(resync_s=1.0)).run()
        )
        await clock.advance(120)
    assert 118 <= len(controller.times("good")) <= 121
    assert len(controller.times("bad")) < 20
    await cancel_and_wait(task)


@pytest.mark.parametrize(
    ("lane", "longest"),
    [
        pytest.param(Priority.URGENT, 0.0, id="a user request skips the back-off"),
        pytest.param(
            Priority.NORMAL,
            CHANGED_KEY_RETRY_S,
            id="a change shortens the wait, but its own writes cannot make it spin",
        ),
        pytest.param(Priority.BACKGROUND, 30.0, id="a resync changes nothing"),
    ],
)
async def test_waking_key_in_back_off(lane: Priority, longest: float) -> None:
    clock = VirtualClock()
    controller = ScriptedController(clock, answers={"a": [Unavailable("no")] * 10})
    loop = a_loop(controller, ["a"])
    with capture_logs():
        task = asyncio.create_task(loop.run())
        while len(controller.begun) < 10:
            await clock.advance(1)
        before = clock.monotonic()
        loop.wake(["a"], lane)
        await clock.advance(30)
    waited = controller.times("a")[10] - before
    assert longest / 3 <= waited <= longest
    await cancel_and_wait(task)


async def test_stop_finishes_running_keys_within_its_timeout() -> None:
    clock = VirtualClock()
    controller = ScriptedController(clock, seconds={"quick": 0.3, "slow": 1e6})
    loop = a_loop(
        controller, ["quick", "slow", "next"], concurrency=Concurrency(workers=2, resync_s=math.inf)
    )
    task = asyncio.create_task(loop.run())
    await clock.advance(0.1)
    loop.stop(timeout_s=0.5)
    await clock.advance(0.45)
    assert [key for key, _ in controller.ended] == ["quick"]
    assert not task.done()
    await clock.advance(0.1)
    assert task.done()
    assert task.exception() is None
    assert [key for key, _ in controller.begun] == ["quick", "slow"]
    assert controller.running == set()


async def test_stopping_idle_loop_takes_no_time() -> None:
    clock = VirtualClock()
    cache = Cache(MemoryStore(clock), "nodes", lambda entry: entry, clock, random.Random(1))
    loops = [a_loop(ScriptedController(clock), ["a"]) for _ in range(3)]
    task = asyncio.create_task(run_all(loops, [cache]))
    await clock.advance(1)
    for loop in loops:
        loop.stop()
    await settle()
    assert task.done()


async def test_cancelled_loop_leaves_no_workers_or_listeners() -> None:
    tasks_of_the_runner = asyncio.all_tasks()
    clock = VirtualClock()
    store = MemoryStore(clock)
    cache = Cache(store, "nodes", lambda entry: entry, clock, random.Random(1))
    feed = asyncio.create_task(cache.run())
    controller = ScriptedController(clock, seconds={"a": 1e6})
    await store.commit([Put(Key("nodes", "", "n1"), b"")])
    task = asyncio.create_task(a_loop(controller, ["a"], (Source(cache),)).run())
    await clock.advance(1)
    assert controller.running == {"a"}
    await cancel_and_wait(task)
    assert controller.running == set()
    assert cache._listeners == []
    await cancel_and_wait(feed)
    assert asyncio.all_tasks() == tasks_of_the_runner


async def trace_of_run() -> list[tuple[str, float]]:
    """Which keys a loop with seeded answers reconciled in a minute, and when."""
    clock = VirtualClock()
    keys = [f"k{index}" for index in range(30)]
    choice = random.Random(3)
    answers: dict[str, list[Answer]] = {
        key: choice.choices([Requeue(2), None, Unavailable("x"), Conflict("y")], k=8) for key in keys
    }
    controller = ScriptedController(clock, answers, {key: choice.random() for key in keys})
    with capture_logs():
        task = asyncio.create_task(
            a_loop(controller, keys, concurrency=Concurrency(workers=3, resync_s=5)).run()
        )
        await clock.advance(60)
        begun = list(controller.begun)
        await cancel_and_wait(task)
    return begun


async def test_same_seed_gives_same_run() -> None:
    first, second = await trace_of_run(), await trace_of_run()
    assert first == second


def metric_value(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, {"controller": "counted", **labels}) or 0.0


async def test_metrics_count_reconciles() -> None:
    clock = VirtualClock()
    answers: dict[str, list[Answer]] = {"a": [Conflict("x"), Unavailable("y"), Requeue(1000)]}
    controller = ScriptedController(clock, answers, {"b": 2.0}, name="counted")
    loop = a_loop(controller, ["a", "b", "c", "d"], concurrency=Concurrency(workers=1, resync_s=math.inf))
    with capture_logs():
        task = asyncio.create_task(loop.run())
        await settle()
        assert metric_value("lattice_controller_queue_depth") == 2
        assert loop.pending == 4
        await clock.advance(10)
    results = {
        result: metric_value("lattice_controller_reconciles_total", result=result)
        for result in ("done", "again", "conflict", "failed")
    }
    assert results == {"done": 3, "again": 1, "conflict": 1, "failed": 1}
    assert metric_value("lattice_controller_retries_total") == 2
    assert metric_value("lattice_controller_reconcile_seconds_sum") == pytest.approx(2.0)
    assert metric_value("lattice_controller_queue_depth") == 0
    assert loop.last_reconciled_at is not None
    await cancel_and_wait(task)


async def test_converged_controller_of_10000_keys_is_idle() -> None:
    class Counting(VirtualClock):
        slept = 0

        async def sleep(self, seconds: float) -> None:
            self.slept += 1
            await super().sleep(seconds)

    clock = Counting()
    controller = ScriptedController(clock, answers={str(index): [Requeue(1e6)] for index in range(10_000)})
    loop = a_loop(controller, map(str, range(10_000)), concurrency=Concurrency(workers=8, resync_s=math.inf))
    task = asyncio.create_task(loop.run())
    while len(controller.ended) < 10_000:
        await settle()
    await settle()
    before = clock.slept
    await clock.advance(100_000)
    assert clock.slept <= before + 1  # the alarm for the patience with what is long over
    assert len(controller.ended) == 10_000
    await cancel_and_wait(task)
