"""A node short of memory evicts one workload at a time, BestEffort over its request first."""

from build.objects import a_workload
from build.workload_world import World, running_world

from lattice.presence import Usage

GIB = 1 << 30
ASKS = {"command": ["sleep"], "resources": {"requests": {"memory": "4Gi"}}}
PLAIN = {"command": ["sleep"]}


async def crowded(world: World, gib: int = 10) -> None:
    """A node with three workloads, of which one states a request."""
    agent = await world.join("n1", capacity={"memory": gib * GIB})
    agent.uses = {f"default/{name}": Usage(1, 3 * GIB, 0) for name in ("asks", "low", "high")}
    await world.add(a_workload("asks", containers={"main": ASKS}))
    await world.add(a_workload("low", containers={"main": PLAIN}))
    await world.add(a_workload("high", containers={"main": PLAIN}, priority=5))
    await world.run(30)
    assert {world.node_of(f"default/{name}") for name in ("asks", "low", "high")} == {"n1"}


async def test_best_effort_workload_of_low_priority_leaves_first() -> None:
    async with running_world() as world:
        await crowded(world)
        world.agents["n1"].uses["default/asks"] = Usage(1, 4 * GIB, 0)
        await world.run(15)
        condition = world.condition("n1", "MemoryPressure")
        assert condition is not None
        assert condition.status == "True"
        await world.join("n2")
        await world.run(40)
        assert {name: world.node_of(f"default/{name}") for name in ("asks", "low", "high")} == {
            "asks": "n1",
            "low": "n2",
            "high": "n1",
        }
        message = await world.event_message("Evicted")
        assert message.startswith("NodePressure: Less than 5% of 10Gi memory is available")
        await world.run(100)
        condition = world.condition("n1", "MemoryPressure")
        assert condition is not None
        assert condition.status == "False"


async def test_workload_within_its_request_stays() -> None:
    async with running_world() as world:
        agent = await world.join("n1", capacity={"memory": 4 * GIB})
        agent.uses = {"default/asks": Usage(1, 4 * GIB, 0)}
        await world.add(a_workload("asks", containers={"main": ASKS}))
        await world.run(100)
        condition = world.condition("n1", "MemoryPressure")
        assert condition is not None
        assert condition.status == "True"
        assert world.node_of("default/asks") == "n1"
        assert "Evicted" not in await world.events()


async def test_usage_about_the_threshold_makes_no_condition_flap() -> None:
    """The usage crosses the threshold every 20 seconds for 5 minutes; the condition stays, then ends once."""
    async with running_world() as world:
        agent = await world.join("n1", capacity={"memory": 4 * GIB})
        await world.add(a_workload("asks", containers={"main": ASKS}))
        since = set()
        for number in range(15):
            agent.uses = {"default/asks": Usage(1, (4 if number % 2 == 0 else 3) * GIB, 0)}
            await world.run(20)
            condition = world.condition("n1", "MemoryPressure")
            assert condition is not None
            assert condition.status == "True"
            since.add(condition.last_transition_time)
        assert len(since) == 1
        agent.uses = {"default/asks": Usage(1, 3 * GIB, 0)}
        await world.run(80)
        condition = world.condition("n1", "MemoryPressure")
        assert condition is not None
        assert condition.status == "False"
