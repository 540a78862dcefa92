"""The controller loop with batches: a batch is filled up to its size, every key has an outcome of its own, and an
error fails every key of the batch."""

import asyncio
import math

from build.scripted_controller import ScriptedBatchController, a_loop, cancel_and_wait
from build.virtual import VirtualClock
from structlog.testing import capture_logs

from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue
from lattice.errors import Conflict, Fenced, Unavailable
from lattice.metrics import REGISTRY

ONE_WORKER = Concurrency(workers=1, resync_s=math.inf, timeout_s=math.inf)


def batch_loop(controller: ScriptedBatchController, keys: str) -> Loop:
    return a_loop(controller, keys, concurrency=ONE_WORKER)


def reconciles(result: str) -> float:
    labels = {"controller": "batches", "result": result}
    return REGISTRY.get_sample_value("lattice_controller_reconciles_total", labels) or 0.0


async def test_batches_are_filled_up_to_their_size_one_after_another() -> None:
    clock = VirtualClock()
    controller = ScriptedBatchController(clock)
    loop = batch_loop(controller, "abcdefg")
    task = asyncio.create_task(loop.run())
    await clock.advance(0.5)
    assert loop.in_flight == ("a", "b", "c")
    # A key that is woken during its reconcile is reconciled again, once.
    loop.wake("aa")
    await clock.advance(100)
    assert controller.batches == [(0, "abc"), (1, "def"), (2, "ga")]
    assert (loop.in_flight, loop.pending) == ((), 0)
    await cancel_and_wait(task)


async def test_every_key_of_a_batch_has_its_own_outcome() -> None:
    clock = VirtualClock()
    controller = ScriptedBatchController(clock, [{"a": Requeue(30), "b": Conflict("another writer")}])
    counts = {result: reconciles(result) for result in ("done", "again", "conflict")}
    task = asyncio.create_task(batch_loop(controller, "abc").run())
    with capture_logs() as logs:
        await clock.advance(100)
    times = {keys: at for at, keys in controller.batches}
    assert list(times) == ["abc", "b", "a"]
    assert 1 < times["b"] < 1.1
    assert times["a"] == 31
    assert {result: reconciles(result) - count for result, count in counts.items()} == {
        "done": 3,
        "again": 1,
        "conflict": 1,
    }
    assert logs == []
    await cancel_and_wait(task)


async def test_error_fails_every_key_of_the_batch_and_is_logged_once() -> None:
    clock = VirtualClock()
    controller = ScriptedBatchController(clock, [Unavailable("the store does not answer", fix="wait")])
    loop = batch_loop(controller, "abc")
    task = asyncio.create_task(loop.run())
    with capture_logs() as logs:
        await clock.advance(1)
        assert loop.pending == 3
        await clock.advance(100)
    assert sorted("".join(keys for _, keys in controller.batches[1:])) == ["a", "b", "c"]
    assert [(line["key"], line["keys"]) for line in logs] == [("a", 3)]
    await cancel_and_wait(task)


async def test_fenced_batch_ends_the_loop() -> None:
    clock = VirtualClock()
    controller = ScriptedBatchController(clock, [Fenced("the term is over")])
    task = asyncio.create_task(batch_loop(controller, "abcd").run())
    await clock.advance(10)
    assert isinstance(task.exception(), Fenced)
    assert controller.batches == [(0, "abc")]
