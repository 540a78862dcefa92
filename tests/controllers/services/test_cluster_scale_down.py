"""A cluster that is to have fewer machines while one more is being made for it."""

from typing import Any

from build.cluster_yard import a_cluster, a_resident, running_cluster_controller

from lattice.controllers.runtime.object_writes import key_of
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.node import LatticeNode
from lattice.store.protocol import Delete


async def test_no_node_for_machine_no_longer_wanted() -> None:
    async with running_cluster_controller() as (yard, controller):
        asked, offers = [], yard.provider.available_capacity

        async def meanwhile() -> Any:
            if not asked:
                asked.append(True)
                await yard.scene.put(a_cluster(1))
                await controller.context.cache(LatticeCluster).wait_for(await yard.scene.store.revision())
            return await offers()

        yard.provider.available_capacity = meanwhile  # type: ignore[method-assign]
        await yard.pays(2)
        await yard.wants(2)
        names = []
        for _ in range(30):
            await yard.scene.clock.advance(0.5)
            names += [each.metadata.name for each in await yard.scene.all(LatticeNode)]
        assert asked
        assert set(names) == {"north-001-nano-1"}


async def test_machine_wanted_again_during_removal_stays_paid() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.pays(2)
        await yard.wants(2)
        await yard.scene.clock.advance(10)
        for number in (1, 2):
            await yard.joined(f"north-001-nano-{number}")
        here = [a_resident(f"w{each}", {"binding": {"node": f"north-001-nano-{each}"}}) for each in (1, 2)]
        await yard.scene.put(*here)
        await yard.wants(0)
        await yard.wants(1)
        before = await yard.scene.all(LatticeNode)
        assert [bool(each.metadata.deletion_timestamp) for each in before] == [True, True]
        await yard.scene.store.commit([Delete(key_of(each)) for each in here])
        paid = []
        for _ in range(40):
            await yard.scene.clock.advance(0.5)
            paid.append(await yard.paid())
        after = await yard.scene.all(LatticeNode)
        assert {each.metadata.uid for each in after}.isdisjoint(each.metadata.uid for each in before)
        assert (paid[-1], min(paid), len(after)) == (1, 1, 1)


async def test_no_unpaid_machine_is_created() -> None:
    async with running_cluster_controller() as (yard, _):
        await yard.pays(1)
        await yard.wants(1)
        await yard.scene.clock.advance(10)
        await yard.wants(0)
        await yard.scene.clock.advance(10)
        assert (await yard.paid(), await yard.scene.all(LatticeNode)) == (0, [])
        await yard.wants(1)
        await yard.scene.clock.advance(10)
        assert await yard.scene.all(LatticeNode) == []
        await yard.pays(1)
        await yard.scene.clock.advance(40)
        assert [each.metadata.name for each in await yard.scene.all(LatticeNode)] == ["north-001-nano-1"]
