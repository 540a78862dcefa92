"""The simulated event loop controls time and order, and kills a process without running its `finally` blocks."""

import asyncio
import random

import pytest

from lattice.sim.world.event_loop import BusyLoop, Deadlock, Process, SimLoop


def a_loop(seed: int = 1) -> SimLoop:
    return SimLoop(random.Random(seed))


def test_time_advances_only_when_all_tasks_wait() -> None:
    loop = a_loop()

    async def wait() -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert loop.run_until_complete(wait()) == 3600


def test_time_advances_for_a_busy_task() -> None:
    loop = a_loop()

    async def spin() -> float:
        until = loop.time() + 1e-7
        while loop.time() < until:
            await asyncio.sleep(0)
        return loop.time()

    assert loop.run_until_complete(spin()) == 1e-6


def test_tasks_that_never_wait_end_the_run_with_their_names() -> None:
    loop = SimLoop(random.Random(1), max_steps_per_second=1000)

    async def repeat_without_a_wait() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(BusyLoop, match=r"1,000 steps.*repeat_without_a_wait"):
        loop.run_until_complete(repeat_without_a_wait())


def test_many_steps_over_many_seconds_are_no_busy_loop() -> None:
    loop = SimLoop(random.Random(1), max_steps_per_second=1000)

    async def work() -> float:
        for _ in range(20):
            for _ in range(600):
                await asyncio.sleep(0)
            await asyncio.sleep(1)
        return loop.time()

    assert loop.run_until_complete(work()) == pytest.approx(20, abs=0.01)


def order(seed: int) -> list[int]:
    loop, seen = a_loop(seed), list[int]()

    async def note(number: int) -> None:
        seen.append(number)

    async def all_of_them() -> None:
        await asyncio.gather(*(note(number) for number in range(20)))

    loop.run_until_complete(all_of_them())
    return seen


def test_seed_decides_the_order_of_ready_tasks() -> None:
    assert order(1) == order(1)
    assert order(1) != order(2)


def test_killed_process_runs_no_finally() -> None:
    loop, process, seen = a_loop(), Process("p", "h"), list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            seen.append("cleaned up")

    async def story() -> None:
        loop.spawn(process, work())
        await asyncio.sleep(1)
        loop.kill(process)
        await asyncio.sleep(60)

    loop.run_until_complete(story())
    assert seen == []


def test_paused_process_resumes_where_it_was() -> None:
    loop, process, seen = a_loop(), Process("p", "h"), list[float]()

    async def work() -> None:
        await asyncio.sleep(1)
        seen.append(loop.time())

    async def story() -> None:
        loop.spawn(process, work())
        await asyncio.sleep(0.5)
        loop.pause(process)
        await asyncio.sleep(29.5)
        loop.resume(process)
        await asyncio.sleep(1)

    loop.run_until_complete(story())
    assert seen == [30.0]


def test_thread_completes_at_once() -> None:
    loop = a_loop()

    async def aside() -> int:
        return await asyncio.to_thread(lambda: 7)

    assert loop.run_until_complete(aside()) == 7


def test_deadlock_is_an_error() -> None:
    loop = a_loop()
    with pytest.raises(Deadlock):
        loop.run_until_complete(loop.create_future())
