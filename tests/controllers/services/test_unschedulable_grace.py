"""An unschedulable replica wakes the placement controller after its grace period, before the next resync."""

import asyncio
import contextlib

from build.service_world import RunningFleet, running_fleet
from build.worlds import a_class, a_pool, a_service

from lattice.kinds.workload import LatticeWorkload


async def advance_and_converge(fleet: RunningFleet, seconds: int) -> None:
    for _ in range(seconds):
        await fleet.clock.advance(1)
        await fleet.wait_for_caches()


async def test_unschedulable_replica_gets_machine_after_grace() -> None:
    async with running_fleet(
        a_class(),
        a_pool(budget=10_000),
        a_service(replicas=2),
        unschedulable_grace_s=10.0,
        resync_s=3600.0,
    ) as fleet:
        await fleet.converge()
        await fleet.bind(per_node=2)
        running = asyncio.create_task(fleet.services.loop().run())
        try:
            await advance_and_converge(fleet, 60)
            assert fleet.machines() == {"p1-001": {"m": 1}}
            displaced: LatticeWorkload = fleet.live()[0]
            await fleet.change(displaced, binding=None, ready=False, actual_state="Pending")
            await fleet.mark_unschedulable(fleet.live()[0])
            await advance_and_converge(fleet, 5)
            assert fleet.machines() == {"p1-001": {"m": 1}}, "not before the grace is over"
            await advance_and_converge(fleet, 11)
            assert fleet.machines() == {"p1-001": {"m": 2}}
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
