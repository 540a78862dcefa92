"""A replica that no node takes is heard of: room for it does not wait for the next look at everything."""

import asyncio
import contextlib

from build.service_world import Town, a_town
from build.worlds import a_class, a_pool, a_service

from lattice.kinds.workload import LatticeWorkload


async def passed(town: Town, seconds: int) -> None:
    for _ in range(seconds):
        await town.clock.advance(1)
        await town.caught_up()


async def test_unschedulable_replica_gets_machine_after_grace() -> None:
    async with a_town(
        a_class(),
        a_pool(budget=10_000),
        a_service(replicas=2),
        unschedulable_grace_s=10.0,
        resync_s=3600.0,
    ) as town:
        await town.look()
        await town.bind(per_node=2)
        running = asyncio.create_task(town.services.loop().run())
        try:
            await passed(town, 60)
            assert town.machines() == {"p1-001": {"m": 1}}
            displaced: LatticeWorkload = town.live()[0]
            await town.change(displaced, binding=None, ready=False, actual_state="Pending")
            await town.stick(town.live()[0])
            await passed(town, 5)
            assert town.machines() == {"p1-001": {"m": 1}}, "not before the grace is over"
            await passed(town, 11)
            assert town.machines() == {"p1-001": {"m": 2}}
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
