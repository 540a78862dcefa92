"""A cluster is scaled down while one of its machines is being created."""

from typing import Any

from build.cluster_world import a_bound_workload, a_cluster, running_cluster_controller

from lattice.controllers.runtime.object_writes import key_of
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.node import LatticeNode
from lattice.store.protocol import Delete


async def test_no_node_for_machine_no_longer_wanted() -> None:
    async with running_cluster_controller() as (world, controller):
        asked, offers = [], world.provider.available_capacity

        async def meanwhile() -> Any:
            if not asked:
                asked.append(True)
                await world.plane.put(a_cluster(1))
                await controller.context.cache(LatticeCluster).wait_for(await world.plane.store.revision())
            return await offers()

        world.provider.available_capacity = meanwhile  # type: ignore[method-assign]
        await world.pay(2)
        await world.scale(2)
        names = []
        for _ in range(30):
            await world.plane.clock.advance(0.5)
            names += [node.metadata.name for node in await world.plane.all(LatticeNode)]
        assert asked
        assert set(names) == {"north-001-nano-1"}


async def test_machine_wanted_again_during_removal_stays_paid() -> None:
    async with running_cluster_controller() as (world, _):
        await world.pay(2)
        await world.scale(2)
        await world.plane.clock.advance(10)
        for number in (1, 2):
            await world.join(f"north-001-nano-{number}")
        here = [
            a_bound_workload(f"w{each}", {"binding": {"node": f"north-001-nano-{each}"}}) for each in (1, 2)
        ]
        await world.plane.put(*here)
        await world.scale(0)
        await world.scale(1)
        before = await world.plane.all(LatticeNode)
        assert [bool(each.metadata.deletion_timestamp) for each in before] == [True, True]
        await world.plane.store.commit([Delete(key_of(each)) for each in here])
        paid = []
        for _ in range(40):
            await world.plane.clock.advance(0.5)
            paid.append(await world.paid())
        after = await world.plane.all(LatticeNode)
        assert {each.metadata.uid for each in after}.isdisjoint(each.metadata.uid for each in before)
        assert (paid[-1], min(paid), len(after)) == (1, 1, 1)


async def test_no_unpaid_machine_is_created() -> None:
    async with running_cluster_controller() as (world, _):
        await world.pay(1)
        await world.scale(1)
        await world.plane.clock.advance(10)
        await world.scale(0)
        await world.plane.clock.advance(10)
        assert (await world.paid(), await world.plane.all(LatticeNode)) == (0, [])
        await world.scale(1)
        await world.plane.clock.advance(10)
        assert await world.plane.all(LatticeNode) == []
        await world.pay(1)
        await world.plane.clock.advance(40)
        assert [node.metadata.name for node in await world.plane.all(LatticeNode)] == ["north-001-nano-1"]
