"""A node with an implausible capacity gets no workloads until it reports a plausible one."""

from build.workload_world import World, a_workload, running_world
from msgspec.structs import replace

from lattice.controllers.runtime.object_writes import with_status
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import QUARANTINED, LatticeNode

WHY = "cpu is -1, which is implausible: it must be 0 to 10000000"


async def set_node_conditions(world: World, *conditions: Condition) -> None:
    """Write conditions, as registration does."""
    entry = await world.entry(LatticeNode, "/n1")
    status = world.node("n1").status
    others = tuple(condition for condition in status.conditions if condition.type != QUARANTINED)
    await world.store.commit([with_status(entry, replace(status, conditions=(*others, *conditions)))])


async def test_quarantined_node_gets_no_workloads_and_one_event() -> None:
    async with running_world() as world:
        await world.join("n1")
        await world.run(1)
        await set_node_conditions(
            world, Condition(type=QUARANTINED, status="True", reason="ImpossibleRoom", message=WHY)
        )
        await world.run(1)
        await world.add(a_workload())
        await world.run(100)
        ready = world.condition("n1")
        assert ready is not None
        assert (ready.status, ready.reason, ready.message) == ("False", "Quarantined", WHY)
        assert (await world.events("n1")).count("NodeQuarantined") == 1
        assert world.node_of() == ""
        await set_node_conditions(world)
        await world.run(5)
        assert (await world.events("n1"))[-1] == "NodeReady"
        assert world.node_of() == "n1"
