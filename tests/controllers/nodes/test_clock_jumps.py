"""Timeouts last their full time when the wall clock is set forward or back."""

import pytest
from build.objects import a_workload
from build.workload_world import running_world

W = "default/w"
JUMPS = [
    pytest.param(3600.0, id="an hour forward"),
    pytest.param(-3600.0, id="an hour back"),
    pytest.param(86400.0 * 400, id="a year"),
]


@pytest.mark.parametrize("jump", JUMPS)
async def test_start_grace_ignores_clock_jump(jump: float) -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.run(1000)  # so the node has been connected for longer than anything may take
        agent.hangs.add(W)
        await world.add(a_workload())
        await world.run(10)
        world.clock.wrong = jump
        await world.run(280)
        assert (world.workload().status.actual_state, world.attempts()) == ("Starting", 0)
        await world.run(15)
        assert (world.workload().status.failure_reason, world.attempts()) == ("START_TIMEOUT", 1)


@pytest.mark.parametrize("jump", JUMPS)
async def test_stop_is_not_resent_early_after_clock_jump(jump: float) -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        await world.run(1000)
        await world.add(a_workload())
        await world.run(10)
        agent.hangs.add(W)
        await world.delete(type(world.workload()), W)
        await world.run(5)
        before = (await world.events("w")).count("WorkloadDeleting")
        world.clock.wrong = jump
        await world.run(50)
        assert (await world.events("w")).count("WorkloadDeleting") == before == 1
        await world.run(10)
        assert (await world.events("w")).count("WorkloadDeleting") == 2


@pytest.mark.parametrize("jump", JUMPS)
async def test_failure_reset_measures_elapsed_time(jump: float) -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        agent.fails[W] = ["RUNTIME_ERROR"]
        await world.add(a_workload())
        await world.run(20)
        assert (world.workload().status.actual_state, world.attempts()) == ("Running", 1)
        world.clock.wrong = jump
        await world.run(560)
        assert world.attempts() == 1
        await world.run(60)
        assert world.attempts() == 0


@pytest.mark.parametrize("jump", JUMPS)
async def test_new_leader_with_skewed_clock_counts_no_failure(jump: float) -> None:
    async with running_world() as world:
        agent = await world.join("n1")
        agent.hangs.add(W)
        await world.add(a_workload())
        await world.run(100)
        world.clock.wrong = jump
        await world.lead("two")
        await world.run(100)
        assert (world.workload().status.actual_state, world.attempts()) == ("Starting", 0)
        await world.run(210)
        assert world.attempts() == 1
